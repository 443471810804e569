"""When a program that keeps dying may be started again.

Rules for editors: the waits come from the one ``Backoff``. A *start* counts as failed when the
process ended before it answered anything; one that had answered before is replaced at once, the
first time. Any answer closes the gate's memory.
"""

from __future__ import annotations

from ergon_framework.core.retry import Backoff

START_BACKOFF = Backoff(base=0.2, factor=2.0, cap=30.0, low=0.8, high=1.2)


class StartGate:
    """A breaker for one executor: open while its last starts failed. Owned by one driver."""

    __slots__ = ("backoff", "died_at", "failures", "open_until", "reason")

    def __init__(self, backoff: Backoff = START_BACKOFF) -> None:
        self.backoff = backoff
        self.failures = 0
        self.open_until = 0.0
        self.died_at = 0.0
        self.reason = ""

    def may_start(self, now: float) -> bool:
        """Whether a process may be started now."""
        return now >= self.open_until

    def died(self, now: float, dice: float, reason: str, *, had_answered: bool) -> float:
        """A process ended unasked; answers how long the next start has to wait."""
        self.failures += 1
        self.died_at = now
        self.reason = reason
        waits = self.failures - had_answered  # a crash after good work is no failed start
        delay = self.backoff.delay(waits - 1, dice) if waits > 0 else 0.0
        self.open_until = now + delay
        return delay

    def answered(self, started_at: float) -> None:
        """A process did work; one that was started after the last failure shows that starts work.

        An older one shows nothing: it may have been there before the program was broken.
        """
        if self.failures and started_at >= self.died_at:
            self.failures = 0
            self.open_until = 0.0
            self.reason = ""
