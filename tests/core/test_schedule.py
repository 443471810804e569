from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.schedule import (
    MAX_MISFIRES,
    MISFIRE_GRACE,
    Due,
    Instants,
    Misfire,
    due,
    latest,
    upcoming,
)

YEAR = 365 * 86_400.0

gaps = st.integers(1, 4000)
calendars = st.lists(gaps, min_size=1, max_size=300).map(
    lambda steps: [float(sum(steps[: n + 1])) for n in range(len(steps))]
)
policies = st.sampled_from(Misfire)


def listed(fires: Sequence[float]) -> Instants:
    """A schedule with these fires, which ends."""
    return lambda after: iter(fires[bisect_right(fires, after) :])


def regular(period: float) -> Instants:
    """A schedule without end."""

    def after(instant: float) -> Iterator[float]:
        at = (instant // period + 1) * period
        while True:
            yield at
            at += period

    return after


# ---- what is due --------------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize(
    ("misfire", "fires"),
    [
        (Misfire.ONCE, (700.0,)),
        (Misfire.SKIP, (700.0,)),
        (Misfire.ALL, (400.0, 500.0, 600.0, 700.0)),
    ],
)
def test_after_a_stop_the_policy_decides(misfire: Misfire, fires: tuple[float, ...]) -> None:
    """Several missed fires become one, or each becomes a job of its own."""
    assert due(regular(100), 400.0, 760.0, misfire) == Due(fires, 800.0)


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize("late", [0.0, 1.0, MISFIRE_GRACE])
def test_a_fire_that_is_noticed_late_is_not_skipped(late: float) -> None:
    """A worker that was busy for a moment has missed nothing."""
    assert due(regular(3600), 3600.0, 3600.0 + late, Misfire.SKIP).fires == (3600.0,)


@pytest.mark.req("JOBS:cron")
def test_a_missed_fire_is_skipped() -> None:
    """With ``skip``, what is older than a minute is over."""
    plan = due(regular(3600), 3600.0, 3600.0 + MISFIRE_GRACE + 1, Misfire.SKIP)
    assert plan == Due((), 7200.0)


@pytest.mark.req("JOBS:cron")
def test_making_up_is_bounded() -> None:
    """However long the stop was, ``all`` enqueues the last hundred, the oldest of them first."""
    plan = due(regular(100), 100.0, 1_000_000.0, Misfire.ALL)
    assert len(plan.fires) == MAX_MISFIRES
    assert (plan.fires[0], plan.fires[-1]) == (1_000_000.0 - 9_900.0, 1_000_000.0)


def test_the_last_fire_has_none_after_it() -> None:
    """A schedule that ends is not looked at again."""
    assert due(listed([5.0]), 5.0, 9.0, Misfire.ALL) == Due((5.0,), None)


def test_a_fire_that_the_times_no_longer_hold_still_counts() -> None:
    """New zone data may move what was planned; the plan was a promise."""
    assert due(listed([50.0]), 8.0, 20.0, Misfire.ONCE) == Due((8.0,), 50.0)


def test_coming_fires_begin_with_the_planned_one() -> None:
    """A preview lists what will happen, as far as the schedule goes."""
    assert upcoming(regular(10), 30.0, 3) == (30.0, 40.0, 50.0)
    assert upcoming(listed([1.0, 2.0]), 2.0, 5) == (2.0,)
    assert upcoming(regular(10), 30.0, 0) == ()


# ---- properties ---------------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron")
@given(calendars, st.integers(0, 200_000), st.integers(1, 9))
def test_the_last_fires_are_what_a_plain_walk_finds(
    fires: list[float], now: int, most: int
) -> None:
    """However long ago they were."""
    assert latest(listed(fires), now, most) == tuple(each for each in fires if each <= now)[-most:]


@pytest.mark.req("JOBS:cron")
@given(calendars, st.data(), policies)
def test_the_plan_is_what_a_plain_walk_finds(
    calendar: list[float], data: st.DataObject, misfire: Misfire
) -> None:
    """Looking back in growing steps finds the same fires as looking at all of them."""
    expected = data.draw(st.sampled_from(calendar))
    now = data.draw(st.integers(0, int(calendar[-1]) + 5000).map(float))
    plan = due(listed(calendar), expected, now, misfire)
    if now < expected:
        assert plan == Due((), expected)
        return
    walked = [at for at in calendar if expected <= at <= now]
    wanted = walked[-MAX_MISFIRES if misfire is Misfire.ALL else -1 :]
    if misfire is Misfire.SKIP:
        wanted = [at for at in wanted if now - at <= MISFIRE_GRACE]
    assert plan.fires == tuple(wanted)
    assert plan.next_at == next((at for at in calendar if at > now), None)


@pytest.mark.req("JOBS:cron")
@given(calendars, st.lists(st.integers(-5000, 20_000), min_size=1, max_size=40), policies)
def test_no_fire_happens_twice_whatever_the_clock_does(
    calendar: list[float], jumps: list[int], misfire: Misfire
) -> None:
    """A clock that goes forth and back, by whatever it likes, repeats no fire."""
    now, expected, fired = 0.0, calendar[0], list[float]()
    for jump in jumps:
        now = max(0.0, now + jump)
        plan = due(listed(calendar), expected, now, misfire)
        fired += plan.fires
        if plan.next_at is None:
            break
        expected = plan.next_at
    assert fired == sorted(set(fired))
    assert set(fired) <= set(calendar)


@pytest.mark.req("JOBS:cron")
@given(st.lists(st.integers(1, 90), min_size=1, max_size=60))
def test_with_all_no_fire_is_lost_in_short_stops(steps: list[int]) -> None:
    """As long as no more than a hundred are missed at once, each fire happens once."""
    now, expected, fired = 0.0, 1.0, list[float]()
    for step in steps:
        now += step
        plan = due(regular(1), expected, now, Misfire.ALL)
        fired += plan.fires
        assert plan.next_at is not None
        expected = plan.next_at
    assert fired == [float(at) for at in range(1, int(now) + 1)]


@pytest.mark.parametrize("misfire", Misfire)
def test_a_stop_of_years_costs_no_more_than_one_of_minutes(misfire: Misfire) -> None:
    """A fire each second over ten years is 300 million: only the last few are looked at."""
    seen = 0

    def counted(after: float) -> Iterator[float]:
        nonlocal seen
        for at in regular(1)(after):
            seen += 1
            yield at

    plan = due(counted, 1.0, 10 * YEAR, misfire)
    assert plan.fires[-1] == 10 * YEAR
    assert seen < 1000
