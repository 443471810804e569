"""Checks of what comes out of quarantine: first, on its own, and without moving the cursor."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND, Quarantined
from ergon_framework.testing.suites.factstore.subject import Subject, new, offsets, same
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)

SIZE = len(new("a").envelope) + len(new("a").fact)


def _aside(s: Subject, *which: int) -> list[Quarantined]:
    """Five facts, of which some were set aside and the others up to the last of them confirmed."""
    s.consumer()
    s.put(*"abcde")
    items = []
    for offset in range(1, max(which) + 1):
        if offset in which:
            items.append(s.set_aside(offset))
        else:
            s.done(offset)
    return items


def _release(s: Subject, *items: Quarantined) -> None:
    for item in items:
        s.store.settle(item.id, "released", reason="mended")


def _states(s: Subject) -> list[tuple[int, str]]:
    return [(item.offset, item.state) for item in s.store.quarantine(state=None)]


@check()
def released_comes_first(s: Subject) -> None:
    """Released facts come before all others, in a page of their own that says so."""
    first, second = _aside(s, 1, 3)
    _release(s, second, first)
    serving = s.serve()
    same((offsets(serving.page.facts), serving.is_released), ([1, 3], True), "facts, is_released")
    same([fact.message_id for fact in serving.page.facts], ["a", "c"], "ids")
    same(serving.consumer.cursor, 3, "the cursor")


@check()
def released_repeats_until_confirmed(s: Subject) -> None:
    """A released fact comes again until it is confirmed; then the others go on."""
    (item,) = _aside(s, 2)
    _release(s, item)
    same([s.served(), s.served()], [[2], [2]], "what comes")
    same(s.store.confirm("c", 2), 2, "the cursor")
    serving = s.serve()
    told = offsets(serving.page.facts), serving.is_released
    same(told, ([3, 4, 5], False), "what comes then, and is_released")


@check()
def confirmed_release_is_settled(s: Subject) -> None:
    """A released fact that was served and confirmed becomes settled."""
    (item,) = _aside(s, 2)
    _release(s, item)
    s.store.confirm("c", s.serve().page.through)
    same(_states(s), [(2, "settled")], "offset and state")


@check()
def confirmation_below_the_cursor_stays_below(s: Subject) -> None:
    """Confirming a released fact does not move the cursor, down or up."""
    (item,) = _aside(s, 1)
    s.done(4)
    _release(s, item)
    s.serve()
    same((s.store.confirm("c", 1), s.served()), (4, [5]), "the cursor, and what comes")


@check()
def unserved_release_is_not_settled(s: Subject) -> None:
    """A confirmation does not settle what was released meanwhile and not yet served."""
    (item,) = _aside(s, 1)
    s.serve()
    _release(s, item)
    s.store.confirm("c", 5)
    same((_states(s), s.served()), ([(1, "released")], [1]), "state, and what comes")


@check()
def part_of_a_release_may_be_confirmed(s: Subject) -> None:
    """Of several released facts, those at or below the confirmed one are settled."""
    items = _aside(s, 1, 2, 3)
    _release(s, *items)
    s.serve()
    s.store.confirm("c", 2)
    wanted = [(1, "settled"), (2, "settled"), (3, "released")]
    same((_states(s), s.served()), (wanted, [3]), "states, and what comes")


@check()
def released_page_is_bounded(s: Subject) -> None:
    """A page of released facts obeys its limits, and the rest comes after."""
    items = _aside(s, 1, 2, 3)
    _release(s, *items)
    same(s.served(limit=2), [1, 2], "with a limit")
    same(offsets(s.serve("c", 9, SIZE).page.facts), [1], "with few bytes")
    same(offsets(s.serve("c", 9, 1).page.facts), [1], "with too few bytes for one")
    s.served(limit=2)
    s.store.confirm("c", 2)
    same(s.served(), [3], "the rest")


@check()
def released_may_fail_again(s: Subject) -> None:
    """A released fact that fails again goes back into quarantine, and is one item still."""
    (item,) = _aside(s, 2)
    _release(s, item)
    s.serve()
    again = s.set_aside(2, reason="crash_loop", attempts=9)
    told = again.offset, again.state, again.reason, again.attempts
    same(told, (2, "quarantined", "crash_loop", 9), "offset, state, reason, attempts")
    same(len([e for e in s.store.quarantine() if e.offset == 2]), 1, "open items of that fact")
    same((s.store.consumer("c").cursor, s.served()), (2, [3, 4, 5]), "cursor, what comes")


@check()
def released_again_is_served_again(s: Subject) -> None:
    """A fact that was released, failed and is released once more comes once more."""
    (item,) = _aside(s, 2)
    _release(s, item)
    s.serve()
    again = s.set_aside(2)
    _release(s, again)
    s.store.confirm("c", 2)
    same(s.served(), [2], "what comes: it was not served since")


@check()
def quarantined_is_not_set_aside_again(s: Subject) -> None:
    """A fact that lies in quarantine and was not released is not the next one."""
    _aside(s, 2)
    s.refused(lambda: s.set_aside(2), "not_next")


@check()
def released_after_a_seek_skips_nothing(s: Subject) -> None:
    """A released fact above the cursor, after a seek back, does not take the cursor past others."""
    (item,) = _aside(s, 3)
    s.store.seek("c", 1, reason="again")
    _release(s, item)
    seen = []
    for _ in range(10):
        serving = s.serve(limit=1)
        seen += offsets(serving.page.facts)
        if not serving.page.facts:
            break
        s.store.confirm("c", serving.page.through)
    same(sorted(set(seen)), [2, 3, 4, 5], "everything that came")
    same(_states(s), [(3, "settled")], "offset and state")


@check()
def failing_again_after_a_seek_is_one_item(s: Subject) -> None:
    """A fact that was set aside, comes again after a seek and fails again is one item still."""
    for state in ("quarantined", "released"):
        s.put("a" + state, "b" + state)
        s.consumer(state)
        item = s.set_aside(1, state)
        s.store.seek(state, 0, reason="again")
        s.store.settle(item.id, state)
        same(s.set_aside(1, state, attempts=9).id, item.id, f"the item, when it was {state}")
        found = [(e.state, e.attempts) for e in s.store.quarantine(state, None)]
        same(found, [("quarantined", 9)], f"items, when it was {state}")
        expect(1 not in s.served(state), f"it came again, when it was {state}")


@check()
def release_is_for_its_consumer(s: Subject) -> None:
    """What is released to one consumer does not come to another."""
    s.consumer("other")
    (item,) = _aside(s, 1)
    s.done(5, "other")
    _release(s, item)
    same((s.served("other"), s.served()), ([], [1]), "what they get")


@check()
def released_needs_the_lease(s: Subject) -> None:
    """A page of released facts takes the lease like any other."""
    (item,) = _aside(s, 1)
    _release(s, item)
    s.serve(holder="one")
    same(s.store.consumer("c").holder, "one", "the holder")
    same(s.store.confirm("c", 1, holder="one"), 1, "the cursor")


@check()
def lost_release_is_not_settled(s: Subject) -> None:
    """A released fact that is lost before it was given out is not settled by passing it."""
    s.consumer()
    s.put(*"abc")
    item = s.set_aside(1)
    s.store.seek("c", 0, reason="again")
    _release(s, item)
    s.store.truncate(OUTBOUND, 1, loss_reason="disk")
    s.done(3)
    same(_states(s), [(1, "released")], "items")
