"""When a process that died is started again: executors of jobs, and supervised workers.

Rules for editors: the waits come from the one ``Backoff``, and whether a worker is started again
from ``judge``. The start of an executor counts as failed when the process ended before it answered
anything; one that had answered before is replaced at once, the first time. Any answer of a process
that was started after the last failure resets the count. One that has lived through its startup
grace counts as one that has answered: an executor may have nothing to do, and in another language
nothing to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import Backoff, RetryAfter, RetryRule, judge

MAX_FAILED_STARTS = 5
"""Failed starts in a row after which a program that has never come up is started no more: as often
as :class:`RestartRule` allows a worker to die."""
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

    def died(
        self,
        now: float,
        dice: float,
        reason: str,
        *,
        had_answered: bool,
        started_at: float = math.inf,
    ) -> float:
        """A process ended unasked; answers how long the next start has to wait.

        One that was started before the last failure was known, and has answered nothing, failed
        with that one: it does not count again.
        """
        if self.failures and not had_answered and started_at <= self.died_at:
            return max(0.0, self.open_until - now)
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


@dataclass(frozen=True, slots=True)
class RestartRule:
    """How often within ``window`` seconds one worker may die, and how long it stays away."""

    limit: int = MAX_FAILED_STARTS
    window: float = 60.0
    backoff: Backoff = Backoff(0.5, 2.0, 30.0)


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the worker again after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker came to its end and is not started again; its exit code counts."""


@dataclass(frozen=True, slots=True)
class StopAll:
    """The worker died too often, or its configuration is refused: stop all workers."""

    is_refused: bool


RestartDecision: TypeAlias = Restart | Finished | StopAll

_DIED = Failure(Kind.LOST, "process_exited")
_REFUSED = Failure(Kind.REJECTED, "configuration_refused")


def after_exit(
    rule: RestartRule, *, deaths: Sequence[float], now: float, is_refused: bool, is_done: bool
) -> RestartDecision:
    """What follows the exit of a worker that was not asked to stop.

    ``deaths`` are the instants of its unexpected exits, this one not included. A worker that is
    done is not started again even if something in its work went wrong: it would only do the same
    work twice. One whose configuration is refused would be refused again.
    """
    if is_done and not is_refused:
        return Finished()
    recent = sum(1 for at in deaths if now - at < rule.window)
    retry = RetryRule(rule.limit + 1, rule.backoff, frozenset({Kind.LOST}))
    # 0.5 is the middle of the jitter: only one supervisor decides, so nothing has to be spread.
    verdict = judge(retry, recent, now, _REFUSED if is_refused else _DIED, now, 0.5)
    return Restart(verdict.delay) if isinstance(verdict, RetryAfter) else StopAll(is_refused)
