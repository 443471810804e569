"""Whether a queue delivers a failed call again, and after which wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.call_redelivery import (
    MIN_DEFERRAL,
    DeliveryCounts,
    RedeliveryRule,
    defer,
    requeue,
)
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, RetryRule

pytestmark = pytest.mark.req("PROVIDERS:celery")

RULE = RedeliveryRule(max_deferrals=3, max_requeues=2, longest_wait=900.0)
RETRY = RetryRule(attempts=4, backoff=Backoff(base=2.0), on=frozenset({Kind.TRANSIENT}))
AWAY = Failure(Kind.TRANSIENT, "connection_error")


def test_a_gate_that_opens_soon_is_not_asked_at_once() -> None:
    """Each deferral waits at least twice as long as the one before."""
    counts, delays = DeliveryCounts(), []
    while (again := defer(RULE, counts, 0.0, 1000.0, 0.0)) is not None:
        counts = again.counts
        delays.append(again.delay)
    assert delays == [1.0, 2.0, 4.0]
    assert counts.deferrals == RULE.max_deferrals


def test_a_wait_that_takes_several_messages_counts_once() -> None:
    """The queue holds a message for 15 minutes at most, the gate opens in an hour."""
    first = defer(RULE, DeliveryCounts(), 3600.0, 1000.0, 0.0)
    assert first is not None
    second = defer(RULE, first.counts, 2700.0, 1900.0, 0.0)
    assert second is not None
    assert (first.delay, second.delay) == (900.0, 900.0)
    assert second.counts.deferrals == 1


@pytest.mark.parametrize(
    ("counts", "failure"),
    [
        (DeliveryCounts(attempts=4), AWAY),
        (DeliveryCounts(attempts=1, requeues=2), AWAY),
        (DeliveryCounts(attempts=1), Failure(Kind.REJECTED, "bad_request")),
    ],
    ids=["attempts spent", "requeues spent", "not retryable"],
)
def test_what_is_not_requeued(counts: DeliveryCounts, failure: Failure) -> None:
    """Attempts and requeues have limits, and some failures are final."""
    assert requeue(RULE, RETRY, counts, failure, now=0.0, dice=0.5) is None


def test_a_call_without_an_attempt_has_all_of_them_left() -> None:
    """A gate refused it; one attempt was allowed."""
    once = RetryRule(attempts=1, backoff=Backoff(base=2.0), on=RETRY.on)
    again = requeue(RULE, once, DeliveryCounts(), AWAY, now=0.0, dice=0.5)
    assert again is not None
    assert (again.delay, again.counts.requeues) == (2.0, 1)


@given(
    attempts=st.integers(0, 6),
    asked=st.none() | st.floats(0.0, 5000.0),
    dice=st.floats(0.0, 0.999),
)
def test_a_requeue_waits_as_long_as_backoff_and_provider_ask(
    attempts: int, asked: float | None, dice: float
) -> None:
    """The longer of the two, as far as the queue can hold a message."""
    failure = Failure(Kind.TRANSIENT, "connection_error", retry_after=asked)
    again = requeue(RULE, RETRY, DeliveryCounts(attempts), failure, now=0.0, dice=dice)
    if attempts >= RETRY.attempts:
        assert again is None
        return
    assert again is not None
    backoff = RETRY.backoff.delay(max(0, attempts - 1), dice)
    assert again.delay == min(max(backoff, asked or 0.0), RULE.longest_wait)


@given(seconds=st.floats(0.0, 5000.0), deferrals=st.integers(0, 5), dice=st.floats(0.0, 0.999))
def test_a_deferral_is_spread_by_a_tenth(seconds: float, deferrals: int, dice: float) -> None:
    """All calls behind one gate were told the same instant."""
    again = defer(RULE, DeliveryCounts(deferrals=deferrals), seconds, 1000.0, dice)
    if deferrals >= RULE.max_deferrals:
        assert again is None
        return
    assert again is not None
    least = max(seconds, MIN_DEFERRAL.delay(deferrals))
    assert again.delay == min(least + dice * min(5.0, 0.1 * least), RULE.longest_wait)
