"""Settlements: telling the source how a run ended, and what becomes of one that fails.

Whether a failed settlement is tried again is decided by ``judge_settlement`` in
``core/transaction_lifecycle.py``: within a bound, and never after the source has lost its
channel. A stop bounds it further, by its grace. A settlement that is given up changes nothing about
the outcome of its transaction: it is counted and reported, and the source will deliver it again.

The drivers call the source and wait. As elsewhere in the engine, methods are called with the lock
of the call held, unless they take it themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import RetryAfter, Verdict
from ergon_framework.core.transaction_lifecycle import Verb, judge_settlement
from ergon_framework.engine.classify import is_fatal, settlement_failure
from ergon_framework.engine.instrumentation import Instrumentation
from ergon_framework.engine.plan import SettlementPlan
from ergon_framework.engine.run import SETTLE, EngineWorker, LifecycleRun, SettlementAttempt
from ergon_framework.errors import describe
from ergon_framework.ports.context import Call
from ergon_framework.ports.transaction import Transaction


class Notifiable(Protocol):
    """The half of a signal that does not wait."""

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` sleepers."""

    def notify_all(self) -> None:
        """Wake every sleeper."""


class SettlingCall(Protocol):
    """What a settlement asks of the call that it belongs to."""

    call: Call
    lock: AbstractContextManager[Any]
    now: Callable[[], float]
    backoff_wakeup: Notifiable
    grace_at: float
    is_aborted: bool

    def instant(self) -> float:
        """The clock, for what has to be done even when the clock cannot be read."""


class Settlements:
    """The settlements of one call."""

    def __init__(
        self,
        call: SettlingCall,
        settlement: SettlementPlan | None,
        instrumentation: Instrumentation,
        stop: Callable[[BaseException], None],
    ) -> None:
        self._call = call
        self._settlement = settlement
        self._instrumentation = instrumentation
        self._stop = stop
        self.failures = 0
        self.channel_losses = 0
        """How often the source said that its channel is gone."""

    def first_attempt(self, run: LifecycleRun, verb: Verb, timeout: float) -> SettlementAttempt:
        """The first attempt to tell the source how a run ended. Needs no lock."""
        call = self._call
        attempt = SettlementAttempt(call.call, run, verb, call.now(), self.channel_losses)
        attempt.deadline_at = attempt.since + timeout
        return attempt

    def answered(
        self, worker: EngineWorker, attempt: SettlementAttempt, problem: BaseException | None
    ) -> SettlementAttempt | None:
        """The source answered, and the caller owns the attempt. A wait, if it is told again.

        The wait is published before anybody is told of it: from then on, whoever ends the run
        without its worker knows that the source has not heard of the outcome.
        """
        if problem is None:
            self._instrumentation.settled(attempt, None)
            return None
        failure = settlement_failure(problem)
        with self._call.lock:
            self.note_loss(failure)
            now = self._call.instant()
            verdict = self._verdict(attempt.number, attempt.since, failure, now, attempt.channel)
            if isinstance(verdict, RetryAfter) and self._may_wait_until(now + verdict.delay):
                nap = worker.attempt = attempt.wait(failure, now + verdict.delay)
                self._tell_retry(attempt, failure, verdict.delay)
                return nap
            self.failed(attempt.transaction, attempt.verb, describe(problem))
            self._instrumentation.settled(attempt, failure)
            if is_fatal(problem):
                self._stop(problem)
        return None

    def next_attempt(self, nap: SettlementAttempt, timeout: float) -> SettlementAttempt | None:
        """The attempt after a wait that the caller owns; None when there is none."""
        failure = nap.failure or Failure(Kind.TRANSIENT, "unknown")
        with self._call.lock:
            if self._may_wait_until(nap.wake_at) and not self._has_lost_channel(nap):
                # All attempts share one deadline: the lease at the source does not begin anew with
                # a retry.
                return nap.next(self._call.now(), nap.since + timeout)
            self.failed(nap.transaction, nap.verb, failure.message)
            self._instrumentation.settled(nap, failure)
        return None

    def release_again(
        self, transaction: Transaction, number: int, since: float, channel: int, problem: Any
    ) -> float | None:
        """When a release that failed is tried again, if it is."""
        failure, now = settlement_failure(problem), self._call.instant()
        self.note_loss(failure)
        verdict = self._verdict(number, since, failure, now, channel)
        if not isinstance(verdict, RetryAfter):
            return None
        delay = verdict.delay
        self._instrumentation.settlement_retried(transaction, Verb.RELEASE, failure, delay)
        return now + delay

    def failed(self, transaction: Transaction, verb: Verb, error: str) -> None:
        """ack, nack or release did not work: the source will deliver again."""
        self.failures += 1
        self._instrumentation.settlement_failed(transaction, verb, error)

    def note_loss(self, failure: Failure) -> None:
        """The source lost its channel: nothing that came through it is tried again."""
        if failure.kind is Kind.LOST:
            self.channel_losses += 1
            # Those that wait to settle through the lost channel wake up and give up.
            self._call.backoff_wakeup.notify_all()

    def waits(self, nap: SettlementAttempt) -> bool:
        """Whether the wait goes on: not beyond the grace of a stop, nor on a lost channel."""
        is_due = self._call.now() >= nap.wake_at
        return not is_due and self._may_wait_until(nap.wake_at) and not self._has_lost_channel(nap)

    def _verdict(
        self, number: int, since: float, failure: Failure, now: float, channel: int
    ) -> Verdict:
        """The core's word on a failed settlement that began before ``channel`` losses more."""
        if self._settlement is None:
            raise AssertionError("a settlement without a source to tell")
        is_lost = self.channel_losses != channel
        rule = self._settlement.retry
        return judge_settlement(rule, number, since, failure, now, is_channel_lost=is_lost)

    def _may_wait_until(self, until: float) -> bool:
        return not self._call.is_aborted and until <= self._call.grace_at

    def _has_lost_channel(self, nap: SettlementAttempt) -> bool:
        return self.channel_losses != nap.channel

    def _tell_retry(self, attempt: SettlementAttempt, failure: Failure, delay: float) -> None:
        self._instrumentation.settlement_retried(attempt.transaction, attempt.verb, failure, delay)
        self._instrumentation.emit(
            "retry.scheduled",
            run=attempt.run,
            phase=SETTLE,
            attempt=attempt.number,
            delay=delay,
            failure=failure,
        )
