from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import (
    MAX_DELAY,
    RFC_STEP_RETRIES,
    RFC_SUCCESS_RETRIES,
    Backoff,
    GiveUp,
    GiveUpReason,
    RetryAfter,
    RetryRule,
    judge,
)
from ergon_framework.ports.dice import loaded_dice, roll

bases = st.floats(0.0, 1e308)
factors = st.floats(1.0, 1e308)
caps = st.just(0.0) | st.floats(1e-9, 1e12)
indexes = st.integers(0, 10**6)
dice = st.floats(0.0, 1.0, exclude_max=True)
lows = st.floats(0.0, 1.0)
highs = st.floats(1.0, 2.0)
retryable = st.sampled_from(sorted(RFC_STEP_RETRIES))


def failure(kind: Kind = Kind.TRANSIENT, retry_after: float | None = None) -> Failure:
    """A failed attempt of some kind."""
    return Failure(kind, "test", retry_after=retry_after)


def verdict(
    rule: RetryRule, failed: Failure, attempt: int = 0, waited: float = 0.0
) -> RetryAfter | GiveUp:
    """What the judge says ``waited`` seconds after the first attempt began."""
    return judge(rule, attempt, 100.0, failed, 100.0 + waited, 0.5)


# ---- the formula --------------------------------------------------------------------------------


@pytest.mark.req("R3-BO", "RFC-004:7.2b", "RFC-004:14e", "RFC-005:12c", "RFC-005:16e")
@given(st.floats(0.0, 100.0), st.floats(1.0, 10.0), st.floats(0.0, 1e6), st.integers(0, 12))
def test_delay_is_the_formula_of_the_rfc(base: float, factor: float, cap: float, k: int) -> None:
    """While nothing overflows, the delay is base * factor**k, clipped to a cap above zero."""
    exact = base * factor**k
    expected = min(exact, cap) if cap > 0.0 else exact
    assert Backoff(base, factor, cap).delay(k) == min(expected, MAX_DELAY)


@pytest.mark.req("R3-BO")
@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(1.0, 2.0), [1.0, 2.0, 4.0, 8.0]),
        (Backoff(1.0, 2.0, 5.0), [1.0, 2.0, 4.0, 5.0, 5.0]),
        (Backoff(1.0, 10.0, 1000.0), [1.0, 10.0, 100.0, 1000.0, 1000.0]),
        (Backoff(0.5, 1.0), [0.5, 0.5, 0.5]),
        (Backoff(), [0.0, 0.0, 0.0]),
        (Backoff(0.0, 2.0, 5.0), [0.0, 0.0, 0.0]),
        (Backoff(9.0, 2.0, 5.0), [5.0, 5.0]),
    ],
)
def test_schedules_by_hand(backoff: Backoff, delays: list[float]) -> None:
    """Known schedules come out number by number; a cap is reached, not only approached."""
    assert [backoff.delay(k) for k in range(len(delays))] == delays


@pytest.mark.req("T3.22")
@given(bases, factors, caps, lows, highs, st.integers(0, 9), indexes, dice)
def test_delay_is_always_a_usable_number(
    base: float, factor: float, cap: float, low: float, high: float, free: int, k: int, roll: float
) -> None:
    """No schedule ever gives NaN, infinity, a negative wait, an error or more than the longest."""
    delay = Backoff(base, factor, cap, low, high, free).delay(k, roll)
    assert isinstance(delay, float)
    assert 0.0 <= delay <= MAX_DELAY


@pytest.mark.req("T3.22")
@given(st.floats(0.001, 1e6), st.floats(1.001, 10.0), st.floats(0.001, 1e6))
def test_overflow_ends_at_the_cap(base: float, factor: float, cap: float) -> None:
    """Where the power can no longer be computed, the wait is the cap, or the longest there is."""
    assert Backoff(base, factor, cap).delay(10**6) == cap
    assert Backoff(base, factor).delay(10**6) == MAX_DELAY
    assert Backoff(0.0, factor).delay(10**6) == 0.0


@pytest.mark.req("T3.22")
def test_overflow_without_an_error_is_no_nan() -> None:
    """A product that becomes infinite without raising, times a jitter of zero, is a number."""
    assert Backoff(1e300, 1e10, low=0.0, high=1.0).delay(1, dice=0.0) == 0.0
    assert Backoff(1e300, 1e10, low=0.5, high=1.5).delay(1, dice=0.0) == MAX_DELAY / 2


@pytest.mark.req("T3.22")
def test_whole_numbers_overflow_like_floats() -> None:
    """A schedule written with ints gives the same waits, however large the power."""
    assert Backoff(1, 2, low=0.5, high=0.5).delay(5000) == MAX_DELAY / 2
    assert Backoff(1, 2, cap=7).delay(10**6) == 7.0


@pytest.mark.req("R3-BO")
@given(bases, factors, caps, st.integers(0, 5000))
def test_waits_never_shrink(base: float, factor: float, cap: float, k: int) -> None:
    """Without jitter, no wait is shorter than the one before it."""
    backoff = Backoff(base, factor, cap)
    assert backoff.delay(k) <= backoff.delay(k + 1)


@pytest.mark.req("T3.22")
@given(st.floats(0.0, 100.0), st.floats(1.0, 4.0), caps, lows, highs, st.integers(0, 40), dice)
def test_jitter_comes_after_the_cap_and_within_its_bounds(
    base: float, factor: float, cap: float, low: float, high: float, k: int, roll: float
) -> None:
    """The jittered wait lies between low and high times the capped one, so it may pass the cap."""
    plain = Backoff(base, factor, cap).delay(k)
    wait = Backoff(base, factor, cap, low, high).delay(k, roll)
    slack = 1e-12 * plain
    assert low * plain - slack <= wait <= min(high * plain + slack, MAX_DELAY)


@pytest.mark.req("T3.22")
def test_jitter_by_hand() -> None:
    """Symmetric twenty per cent around a cap of ten reaches from eight to nearly twelve."""
    backoff = Backoff(100.0, 2.0, 10.0, 0.8, 1.2)
    assert [backoff.delay(3, roll) for roll in (0.0, 0.5, 0.75)] == [8.0, 10.0, 11.0]


@pytest.mark.req("T3.22", "R3-D3")
@given(bases, factors, caps, indexes, dice)
def test_no_jitter_by_default(base: float, factor: float, cap: float, k: int, roll: float) -> None:
    """The dice change nothing unless a schedule asks for jitter, and it says whether it does."""
    backoff = Backoff(base, factor, cap)
    assert not backoff.is_jittered
    assert Backoff(low=0.8, high=1.2).is_jittered
    assert backoff.delay(k, roll) == backoff.delay(k)


@given(st.floats(0.001, 100.0), st.floats(1.0, 4.0), st.integers(0, 20), st.integers(0, 20))
def test_free_waits_are_zero_and_do_not_advance_the_power(
    base: float, factor: float, free: int, k: int
) -> None:
    """The first waits of a schedule may be free; after them it begins at its base."""
    backoff = Backoff(base, factor, free=free)
    assert all(backoff.delay(i) == 0.0 for i in range(free))
    assert backoff.delay(free + k) == Backoff(base, factor).delay(k)


# ---- the judge ----------------------------------------------------------------------------------


@pytest.mark.req("R3-BO", "RFC-004:10b", "RFC-005:12e")
@given(st.integers(1, 60), retryable)
def test_never_more_than_the_attempts(attempts: int, kind: Kind) -> None:
    """The bound counts the first attempt too, and nothing is waited for after the last."""
    rule = RetryRule(attempts, Backoff(1.0))
    made = 1
    while isinstance(judge(rule, made - 1, 0.0, failure(kind), 0.0, 0.5), RetryAfter):
        made += 1
    assert made == attempts
    assert verdict(rule, failure(kind), attempts - 1) == GiveUp(GiveUpReason.ATTEMPTS_SPENT)


@given(st.integers(0, 1000), st.integers(1, 5), st.sampled_from(Kind))
def test_beyond_the_last_attempt_nothing_is_tried(past: int, attempts: int, kind: Kind) -> None:
    """An index past the bound is a stop, not a fresh start."""
    assert isinstance(verdict(RetryRule(attempts), failure(kind), attempts - 1 + past), GiveUp)


@pytest.mark.req("R0-I8", "RFC-004:10e", "RFC-005:12a", "RFC-005:12b")
@pytest.mark.parametrize("kind", list(Kind))
def test_what_a_step_retries(kind: Kind) -> None:
    """A step retries everything but a refusal, a closed gate and a cancellation."""
    refused = kind in (Kind.REJECTED, Kind.HELD, Kind.CANCELLED)
    expected = GiveUp(GiveUpReason.NOT_RETRYABLE) if refused else RetryAfter(0.0)
    assert verdict(RetryRule(3), failure(kind)) == expected


@pytest.mark.req("RFC-005:8f", "T3.6")
@pytest.mark.parametrize("kind", list(Kind))
def test_what_a_success_handler_retries(kind: Kind) -> None:
    """A success handler retries refusals as well, but never a closed gate or a cancellation."""
    refused = kind in (Kind.HELD, Kind.CANCELLED)
    expected = GiveUp(GiveUpReason.NOT_RETRYABLE) if refused else RetryAfter(0.0)
    assert verdict(RetryRule(3, on=RFC_SUCCESS_RETRIES), failure(kind)) == expected


@given(st.integers(1, 10), st.integers(0, 20), st.sampled_from([Kind.HELD, Kind.CANCELLED]))
def test_held_and_cancelled_are_not_the_steps_business(n: int, attempt: int, kind: Kind) -> None:
    """Whatever is left of the budget, they end the step, with the reason that says so."""
    for on in (RFC_STEP_RETRIES, RFC_SUCCESS_RETRIES):
        assert verdict(RetryRule(n, on=on), failure(kind), attempt) == GiveUp(
            GiveUpReason.NOT_RETRYABLE
        )


@given(st.floats(-10.0, 1e6), st.none() | st.floats(0.0, 1e4), st.floats(0.0, 50.0))
def test_a_peer_may_ask_for_patience(after: float, most: float | None, base: float) -> None:
    """No retry is earlier than the peer asked, up to what we grant, nor than our own wait."""
    rule = RetryRule(2, Backoff(base), max_retry_after=most)
    answer = verdict(rule, failure(Kind.THROTTLED, after))
    granted = max(after, 0.0) if most is None else min(max(after, 0.0), most)
    assert answer == RetryAfter(max(base, granted))


@pytest.mark.req("T3.22")
@pytest.mark.parametrize("after", [math.inf, math.nan, -math.inf, 1e300])
def test_an_absurd_request_for_patience_is_bounded(after: float) -> None:
    """Infinity or NaN from a peer becomes a wait a platform can make."""
    answer = verdict(RetryRule(2), failure(Kind.THROTTLED, after))
    assert isinstance(answer, RetryAfter)
    assert 0.0 <= answer.delay <= MAX_DELAY


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.floats(0.001, 100.0))
def test_a_wait_beyond_the_budget_is_not_begun(waited: float, base: float, budget: float) -> None:
    """What is tried again begins inside the budget."""
    rule = RetryRule(5, Backoff(base), budget=budget)
    answer = verdict(rule, failure(), waited=waited)
    spent = Fraction((100.0 + waited) - 100.0 + base) >= Fraction(budget)
    assert answer == (GiveUp(GiveUpReason.BUDGET_SPENT) if spent else RetryAfter(base))


def test_the_peers_patience_counts_against_the_budget() -> None:
    """A peer that asks for longer than the budget ends the attempts."""
    rule = RetryRule(5, Backoff(1.0), budget=10.0)
    assert verdict(rule, failure(Kind.THROTTLED, 9.0)) == RetryAfter(9.0)
    assert verdict(rule, failure(Kind.THROTTLED, 11.0)) == GiveUp(GiveUpReason.BUDGET_SPENT)


def test_reasons_have_an_order() -> None:
    """A refusal is told as a refusal even when the attempts and the budget are spent as well."""
    rule = RetryRule(1, budget=0.0)
    assert verdict(rule, failure(Kind.REJECTED), 5) == GiveUp(GiveUpReason.NOT_RETRYABLE)
    assert verdict(rule, failure(Kind.TIMEOUT), 5) == GiveUp(GiveUpReason.ATTEMPTS_SPENT)


@pytest.mark.req("R3-D3")
@given(st.integers(1, 9), bases, factors, st.integers(0, 9), retryable, dice)
def test_the_same_question_has_the_same_answer(
    attempts: int, base: float, factor: float, attempt: int, kind: Kind, roll: float
) -> None:
    """Nothing but the arguments decides."""
    rule = RetryRule(attempts, Backoff(base, factor, low=0.5, high=1.5))
    first = judge(rule, attempt, 0.0, failure(kind), 1.0, roll)
    assert first == judge(rule, attempt, 0.0, failure(kind), 1.0, roll)


@pytest.mark.req("R3-D4")
def test_the_default_rule_tries_once() -> None:
    """Without a policy there is one attempt and no wait."""
    assert verdict(RetryRule(), failure()) == GiveUp(GiveUpReason.ATTEMPTS_SPENT)


def test_jitter_leaves_the_generator_of_the_user_alone() -> None:
    """A seeded simulation gives the same numbers, whatever waits beside it."""
    random.seed(7)
    expected = [random.random() for _ in range(3)]  # noqa: S311 - no secrets
    random.seed(7)
    drawn = []
    for _ in range(3):
        assert 0 <= roll() < 1
        drawn.append(random.random())  # noqa: S311 - no secrets
    assert drawn == expected
    with loaded_dice(0.25):
        assert roll() == 0.25
