from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.quota import TokenBucket

rates = st.floats(1e-3, 1e6)
bursts = st.integers(1, 1000)
instants = st.floats(0.0, 4e9)
steps = st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(1, 50)), max_size=30)

SLACK = 1e-6  # an instant near today is a float that is exact to less than a microsecond


@pytest.mark.req("JOBS:store")
@given(rates, bursts, instants)
def test_a_rested_bucket_is_full(rate: float, burst: int, now: float) -> None:
    """After a rest as many may go at once as the burst says, and no more."""
    bucket = TokenBucket(rate, burst)
    assert bucket.free(now) == burst
    assert bucket.take(burst, now).free(now) <= (1 if (1 / rate) < SLACK else 0)


@pytest.mark.req("JOBS:store")
@given(rates, bursts, instants, steps)
def test_never_more_than_the_rate_and_the_burst(
    rate: float, burst: int, now: float, waits: list[tuple[float, int]]
) -> None:
    """Whoever takes all there is at any time gets at most burst + rate * time."""
    bucket, began, taken = TokenBucket(rate, burst), now, 0
    for wait, wanted in waits:
        now += wait
        count = min(bucket.free(now), wanted)
        bucket = bucket.take(count, now)
        taken += count
    # Rounding may let the one go that was promised for this instant a little early.
    assert taken <= burst + rate * (now - began + len(waits) * SLACK) + 1


@pytest.mark.req("JOBS:store")
@given(rates, bursts, instants, st.integers(1, 1000))
def test_the_promised_instant_is_kept(rate: float, burst: int, now: float, count: int) -> None:
    """At the instant that was named one may go: nobody waits and finds nothing."""
    bucket = TokenBucket(rate, burst).take(min(count, burst), now)
    at = max(bucket.next_at(now), now)
    assert bucket.free(at) >= 1
    assert bucket.next_at(at) <= at


@given(st.floats(0.01, 1000.0), bursts, st.floats(1e6, 4e9))
def test_nobody_is_told_to_come_too_late(rate: float, burst: int, now: float) -> None:
    """The named instant is the earliest one, but for rounding."""
    bucket = TokenBucket(rate, burst).take(burst, now)
    assert bucket.next_at(now) - now == pytest.approx(1 / rate, abs=SLACK)
    assert bucket.free(now + 0.5 / rate - SLACK) == 0


@given(rates, bursts, instants, st.floats(0.0, 1e9))
def test_a_clock_set_back_costs_no_more_than_an_empty_bucket(
    rate: float, burst: int, now: float, back: float
) -> None:
    """The wait is bounded by what filling the bucket takes, however far the clock was moved."""
    bucket = TokenBucket(rate, burst).take(burst, now)
    assert bucket.next_at(now - back) - (now - back) <= 1 / rate + SLACK


@given(rates, bursts, instants, st.floats(0.0, 1e9))
def test_a_clock_set_back_costs_one_wait(rate: float, burst: int, now: float, back: float) -> None:
    """A bucket that was healed has a token when it said so, and no other is changed by healing."""
    bucket = TokenBucket(rate, burst).take(burst, now)
    assert bucket.healed(now) == bucket
    healed = bucket.healed(now - back)
    assert healed.free(max(healed.next_at(now - back), now - back)) >= 1
    assert healed.free(now - back) <= bucket.free(now)


@given(rates, bursts, rates, bursts, instants)
def test_other_limits_do_not_give_tokens_back(
    rate: float, burst: int, other_rate: float, other_burst: int, now: float
) -> None:
    """An empty bucket that gets other limits is as empty as before."""
    bucket = TokenBucket(rate, burst).take(burst, now).changed(other_rate, other_burst, now)
    most = max(0, other_burst - burst) + other_rate * SLACK
    assert bucket.free(now) <= most + 1
    assert TokenBucket(rate, burst).changed(other_rate, other_burst, now).free(now) == other_burst


def test_an_example() -> None:
    """Two per second with a burst of three: three at once, then one every half second."""
    bucket = TokenBucket(2.0, 3)
    assert bucket.free(100.0) == 3
    bucket = bucket.take(3, 100.0)
    assert (bucket.free(100.0), bucket.next_at(100.0)) == (0, 100.5)
    assert [bucket.free(at) for at in (100.4, 100.5, 101.0, 101.5, 109.0)] == [0, 1, 2, 3, 3]
