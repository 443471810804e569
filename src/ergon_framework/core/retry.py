"""The one delay formula and the one decision about another attempt.

Rules for editors: nothing here reads a clock or rolls dice; both are arguments, so every property
can be tested. No other file in the product computes a delay or decides whether to try again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from ergon_framework.core.failure import Failure, Kind

MAX_DELAY = 1e9
"""Seconds. An uncapped schedule ends here instead of overflowing; no platform waits longer."""
MIN_HOLD = 0.1
"""Seconds at least between two looks at a gate that says it is open, and is not."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """``base * factor**k``, clipped to ``cap`` when that is above zero, then jittered.

    The jitter multiplies by a number between ``low`` and ``high``: none is (1, 1), full is (0, 1),
    symmetric twenty per cent is (0.8, 1.2). It comes after the cap. The first ``free`` waits are
    zero and do not advance the power.
    """

    base: float = 0.0
    factor: float = 2.0
    cap: float = 0.0
    low: float = 1.0
    high: float = 1.0
    free: int = 0

    def delay(self, k: int, dice: float = 0.5) -> float:
        """The wait after the failed attempt with 0-based index ``k``; ``dice`` lies in [0, 1)."""
        # Also without a base: ``0.0 * factor ** k`` may overflow for a large ``k``, and would be
        # zero anyway.
        if k < self.free or self.base == 0.0:
            return 0.0
        try:
            # Infinity would become NaN under a jitter of zero, and a huge int would not multiply.
            wait = min(self.base * float(self.factor) ** (k - self.free), MAX_DELAY)
        except OverflowError:
            wait = MAX_DELAY
        if self.cap > 0.0:
            wait = min(wait, self.cap)
        # The jitter comes after the cap, so that callers which have all reached the cap do not come
        # back at the same instant.
        if self.low != self.high:
            wait *= self.low + (self.high - self.low) * dice
        elif self.low != 1.0:
            wait *= self.low
        # Once more: a ``high`` above one may have taken it over the limit.
        return min(wait, MAX_DELAY)

    @property
    def is_jittered(self) -> bool:
        """Whether ``dice`` matters: drivers roll them only then."""
        return self.low != self.high


RFC_STEP_RETRIES = frozenset(Kind) - {Kind.REJECTED, Kind.HELD, Kind.CANCELLED}
"""What a process, produce, exception or fetch step retries."""

RFC_SUCCESS_RETRIES = RFC_STEP_RETRIES | {Kind.REJECTED}
"""A success handler retries refusals too: RFC-005 section 8 reads each of its errors as SYSTEM."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often, how long and after which failures something is tried again."""

    attempts: int = 1
    backoff: Backoff = Backoff()
    on: frozenset[Kind] = RFC_STEP_RETRIES
    budget: float | None = None
    max_retry_after: float | None = None
    asked_replaces: bool = False
    """Whether a ``retry_after`` takes the place of the backoff instead of only lengthening it."""
    asked_spread: float = 0.0
    """The part of a ``retry_after`` that is added at most, by chance, and never taken away."""


class GiveUpReason(StrEnum):
    """Why no further attempt is made."""

    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_SPENT = "attempts_spent"
    BUDGET_SPENT = "budget_spent"


class RetryAfter(msgspec.Struct, frozen=True):
    """Try again after ``delay`` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """The verdict not to try again."""

    why: GiveUpReason


Verdict: TypeAlias = RetryAfter | GiveUp


def judge(
    rule: RetryRule, attempt: int, began_at: float, failure: Failure, now: float, dice: float
) -> Verdict:
    """Decide what follows the failed attempt with 0-based index ``attempt``.

    A failure that carries ``retry_after`` is never retried earlier than that, and exactly then
    under ``asked_replaces``; but the peer cannot make us wait longer than ``max_retry_after``. A
    wait that would outlast the budget is not begun.
    """
    if failure.kind not in rule.on:
        return GiveUp(GiveUpReason.NOT_RETRYABLE)
    # ``attempt`` counts from zero: this was the last one allowed.
    if attempt + 1 >= rule.attempts:
        return GiveUp(GiveUpReason.ATTEMPTS_SPENT)
    delay = rule.backoff.delay(attempt, dice)
    if failure.retry_after is not None:
        asked = min(max(0.0, failure.retry_after), MAX_DELAY)
        if rule.max_retry_after is not None:
            asked = min(asked, rule.max_retry_after)
        # Only ever later: a peer that said "not before" must not be asked before.
        asked += asked * rule.asked_spread * dice
        delay = asked if rule.asked_replaces else max(delay, asked)
    # Compared with the wait included. To wait until the budget is over and give up then would help
    # nobody.
    if rule.budget is not None and now - began_at + delay >= rule.budget:
        return GiveUp(GiveUpReason.BUDGET_SPENT)
    return RetryAfter(delay)


@dataclass(slots=True)
class RetriedCall:
    """A call that is retried by a rule. It belongs to one driver."""

    rule: RetryRule
    began_at: float
    attempts: int = 0
    """Attempts made so far."""

    def failed(self, failure: Failure, now: float, dice: float) -> Verdict:
        """What follows an attempt that failed: another one after a wait, or the end."""
        verdict = judge(self.rule, self.attempts, self.began_at, failure, now, dice)
        self.attempts += 1
        return verdict
