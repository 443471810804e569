"""Checks of the quarantine: setting facts aside, and delivering those that were released."""

from __future__ import annotations

from functools import partial

from ergon_framework.errors import BoundaryNotFoundError
from ergon_framework.ports.factstore import OUTBOUND, Quarantined
from ergon_framework.testing.suites.factstore.under_test import FactStoreSubject, new, offsets, same
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


@check()
def set_aside_fact_makes_way(s: FactStoreSubject) -> None:
    """The next fact goes into quarantine and the cursor past it; the others come."""
    s.consumer()
    s.put(*"abc")
    s.serve()
    s.set_aside(1)
    same((s.store.consumer("c").cursor, s.served()), (1, [2, 3]), "cursor, what comes")
    same(s.ids(), ["a", "b", "c"], "the log")


@check()
def item_keeps_every_field(s: FactStoreSubject) -> None:
    """An item tells whose it is, where it lies, what went wrong, how often and when."""
    s.consumer()
    s.put(*"ab")
    s.done(1)
    s.clock.forward(5.0)
    item = s.set_aside(2, reason="crash_loop", message="exit 9", attempts=7)
    told = item.consumer, item.log, item.offset, item.reason, item.message, item.attempts
    same(told, ("c", OUTBOUND, 2, "crash_loop", "exit 9", 7), "fields")
    same((item.state, item.envelope, item.fact), ("quarantined", b"", b""), "state, payload")
    expect(abs(item.at - s.clock()) < 0.002, f"it is dated {item.at}")
    same(s.store.quarantine(), [item], "the quarantine")


@check()
def only_the_next_is_set_aside(s: FactStoreSubject) -> None:
    """Any other fact than the next is refused, and nothing moves."""
    s.consumer()
    s.put(*"abc")
    s.done(1)
    for offset in (0, 1, 3, 4, 99):
        s.refused(partial(s.set_aside, offset), "not_next")
    same((s.store.quarantine(), s.store.consumer("c").cursor), ([], 1), "quarantine, cursor")


@check()
def next_is_next_in_the_view(s: FactStoreSubject) -> None:
    """In a view, the next fact is the next one to its zone."""
    s.consumer(to_zone="b")
    for n, zone in enumerate("ccbcb", 1):
        s.put(f"id-{n}", to_zone=zone)
    for offset in (1, 2, 5):
        s.refused(partial(s.set_aside, offset), "not_next")
    s.set_aside(3)
    same((s.store.consumer("c").cursor, s.served()), (3, [5]), "cursor, what comes")


@check()
def others_still_get_it(s: FactStoreSubject) -> None:
    """What one consumer set aside, another is given all the same."""
    s.consumer("a")
    s.consumer("b")
    s.put(*"xy")
    s.set_aside(1, "a")
    same((s.served("a"), s.served("b")), ([2], [1, 2]), "what they get")


@check()
def quarantine_is_listed(s: FactStoreSubject) -> None:
    """Items are listed oldest first, of one consumer or all, in one state or any."""
    s.consumer("a")
    s.consumer("b")
    s.put(*"xyz")
    first, second, third = (s.set_aside(*each) for each in ((1, "b"), (1, "a"), (2, "b")))
    same([e.id for e in s.store.quarantine()], [first.id, second.id, third.id], "all")
    same([e.id for e in s.store.quarantine("b")], [first.id, third.id], "of one consumer")
    s.store.settle(first.id, "discarded")
    same([e.id for e in s.store.quarantine("b")], [third.id], "still in quarantine")
    same([e.id for e in s.store.quarantine(state="discarded")], [first.id], "discarded")
    same(len(s.store.quarantine(state=None)), 3, "in any state")
    same(s.store.quarantine("nobody", None), [], "of an unknown consumer")


@check()
def set_aside_fact_may_be_confirmed_past(s: FactStoreSubject) -> None:
    """After a fact was set aside, the rest of its page is confirmed as ever."""
    s.consumer()
    s.put(*"abc")
    s.serve()
    s.store.confirm("c", 1)
    s.set_aside(2)
    same((s.store.confirm("c", 3), s.served()), (3, []), "the cursor, and what comes")
    same([e.offset for e in s.store.quarantine()], [2], "the quarantine")


@check()
def unserved_fact_may_be_set_aside(s: FactStoreSubject) -> None:
    """A fact may be set aside that was not served, as an operator would do."""
    s.consumer()
    s.put(*"ab")
    s.set_aside(1)
    same((s.store.confirm("c", 1), s.served()), (1, [2]), "a confirmation, and what comes")


# ---- settling -----------------------------------------------------------------------------------


def _item(s: FactStoreSubject, *states: str) -> int:
    """An item that has gone through these states."""
    if not s.store.consumers():
        s.consumer()
    head = s.put(f"id-{s.head()}")[0]
    s.done(head - 1)
    item = s.set_aside(head)
    for state in states:
        s.store.settle(item.id, state)
    return item.id


@check()
def items_go_their_ways(s: FactStoreSubject) -> None:
    """From quarantine to released, discarded or settled; from released to the latter two."""
    ways = "released", "discarded", "settled", "released discarded", "released settled"
    for states in map(str.split, ways):
        number = _item(s, *states)
        found = [e.state for e in s.store.quarantine(state=None) if e.id == number]
        same(found, [states[-1]], f"the state after {' and '.join(states)}")


@check()
def same_way_again_is_fine(s: FactStoreSubject) -> None:
    """An operator that repeats itself is answered with the item as it is."""
    for state in ("released", "discarded", "settled"):
        number = _item(s, state)
        same(s.store.settle(number, state).state, state, "the state")


@check()
def released_may_be_put_back(s: FactStoreSubject) -> None:
    """What was released and cannot be delivered after all goes back into quarantine."""
    number = _item(s, "released")
    same(s.store.settle(number, "quarantined").state, "quarantined", "its state")
    same([each.id for each in s.store.quarantine()], [number], "what is set aside")


@check()
def wrong_ways_are_refused(s: FactStoreSubject) -> None:
    """What is discarded or settled stays so."""
    for states, then in (
        (["discarded"], ("released", "settled", "quarantined")),
        (["settled"], ("released", "discarded", "quarantined")),
        ([], ("nonsense", "")),
    ):
        number = _item(s, *states)
        for state in then:
            s.refused(partial(s.store.settle, number, state), "wrong_state")
        found = [e.state for e in s.store.quarantine(state=None) if e.id == number]
        same(found, states or ["quarantined"], "the state in the end")


@check()
def unknown_item(s: FactStoreSubject) -> None:
    """An item that is not there cannot be settled."""
    number = _item(s)
    call = lambda: s.store.settle(number + 1000, "released")  # noqa: E731
    s.refused(call, "item_not_found", "not_found", BoundaryNotFoundError)


@check()
def settling_answers_the_item(s: FactStoreSubject) -> None:
    """Whoever settles an item gets it back in its new state, everything else unchanged."""
    number = _item(s)
    before = s.store.quarantine()[0]
    item = s.store.settle(number, "discarded", reason="a test fact")
    same(item.state, "discarded", "the state")
    told = [(e.id, e.consumer, e.log, e.offset, e.attempts) for e in (before, item)]
    same(told[1], told[0], "id, consumer, log, offset, attempts")


@check()
def discarded_does_not_come(s: FactStoreSubject) -> None:
    """A discarded or settled item is not delivered again."""
    _item(s, "discarded")
    _item(s, "settled")
    same(s.served(), [], "what comes")


@check()
def operators_settle_in_the_journal(s: FactStoreSubject) -> None:
    """Releasing and discarding are written down with their reasons."""
    s.store.settle(_item(s), "released", reason="the parser is fixed")
    s.store.settle(_item(s), "discarded", reason="a test fact")
    texts = [text for _, _, text in s.store.journal()]
    for reason in ("the parser is fixed", "a test fact"):
        expect(any(reason in text for text in texts), f"{reason!r} is not in {texts}")


@check()
def ids_of_items_are_not_reused(s: FactStoreSubject) -> None:
    """An item's number never stands for another one, not even when its consumer is gone."""
    first = _item(s)
    s.store.delete_consumer("c")
    expect(_item(s) != first, f"{first} was given twice")


SIZE = len(new("a").envelope) + len(new("a").fact)


def _aside(s: FactStoreSubject, *which: int) -> list[Quarantined]:
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


def _release(s: FactStoreSubject, *items: Quarantined) -> None:
    for item in items:
        s.store.settle(item.id, "released", reason="fixed")


def _states(s: FactStoreSubject) -> list[tuple[int, str]]:
    return [(item.offset, item.state) for item in s.store.quarantine(state=None)]


@check()
def released_comes_first(s: FactStoreSubject) -> None:
    """Released facts come before all others, in a page of their own that says so."""
    first, second = _aside(s, 1, 3)
    _release(s, second, first)
    serving = s.serve()
    same((offsets(serving.page.facts), serving.is_released), ([1, 3], True), "facts, is_released")
    same([fact.message_id for fact in serving.page.facts], ["a", "c"], "ids")
    same(serving.consumer.cursor, 3, "the cursor")


@check()
def released_repeats_until_confirmed(s: FactStoreSubject) -> None:
    """A released fact comes again until it is confirmed; then the others go on."""
    (item,) = _aside(s, 2)
    _release(s, item)
    same([s.served(), s.served()], [[2], [2]], "what comes")
    same(s.store.confirm("c", 2), 2, "the cursor")
    serving = s.serve()
    told = offsets(serving.page.facts), serving.is_released
    same(told, ([3, 4, 5], False), "what comes then, and is_released")


@check()
def confirmed_release_is_settled(s: FactStoreSubject) -> None:
    """A released fact that was served and confirmed becomes settled."""
    (item,) = _aside(s, 2)
    _release(s, item)
    s.store.confirm("c", s.serve().page.through)
    same(_states(s), [(2, "settled")], "offset and state")


@check()
def confirmation_below_the_cursor_stays_below(s: FactStoreSubject) -> None:
    """Confirming a released fact does not move the cursor, down or up."""
    (item,) = _aside(s, 1)
    s.done(4)
    _release(s, item)
    s.serve()
    same((s.store.confirm("c", 1), s.served()), (4, [5]), "the cursor, and what comes")


@check()
def unserved_release_is_not_settled(s: FactStoreSubject) -> None:
    """A confirmation does not settle what was released meanwhile and not yet served."""
    (item,) = _aside(s, 1)
    s.serve()
    _release(s, item)
    s.store.confirm("c", 5)
    same((_states(s), s.served()), ([(1, "released")], [1]), "state, and what comes")


@check()
def part_of_a_release_may_be_confirmed(s: FactStoreSubject) -> None:
    """Of several released facts, those at or below the confirmed one are settled."""
    items = _aside(s, 1, 2, 3)
    _release(s, *items)
    s.serve()
    s.store.confirm("c", 2)
    wanted = [(1, "settled"), (2, "settled"), (3, "released")]
    same((_states(s), s.served()), (wanted, [3]), "states, and what comes")


@check()
def released_page_is_bounded(s: FactStoreSubject) -> None:
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
def released_may_fail_again(s: FactStoreSubject) -> None:
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
def released_again_is_served_again(s: FactStoreSubject) -> None:
    """A fact that was released, failed and is released once more comes once more."""
    (item,) = _aside(s, 2)
    _release(s, item)
    s.serve()
    again = s.set_aside(2)
    _release(s, again)
    s.store.confirm("c", 2)
    same(s.served(), [2], "what comes: it was not served since")


@check()
def quarantined_is_not_set_aside_again(s: FactStoreSubject) -> None:
    """A fact that lies in quarantine and was not released is not the next one."""
    _aside(s, 2)
    s.refused(lambda: s.set_aside(2), "not_next")


@check()
def released_after_a_seek_skips_nothing(s: FactStoreSubject) -> None:
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
def failing_again_after_a_seek_is_one_item(s: FactStoreSubject) -> None:
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
def release_is_for_its_consumer(s: FactStoreSubject) -> None:
    """What is released to one consumer does not come to another."""
    s.consumer("other")
    (item,) = _aside(s, 1)
    s.done(5, "other")
    _release(s, item)
    same((s.served("other"), s.served()), ([], [1]), "what they get")


@check()
def released_needs_the_lease(s: FactStoreSubject) -> None:
    """A page of released facts takes the lease like any other."""
    (item,) = _aside(s, 1)
    _release(s, item)
    s.serve(holder="one")
    same(s.store.consumer("c").holder, "one", "the holder")
    same(s.store.confirm("c", 1, holder="one"), 1, "the cursor")


@check()
def lost_release_is_not_settled(s: FactStoreSubject) -> None:
    """A released fact that is lost before it was given out is not settled by passing it."""
    s.consumer()
    s.put(*"abc")
    item = s.set_aside(1)
    s.store.seek("c", 0, reason="again")
    _release(s, item)
    s.store.truncate(OUTBOUND, 1, loss_reason="disk")
    s.done(3)
    same(_states(s), [(1, "released")], "items")
