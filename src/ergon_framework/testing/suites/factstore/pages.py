"""Checks of reading: pages, views and the log in figures."""

from __future__ import annotations

from ergon_framework.core.zone_link import Frontier
from ergon_framework.ports.factstore import OUTBOUND, LogInfo
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    PLENTY,
    FactStoreSubject,
    new,
    offsets,
    other,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)

SIZE = len(new("a").envelope) + len(new("a").fact)


def _mixed(s: FactStoreSubject) -> None:
    """Facts to b at 1, 3, 4 and 8; facts to c at the offsets between, the last at 10."""
    for n in range(1, 11):
        s.put(f"id-{n}", to_zone="b" if n in {1, 3, 4, 8} else "c")


@check()
def page_starts_after(s: FactStoreSubject) -> None:
    """A page holds what lies above the given offset, in order."""
    s.put(*"abcde")
    same(offsets(s.page(2).facts), [3, 4, 5], "offsets after 2")
    same(offsets(s.page(0).facts), [1, 2, 3, 4, 5], "offsets after 0")


@check()
def page_is_bounded_in_number(s: FactStoreSubject) -> None:
    """A page holds at most as many facts as asked for, and says how far it goes."""
    s.put(*"abcde")
    page = s.page(1, limit=2)
    same((offsets(page.facts), page.through, page.head), ([2, 3], 3, 5), "facts, through, head")


@check()
def page_is_bounded_in_bytes(s: FactStoreSubject) -> None:
    """A page ends before the fact that would take it above the given bytes."""
    s.put(*"abcde")
    for most, wanted in ((2 * SIZE, 2), (3 * SIZE - 1, 2), (3 * SIZE, 3)):
        page = s.page(0, max_bytes=most)
        found = len(page.facts), page.through
        same(found, (wanted, wanted), f"facts and through in {most} bytes of {SIZE} each")


@check()
def large_fact_still_goes_out(s: FactStoreSubject) -> None:
    """A fact larger than a page comes in a page of its own."""
    s.put("a")
    s.put("b", fact=b"x" * 10_000)
    s.put("c")
    same(offsets(s.page(0, max_bytes=2 * SIZE).facts), [1], "before it")
    same(offsets(s.page(1, max_bytes=2 * SIZE).facts), [2], "itself")
    same(offsets(s.page(0, max_bytes=0).facts), [1], "with no bytes at all")


@check()
def empty_page(s: FactStoreSubject) -> None:
    """At the head, and in an empty log, a page is empty and reaches the head."""
    page = s.page()
    same((page.facts, page.through, page.head), ([], 0, 0), "facts, through, head of nothing")
    s.put("a", "b")
    page = s.page(2)
    same((page.facts, page.through, page.head), ([], 2, 2), "facts, through, head at the head")


@check()
def unknown_log_is_empty(s: FactStoreSubject) -> None:
    """A log that has not come into being reads as an empty one, and reading does not make it."""
    page = s.page(log=INBOX)
    same((page.facts, page.through, page.head), ([], 0, 0), "facts, through, head")
    same([log.name for log in s.store.logs()], [OUTBOUND], "logs")


@check()
def view_shows_its_own(s: FactStoreSubject) -> None:
    """A view holds the facts to one zone, in order."""
    _mixed(s)
    same(offsets(s.page(to_zone="b").facts), [1, 3, 4, 8], "facts to b")
    same(offsets(s.page(3, to_zone="c").facts), [5, 6, 7, 9, 10], "facts to c after 3")
    same(s.page(to_zone="d").facts, [], "facts to nobody known")


@check()
def view_is_exact(s: FactStoreSubject) -> None:
    """Zones whose names look alike have views of their own."""
    s.put("1", to_zone="b")
    s.put("2", to_zone="B")
    s.put("3", to_zone="b ")
    s.put("4", to_zone="%")
    for zone, wanted in (("b", [1]), ("B", [2]), ("b ", [3]), ("%", [4])):
        same(offsets(s.page(to_zone=zone).facts), wanted, f"facts to {zone!r}")


@check()
def each_fact_names_the_one_before(s: FactStoreSubject) -> None:
    """``previous`` is the offset before in the same view, also across pages; 0 for the first."""
    _mixed(s)
    found = [fact.previous for fact in s.page(to_zone="b").facts]
    same(found, [0, 1, 3, 4], "previous in the view")
    same([f.previous for f in s.page(3, to_zone="b").facts], [3, 4], "previous after 3")
    same([f.previous for f in s.page(6, to_zone="b").facts], [4], "previous after 6")
    same([f.previous for f in s.page().facts], list(range(10)), "previous in the whole log")


@check()
def through_is_honest(s: FactStoreSubject) -> None:
    """Nothing else lies in the view at or below ``through``, and it goes on above."""
    _mixed(s)
    for after in range(11):
        for limit in (1, 2, 3, 9):
            page = s.page(after, limit, to_zone="b")
            told = [n for n in (1, 3, 4, 8) if after < n <= page.through]
            same(offsets(page.facts), told, f"facts after {after} through {page.through}")
            expect(after <= page.through <= page.head, f"through {page.through} after {after}")


@check()
def through_reaches_the_head(s: FactStoreSubject) -> None:
    """When a view has nothing more, a page reaches the head of the log."""
    _mixed(s)
    same(s.page(0, 9, to_zone="b").through, 10, "through of the whole view")
    same(s.page(8, to_zone="b").through, 10, "through after its last fact")
    same(s.page(0, to_zone="d").through, 10, "through of an empty view")


@check()
def pages_join(s: FactStoreSubject) -> None:
    """A reader that goes on from ``through`` meets every fact of its view once, in order."""
    _mixed(s)
    for limit, most in ((1, PLENTY), (2, PLENTY), (9, 2 * SIZE)):
        frontier, seen = Frontier(), []
        while frontier.offset < 10:
            page = s.page(frontier.offset, limit, most, to_zone="b")
            for fact in page.facts:
                expect(frontier.joins(fact.previous, fact.offset), f"{fact.offset} does not join")
                frontier = frontier.passed(fact.offset)
                seen.append(fact.offset)
            expect(page.through > frontier.offset or page.facts, "the reader is stuck")
            frontier = frontier.passed(page.through)
        same(seen, [1, 3, 4, 8], "offsets met")


@check()
def refused_facts_are_not_read(s: FactStoreSubject) -> None:
    """A reader never sees what was refused."""
    s.put("a")
    s.append(other("a"))
    s.append(new("b"), capacity=1)
    same(s.ids(), ["a"], "what is read")


@check()
def chain_grows_with_each_fact(s: FactStoreSubject) -> None:
    """The chain at an offset is known while it is kept, differs from the others, and stays."""
    s.put(*"abc")
    found = [s.page(n).chain for n in (1, 2, 3)]
    expect(all(found) and len(set(found)) == 3, "chains are missing or alike")
    s.put(*"de")
    same([s.page(n).chain for n in (1, 2, 3)], found, "chains later")
    same([s.page(n, to_zone="z").chain for n in (1, 2, 3)], found, "chains through a view")


@check()
def chain_depends_on_what_was_before(s: FactStoreSubject) -> None:
    """Logs that differ once differ from there on in their chains."""
    for log, first in ((OUTBOUND, new("a")), (INBOX, other("a"))):
        s.append(first, new("b"), log=log)
    chains = [s.page(2, log=log).chain for log in (OUTBOUND, INBOX)]
    expect(chains[0] != chains[1], "chains of different logs are alike")


@check()
def page_tells_the_chain_at_its_end(s: FactStoreSubject) -> None:
    """A page carries the chain at ``through``, which is where the next one begins."""
    _mixed(s)
    for after, limit in ((0, 3), (2, 1), (0, 99)):
        for zone in (None, "b"):
            page = s.page(after, limit, to_zone=zone)
            same(page.end_chain, s.page(page.through).chain, f"chain at {page.through}")
    expect(s.page().end_chain, "there is no chain at the head")


@check()
def outbound_is_always_there(s: FactStoreSubject) -> None:
    """A new store has an empty ``outbound`` log."""
    same(s.store.logs(), [LogInfo(OUTBOUND, 0, 1, 0, None)], "logs")


@check()
def logs_are_listed(s: FactStoreSubject) -> None:
    """Every log is listed, ``outbound`` first; one comes into being with a fact or a consumer."""
    s.put("a", log="inbound:aa")
    s.consumer("c", "inbound:bb")
    s.put("a", log="inbound:0")
    names = [log.name for log in s.store.logs()]
    same(names[0], OUTBOUND, "the first")
    same(sorted(names[1:]), ["inbound:0", "inbound:aa", "inbound:bb"], "the others")


@check()
def logs_are_counted(s: FactStoreSubject) -> None:
    """A log tells its head, its first kept offset, its size and when it last grew."""
    s.consumer()
    s.put("a", "b")
    s.clock.forward(5.0)
    s.put("c")
    at = s.clock()
    s.done(2)
    s.clock.forward(5.0)
    s.again("a")
    same(_log(s)[:3], (3, 1, 3 * SIZE), "head, first, size")
    last_at = _log(s)[3]
    expect(last_at and abs(last_at - at) < 0.002, f"last_at is {last_at}, expected {at}")
    s.store.truncate(OUTBOUND, 2)
    same(_log(s)[:3], (3, 3, SIZE), "head, first, size after truncation")
    s.done(3)
    s.store.truncate(OUTBOUND, 3)
    same(_log(s)[:3], (3, 4, 0), "head, first, size when all is dropped")


def _log(s: FactStoreSubject) -> tuple[int, int, int, float | None]:
    log = s.store.logs()[0]
    return log.head, log.first, log.size, log.last_at
