"""Quota windows and accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.quota import QuotaUsage, QuotaWindow, block_of, window_at


@pytest.mark.req("PEF:Q-4")
def test_the_boundary_instant_belongs_to_the_new_window() -> None:
    """A window includes its start and not its end."""
    assert window_at(7199.999, 3600) == QuotaWindow(3600.0, 7200.0)
    assert window_at(7200.0, 3600) == QuotaWindow(7200.0, 10800.0)
    assert window_at(7200.0, 3600, anchor=1800.0) == QuotaWindow(5400.0, 9000.0)


@given(
    now=st.floats(-1e10, 1e11),
    seconds=st.floats(0.001, 1e8),
    anchor=st.floats(-1e9, 1e9),
)
def test_every_instant_lies_in_its_window(now: float, seconds: float, anchor: float) -> None:
    """Up to the rounding of floats, which puts an instant next to a border at worst."""
    window = window_at(now, seconds, anchor)
    slack = max(abs(now), abs(anchor), seconds) * 1e-12
    assert window.start - slack <= now <= window.end + slack
    assert window.end - window.start == pytest.approx(seconds, rel=1e-9, abs=slack)


@pytest.mark.req("PEF:Q-1", "PEF:Q-2")
def test_units_are_taken_whole_or_not_at_all() -> None:
    """The last unit may be taken, and then none."""
    account = QuotaUsage(QuotaWindow(0, 10), limit=3)
    account = account.reserve(2) or pytest.fail("there were three")
    assert account.reserve(2) is None
    account = account.reserve(1) or pytest.fail("there was one")
    assert (account.used, account.remaining) == (3, 0)
    assert account.reserve(1) is None


@pytest.mark.req("PEF:trap-refund-window")
def test_a_refund_goes_to_its_own_window_and_never_below_zero() -> None:
    """Another window's units do not come into this one."""
    account = QuotaUsage(QuotaWindow(10, 20), limit=3, used=1)
    assert account.refund(QuotaWindow(0, 10), 1) is account
    assert account.refund(QuotaWindow(10, 20), 5).used == 0


@pytest.mark.req("PEF:trap-clock-back", "PEF:A-12")
def test_an_older_window_is_never_opened_again() -> None:
    """A later one is fresh; a changed limit holds at once."""
    account = QuotaUsage(QuotaWindow(10, 20), limit=3, used=3)
    assert account.at(QuotaWindow(0, 10), 3) is account
    assert account.at(QuotaWindow(20, 30), 3) == QuotaUsage(QuotaWindow(20, 30), 3)
    lowered = account.at(QuotaWindow(10, 20), 2)
    assert (lowered.used, lowered.remaining) == (3, 0)
    assert account.at(QuotaWindow(10, 20), 5).remaining == 2


@pytest.mark.req("PEF:Q-3")
@given(
    limit=st.integers(1, 50),
    steps=st.lists(st.tuples(st.sampled_from(["take", "back"]), st.integers(1, 9))),
)
def test_used_and_remaining_always_add_up(limit: int, steps: list[tuple[str, int]]) -> None:
    """Never over the limit, never negative, whatever is taken and given back."""
    window = QuotaWindow(0, 10)
    account = QuotaUsage(window, limit)
    held = 0
    for what, units in steps:
        if what == "take":
            after = account.reserve(units)
            assert (after is not None) == (units <= account.remaining)
            if after is not None:
                account, held = after, held + units
        else:
            back = min(units, held)
            account, held = account.refund(window, back), held - back
        assert account.used == held
        assert account.used + account.remaining == limit


@given(remaining=st.integers(0, 10**9), units=st.integers(1, 100), largest=st.integers(1, 10_000))
def test_blocks_shrink_towards_the_limit(remaining: int, units: int, largest: int) -> None:
    """Never less than the call needs, never more than an eighth of the rest beyond that."""
    block = block_of(remaining, units, largest)
    assert block >= units
    assert block == units or block <= min(largest, remaining // 8)
