"""Whether a queue delivers a failed call again, and after which wait.

Rules for editors: no clock and no dice in here, and every wait comes from ``judge``. A call is
*deferred* while a gate refuses it (an open circuit, a spent quota, a store that does not answer):
nothing was attempted, so deferrals have a limit of their own. A call is *requeued* when it failed
with attempts left that did not fit into its delivery. The counts travel with the message, so that
the next delivery goes on where this one ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, GiveUp, RetryRule, judge

MIN_DEFERRAL = Backoff(base=1.0, factor=2.0, cap=60.0)
"""Between two messages of one call, however soon a gate says that it will open: behind a gate that
lets in one call at a time, all of them would be back at once."""

_SAME_WAIT = 1.0
"""Seconds by which two instants may differ and still be the end of one wait."""
_SPREAD, _MOST_SPREAD = 0.1, 5.0
"""The most by which chance lengthens a deferral, as a share and in seconds: otherwise all calls
behind a gate would come back at the same instant.
"""


@dataclass(frozen=True, slots=True)
class RedeliveryRule:
    """How often, and for how long, a call goes back to its queue."""

    max_deferrals: int
    max_requeues: int
    longest_wait: float
    """Seconds for which the queue can hold a message back."""


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """What has been made of a call so far, this delivery included."""

    attempts: int = 0
    deferrals: int = 0
    requeues: int = 0
    waits_until: float = 0.0
    """The end of the wait under way, by the clock of ``now``; a long one takes several messages."""


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Send the message again after ``delay`` seconds, with these counts."""

    delay: float
    counts: DeliveryCounts


def defer(
    rule: RedeliveryRule, counts: DeliveryCounts, gate_opens_in: float, now: float, dice: float
) -> Redelivery | None:
    """Wait for a gate that opens in so many seconds; None when the call was deferred too often.

    A wait that goes on to the instant of the last one is the same wait, and counted once.
    """
    until = now + gate_opens_in
    is_same_wait = until <= counts.waits_until + _SAME_WAIT and gate_opens_in > _SAME_WAIT
    deferrals = counts.deferrals if is_same_wait else counts.deferrals + 1
    # One more than deferrals: the judge counts the delivery before the first deferral as an
    # attempt.
    held = RetryRule(rule.max_deferrals + 1, MIN_DEFERRAL, frozenset({Kind.HELD}))
    failure = Failure(Kind.HELD, "gate_closed", retry_after=gate_opens_in)
    verdict = judge(held, deferrals - 1, now, failure, now, dice)
    if isinstance(verdict, GiveUp):
        return None
    delay = verdict.delay + dice * min(_MOST_SPREAD, _SPREAD * verdict.delay)
    after = replace(counts, deferrals=deferrals, waits_until=until)
    return Redelivery(min(delay, rule.longest_wait), after)


def requeue(
    rule: RedeliveryRule,
    retry: RetryRule,
    counts: DeliveryCounts,
    failure: Failure,
    *,
    now: float,
    dice: float,
) -> Redelivery | None:
    """Make the remaining attempts in a later delivery; None when none is to be made.

    ``retry`` counts the attempts of the call in all its deliveries.
    """
    if counts.requeues >= rule.max_requeues:
        return None
    # A call that was refused before its first attempt has all of them left.
    retry = retry if counts.attempts else replace(retry, attempts=retry.attempts + 1)
    verdict = judge(retry, max(0, counts.attempts - 1), now, failure, now, dice)
    if isinstance(verdict, GiveUp):
        return None
    after = replace(counts, requeues=counts.requeues + 1, waits_until=0.0)
    return Redelivery(min(verdict.delay, rule.longest_wait), after)
