"""What both drivers' workers do without waiting.

The lock is the thread driver's; under asyncio it is a context manager that does nothing, so that
the two colours share this text word for word.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import (
    RETURNED,
    STOPPED,
    SUCCEEDED,
    End,
    Ending,
    Event,
    Step,
    Verb,
    settle_again,
)
from ergon_framework.core.loop import Fetch, Finish, StopReason
from ergon_framework.core.retry import Again, Verdict
from ergon_framework.engine.classify import is_outbreak, settlement_failure
from ergon_framework.engine.decisions import (
    abandon,
    end_early,
    expired,
    raised,
    tell_attempt,
    tell_ended,
    tell_settled,
)
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.flight import NEVER
from ergon_framework.engine.intake import Intake
from ergon_framework.engine.plan import PROCESS
from ergon_framework.engine.run import FETCH, SETTLE, Doing, Run, Settling, Worker
from ergon_framework.errors import describe
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")

Job = Callable[[Worker], Any]
HIRE_AGAIN = 1.0
"""Seconds after which a worker that could not be started is tried again."""
MOST_TROUBLES = 3
"""Turns in a row in which the supervisor may fail before it ends the call without a grace."""


class Bell(Protocol):
    """The half of a signal that does not wait."""

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` sleepers."""

    def notify_all(self) -> None:
        """Wake every sleeper."""


class Crew(Intake):
    """The workers of one call, seen without their colour."""

    lock: AbstractContextManager[Any]
    work: Bell  # idle workers wait here
    naps: Bell  # workers between two attempts
    watch: Bell  # the supervisor
    fetched: Bell  # whoever waits for a fetch that hangs

    @abstractmethod
    def _start(self, worker: Worker, job: Job | None) -> None:
        """Let a worker begin, with something to finish first if ``job`` is given."""

    @abstractmethod
    def _drive(self, worker: Worker, run: Run, event: Event) -> Any:
        """Do what the machine says until the end; starts at any event."""

    @abstractmethod
    def _hand_back_later(self) -> None:
        """Hand back what a fetch brought after the call was over."""

    def _stop(self, error: BaseException | None = None) -> None:
        """Begin to stop, because of ``error`` if there is one. The lock is held."""
        if error is not None:
            self.interrupt(error)
        self.begin_stop(StopReason.STOPPED)
        self.work.notify_all()
        self.naps.notify_all()
        self.watch.notify()

    def hear_stop(self) -> None:
        """Begin the stop that was asked for and that nobody has begun yet. The lock is held."""
        if self.stops and self.grace_at == NEVER:
            self._stop()

    def _plan(self) -> Fetch | Finish | None:
        """The loop's plan; None while there is something ready or something to wait for."""
        if self.is_finished or self.is_aborted:
            return Finish(self.loop.reason or StopReason.STOPPED)
        if self.ready:
            return None
        action = self.loop.plan(self.now(), self.outstanding())
        if isinstance(action, Finish):
            self.is_finished = True
            self.watch.notify()
            self.work.notify_all()
            return action
        if isinstance(action, Fetch):
            self.loop.fetch_began(self.now())
            return action
        self.resume_at = action.until
        return None

    def _rested(self) -> None:
        """A worker leaves its rest."""
        self.idle -= 1
        self.is_rousing = False

    def _hand_over(self) -> None:
        """A worker that rested begins a lifecycle. If it waited for the next fetch, another does.

        Not when it merely leaves its rest: two that have nothing to do would wake each other.
        """
        if self.idle and self.resume_at is not None and self.now() < self.resume_at:
            self.work.notify()

    def _rouse(self) -> None:
        """Get one more worker going. It will rouse the next: no herd is woken for a short batch.

        Whoever calls it is about to begin one of those that are ready.
        """
        if not self.idle and len(self.workers) >= self.plan.loop.concurrency:
            return
        with self.lock:
            is_needed = len(self.ready) > 1 or self._needs_planner()
            if self.is_rousing or self.is_finished or not is_needed:
                return
            if self.idle:
                self.is_rousing = True
                self.work.notify()
            elif len(self.workers) < self.allowed():
                self._hire_one_more()

    def _hire_one_more(self) -> None:
        """Grow, if that can be done: where no thread can be started, fewer workers do the work."""
        if self.hire_again_at is not None and self.now() < self.hire_again_at:
            return
        self.is_rousing = True
        try:
            self._hire(None)
        except Exception as error:
            if self.hire_again_at is None:
                logger.warning(
                    "%s goes on with %d workers: another one could not be started: %s",
                    self.plan.task,
                    len(self.workers),
                    describe(error),
                )
            self.hire_again_at = self.instant() + HIRE_AGAIN

    def _hire(self, job: Job | None, run: Run | None = None) -> None:
        """Start one more worker, which goes on with ``run`` if one is given. The lock is held."""
        worker = Worker()
        worker.run = run
        self.workers.append(worker)
        try:
            self._start(worker, job)
        except BaseException:
            self.is_rousing = False
            self._leave(worker)
            raise

    def _needs_planner(self) -> bool:
        """Whether nobody would ask for more while everybody is at work."""
        loop = self.loop
        if loop.fetching or loop.reason is not None:
            return False
        return loop.resume_at is None or not self.idle

    def _left(self, worker: Worker, outbreak: BaseException | None) -> None:
        """A worker's last act. A defect of ours must end the call, not hang it."""
        with self.lock:
            try:
                if outbreak is not None:
                    self._broke_out(outbreak)
            finally:
                self._leave(worker)

    def _broke_out(self, error: BaseException) -> None:
        """A worker ended with an error that is nobody's outcome."""
        self._stop(error)

    def _leave(self, worker: Worker) -> None:
        """Let go of a worker; the run that it still holds is cut short. The lock is held."""
        key = None if worker.run is None else worker.run.transaction.transaction_id
        try:
            abandon(self, worker)
        finally:
            self.dismiss(worker)
            if key is not None:
                self.pass_on(key)
            self.watch.notify()

    def _in_trouble(self, error: BaseException, troubles: int) -> None:
        """The supervisor itself failed: Ctrl-C, no thread can be started, a clock that raises."""
        self._stop(error)
        if not self.workers:
            self.stops += 2  # nobody is there to finish anything
        if troubles > MOST_TROUBLES:
            self.begin_abort(self.loop.reason or StopReason.STOPPED)
            self.is_finished = True

    def gather(self) -> None:
        """The call is over: what its workers still hold, and what never began, goes back."""
        self.is_finished = True
        self.begin_abort(self.loop.reason or StopReason.STOPPED)
        for worker in list(self.workers):
            try:
                self._part_with(worker)
            except BaseException as error:  # of a listener: the others are parted with as well
                self.interrupt(error)

    def _part_with(self, worker: Worker) -> None:
        """The call ends with a worker still there: nothing that it does counts from here on."""
        attempt = worker.attempt
        if attempt is not None and attempt.run is None and attempt.claim():
            self.give_up_on(worker, attempt)  # what the fetch brings is handed back when it is
        else:
            abandon(self, worker)

    def _replace(self, worker: Worker, attempt: Doing) -> None:
        """The supervisor claimed an attempt that hangs: somebody else goes on with its run."""
        run: Run | None = attempt.run
        try:
            self.give_up_on(worker, attempt)
            self._take_over(attempt)
        except BaseException:  # a listener, or no worker can be started
            if run is None:
                self.stuck, self.loop.fetching = attempt, False
            else:
                end = run.end or End(Ending.ABORTED, run.failure)
                end_early(self, run, end, is_told=attempt.phase == SETTLE)
            raise

    def _take_over(self, attempt: Doing) -> None:
        """A fresh worker goes on where the abandoned one hangs."""
        run: Run | None = attempt.run
        if run is None:
            self.fetch_hangs(attempt)
            self._hire(None)
        elif isinstance(attempt, Settling):
            text = "TimeoutError: no answer"
            self.settle_failed(run.transaction, attempt.verb, text)
            tell_settled(self, attempt, Failure(Kind.TIMEOUT, "settlement_timeout", text))
            self._hire(lambda worker: self._close(worker, run), run)
        else:
            event = expired(self, attempt)
            self._hire(lambda worker: self._drive(worker, run, event), run)

    def _failed(self, attempt: Doing, step: Step, error: BaseException) -> Event | None:
        """A hook raised. None when the supervisor took the run away meanwhile."""
        if not self._owns(attempt):
            return None
        if is_outbreak(error):
            with self.lock:
                self._stop(error)
        elif self.now() >= self.deadline_at:
            return STOPPED
        elif self.is_overdue(attempt):
            return expired(self, attempt)
        return raised(self, attempt, step, error)

    def _returned(self, doing: Doing, run: Run, step: Step, result: Any) -> Event | None:
        """A hook returned. None when the supervisor took the run away meanwhile."""
        try:
            doing.ticket.pop()
        except IndexError:
            if not self._owns(doing):
                return None
        if self.is_timed:
            run.seen_at = now = self.now()
            if now >= self.deadline_at:
                return STOPPED
            if doing.expired or (doing.deadline_at is not None and now >= doing.deadline_at):
                return expired(self, doing)
        if step is PROCESS:
            run.result = result
        if self.sink is not None:
            tell_attempt(self, doing, None, None, result, run.seen_at)
        return RETURNED

    def _owns(self, attempt: Doing) -> bool:
        """Claim the attempt whose call came back; False when the supervisor has it.

        The supervisor may have claimed it by mistake and be about to put it back: it does so under
        the lock, so that is where to look again.
        """
        if attempt.claim():
            return True
        with self.lock:
            if attempt.claim():
                return True
        self._late(attempt)
        return False

    def is_overdue(self, attempt: Doing) -> bool:
        """An attempt that took longer than its time is a timeout, whoever noticed first."""
        deadline_at = attempt.deadline_at
        return attempt.expired or (deadline_at is not None and self.now() >= deadline_at)

    def _late(self, attempt: Doing) -> None:
        """The supervisor gave up on this call and went on without us: the result is dropped."""
        with self.lock:
            self.came_back(attempt)
            self.work.notify_all()

    # -- settling ----------------------------------------------------------------------------

    def _settling(self, run: Run, verb: Verb, timeout: float) -> Settling:
        """The first attempt to tell the source how a run ended."""
        attempt = Settling(self.call, run, verb, self.now(), self.channel_losses)
        attempt.deadline_at = attempt.since + timeout
        return attempt

    def _settled(
        self, worker: Worker, attempt: Settling, problem: BaseException | None
    ) -> Settling | None:
        """The source answered, and the caller owns the attempt. A wait, if it is told again.

        The wait is published before anybody is told of it: from then on, whoever ends the run
        without its worker knows that the source has not heard of the outcome.
        """
        if problem is None:
            tell_settled(self, attempt, None)
            return None
        failure = settlement_failure(problem)
        with self.lock:
            self._note_loss(failure)
            now = self.instant()
            verdict = self._settle_again(
                attempt.number, attempt.since, failure, now, attempt.channel
            )
            if isinstance(verdict, Again) and self._may_wait_until(now + verdict.delay):
                nap = worker.attempt = attempt.wait(failure, now + verdict.delay)
                self._tell_settle_retry(attempt, failure, verdict.delay)
                return nap
            self.settle_failed(attempt.transaction, attempt.verb, describe(problem))
            tell_settled(self, attempt, failure)
            if is_outbreak(problem):
                self._stop(problem)
        return None

    def _settle_again(
        self, number: int, since: float, failure: Failure, now: float, channel: int
    ) -> Verdict:
        """The core's word on a failed settlement that began before ``channel`` losses more."""
        if self.settlement is None:
            raise AssertionError("a settlement without a source to tell")
        is_lost = self.channel_losses != channel
        rule = self.settlement.retry
        return settle_again(rule, number, since, failure, now, is_channel_lost=is_lost)

    def _note_loss(self, failure: Failure) -> None:
        """The source lost its channel: nothing that came through it is tried again."""
        if failure.kind is Kind.LOST:
            self.channel_losses += 1
            self.naps.notify_all()

    def _may_wait_until(self, until: float) -> bool:
        return not self.is_aborted and until <= self.grace_at

    def _waits_to_settle(self, nap: Settling) -> bool:
        """Whether the wait goes on: not beyond the grace of a stop, nor on a lost channel."""
        is_due = self.now() >= nap.wake_at
        return not is_due and self._may_wait_until(nap.wake_at) and not self._lost_channel(nap)

    def _lost_channel(self, nap: Settling) -> bool:
        return self.channel_losses != nap.channel

    def _next_settling(self, nap: Settling, timeout: float) -> Settling | None:
        """The attempt after a wait that the caller owns; None when there is none."""
        failure = nap.failure or Failure(Kind.TRANSIENT, "unknown")
        with self.lock:
            if self._may_wait_until(nap.wake_at) and not self._lost_channel(nap):
                return nap.next(self.now(), nap.since + timeout)
            self.settle_failed(nap.transaction, nap.verb, failure.message)
            tell_settled(self, nap, failure)
        return None

    def _tell_settle_retry(self, attempt: Settling, failure: Failure, delay: float) -> None:
        self.tell_settle_retry(attempt.transaction, attempt.verb, failure, delay)
        self.emit(
            "retry.scheduled",
            run=attempt.run,
            phase=SETTLE,
            attempt=attempt.number,
            delay=delay,
            failure=failure,
        )

    def _release_again(
        self, transaction: Transaction, number: int, since: float, channel: int, problem: Any
    ) -> float | None:
        """When a release that failed is tried again, if it is. The lock is held."""
        failure, now = settlement_failure(problem), self.instant()
        self._note_loss(failure)
        verdict = self._settle_again(number, since, failure, now, channel)
        if not isinstance(verdict, Again):
            return None
        self.tell_settle_retry(transaction, Verb.RELEASE, failure, verdict.delay)
        return now + verdict.delay

    # -- the end of a run --------------------------------------------------------------------

    def _close(self, worker: Worker, run: Run) -> bool:
        """Record the outcome and let the next one with the same id go."""
        end = run.end
        if end is None:
            raise AssertionError("a run was closed before its end")
        is_ours = False
        try:
            if self.is_watched or end is not SUCCEEDED:
                tell_ended(self, run, end)
        finally:
            is_ours = self._account_for(worker, run, end)
        return is_ours

    def _account_for(self, worker: Worker, run: Run, end: End) -> bool:
        """Count an outcome; False when the call has ended without this worker."""
        transaction = run.transaction
        key = transaction.transaction_id
        worker.attempt = None
        if self.plan.ended is None:
            # The frames of its traceback hold on to the run, and the run to its payload: such a
            # circle would live until the collector comes by.
            run.exception = run.handler_exception = None
        if self.live.pop(key, None) is None:
            worker.run = None
            return False
        if end is SUCCEEDED:
            worker.succeeded += 1
        else:
            if end.how is Ending.ABORTED:
                self.returning.append(transaction)
            worker.count(end)
        worker.run = None
        if self.behind:
            self._let_next_go(key)
        return True

    def _let_next_go(self, key: str) -> None:
        """An id is no longer running: whoever waits for it goes on."""
        with self.lock:
            self.pass_on(key)

    def _begin(self, worker: Worker, transaction: Transaction) -> Run:
        """A worker took a transaction from those that are ready."""
        try:
            run = self.make_run(transaction, self.now() if self.is_timed else 0.0)
        except BaseException:  # it has not begun: whoever is left finds it where it was
            self.ready.appendleft(transaction)
            raise
        worker.run = run
        return run

    def _is_over(self, run: Run) -> bool:
        """Whether the call has ended without the worker that is about to tell the source."""
        return self.is_aborted and run.transaction.transaction_id not in self.live

    def _receive(self, delivery: Delivery, attempt: Doing) -> None:
        """A fetch came back in time, or its late answer is wanted after all. The lock is held."""
        if delivery.error is not None:
            self._note_loss(settlement_failure(delivery.error))
            if is_outbreak(delivery.error):
                self._stop(delivery.error)
        self.receive(delivery, attempt)

    def _fetched_late(self, attempt: Doing, delivery: Delivery) -> None:
        """A fetch came back after it was given up: what it brought is kept or handed back."""
        with self.lock:
            count = len(delivery.transactions)
            try:
                self._keep_late(attempt, delivery)
            finally:
                self.came_back(attempt)
                self.emit("fetch.late", delivered=count)

    def _keep_late(self, attempt: Doing, delivery: Delivery) -> None:
        if self.is_finished:
            self.return_unused(delivery.drain())
            self._hand_back_later()
            return
        if self.loop.reason is None:
            self.late = delivery
            self.fetched.notify_all()
        else:
            self.stuck = None
            self._receive(delivery, attempt)
        self.work.notify()

    def _waiting_attempt(self, at_most: int) -> Attempt:
        """An attempt to fetch that waits for the call of an earlier one."""
        attempt = Attempt(self.call, None, FETCH, self.loop.fetch_attempt)
        attempt.began_at = self.now()
        self.emit("fetch.began", attempt=attempt, requested=at_most)
        return attempt

    def _take_late(self, attempt: Attempt) -> None:
        """A repeated fetch ends: with what the hanging one brought, or with another timeout."""
        if self.late is not None and self.stuck is not None:
            late, self.late, self.stuck = self.late, None, None
            self._receive(late, attempt)
        elif not self.is_aborted:
            self.fetch_timed_out(attempt)
