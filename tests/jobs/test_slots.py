"""Slots never drift: what a pool is owed is what it has offered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.jobs.store_thread import SlotCounter

pytestmark = pytest.mark.req("X8")


def test_slots_taken_back_during_a_claim_are_not_owed() -> None:
    """The claim uses a slot that is gone already; the next offer pays that debt first."""
    slots = SlotCounter()
    assert slots.offer("a", 1) == 1
    asked = slots.free()
    assert slots.offer("a", -1) == -1
    slots.take(asked, {"a": 1})
    assert slots.free() == {}
    assert slots.offer("a", 1) == 1
    assert slots.free() == {}


def test_a_slot_is_news_unless_its_executor_is_known_to_be_dry() -> None:
    """Dryness belongs to an executor, and ends when it is filled."""
    slots = SlotCounter()
    slots.offer("a", 2)
    slots.take({"a": 2}, {"a": 1})
    assert not slots.may_find_work("a")
    assert slots.may_find_work("b")
    slots.take({"a": 1}, {"a": 1})
    assert slots.may_find_work("a")


@given(st.lists(st.tuples(st.sampled_from(["want", "claim", "arrive"]), st.integers(0, 5))))
def test_what_the_pool_believes_is_what_the_keeper_has(steps: list[tuple[str, int]]) -> None:
    """Under any order of offers, claims and arrivals the two counts agree once all has arrived."""
    slots, offered = SlotCounter(), 0
    under_way: list[int] = []
    for step, number in steps:
        if step == "want":
            offered += slots.offer("a", number - offered)
        elif step == "claim":
            asked = slots.free()
            count = min(number, asked.get("a", 0))
            slots.take(asked, {"a": count} if count else {})
            under_way.append(count)
        elif under_way:
            offered -= under_way.pop(0)
    offered -= sum(under_way)
    slots.offer("a", 100)  # more than any debt, so that the count shows
    assert slots.free() == {"a": 100 + offered}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_no_more_is_claimed_than_was_ever_offered_at_once(rounds: list[tuple[int, int]]) -> None:
    """With slots taken back in the middle of every claim, the debt is at most one claim."""
    slots, offered = SlotCounter(), 0
    for wanted, kept in rounds:
        offered += slots.offer("a", wanted - offered)
        asked = slots.free()
        offered += slots.offer("a", min(kept, offered) - offered)
        count = asked.get("a", 0)
        slots.take(asked, {"a": count} if count else {})
        offered -= count
        assert slots.free().get("a", 0) <= 5
