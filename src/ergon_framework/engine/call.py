"""One consume or produce call: everything the two drivers share. Nothing here waits.

Rules for editors: the thread driver calls these methods while holding its lock, the asyncio driver
from its event loop; the few that run without the lock say so, and why that is safe. Under asyncio
the lock is a context manager that does nothing, so that both drivers share this text.

Every attempt carries a ticket, and either the worker whose call returned or the supervisor that
gave up on the attempt claims it. The claimant alone decides what happens next. No lock is held
while user code runs.

The file is long because it is one subject: all of it reads and changes the state of one call under
one lock, and most invariants span several sections (what is delivered is ``ready``, ``live``, has
an outcome, or goes back; the account at the end checks that). What has state of its own is apart:
``intake`` (the source), ``settlement_retry``, ``deadlines``, ``decider``, ``instrumentation``.

In order: workers and deadlines; report and account; the source; stopping; starting, waking and
replacing workers; what a hook's return or exception leads to; runs that end without their worker;
the end of a run; late fetches; the end of the call.
"""

from __future__ import annotations

import contextvars
import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.loop import Fetch, Finish, Loop, StopReason
from ergon_framework.core.transaction_lifecycle import (
    RETURNED,
    STOPPED,
    SUCCEEDED,
    End,
    Ending,
    LifecycleEvent,
    LifecycleStep,
    Verb,
    advance,
)
from ergon_framework.engine.classify import (
    fetch_failure,
    is_fatal,
    settlement_failure,
    unawaited_settlement,
)
from ergon_framework.engine.deadlines import NEVER, AttemptDeadlines
from ergon_framework.engine.decider import Decider
from ergon_framework.engine.instrumentation import Instrumentation
from ergon_framework.engine.intake import BatchReader, FetchResult, Intake
from ergon_framework.engine.plan import PROCESS, EnginePlan, Hook
from ergon_framework.engine.report import Report, ending_error
from ergon_framework.engine.run import (
    BACKOFF,
    FETCH,
    SETTLE,
    EngineWorker,
    InProgress,
    LifecycleRun,
    OutcomeCounts,
    ProduceRun,
    SettlementAttempt,
)
from ergon_framework.engine.settlement_retry import Notifiable, Settlements
from ergon_framework.errors import (
    describe,
)
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")


Continuation = Callable[[EngineWorker], Any]
"""What a replacement worker does first: it finishes the run of the worker that hangs."""
START_RETRY_DELAY = 1.0
"""Seconds after which a worker that could not be started is tried again."""
MAX_SUPERVISOR_FAILURES = 3
"""Turns in a row in which the supervisor may fail before it ends the call without a grace."""


class EngineCall:
    """One consume or produce call, as both drivers see it; a driver adds how it waits."""

    lock: AbstractContextManager[Any]
    idle_wakeup: Notifiable  # idle workers wait here
    backoff_wakeup: Notifiable  # workers between two attempts
    watchdog_wakeup: Notifiable  # the supervisor
    fetch_wakeup: Notifiable  # a repeated fetch, which waits for the one that hangs
    is_source_woken = False

    def __init__(self, plan: EnginePlan, now: Callable[[], float], sink: Sink | None) -> None:
        self.plan = plan
        self.now = now
        self.sink = sink
        self.loop = Loop(plan.loop)
        self.call = Call(plan.role, plan.task, uuid.uuid4().hex, now, plan.settings)
        self.context = contextvars.copy_context()  # copied again for each attempt, never run in
        self.workers: list[EngineWorker] = []
        self.instrumentation = Instrumentation(plan, self.call, now, sink)
        self.deadlines = AttemptDeadlines(plan, self.workers, now, self.instrumentation)
        self.intake = Intake(BatchReader(plan.fetch))
        self.decider = Decider(plan, now, self.instrumentation)
        self.settlements = Settlements(self, plan.settlement, self.instrumentation, self._stop)
        self._read_plan()
        self._bind_parts()
        self._start_counting()
        self._set_bounds()

    def _read_plan(self) -> None:
        """Copy what the hot path reads from the plan into attributes, once."""
        plan = self.plan
        self.rule = plan.lifecycle
        self.settlement = plan.settlement
        self.make_run = ProduceRun if plan.role == "producer" else LifecycleRun
        self.on_process, self.on_success, self.on_exception = steps = plan.steps()
        self.steps = {each.step: each for each in steps}
        self.is_watched = self.sink is not None or plan.ended is not None
        self.is_timed = self.sink is not None or plan.has_timeout()
        self.is_plain = plan.compiled and self.sink is None and not plan.has_budget()
        self.is_continuous = plan.loop.continuous
        self.is_quiet = plan.settlement is None and not self.is_watched
        # A sink is to hear of each settlement, so there it is made the long way.
        told = plan.settlement if self.sink is None else None
        self.ack_at_once = None if told is None else told.ack_at_once

    def _bind_parts(self) -> None:
        """Alias what the hot path uses of the parts. The parts never rebind these objects."""
        self.arm = self.deadlines.arm
        self.reader = self.intake.reader
        self.ready = self.intake.ready
        self.live = self.intake.live
        self.behind = self.intake.behind
        self.returning = self.intake.returning

    def _start_counting(self) -> None:
        """What became of transactions and workers, and of the one fetch under way."""
        self.past = OutcomeCounts()  # what workers counted that are gone
        self.idle = 0
        self.is_waking = False
        self.start_again_at: float | None = None  # no worker could be started before
        self.is_accounted = False
        # The connector counts over its whole life; the report of this call has the difference.
        self.malformed_before = self.plan.malformed()[0]
        self.released = 0
        self.stranded: list[str] = []
        self.fetch_error: BaseException | None = None
        self.stuck: InProgress | None = None  # a fetch that was given up on and has not come back

    def _set_bounds(self) -> None:
        """When the supervisor has to act, and whether the call is ending."""
        self.began_at = self.now()
        timeout = self.plan.bounds.loop_timeout
        self.has_deadline = timeout is not None
        self.deadline_at = NEVER if timeout is None else self.began_at + timeout
        self.grace_at = NEVER
        self.resume_at: float | None = None  # when an idle worker should plan again
        self.stops = 0
        self.is_aborted = False
        self.is_finished = False
        self.fatal: BaseException | None = None  # leaves the call when it ends

    def instant(self) -> float:
        """The clock, for what has to be done even when the clock cannot be read."""
        try:
            return self.now()
        except Exception:
            logger.exception("the clock of %s could not be read", self.plan.task)
            return self.began_at

    # -- workers -----------------------------------------------------------------------------

    def may_start(self) -> bool:
        """Whether the asking worker, which counts as active, may begin another lifecycle."""
        return (
            not self.deadlines.is_gated or len(self.workers) - self.idle <= self.deadlines.allowed()
        )

    def forget_worker(self, worker: EngineWorker) -> None:
        """Forget a worker that has ended, and keep its counts."""
        worker.run = None
        if worker in self.workers:
            self.workers.remove(worker)
            self.past.add(worker)

    def give_up_on(self, worker: EngineWorker, attempt: InProgress) -> None:
        """The supervisor claimed this attempt: its worker is lost until the call comes back."""
        self.forget_worker(worker)
        self.deadlines.give_up_on(attempt)

    # -- deadlines ---------------------------------------------------------------------------

    def next_alarm(self) -> float | None:
        """When the supervisor must look again by itself."""
        alarm = min(self.deadlines.next_check, self.deadline_at, self.grace_at)
        return None if alarm == NEVER else alarm

    # -- the end -----------------------------------------------------------------------------

    def report_stranded(self, transactions: Collection[Transaction]) -> None:
        """Report transactions as stranded that could not be handed back, and log them."""
        self.stranded.extend(transaction.transaction_id for transaction in transactions)
        self.instrumentation.stranded(transactions)

    def tally(self) -> OutcomeCounts:
        """What has been counted so far, by all workers."""
        total = OutcomeCounts()
        total.add(self.past)
        for worker in self.workers:
            total.add(worker)
        return total

    def report(self) -> Report:
        """What the call answers."""
        total = self.tally()
        malformed, kept_in = self.plan.malformed()
        malformed -= self.malformed_before
        return Report(
            succeeded=total.succeeded,
            failed=total.failed,
            timed_out=total.timed_out,
            handler_failures=total.handler_failures,
            aborted=total.aborted,
            parked=total.parked,
            discarded=total.discarded,
            released=self.released,
            settlement_failures=self.settlements.failures,
            abandoned=self.deadlines.abandoned_ever,
            batches=self.loop.batches,
            stranded=(*self.stranded, *self.plan.leftovers()),
            duplicates=tuple(self.plan.duplicates()),
            malformed=malformed,
            dead_letters=(kept_in,) if malformed and kept_in else (),
            elapsed=self.instant() - self.began_at,
            stop_reason=self.loop.reason or StopReason.STOPPED,
        )

    # -- the source ---------------------------------------------------------------------------

    def outstanding(self) -> int:
        """Transactions taken in that have no outcome yet."""
        # Added up from the workers' own counts: one shared counter would take the lock for every
        # outcome.
        ended = self.past.ended + sum(worker.ended for worker in self.workers)
        return self.loop.taken - ended - self.intake.unstarted

    def receive(self, delivery: FetchResult, attempt: InProgress) -> None:
        """A fetch came back, with transactions, with an error, or with some of each."""
        now = self.now()  # before anything is moved: should it raise, ``reading`` still has it all
        failure: Failure | None = None
        count = len(delivery.transactions)
        self._keep(delivery, now)
        self.fetch_error = delivery.error  # one that was followed by a delivery is forgotten
        if delivery.error is not None:
            if delivery.is_defect:
                failure = Failure(Kind.REJECTED, "not_a_transaction", describe(delivery.error))
            else:
                failure = fetch_failure(delivery.error)
            self.loop.fetch_failed(failure, now, self.plan.dice())
            # Its traceback would keep the frames alive that hold the delivery.
            delivery.error = None
        if count > delivery.requested:
            logger.warning(
                "the source of %s delivered %d transactions where %d were asked for",
                self.plan.task,
                count,
                delivery.requested,
            )
        if self.sink is not None:
            self._tell_fetched(delivery, count, attempt, failure, now)

    def _keep(self, delivery: FetchResult, now: float) -> None:
        """Move what was delivered to where it belongs. Nothing here calls code of the user's."""
        brought, delivery.transactions = delivery.transactions, []
        self.intake.reading = None
        self.intake.delivered += len(brought)
        if self.is_aborted:  # no hook is called any more
            self.loop.fetching = False
            self.returning.extend(brought)
        # A delivery may bring transactions and an error: what came is kept, and the error is judged
        # by ``receive``.
        elif brought or delivery.error is None:
            accepted = self.loop.delivered(len(brought), now)
            self.intake.take_in_all(brought[:accepted])
            self.returning.extend(brought[accepted:])

    def _tell_fetched(
        self,
        delivery: FetchResult,
        count: int,
        attempt: InProgress,
        failure: Failure | None,
        now: float,
    ) -> None:
        self.instrumentation.fetch_ended(attempt, delivery.requested, count, failure)
        resume_at = self.loop.resume_at
        if count == 0 and failure is None and resume_at is not None:
            self.instrumentation.emit(
                "queue.empty", empties=self.loop.empties, delay=resume_at - now
            )

    def releasing(self) -> Hook | None:
        """How the source takes transactions back, if it does."""
        return None if self.settlement is None else self.settlement.verbs.get(Verb.RELEASE)

    def release_ended(
        self, transaction: Transaction, problem: BaseException | None, attempts: int, since: float
    ) -> None:
        """A transaction was handed back, or could not be."""
        failure = None
        if problem is None:
            self.released += 1
        else:
            failure = settlement_failure(problem)
            self.report_stranded((transaction,))
            self.settlements.failed(transaction, Verb.RELEASE, describe(problem))
        self.instrumentation.settlement_ended(
            transaction, Verb.RELEASE, None, attempts, since, failure
        )

    # -- the account -------------------------------------------------------------------------

    def account(self) -> None:
        """The end of a call: all that was delivered has an outcome, is released or is stranded.

        What is left is a defect of ours. It is reported as stranded and logged, and the call does
        not fail because of it.
        """
        if self.is_accounted:
            return
        # The order of the account: first what was never begun, then what is on its way back, then
        # what somebody still holds, which must be nothing.
        self.intake.sweep()  # a worker may have put one back that it could not begin
        self.report_stranded(self.intake.take_returning().give_up())
        lost = [self.live.pop(key) for key in list(self.live)]
        self.stranded.extend(transaction.transaction_id for transaction in lost)
        total = self.tally()
        outcomes = total.ended - total.aborted
        # Aborted ones are not outcomes: they are released or stranded, and counted there.
        missing = self.intake.delivered - outcomes - self.released - len(self.stranded)
        self.is_accounted = True
        for transaction in lost:
            self.instrumentation.emit(
                "transaction.stranded", transaction_id=transaction.transaction_id
            )
        if lost or missing:
            logger.critical(
                "the account of %s does not balance, which is a defect of the engine: of %d "
                "delivered transactions, %d have an outcome, %d were released and %d are stranded, "
                "%d of which nobody held: %s; please report it",
                self.plan.task,
                self.intake.delivered,
                outcomes,
                self.released,
                len(self.stranded),
                len(lost),
                ", ".join(transaction.transaction_id for transaction in lost[:20]),
            )

    def close_failed(self, error: BaseException) -> None:
        """A generator of the source raised while it was closed early."""
        logger.error("the generator that a fetch of %s answered with could not be closed: %s",
                     self.plan.task, describe(error))  # fmt: skip

    def fetch_hangs(self, attempt: InProgress) -> None:
        """The supervisor gave up on a fetch: a failed attempt, and no second call beside it."""
        self.stuck = attempt
        self.fetch_timed_out(attempt)

    def fetch_timed_out(self, attempt: InProgress) -> None:
        """An attempt to fetch ran out of its time, be it in a call or behind one that hangs."""
        failure = Failure(Kind.TIMEOUT, "fetch_timeout", "the fetch ran out of time")
        # Else the report would name the error of an earlier attempt as the cause of a call that
        # hung.
        self.fetch_error = None
        requested = (
            self.plan.loop.size if self.intake.reading is None else self.intake.reading.requested
        )
        self.instrumentation.fetch_ended(attempt, requested, 0, failure)
        self.loop.fetch_failed(failure, self.now(), self.plan.dice())

    # -- stopping ----------------------------------------------------------------------------

    def begin_stop(self, reason: StopReason) -> None:
        """Stop fetching, and let running transactions finish within the grace."""
        self.loop.stop(reason)
        self.stop_reading()
        # What a source cannot take back would be lost: there it is worked off within the grace
        # instead.
        if self.plan.loop.returns:
            self.intake.sweep()
        if self.grace_at == NEVER:
            # Set once: a second stop while the grace runs must not begin it anew.
            self.grace_at = self.instant() + self.plan.bounds.stop_grace
            self.instrumentation.emit("stop.asked", grace=self.plan.bounds.stop_grace)

    def stop_reading(self) -> None:
        """Read no more of a producer's input: the rest stays the caller's."""
        if self.plan.stop_reading is not None:
            self.plan.stop_reading()

    def wake_source(self) -> None:
        """Once a stop has begun: a fetch that waits for work need not wait any longer."""
        if self.plan.wake is None or self.is_source_woken or self.grace_at == NEVER:
            return
        # Before the call: a connector that raises is not asked again at every turn of the
        # supervisor.
        self.is_source_woken = True
        try:
            self.plan.wake()
        except Exception:
            logger.exception("the connector of %s could not be woken", self.plan.task)

    def interrupt(self, error: BaseException) -> None:
        """Ctrl-C, SystemExit or a defect of ours: stop, and raise it at the end.

        A second Ctrl-C does not wait for the grace; hooks that exit alike exit together.
        """
        if self.fatal is None:
            self.fatal = error
        # The same exception may pass several frames that all report it; only another one is a
        # second Ctrl-C.
        elif isinstance(error, KeyboardInterrupt) and error is not self.fatal:
            self.stops += 2
        self.loop.stop(StopReason.INTERRUPTED)

    def must_abort(self, now: float) -> StopReason | None:
        """Why everything must end now, if it must."""
        # Checked before the grace of a stop: the caller has set the timeout, so the timeout is the
        # reason to report.
        if now >= self.deadline_at:
            return StopReason.TIMEOUT
        if now >= self.grace_at or self.stops > 1:
            return self.loop.reason or StopReason.STOPPED
        return None

    def must_decide(self) -> bool:
        """Whether a stop or a deadline waits for the supervisor: nothing may begin before."""
        if self.is_aborted or self.is_finished:
            return False
        # ``stops`` is raised in a signal handler, which may not take the lock; the supervisor turns
        # it into a stop here.
        if self.stops and (self.stops > 1 or self.grace_at == NEVER):
            return True
        return self.now() >= min(self.deadline_at, self.grace_at)

    def begin_abort(self, reason: StopReason) -> None:
        """End the call: from here on no hook is called any more."""
        # Before the sweep: a worker that takes a transaction meanwhile sees it and calls no hook.
        self.is_aborted = True
        self.loop.reason = reason
        self.stop_reading()
        self.intake.sweep()

    # -- the workers --------------------------------------------------------------------------

    @abstractmethod
    def _spawn(self, worker: EngineWorker, first: Continuation | None) -> None:
        """Start a worker, which first finishes ``first`` if that is given."""

    @abstractmethod
    def _drive(self, worker: EngineWorker, run: LifecycleRun, event: LifecycleEvent) -> Any:
        """Carry out the actions of the lifecycle from ``event`` to its end."""

    @abstractmethod
    def _release_unstarted_later(self) -> None:
        """Hand back what a fetch brought after the call was over."""

    def _stop(self, error: BaseException | None = None) -> None:
        """Begin to stop, because of ``error`` if there is one. The lock is held."""
        if error is not None:
            self.interrupt(error)
        self.begin_stop(StopReason.STOPPED)
        self.idle_wakeup.notify_all()
        self.backoff_wakeup.notify_all()
        # The supervisor too: it may wait for a deadline that no longer matters.
        self.watchdog_wakeup.notify()

    def begin_requested_stop(self) -> None:
        """Begin a stop that was requested and has not begun. The lock is held."""
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
            self.watchdog_wakeup.notify()
            self.idle_wakeup.notify_all()
            return action
        if isinstance(action, Fetch):
            # Noted under the lock, before the fetch: no second worker plans one beside it.
            self.loop.fetch_began(self.now())
            return action
        # Only one idle worker sleeps until then and plans again; the others wait to be woken.
        self.resume_at = action.until
        return None

    def leave_rest(self) -> None:
        """A worker leaves its rest."""
        self.idle -= 1
        self.is_waking = False

    def _hand_over(self) -> None:
        """A worker that rested begins a lifecycle. If it waited for the next fetch, another does.

        Not when it merely leaves its rest: two that have nothing to do would wake each other.
        """
        if self.idle and self.resume_at is not None and self.now() < self.resume_at:
            self.idle_wakeup.notify()

    def _wake_next_worker(self) -> None:
        """Wake or start one more worker, which will wake the next one: waking all of them at once
        would be a thundering herd for a short batch.

        The caller is about to begin one of the ready transactions.
        """
        # Without the lock: every transaction comes by here. A worker that begins to rest just now
        # looks at what is ready itself before it does.
        # The common case in a busy call: all workers are there and none rests.
        if not self.idle and len(self.workers) >= self.plan.loop.concurrency:
            return
        with self.lock:
            is_needed = len(self.ready) > 1 or self._needs_planner()
            if self.is_waking or self.is_finished or not is_needed:
                return
            if self.idle:
                self.is_waking = True
                self.idle_wakeup.notify()
            elif len(self.workers) < self.deadlines.allowed():
                self._start_one_more()

    def _start_one_more(self) -> None:
        """Grow, if that can be done: where no thread can be started, fewer workers do the work."""
        # Each transaction may ask for one more worker. Without this pause, a process at its limit
        # of threads would try and fail for each of them.
        if self.start_again_at is not None and self.now() < self.start_again_at:
            return
        self.is_waking = True
        try:
            self._start_worker(None)
        except Exception as error:
            if self.start_again_at is None:
                logger.warning(
                    "%s goes on with %d workers: another one could not be started: %s",
                    self.plan.task,
                    len(self.workers),
                    describe(error),
                )
            self.start_again_at = self.instant() + START_RETRY_DELAY

    def _start_worker(self, first: Continuation | None, run: LifecycleRun | None = None) -> None:
        """Start one more worker, which goes on with ``run`` if one is given. The lock is held."""
        worker = EngineWorker()
        worker.run = run
        # Before it runs: a worker that ends at once removes itself from the list.
        self.workers.append(worker)
        try:
            self._spawn(worker, first)
        except BaseException:
            self.is_waking = False
            self._leave(worker)
            raise

    def _needs_planner(self) -> bool:
        """Whether no worker would fetch more while all of them are busy."""
        loop = self.loop
        if loop.fetching or loop.reason is not None:
            return False
        return loop.resume_at is None or not self.idle

    def _left(self, worker: EngineWorker, fatal: BaseException | None) -> None:
        """Called when a worker ends, however it ends: an error inside the engine must end the call,
        not hang it.
        """
        with self.lock:
            try:
                if fatal is not None:
                    self._failed_fatally(fatal)
            finally:
                self._leave(worker)

    def _failed_fatally(self, error: BaseException) -> None:
        """A worker ended with an error that belongs to no transaction: the call ends with it."""
        self._stop(error)

    def _leave(self, worker: EngineWorker) -> None:
        """Let go of a worker; the run that it still holds is cut short. The lock is held."""
        # Read before anything else: ``forget_worker`` forgets the run.
        key = None if worker.run is None else worker.run.transaction.transaction_id
        try:
            self.abandon(worker)
        finally:
            self.forget_worker(worker)
            if key is not None:
                self.intake.pass_on(key)
            self.watchdog_wakeup.notify()

    def _in_trouble(self, error: BaseException, troubles: int) -> None:
        """The supervisor itself failed: Ctrl-C, no thread can be started, a clock that raises."""
        self._stop(error)
        if not self.workers:
            self.stops += 2  # without a supervisor, nothing can be finished within a grace
        if troubles > MAX_SUPERVISOR_FAILURES:
            self.begin_abort(self.loop.reason or StopReason.STOPPED)
            self.is_finished = True

    def gather(self) -> None:
        """The call is over: what its workers still hold, and what never began, goes back."""
        self.is_finished = True
        self.begin_abort(self.loop.reason or StopReason.STOPPED)
        for worker in list(self.workers):
            try:
                self._part_with(worker)
            # From a listener: the remaining workers are still dealt with.
            except BaseException as error:
                self.interrupt(error)

    def _part_with(self, worker: EngineWorker) -> None:
        """The call ends with a worker still there: nothing that it does counts from here on."""
        attempt = worker.attempt
        # A fetch: what it brings after the end of the call must be handed back, so its worker is
        # kept account of as hanging.
        if attempt is not None and attempt.run is None and attempt.claim():
            self.give_up_on(worker, attempt)  # what the fetch brings is handed back when it is
        else:
            self.abandon(worker)

    def _replace_worker(self, worker: EngineWorker, attempt: InProgress) -> None:
        """The supervisor claimed an attempt that hangs: another worker goes on with its run."""
        run: LifecycleRun | None = attempt.run
        try:
            # Counted before the successor starts: the deadlines allow only so many workers beside
            # those that hang.
            self.give_up_on(worker, attempt)
            self._go_on_without(attempt)
        except BaseException:  # a listener, or no worker can be started
            # Nobody else has the run any more: without this, it would neither get an outcome nor go
            # back.
            if run is None:
                self.stuck, self.loop.fetching = attempt, False
            else:
                end = run.end or End(Ending.ABORTED, run.failure)
                self.end_early(run, end, is_source_told=attempt.phase == SETTLE)
            raise

    def _go_on_without(self, attempt: InProgress) -> None:
        """A new worker takes over the run of the abandoned one."""
        run: LifecycleRun | None = attempt.run
        if run is None:
            self.fetch_hangs(attempt)
            self._start_worker(None)
        elif isinstance(attempt, SettlementAttempt):
            text = "TimeoutError: no answer"
            self.settlements.failed(run.transaction, attempt.verb, text)
            self.instrumentation.settled(attempt, Failure(Kind.TIMEOUT, "settlement_timeout", text))
            # The outcome stands although the source did not answer: the successor records it, and
            # calls no hook again.
            self._start_worker(lambda worker: self._close(worker, run), run)
        else:
            event = self.decider.expired(attempt)
            self._start_worker(lambda worker: self._drive(worker, run, event), run)

    def _failed(
        self, attempt: InProgress, step: LifecycleStep, error: BaseException
    ) -> LifecycleEvent | None:
        """A hook raised. None when the supervisor took the run away meanwhile."""
        if not self._owns(attempt):
            return None
        if is_fatal(error):
            with self.lock:
                self._stop(error)
        # After the end of the call's time a failure is no longer worth a retry or a handler: the
        # transaction goes back.
        elif self.now() >= self.deadline_at:
            return STOPPED
        elif self.is_overdue(attempt):
            return self.decider.expired(attempt)
        return self.decider.raised(attempt, step, error)

    def _returned(
        self, doing: InProgress, run: LifecycleRun, step: LifecycleStep, result: Any
    ) -> LifecycleEvent | None:
        """A hook returned. None when the supervisor took the run away meanwhile."""
        try:
            # ``list.pop`` is atomic: of the worker and the supervisor exactly one gets the ticket,
            # without a lock.
            doing.ticket.pop()  # ``claim``, written out: this is the hot path
        except IndexError:
            if not self._owns(doing):
                return None
        if self.is_timed:
            run.seen_at = now = self.now()
            # A success after the deadline of the whole call does not count: the caller is told of a
            # timeout, and the transaction goes back.
            if now >= self.deadline_at:
                return STOPPED
            # An attempt past its deadline has timed out, even if the supervisor has not noticed
            # yet: otherwise the outcome would depend on which of the two threads was faster.
            if doing.expired or (doing.deadline_at is not None and now >= doing.deadline_at):
                return self.decider.expired(doing)
        if step is PROCESS:
            run.result = result
        if self.sink is not None:
            self.instrumentation.attempt_ended(doing, None, None, result, run.seen_at)
        return RETURNED

    def _owns(self, attempt: InProgress) -> bool:
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

    def is_overdue(self, attempt: InProgress) -> bool:
        """Whether an attempt is past its deadline: then it timed out, even if it has returned."""
        deadline_at = attempt.deadline_at
        return attempt.expired or (deadline_at is not None and self.now() >= deadline_at)

    def _late(self, attempt: InProgress) -> None:
        """The supervisor gave up on this attempt earlier: its result is dropped."""
        with self.lock:
            self.deadlines.came_back(attempt)
            # A call that came back frees a permit, for which idle workers may wait.
            self.idle_wakeup.notify_all()

    # -- runs that their workers do not bring to an end -------------------------------------

    def cut_off(self, attempt: InProgress) -> None:
        """The call is aborted while this attempt runs, and the supervisor claimed it."""
        # The supervisor holds the ticket, so the worker that hangs can do nothing to this run any
        # more.
        run: LifecycleRun | None = attempt.run
        if run is None:
            self.loop.fetching = False
            return
        end = run.end  # known already when it is being settled, or waits to be settled again
        if end is None:
            try:
                end = self._stopped(run)
            except BaseException:  # Ctrl-C may be raised here, and no other thread has the run
                self.end_early(run, End(Ending.ABORTED, run.failure), is_source_told=False)
                raise
        if not self.end_early(run, end, is_source_told=False):
            return
        if isinstance(attempt, SettlementAttempt):
            self.instrumentation.settled(attempt, Failure(Kind.CANCELLED, "aborted"))
        elif attempt.phase != BACKOFF:
            self.instrumentation.attempt_ended(attempt, Failure(Kind.CANCELLED, "aborted"), None)
        self.instrumentation.ended(run, end)

    def _stopped(self, run: LifecycleRun) -> End:
        action = advance(self.rule, run, STOPPED, self.instant(), 0.0)
        if isinstance(action, End):
            return action
        raise AssertionError(f"a stop led to {action}")

    def end_early(self, run: LifecycleRun, end: End, *, is_source_told: bool) -> bool:
        """Account for a run that its worker will not end. False when that was done before."""
        transaction = run.transaction
        key = transaction.transaction_id
        # Another delivery of the same id may be the one that runs by now: it is not to be ended.
        if self.live.get(key) is not transaction or self.live.pop(key, None) is None:
            return False
        if end.how is Ending.ABORTED:
            self.returning.appendleft(transaction)  # before those that never began
        elif not is_source_told and self.decider.verb_for(end) is not None:
            # The outcome stands; only the source may not have heard of it.
            self.settlements.failures += 1
        self.past.count(end)
        return True

    def abandon(self, worker: EngineWorker) -> None:
        """A worker ended, or is stuck outside of user code, and still holds a run.

        Another thread may be about to go on with it, so the run itself is not touched. That thread
        accounts for nothing any more once its transaction is gone from ``live``.
        """
        run, attempt = worker.run, worker.attempt
        if run is None:
            return
        is_settling = attempt is not None and attempt.run is run and attempt.phase == SETTLE
        is_open = attempt is not None and attempt.run is run and attempt.claim()
        end = run.end or End(Ending.ABORTED, run.failure)
        # If the settlement was under way and somebody else holds its ticket, the source has been
        # told or that other one sees to it.
        is_source_told = attempt is None or (is_settling and not is_open)
        if self.end_early(run, end, is_source_told=is_source_told):
            logger.warning(
                "transaction %s lost its worker; it counts as %s",
                run.transaction.transaction_id,
                end.how.value,
                extra={"transaction_id": run.transaction.transaction_id},
            )
            self.instrumentation.ended(run, end)

    # -- the end of a run --------------------------------------------------------------------

    def _close(self, worker: EngineWorker, run: LifecycleRun) -> bool:
        """Record the outcome and let the next one with the same id go."""
        end = run.end
        if end is None:
            raise AssertionError("a run was closed before its end")
        is_ours = False
        try:
            if self.is_watched or end is not SUCCEEDED:
                self.instrumentation.ended(run, end)
        finally:
            # The run is counted whatever a listener raises: otherwise the account at the end would
            # report it as stranded.
            is_ours = self._account_for(worker, run, end)
        return is_ours

    def _account_for(self, worker: EngineWorker, run: LifecycleRun, end: End) -> bool:
        """Count an outcome; False when the call has ended without this worker."""
        transaction = run.transaction
        key = transaction.transaction_id
        worker.attempt = None
        if self.plan.ended is None:
            # The frames of its traceback hold on to the run, and the run to its payload: such a
            # circle would live until the collector comes by.
            run.exception = run.handler_exception = None
        # Without the lock: popping is atomic, so one counts the run, this worker or the supervisor.
        if self.live.pop(key, None) is None:  # the supervisor has counted it, see end_early
            worker.run = None
            return False
        if end is SUCCEEDED:
            # Each worker counts for itself, which takes no lock; ``tally`` adds them up.
            worker.succeeded += 1
        else:
            if end.how is Ending.ABORTED:
                self.returning.append(transaction)
            worker.count(end)
        worker.run = None
        # Asked without the lock, because ids repeat rarely; what is put behind later is let go by
        # the transaction it waits for.
        if self.behind:
            self._let_next_go(key)
        return True

    def _let_next_go(self, key: str) -> None:
        """An id is no longer running: the next transaction with the same id may begin."""
        with self.lock:
            self.intake.pass_on(key)

    def _begin(self, worker: EngineWorker, transaction: Transaction) -> LifecycleRun:
        """Note that a worker has taken a transaction from ``ready``."""
        try:
            run = self.make_run(transaction, self.now() if self.is_timed else 0.0)
        except BaseException:  # it has not begun: whoever is left finds it where it was
            self.ready.appendleft(transaction)
            raise
        worker.run = run
        return run

    def _ack(self, ack: Hook, run: LifecycleRun) -> BaseException | None:
        """Ack to a source that only notes it in memory, without a deadline; returns the error, if
        any.
        """
        try:
            answer = self.context.copy().run(ack, run.transaction)
        except BaseException as error:
            return error
        return unawaited_settlement(answer, "ack")

    def _is_over(self, run: LifecycleRun) -> bool:
        """Whether the call has ended without the worker that is about to tell the source."""
        return self.is_aborted and run.transaction.transaction_id not in self.live

    def _receive(self, delivery: FetchResult, attempt: InProgress) -> None:
        """A fetch came back in time, or its late answer is wanted after all. The lock is held."""
        # Noted before the delivery is taken in: what it brought came through a channel that may be
        # gone.
        if delivery.error is not None:
            self.settlements.note_loss(settlement_failure(delivery.error))
            if is_fatal(delivery.error):
                self._stop(delivery.error)
        self.receive(delivery, attempt)

    def _fetched_late(self, attempt: InProgress, delivery: FetchResult) -> None:
        """A fetch came back after it was given up: what it brought is kept or handed back."""
        with self.lock:
            count = len(delivery.transactions)
            try:
                self._keep_late(attempt, delivery)
            finally:
                self.deadlines.came_back(attempt)
                self.instrumentation.emit("fetch.late", delivered=count)

    def _keep_late(self, attempt: InProgress, delivery: FetchResult) -> None:
        if self.is_finished:
            self.intake.return_unused(delivery.drain())
            self._release_unstarted_later()
            return
        # The repeated fetch waits for exactly this answer: a second call beside a hanging one is
        # never made.
        if self.loop.reason is None:
            self.intake.late = delivery
            self.fetch_wakeup.notify_all()
        else:
            self.stuck = None
            self._receive(delivery, attempt)
        self.idle_wakeup.notify()

    def _waiting_attempt(self, at_most: int) -> Attempt:
        """An attempt to fetch that waits for the call of an earlier one."""
        attempt = Attempt(self.call, None, FETCH, self.loop.fetch_attempt)
        attempt.began_at = self.now()
        self.instrumentation.emit("fetch.began", attempt=attempt, requested=at_most)
        return attempt

    def _take_late(self, attempt: Attempt) -> None:
        """A repeated fetch ends: with what the hanging one brought, or with another timeout."""
        if self.intake.late is not None and self.stuck is not None:
            late, self.intake.late, self.stuck = self.intake.late, None, None
            self._receive(late, attempt)
        elif not self.is_aborted:
            self.fetch_timed_out(attempt)

    def conclude(self, report: Report) -> Report:
        """Return the report, or raise what the call ends with."""
        # ``SystemExit`` and ``KeyboardInterrupt`` go before the errors of the loop: whoever raised
        # them wants the process to end.
        error = self.fatal  # not asked whether it is true: it may be of the user's making
        if error is None:
            error = ending_error(self.plan, report, self.fetch_error, self.loop.failure)
        self.instrumentation.duplicates(report)
        self.instrumentation.emit("call.ended", report=report, error=error)
        if error is None:
            return report
        if error is self.fatal:
            with suppress(Exception):  # an exception of the user's may refuse attributes
                error.report = report  # type: ignore[attr-defined]
        cause, self.fetch_error = self.fetch_error, None
        if self.fatal is None and cause is not None:
            raise error from cause
        raise error
