"""Checks of capacity: a full log refuses, and still answers for what it has."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND, Appended, Conflict, Full
from ergon_framework.testing.suites.factstore.subject import INBOX, Subject, new, other, same
from ergon_framework.testing.suites.framework import Check, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

SIZE = len(new("a").envelope) + len(new("a").fact)


@check()
def full_log_refuses(s: Subject) -> None:
    """A fact that would take the log above its capacity is refused, and not stored."""
    s.put("a", "b")
    same(s.one(new("c"), capacity=3 * SIZE - 1), Full(2 * SIZE), "the answer")
    same((s.ids(), s.store.find("plant-a", "c")), (["a", "b"], None), "what is there")


@check()
def log_may_be_filled(s: Subject) -> None:
    """A fact that just fits is stored."""
    s.put("a", "b")
    same(s.one(new("c"), capacity=3 * SIZE), Appended(3), "the answer")


@check()
def full_log_answers_duplicates(s: Subject) -> None:
    """What is there already is answered even when the log is full; so is a conflict."""
    s.put("a", "b")
    found = s.append(new("b"), other("a"), new("c"), capacity=1)
    same([type(each) for each in found], [Appended, Conflict, Full], "kinds of outcomes")


@check()
def batch_fills_item_by_item(s: Subject) -> None:
    """In one call facts are taken as long as they fit."""
    found = s.append(*(new(each) for each in "abcd"), capacity=2 * SIZE)
    same([type(each) for each in found], [Appended, Appended, Full, Full], "kinds of outcomes")
    same(s.ids(), ["a", "b"], "what the log holds")


@check()
def nothing_overtakes_in_a_full_log(s: Subject) -> None:
    """In one call a small fact does not enter behind a large one that did not fit."""
    large = new("b")
    large.fact = large.fact + b" " * SIZE
    found = s.append(new("a"), large, new("c"), capacity=2 * SIZE)
    same([type(each) for each in found], [Appended, Full, Full], "kinds of outcomes")


@check()
def refused_fact_may_come_again(s: Subject) -> None:
    """A fact that was refused by a full log is taken when there is room."""
    s.one(new("a"), capacity=1)
    same(s.put("a"), [1], "its offset")


@check()
def dropping_makes_room(s: Subject) -> None:
    """What was truncated no longer counts."""
    s.consumer()
    s.put("a", "b")
    s.done(2)
    s.store.truncate(OUTBOUND, 1)
    same(s.one(new("c"), capacity=2 * SIZE), Appended(3), "the answer")


@check()
def logs_fill_on_their_own(s: Subject) -> None:
    """The capacity of one log is not used up by another."""
    s.put("a", "b", log=INBOX)
    same(s.one(new("a"), capacity=SIZE), Appended(1), "the answer")
