"""When a lost connection to a broker is made again.

Rules for editors: no clock and no dice in here, and the waits come from ``judge``. Both colours of
a connector ask the same machine. An outage goes on through connections that break again at once: a
connection ends it only by lasting.
"""

from __future__ import annotations

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, GiveUp, RetryRule, judge

RECONNECT = RetryRule(
    attempts=2**62,
    backoff=Backoff(base=0.2, factor=2.0, cap=15.0, low=0.8, high=1.2, free=1),
    on=frozenset(Kind) - {Kind.REJECTED, Kind.CANCELLED},
)
"""The first attempt at once, then ever later, for as long as somebody waits. The cap bounds how
long a broker that is back remains unnoticed."""
SETTLED = 10.0
"""Seconds after which a connection counts as one that works."""


class Outage:
    """Whether a broker is away, and when it is asked again. Owned by one driver."""

    __slots__ = ("connected_at", "failures", "reason", "retry_at", "rule", "since")

    def __init__(self, rule: RetryRule = RECONNECT) -> None:
        self.rule = rule
        self.failures = 0
        self.since: float | None = None
        """When the broker was found to be away; None while it is there."""
        self.retry_at = 0.0
        self.reason = ""
        self.connected_at: float | None = None

    def failed(self, failure: Failure, now: float, dice: float) -> bool:
        """A connection broke or could not be made; answers whether another is tried at all."""
        if self.connected_at is not None and now - self.connected_at >= SETTLED:
            self.failures = 0
        self.connected_at = None
        self.since = now if self.since is None else self.since
        self.reason = failure.message
        verdict = judge(self.rule, self.failures, self.since, failure, now, dice)
        if isinstance(verdict, GiveUp):
            self.retry_at = now
            return False
        self.failures += 1
        self.retry_at = now + verdict.delay
        return True

    def may_try(self, now: float) -> bool:
        """Whether a connection may be tried now."""
        return now >= self.retry_at

    def connected(self, now: float) -> float:
        """A connection was made; answers for how many seconds the broker was away."""
        away = 0.0 if self.since is None else now - self.since
        self.since, self.reason = None, ""
        self.connected_at = now
        return away
