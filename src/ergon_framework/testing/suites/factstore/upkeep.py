"""Checks of the rest: bells for waiting readers, closing, and what an acknowledgement means."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    Subject,
    new,
    offsets,
    other,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

BRIEF = 0.05  # seconds in which a call that must not come would have come


def _wakes(s: Subject, call: Callable[[], Any], wait: float) -> bool:
    """Whether somebody who waits is woken by a call."""
    woken = threading.Event()
    s.store.subscribe(woken.set)
    try:
        s.together([call])
        return woken.wait(wait)
    finally:
        s.store.unsubscribe(woken.set)


@check()
def appends_wake(s: Subject) -> None:
    """Whoever waits for facts is woken when another thread appends one."""
    expect(_wakes(s, lambda: s.put("a"), s.patience), "nobody was woken")
    expect(_wakes(s, lambda: s.put("b", log=INBOX), s.patience), "nobody was woken by another log")


@check()
def received_facts_wake(s: Subject) -> None:
    """Whoever waits for facts is woken when some come from a peer."""
    expect(_wakes(s, lambda: s.receive(sent("a", 1)), s.patience), "nobody was woken")


@check()
def woken_sees_the_facts(s: Subject) -> None:
    """Who is woken finds what woke it, from within the call."""
    seen: list[list[int]] = []
    woken = threading.Event()

    def wake() -> None:
        seen.append(offsets(s.page().facts))
        woken.set()

    s.store.subscribe(wake)
    s.put("a", "b")
    expect(woken.wait(s.patience), "nobody was woken")
    same(seen[0], [1, 2], "what was there")
    s.store.unsubscribe(wake)


@check()
def everybody_is_woken(s: Subject) -> None:
    """All who wait are woken, not just one."""
    events = [threading.Event() for _ in range(3)]
    for event in events:
        s.store.subscribe(event.set)
    s.put("a")
    same([event.wait(s.patience) for event in events], [True] * 3, "woken")
    for event in events:
        s.store.unsubscribe(event.set)


@check()
def nothing_new_wakes_nobody(s: Subject) -> None:
    """Whoever waits sleeps on when nothing was added."""
    s.consumer()
    s.put("a")
    calls: dict[str, Callable[[], Any]] = {
        "a duplicate": lambda: s.again("a"),
        "a conflict": lambda: s.one(other("a")),
        "a refusal": lambda: s.one(new("b"), capacity=1),
        "a page": lambda: s.done(1),
        "an empty page of a peer": s.receive,
        "a truncation": lambda: s.store.truncate(OUTBOUND, 1),
    }
    for what, call in calls.items():
        expect(not _wakes(s, call, BRIEF), f"{what} woke somebody")


@check()
def unsubscribed_sleeps(s: Subject) -> None:
    """Who no longer wants to know is not told; who never did may say so too."""
    woken = threading.Event()
    s.store.unsubscribe(woken.set)
    s.store.subscribe(woken.set)
    s.store.unsubscribe(woken.set)
    s.put("a")
    expect(not woken.wait(BRIEF), "it was woken")


# ---- closing ------------------------------------------------------------------------------------


@check()
def acknowledgement_is_a_sentence(s: Subject) -> None:
    """The store says in one sentence what an acknowledged append survives."""
    text = s.store.acknowledgement
    expect(text.endswith(".") and len(text.split()) >= 5, f"it says {text!r}")


@check()
def closes_twice(s: Subject) -> None:
    """Closing a second time is no error."""
    s.put("a")
    s.store.close()
    s.store.close()


@check()
def closed_store_refuses(s: Subject) -> None:
    """A closed store takes no facts and gives none: it says so instead of losing them."""
    s.consumer()
    s.put("a")
    s.store.close()
    for what, call in (("append", lambda: s.put("b")), ("serve", s.serve), ("page", s.page)):
        error = s.refusal(call)
        expect(isinstance(error, StoreError), f"{what}: no StoreError, but {error!r}")


@check()
def answers_are_copies(s: Subject) -> None:
    """What a caller does to an answer does not reach the store."""
    s.consumer()
    s.put("a", "b")
    page, one = s.page(), s.store.consumer("c")
    if not page.facts:
        fail("nothing was read")
    page.facts[0].fact = b"scribbled"
    page.facts.clear()
    one.cursor = 2
    same((s.page().facts[0].fact, s.served()), (new("a").fact, [1, 2]), "fact, what comes")


@check()
def facts_are_copied_in(s: Subject) -> None:
    """What a caller does to a fact after it was acknowledged does not reach the store."""
    fact = new("a")
    s.append(fact)
    fact.fact, fact.message_id = b"scribbled", "b"
    same((s.page().facts[0].fact, s.ids()), (new("a").fact, ["a"]), "fact and id")
