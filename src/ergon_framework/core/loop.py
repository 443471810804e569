"""The loop of one consume or produce call: when to fetch, when to wait, when to finish.

Rules for editors: every reason to fetch, wait or stop stands in :meth:`Loop.plan`. A producer is
the same loop over an iterable: its source is exhausted where a queue is empty.

Theory of operation. Drivers report what they saw (``delivered``, ``fetch_failed``, ``stop``) and
ask ``plan`` whenever they have nothing to do. ``outstanding`` counts transactions that were taken
in and have no outcome yet; the driver keeps that number, since it changes with every completion.

In *batch* mode a fetch waits until nothing is outstanding: batches are neither merged nor split. In
*continuous* mode it happens as soon as a worker has nothing to do, as long as fewer than
``concurrency + size`` are outstanding: memory is bounded and a slow transaction blocks no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ergon_framework.core.failure import Failure
from ergon_framework.core.retry import Backoff, RetryAfter, RetryRule, judge


class StopReason(StrEnum):
    """Why a call ended."""

    EMPTY = "empty"  # the source had nothing, and the loop does not stream
    EXHAUSTED = "exhausted"  # the producer's input is used up
    LIMIT = "limit"  # as many transactions as asked for
    TIMEOUT = "timeout"  # the call's own time is over
    FETCH_FAILED = "fetch_failed"  # the source could not be read
    STOPPED = "stopped"  # a stop was requested
    INTERRUPTED = "interrupted"  # KeyboardInterrupt, SystemExit or cancellation


@dataclass(frozen=True, slots=True)
class LoopRule:
    """The loop's policy as plain numbers."""

    size: int = 1
    concurrency: int = 1
    limit: int | None = None
    streaming: bool = False
    continuous: bool = False
    empty: Backoff = Backoff(0.1, 2.0, 10.0)
    fetch: RetryRule = RetryRule()
    exhausted: StopReason = StopReason.EMPTY
    returns: bool = False  # whether the source takes transactions back unstarted
    source_waits: bool = False  # whether a fetch itself waits for work before it answers "none"


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask the source for up to ``at_most`` transactions."""

    at_most: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until``; None means until something is reported."""

    until: float | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The call is over."""

    why: StopReason


LoopPlan: TypeAlias = Fetch | Wait | Finish

WAIT = Wait()


class Loop:
    """The state of one call. Mutable; drivers guard it with their own lock."""

    __slots__ = (
        "_whole_batch",
        "batches",
        "empties",
        "failure",
        "fetch_attempt",
        "fetch_began_at",
        "fetching",
        "reason",
        "resume_at",
        "rule",
        "taken",
    )

    def __init__(self, rule: LoopRule) -> None:
        self.rule = rule
        self._whole_batch = Fetch(rule.size)
        self.taken = 0  # transactions taken in so far, over all batches
        self.batches = 0
        self.empties = 0  # consecutive empty fetches
        self.fetching = False
        self.fetch_attempt = 0
        self.fetch_began_at = 0.0
        self.resume_at: float | None = None
        self.failure: Failure | None = None
        self.reason: StopReason | None = StopReason.LIMIT if rule.limit == 0 else None

    @property
    def remaining(self) -> int | None:
        """How many more may be taken in; None means no limit."""
        return None if self.rule.limit is None else self.rule.limit - self.taken

    def plan(self, now: float, outstanding: int) -> LoopPlan:
        """What to do now. Asked again after everything that was reported."""
        if self.reason is not None:
            # A fetch under way may still bring transactions, which need an outcome or a way back.
            return WAIT if outstanding or self.fetching else Finish(self.reason)
        if self.fetching or not self._has_room(outstanding):
            return WAIT
        if self.resume_at is not None and now < self.resume_at:
            return Wait(self.resume_at)
        remaining = self.remaining
        if remaining is None or remaining >= self.rule.size:
            return self._whole_batch
        # Not more than the limit leaves: what a source hands over beyond it would have to go back.
        return Fetch(remaining)

    def _has_room(self, outstanding: int) -> bool:
        if self.rule.continuous:
            return outstanding < self.rule.concurrency + self.rule.size
        return outstanding == 0

    def fetch_began(self, now: float) -> None:
        """A fetch is under way: no other may start."""
        self.fetching = True
        self.resume_at = None
        # Retries share one budget, which is measured from the first attempt.
        if self.fetch_attempt == 0:
            self.fetch_began_at = now

    def delivered(self, count: int, now: float) -> int:
        """The source answered with ``count`` transactions; returns how many to take in.

        What arrives while the loop is stopping goes back where the source allows it, and is worked
        on otherwise: the source has handed it over, and no other consumer would ever see it.
        """
        self.fetching = False
        self.fetch_attempt = 0
        if count == 0:
            self._found_nothing(now)
            return 0
        self.empties = 0
        if self.reason is not None and self.rule.returns:
            return 0
        self.batches += 1
        remaining = self.remaining
        accepted = count if remaining is None else min(count, remaining)
        self.taken += accepted
        if self.remaining == 0:
            self.stop(StopReason.LIMIT)
        return accepted

    def _found_nothing(self, now: float) -> None:
        if not self.rule.streaming:
            self.stop(self.rule.exhausted)
            return
        if self.rule.source_waits:
            # The source is asked again at once, since nobody would hear of work that comes during
            # a wait of ours. The base delay counts from the start of the fetch: it keeps a source
            # that answers without waiting from being asked in a tight loop.
            self.resume_at = max(now, self.fetch_began_at + self.rule.empty.base)
            return
        self.resume_at = now + self.rule.empty.delay(self.empties)
        self.empties += 1

    def fetch_failed(self, failure: Failure, now: float, dice: float) -> None:
        """A fetch attempt failed: the judge decides on another."""
        self.fetching = False
        verdict = judge(
            self.rule.fetch, self.fetch_attempt, self.fetch_began_at, failure, now, dice
        )
        if isinstance(verdict, RetryAfter):
            self.fetch_attempt += 1
            self.resume_at = now + verdict.delay
            return
        self.failure = failure
        self.stop(StopReason.FETCH_FAILED)

    def stop(self, reason: StopReason) -> None:
        """Take in nothing more. The first reason stays."""
        if self.reason is None:
            self.reason = reason
