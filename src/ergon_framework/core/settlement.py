"""How a source is told what became of a delivery: a second small table, after the ending."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import Ending
from ergon_framework.core.retry import Backoff, RetryRule, Verdict, judge


class Verb(StrEnum):
    """The things a source can be told."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    RELEASE_AFTER = "release_after"


VERBS: dict[Ending, Verb] = {
    Ending.SUCCEEDED: Verb.ACK,
    Ending.FAILED: Verb.NACK,
    Ending.TIMED_OUT: Verb.NACK,
    Ending.ABORTED: Verb.RELEASE,
    Ending.PARKED: Verb.RELEASE_AFTER,
}

SETTLEMENT_RETRIES = frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.HELD})
"""Passing reasons. After a timeout the source may have heard it; on a lost channel a delivery
cannot be settled any more, and its tag may stand for another one; a refusal or a defect stays."""
SETTLEMENT_ATTEMPTS = 5
"""Calls of one verb for one delivery, the first included, unless the policy says otherwise."""
SETTLEMENT_BACKOFF = Backoff(base=0.1, factor=3.0, cap=5.0)
"""Short: a worker waits, and the source keeps a lease or a visibility timeout meanwhile."""


def settlement_rule(attempts: int = SETTLEMENT_ATTEMPTS, timeout: float = 30.0) -> RetryRule:
    """The rule of one settlement, all of whose attempts and waits share ``timeout``."""
    return RetryRule(attempts, SETTLEMENT_BACKOFF, SETTLEMENT_RETRIES, budget=timeout)


def settle_again(
    rule: RetryRule,
    attempt: int,
    began_at: float,
    failure: Failure,
    now: float,
    *,
    is_channel_lost: bool,
) -> Verdict:
    """What follows a failed settlement. Whatever it failed with, a lost channel ends it."""
    if is_channel_lost:
        failure = replace(failure, kind=Kind.LOST)
    return judge(rule, attempt, began_at, failure, now, 0.0)
