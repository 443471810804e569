"""A call that is repeated until it is answered or not worth repeating.

The machine of a client that talks to somebody else's machine: the driver sends, reports how it
went, and does what it is told. What is sent never changes between attempts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ergon_framework.core.failure import Failure
from ergon_framework.core.retry import RetryRule, Verdict, judge


@dataclass(slots=True)
class Call:
    """One call under one rule; it belongs to one driver."""

    rule: RetryRule
    began_at: float
    attempts: int = 0
    """Attempts made so far."""

    def failed(self, failure: Failure, now: float, dice: float) -> Verdict:
        """What follows an attempt that failed: another one after a wait, or the end."""
        verdict = judge(self.rule, self.attempts, self.began_at, failure, now, dice)
        self.attempts += 1
        return verdict
