from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.rollup import (
    MAX_EXACT_SAMPLES,
    DurationHistogram,
    Rollup,
    SlidingHour,
    merged,
)

milliseconds = st.integers(0, 1 << 31) | st.integers(0, 300) | st.integers(50, 5000)
many = st.builds(
    lambda seed, size: random.Random(seed).choices(range(5000), k=size),  # noqa: S311
    st.integers(0, 1 << 32),
    st.integers(0, 3 * MAX_EXACT_SAMPLES),
)
lists = st.lists(milliseconds, max_size=20) | many
counts = st.integers(0, 1000)
rollups = st.builds(
    lambda ok, bad, dead, values: Rollup(ok, bad, dead, durations_of(values)),
    counts,
    counts,
    counts,
    lists,
)

pytestmark = pytest.mark.req("PEF:A-22", "PEF:H-4")


def durations_of(values: list[int]) -> DurationHistogram:
    """All of them."""
    found = DurationHistogram()
    for value in values:
        found.add(value)
    return found


def nearest_rank(values: list[int], hundredths: int) -> int:
    """The textbook's."""
    return sorted(values)[max(1, math.ceil(len(values) * hundredths / 100)) - 1]


def copy_of(rollup: Rollup) -> Rollup:
    """The same, apart from it."""
    return merged([rollup])


@given(st.lists(milliseconds, min_size=1, max_size=MAX_EXACT_SAMPLES), st.integers(1, 100))
def test_few_durations_are_exact(values: list[int], hundredths: int) -> None:
    """Up to so many, a percentile is the one of the textbook."""
    bounded = [min(value, (1 << 31) - 1) for value in values]
    assert durations_of(values).percentile(hundredths) == nearest_rank(bounded, hundredths)


@given(st.integers(0, 1 << 32), st.integers(MAX_EXACT_SAMPLES + 1, 800))
def test_many_durations_are_within_two_percent(seed: int, size: int) -> None:
    """Beyond that, it is wrong by at most two parts in a hundred."""
    dice = random.Random(seed)  # noqa: S311 - hypothesis chose it
    values = [round(dice.lognormvariate(5, 2)) for _ in range(size)]
    found = durations_of(values)
    for hundredths in (1, 50, 95, 99, 100):
        right = nearest_rank(values, hundredths)
        answer = found.percentile(hundredths)
        assert answer is not None
        assert abs(answer - right) <= 0.02 * right


def test_no_durations_have_no_percentile() -> None:
    """Nothing was measured: there is no number, not a zero."""
    assert DurationHistogram().percentile(95) is None
    assert Rollup().p95 is None
    assert Rollup().success_rate is None
    assert SlidingHour().p95 is None
    assert SlidingHour().success_rate is None


@given(rollups, rollups, rollups)
def test_merging_may_be_done_in_any_order(one: Rollup, two: Rollup, three: Rollup) -> None:
    """Minutes and processes add up to the same, whoever is merged into whom first."""
    together = merged([one, two, three])
    inner = merged([two, three])
    assert merged([one, inner]) == together
    assert merged([three, one, two]) == together
    assert merged([merged([two, one]), three]) == together


@given(rollups, rollups)
def test_merging_leaves_the_other_as_it_was(one: Rollup, two: Rollup) -> None:
    """What is merged into something else can be merged again elsewhere."""
    before = copy_of(two)
    one.merge(two)
    one.durations.add(1)
    assert two == before


@given(lists, lists)
def test_adding_many_is_adding_each(one: list[int], two: list[int]) -> None:
    """Durations that come together, counted by value, are those that come one by one."""
    together, each = DurationHistogram(), DurationHistogram()
    for values in (one, two):
        together.extend(values)
        for value in values:
            each.add(value)
    assert (together, together.count) == (each, each.count)


@given(lists, lists)
def test_merging_is_adding_all(one: list[int], two: list[int]) -> None:
    """Two merged are as if one had seen everything."""
    both = durations_of(one)
    both.merge(durations_of(two))
    assert both == durations_of(one + two)
    assert both.count == len(one) + len(two)


@given(lists)
def test_what_is_encoded_comes_back(values: list[int]) -> None:
    """Bytes stand for the same durations, however they came about."""
    found = durations_of(values)
    again = DurationHistogram.decode(found.encode())
    assert again == found
    assert again.count == found.count
    assert again.percentile(95) == found.percentile(95)
    assert durations_of(list(reversed(values))).encode() == found.encode()


def test_bytes_stay_few() -> None:
    """However many durations a minute has, a row of the table stays small."""
    dice = random.Random(1)  # noqa: S311 - the same every time
    found = durations_of([round(dice.lognormvariate(5, 1)) for _ in range(100_000)])
    assert len(found.encode()) < 2000


@pytest.mark.parametrize("data", [b"", b"\2", b"\0abc", b"\1", b"\1abc", b"\0" + b"1234" * 101])
def test_other_bytes_are_refused(data: bytes) -> None:
    """What was not written by us is not read as something else."""
    with pytest.raises(ValueError, match="not durations"):
        DurationHistogram.decode(data)


def test_impossible_durations_are_bounded() -> None:
    """A clock that went back, or a call of a month, does not break the count."""
    found = durations_of([-5, 1 << 40])
    assert found.percentile(1) == 0
    assert found.percentile(100) == (1 << 31) - 1
    assert found != "durations"
    assert "2 durations" in repr(found)


def test_a_success_rate_counts_ends() -> None:
    """Failures and dead letters count against successes; attempts that were retried do not."""
    assert Rollup(3, 1, 0, durations_of([1] * 9)).success_rate == 0.75
    assert Rollup(1, 0, 1).success_rate == 0.5


moves = st.lists(
    st.tuples(st.sampled_from(["put", "add", "forget"]), st.integers(0, 9), rollups), max_size=12
)


@given(moves)
def test_an_hour_is_the_sum_of_its_minutes(steps: list[tuple[str, int, Rollup]]) -> None:
    """Whatever came and went, its rates are those of the minutes that are left."""
    hour, model = SlidingHour(), dict[int, Rollup]()
    for step, minute, rollup in steps:
        if step == "put":
            hour.put(minute, copy_of(rollup))
            model[minute] = copy_of(rollup)
        elif step == "add":
            hour.add(minute, rollup)
            model.setdefault(minute, Rollup()).merge(rollup)
        else:
            old = [at for at in model if at < minute]
            assert hour.forget(minute) == len(old)
            for at in old:
                del model[at]
        whole = merged(model.values())
        assert len(hour) == len(model)
        assert hour.attempts == whole.attempts
        assert hour.success_rate == whole.success_rate
        assert hour.p95 == whole.p95
        later = [each for at, each in model.items() if at >= minute]
        assert hour.since(minute) == (len(later), sum(each.attempts for each in later))
