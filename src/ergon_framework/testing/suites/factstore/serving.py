"""Checks of serving and confirming: the same page until it is confirmed, cursors that stay."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore.subject import Subject, new, offsets, same
from ergon_framework.testing.suites.framework import Check, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

SIZE = len(new("a").envelope) + len(new("a").fact)


@check()
def page_repeats_until_confirmed(s: Subject) -> None:
    """Without a confirmation the same page comes again."""
    s.consumer()
    s.put(*"abcde")
    first = s.serve(limit=2).page
    same(offsets(first.facts), [1, 2], "offsets")
    same(s.serve(limit=2).page, first, "the page again")
    s.store.confirm("c", 2)
    same(s.served(limit=2), [3, 4], "offsets after the confirmation")


@check()
def prefix_may_be_confirmed(s: Subject) -> None:
    """A consumer may confirm the good part of a page, and gets the rest again."""
    s.consumer()
    s.put(*"abcd")
    s.serve(limit=3)
    same((s.store.confirm("c", 1), s.served()), (1, [2, 3, 4]), "cursor, and what comes")


@check()
def served_page_is_bounded(s: Subject) -> None:
    """A page for a consumer obeys its limits as any other."""
    s.consumer()
    s.put(*"abcde")
    same(offsets(s.serve("c", 3).page.facts), [1, 2, 3], "with a limit")
    same(offsets(s.serve("c", 9, 2 * SIZE).page.facts), [1, 2], "with few bytes")
    same(offsets(s.serve("c", 9, 1).page.facts), [1], "with too few bytes for one")


@check()
def consumer_sees_its_view(s: Subject) -> None:
    """A consumer of a view is given the facts to its zone, and passes the others."""
    s.consumer(to_zone="b")
    for n, zone in enumerate("cbcbcc", 1):
        s.put(f"id-{n}", to_zone=zone)
    serving = s.serve()
    same([(f.previous, f.offset) for f in serving.page.facts], [(0, 2), (2, 4)], "facts")
    same((serving.page.through, serving.consumer.lag), (6, 2), "through and lag")
    same(s.store.confirm("c", serving.page.through), 6, "the cursor")


@check()
def empty_view_can_be_passed(s: Subject) -> None:
    """A page without facts may be confirmed up to its ``through``: retention waits for it."""
    s.consumer(to_zone="nobody")
    s.put(*"abc")
    page = s.serve().page
    same((page.facts, page.through), ([], 3), "facts and through")
    same(s.store.confirm("c", 3), 3, "the cursor")
    same(s.store.truncate(OUTBOUND, 3), 3, "dropped")


@check()
def consumers_are_independent(s: Subject) -> None:
    """Each consumer has a cursor of its own."""
    s.consumer("a")
    s.consumer("b")
    s.put(*"xyz")
    s.done(2, "a")
    same((s.served("a"), s.served("b")), ([3], [1, 2, 3]), "what they get")


@check()
def serving_tells_where_it_stands(s: Subject) -> None:
    """A page comes with its consumer, the head and the chain at the cursor."""
    s.consumer()
    s.put(*"abc")
    s.done(1)
    serving = s.serve(limit=1)
    same((serving.consumer.cursor, serving.consumer.name), (1, "c"), "cursor and name")
    same((serving.page.head, serving.page.chain), (3, s.page(1).chain), "head and chain")
    same(serving.is_released, False, "is_released")


# ---- confirming ---------------------------------------------------------------------------------


@check()
def confirming_again_is_fine(s: Subject) -> None:
    """A confirmation that is repeated answers the cursor."""
    s.consumer()
    s.put(*"abc")
    s.serve()
    same([s.store.confirm("c", 2) for _ in range(3)], [2, 2, 2], "cursors")


@check()
def cursor_never_goes_down(s: Subject) -> None:
    """A late confirmation of less changes nothing and answers the cursor."""
    s.consumer()
    s.put(*"abc")
    s.done(3)
    same([s.store.confirm("c", n) for n in (2, 1, 0)], [3, 3, 3], "cursors")
    same((s.store.consumer("c").cursor, s.served()), (3, []), "the cursor, and what comes")


@check()
def unserved_is_not_confirmed(s: Subject) -> None:
    """What was never served cannot be confirmed, though it may be there."""
    s.consumer()
    s.put(*"abcd")
    s.refused(lambda: s.store.confirm("c", 1), "not_served")
    s.serve(limit=2)
    s.refused(lambda: s.store.confirm("c", 3), "not_served")
    same(s.store.consumer("c").cursor, 0, "the cursor")
    s.refused(lambda: s.store.confirm("c", 99), "not_served")
    same(s.store.confirm("c", 2), 2, "the cursor, when it was served")


@check()
def served_is_remembered(s: Subject) -> None:
    """A smaller page later does not take back what was served before."""
    s.consumer()
    s.put(*"abcd")
    s.serve(limit=3)
    s.serve(limit=1)
    same(s.store.consumer("c").served, 3, "served")
    same(s.store.confirm("c", 3), 3, "the cursor")


@check()
def served_is_per_consumer(s: Subject) -> None:
    """What one consumer was served, another cannot confirm."""
    s.consumer("a")
    s.consumer("b")
    s.put("x")
    s.serve("a")
    s.refused(lambda: s.store.confirm("b", 1), "not_served")


@check()
def end_counts_as_confirmed(s: Subject) -> None:
    """A consumer created at the end may confirm its cursor, though it was served nothing."""
    s.put(*"abc")
    s.consumer(from_end=True)
    same(s.store.confirm("c", 3), 3, "the cursor")
