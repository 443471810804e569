"""A call that is repeated: the schedule of the producer contract, and what ends it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import (
    RFC_STEP_RETRIES,
    Backoff,
    GiveUp,
    GiveUpReason,
    RetriedCall,
    RetryAfter,
    RetryRule,
)

CONTRACT = RetryRule(attempts=4, backoff=Backoff(base=0.1, factor=2.0, free=1))
"""Three retries: the first at once, then after 100 and 200 milliseconds."""
LOST = Failure(Kind.LOST, "unavailable")
dice = st.floats(0.0, 1.0, exclude_max=True)


@pytest.mark.req("P5", "BSFG:Retry")
def test_the_schedule_of_the_contract() -> None:
    """Four attempts: retried at once, after 0.1 and after 0.2 seconds, then the end."""
    call = RetriedCall(CONTRACT, began_at=0.0)
    verdicts = [call.failed(LOST, now=0.0, dice=0.9) for _ in range(4)]
    assert verdicts == [
        RetryAfter(0.0),
        RetryAfter(0.1),
        RetryAfter(0.2),
        GiveUp(GiveUpReason.ATTEMPTS_SPENT),
    ]
    assert call.attempts == 4


@pytest.mark.req("P5", "BSFG:Retry")
@given(st.sampled_from(Kind), dice)
def test_only_what_may_pass_is_tried_again(kind: Kind, roll: float) -> None:
    """A refusal ends the call at once, whatever attempts are left."""
    verdict = RetriedCall(CONTRACT, began_at=0.0).failed(Failure(kind, "x"), now=0.0, dice=roll)
    if kind in RFC_STEP_RETRIES:
        assert verdict == RetryAfter(0.0)
    else:
        assert verdict == GiveUp(GiveUpReason.NOT_RETRYABLE)


@pytest.mark.req("BSFG:Retry")
def test_a_refusal_after_a_lost_answer_ends_it_too() -> None:
    """The last failure decides, not the first."""
    call = RetriedCall(CONTRACT, began_at=0.0)
    assert call.failed(LOST, now=0.0, dice=0.0) == RetryAfter(0.0)
    refusal = Failure(Kind.REJECTED, "already_exists")
    assert call.failed(refusal, now=0.0, dice=0.0) == GiveUp(GiveUpReason.NOT_RETRYABLE)


@given(st.floats(0.0, 100.0), dice)
def test_who_is_told_when_to_come_does_not_come_earlier(asked: float, roll: float) -> None:
    """Nor later than the caller is willing to wait."""
    rule = RetryRule(attempts=4, backoff=CONTRACT.backoff, max_retry_after=5.0)
    full = Failure(Kind.THROTTLED, "resource_exhausted", retry_after=asked)
    verdict = RetriedCall(rule, began_at=0.0).failed(full, now=0.0, dice=roll)
    assert verdict == RetryAfter(min(asked, 5.0))


def test_a_deadline_ends_it_before_a_wait_that_would_outlast_it() -> None:
    """The budget counts from the beginning of the call."""
    rule = RetryRule(attempts=4, backoff=CONTRACT.backoff, budget=1.0)
    call = RetriedCall(rule, began_at=100.0)
    assert call.failed(LOST, now=100.2, dice=0.0) == RetryAfter(0.0)
    assert call.failed(LOST, now=100.4, dice=0.0) == RetryAfter(0.1)
    assert call.failed(LOST, now=100.9, dice=0.0) == GiveUp(GiveUpReason.BUDGET_SPENT)


@given(st.integers(1, 10), st.lists(st.sampled_from(Kind), max_size=15), dice)
def test_any_run_of_failures_ends_or_goes_on_as_the_rule_says(
    attempts: int, kinds: list[Kind], roll: float
) -> None:
    """Never more attempts than the rule has, and every failure is counted."""
    call = RetriedCall(RetryRule(attempts=attempts, backoff=CONTRACT.backoff), began_at=0.0)
    for made, kind in enumerate(kinds, 1):
        verdict = call.failed(Failure(kind, "x"), now=float(made), dice=roll)
        assert call.attempts == made
        if isinstance(verdict, GiveUp):
            assert kind not in RFC_STEP_RETRIES or made >= attempts
            break
        assert made < attempts
        assert verdict.delay >= 0.0


@given(st.integers(0, 10**6), dice)
def test_patience_without_end_has_a_longest_wait(failures: int, roll: float) -> None:
    """An outage of years neither overflows nor gives up."""
    backoff = Backoff(base=0.2, factor=2.0, cap=15.0, low=0.5, high=1.0)
    call = RetriedCall(
        RetryRule(attempts=sys.maxsize, backoff=backoff), began_at=0.0, attempts=failures
    )
    verdict = call.failed(LOST, now=1e12, dice=roll)
    assert isinstance(verdict, RetryAfter)
    assert 0.1 <= verdict.delay <= 15.0
