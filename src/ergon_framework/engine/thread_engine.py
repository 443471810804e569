"""The thread driver. The calling thread supervises; long-lived daemonic workers do the rest.

A worker pulls transactions from the shared batch and drives each lifecycle inline. One that finds
nothing asks the loop machine and does what it plans, a fetch included, so that a busy call wakes no
other thread. The supervisor watches the deadlines: it sleeps until the nearest deadline, claims the
attempts that are overdue and starts a worker in the place of each that hangs.
"""

from __future__ import annotations

import logging
import threading
from types import CoroutineType
from typing import Any

from ergon_framework.core.loop import Finish, StopReason
from ergon_framework.core.transaction_lifecycle import (
    BEGAN,
    RETURNED,
    STOPPED,
    SUCCEEDED,
    WOKE,
    CallHook,
    End,
    LifecycleEvent,
    Sleep,
    TimedOut,
    TimeoutScope,
    Verb,
    deadline,
)
from ergon_framework.engine.call import (
    Continuation,
    EngineCall,
)
from ergon_framework.engine.classify import never_awaited, unawaited_settlement
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.engine.deadlines import NEVER
from ergon_framework.engine.decider import arguments, set_current, verb_arguments
from ergon_framework.engine.intake import MAX_RELEASES, RELEASE_INTERVAL, FetchResult, ReleaseQueue
from ergon_framework.engine.plan import ON_SUCCESS, EnginePlan, Hook, StepPlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import (
    BACKOFF,
    FETCH,
    EngineWorker,
    InProgress,
    LifecycleRun,
    SettlementAttempt,
)
from ergon_framework.errors import describe
from ergon_framework.ports.clock import Clock, Signal
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")


class ThreadEngine(EngineCall):
    """Drives one call with threads."""

    def __init__(
        self, plan: EnginePlan, *, clock: Clock = SYSTEM_CLOCK, sink: Sink | None = None
    ) -> None:
        super().__init__(plan, clock.now, sink)
        self.clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.idle_wakeup: Signal = clock.signal(self.lock)
        self.backoff_wakeup: Signal = clock.signal(self.lock)
        self.watchdog_wakeup: Signal = clock.signal(self.lock)
        self.fetch_wakeup: Signal = clock.signal(self.lock)

    def run(self) -> Report:
        """Drive the call to its end. Raises what RFC-004 and RFC-005 say a call ends with."""
        self.clock.join_time()
        try:
            self.instrumentation.emit("call.began")
            with self.lock:
                # Ctrl-C may strike in any of these. Whatever it cuts short, the next part runs, and
                # the account is made.
                parts = (
                    self.begin_requested_stop,
                    self._supervise,
                    self.gather,
                    self._release_unstarted,
                    self.account,
                )
                # Each in its own ``try``: a Ctrl-C that cuts one short must not keep the next from
                # running.
                for part in parts:
                    try:
                        part()
                    except BaseException as error:
                        self.interrupt(error)
                self.account()  # once more, if Ctrl-C cut it short above
                report = self.report()  # under the lock: a worker that leaves moves its counts
            return self.conclude(report)
        finally:
            self.clock.leave_time()

    def request_stop(self) -> None:
        """Ask for a graceful stop; a second time, for an immediate one. Safe in a signal handler.

        A handler may interrupt the very thread that holds the lock, so it is never waited for here.
        """
        self.stops += 1
        # A signal handler runs in the main thread, which may be the very one that holds the lock.
        if self.lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self.lock.release()
        else:
            try:
                self.clock.spawn("ergon-stop", self._stop_later)
            except Exception as error:  # the supervisor sees the request when it looks next
                logger.warning("no thread could be started for a stop: %s", describe(error))

    def _stop_later(self) -> None:
        with self.lock:
            self._stop()

    # -- the supervisor ----------------------------------------------------------------------

    def _supervise(self) -> None:
        troubles = 0
        while not self.is_finished:
            try:
                self._look_after(self.now())
                # The first worker, and the one after all others have been abandoned. More are
                # started by workers that find work for them.
                if not self.workers and not self.is_finished:
                    self._start_worker(None)
                if not self.is_finished:
                    self.watchdog_wakeup.wait(self.next_alarm())
                troubles = 0
            except BaseException as error:
                troubles += 1
                self._in_trouble(error, troubles)

    def _look_after(self, now: float) -> None:
        if self.stops and self.grace_at == NEVER:
            self._stop()
        self.wake_source()
        reason = self.must_abort(now)
        if reason is not None:
            self._abort(reason)
            return
        for worker, attempt in self.deadlines.overdue(now):
            # The worker may return at this instant: whoever takes the ticket decides, and the other
            # one drops what it has.
            if self.deadlines.claim_overdue(attempt, now):
                self._replace_worker(worker, attempt)

    def _abort(self, reason: StopReason) -> None:
        """End everything now. A call that hangs is not waited for."""
        self.begin_abort(reason)
        for worker in list(self.workers):
            attempt = worker.attempt
            if attempt is not None and attempt.claim():
                try:
                    # Only calls of user code can hang.
                    if attempt.phase != BACKOFF:
                        self.give_up_on(worker, attempt)
                    else:  # in a backoff no user code runs: its thread leaves when it wakes
                        self.forget_worker(worker)
                finally:
                    self.cut_off(attempt)
        self.idle_wakeup.notify_all()
        self.backoff_wakeup.notify_all()
        self.fetch_wakeup.notify_all()
        # Workers between two calls see ``is_aborted`` and leave; wait a moment for them, so that
        # their counts are in the report.
        grace_ends_at = self.now() + self.plan.bounds.cancel_grace
        # Waits on the signal that a leaving worker gives, with the lock released.
        while self.workers and self.now() < grace_ends_at:
            self.watchdog_wakeup.wait(grace_ends_at)
        self.is_finished = True

    # -- workers ----------------------------------------------------------------------------

    def _spawn(self, worker: EngineWorker, first: Continuation | None) -> None:
        name = f"ergon-{self.plan.task}-{len(self.workers)}"
        self.clock.spawn(name, lambda: self._body(worker, first))

    # -- a worker ----------------------------------------------------------------------------

    def _body(self, worker: EngineWorker, first: Continuation | None) -> None:
        fatal: BaseException | None = None
        try:
            # From here on the next worker may be woken. Written without the lock: at worst one is
            # woken too many.
            self.is_waking = False
            if first is None or first(worker):
                self._work(worker)
        except BaseException as error:
            fatal = error
        self._left(worker, fatal)

    def _work(self, worker: EngineWorker) -> None:
        ready, deadlines = self.ready, self.deadlines
        while True:
            if self.stops and self.grace_at == NEVER:
                # A stop may come from a signal handler, which cannot take the lock: it only counts
                # ``stops``, and the thread that acts on it may be late.
                with self.lock:
                    self.begin_requested_stop()
            # Read without the lock: a stale answer costs one more turn of this loop.
            if (deadlines.is_gated or not ready) and not self._idle(worker):
                return
            # Another worker is woken before this one takes a transaction: what is taken has to
            # begin at once, or a later one would overtake it.
            if (self.is_continuous or len(ready) > 1) and not self.is_waking:
                self._wake_next_worker()
            try:
                transaction = ready.popleft()
            except IndexError:  # another worker was faster
                continue
            if not self._run_one(worker, transaction):
                return

    def _idle(self, worker: EngineWorker) -> bool:
        """Called when no transaction is ready: do what the loop plans. False when nothing is left
        to do.
        """
        worker.attempt = None
        while True:
            with self.lock:
                # Planned under the lock, so that one worker only fetches.
                action = self._plan()
                while action is None:
                    if self.ready and self.may_start():
                        self._hand_over()
                        return True
                    self._rest()
                    action = self._plan()
                if isinstance(action, Finish):
                    return False
            try:
                # Without the lock: a source may take as long as it likes.
                if not self._fetch(worker, action.at_most):
                    return False
            except BaseException:
                self.loop.fetching = False  # else the loop would wait for this fetch for ever
                raise

    def _rest(self) -> None:
        self.idle += 1
        try:
            # With something ready and no permit to start it, the worker sleeps until a permit is
            # free, which notifies.
            self.idle_wakeup.wait(None if self.ready else self.resume_at)
        finally:
            self.leave_rest()

    # -- one lifecycle -----------------------------------------------------------------------

    def _run_one(self, worker: EngineWorker, transaction: Transaction) -> bool:
        """Drive one transaction to its end. False when the supervisor took the run away.

        As long as every hook returns, the machine has nothing to decide: this is its happy path,
        written out. The first other event enters it.
        """
        # Without a sink or a budget nothing looks at an attempt, so no object is made for it.
        if not self.is_plain:
            return self._run_one_observed(worker, transaction)
        run = self._begin(worker, transaction)
        step = self.on_process
        current: tuple[Any, ...] = (self.call, run, step.phase, 0, run.ticket)
        event = self._call(worker, run, step, run, current, transaction)
        if event is RETURNED:
            run.step = ON_SUCCESS
            step = self.on_success
            if step.hook is not None:
                run.deadline_at = None  # process's own must not be held against this step
                run.ticket.append(None)  # the first was taken by the call that returned
                current = (self.call, run, step.phase, 0, run.ticket)
                event = self._call(worker, run, step, run, current, transaction, run.result)
            if event is RETURNED:
                run.end = SUCCEEDED
                if self.is_quiet:
                    return self._account_for(worker, run, SUCCEEDED)
                problem = None
                if self.ack_at_once is not None and not self.is_aborted:
                    problem = self._ack(self.ack_at_once, run)
                    if problem is None:
                        return self._close(worker, run)
                return self._finish(worker, run, SUCCEEDED, problem)
        return event is not None and self._drive(worker, run, event)

    def _run_one_observed(self, worker: EngineWorker, transaction: Transaction) -> bool:
        """``_run_one`` with an object for each attempt, on which a sink keeps its span and
        notes.
        """
        run = self._begin(worker, transaction)
        self.instrumentation.began(run)
        if not self.plan.compiled:
            return self._drive(worker, run, BEGAN)
        event = self._attempt(worker, run, self.on_process)
        if event is RETURNED:
            run.step, run.step_began_at = ON_SUCCESS, run.seen_at
            event = self._attempt(worker, run, self.on_success)
            if event is RETURNED:
                run.end = SUCCEEDED
                return self._finish(worker, run, SUCCEEDED)
        return event is not None and self._drive(worker, run, event)

    def _drive(self, worker: EngineWorker, run: LifecycleRun, event: LifecycleEvent) -> bool:
        """Carry out the actions of the lifecycle from ``event`` to its end."""
        next_event: LifecycleEvent | None = event
        while next_event is not None:
            action = self.decider.decide(run, next_event)
            if isinstance(action, CallHook):
                next_event = self._attempt(worker, run, self.steps[action.step])
            elif isinstance(action, Sleep):
                next_event = self._sleep(worker, run, action.seconds)
            else:
                return self._finish(worker, run, action)
        return False

    def _attempt(
        self, worker: EngineWorker, run: LifecycleRun, step: StepPlan
    ) -> LifecycleEvent | None:
        """Call a hook once, off the happy path."""
        if step.hook is None:
            return RETURNED
        attempt = Attempt(self.call, run, step.phase, run.attempt)
        given = arguments(run, step.step)
        return self._call(worker, run, step, attempt, attempt, *given)

    def _call(
        self,
        worker: EngineWorker,
        run: LifecycleRun,
        step: StepPlan,
        doing: InProgress,
        current: Any,
        *given: Any,
    ) -> LifecycleEvent | None:
        """Call a hook. None when the supervisor took the run away meanwhile."""
        # Its time was over before it began: the hook is not called.
        if self.is_timed and not self.arm(doing, run, step.timeout):
            return TimedOut(doing.scope) if self._owns(doing) else None
        # Published before ``is_aborted`` is read; an abort sets that before it looks at attempts.
        # One of the two sees the other, or a hook could begin that nobody cuts off.
        worker.attempt = doing
        if doing.deadline_at is not None and doing.deadline_at < self.deadlines.next_check:
            self._watch_for(doing.deadline_at)
        if self.is_aborted:
            return STOPPED if doing.claim() else None
        context = self.context.copy()
        if self.sink is not None:
            self.instrumentation.enter(doing, context)
        try:
            # In a copy of the context: what a hook sets in context variables ends with the hook.
            context.run(set_current, current)
            result = context.run(step.hook, *given)
        except BaseException as error:
            return self._failed(doing, step.step, error)
        # An ``async def`` hook in a thread engine would look like a success and never have run.
        if type(result) is CoroutineType:
            return self._failed(doing, step.step, never_awaited(result, step.phase))
        return self._returned(doing, run, step.step, result)

    def _sleep(
        self, worker: EngineWorker, run: LifecycleRun, seconds: float
    ) -> LifecycleEvent | None:
        """Wait before the next attempt; a wait that outlives the grace of a stop ends at once."""
        nap = Attempt(self.call, run, BACKOFF, run.attempt)
        worker.attempt = nap
        wake_at = self.now() + seconds
        lifecycle_at = deadline(self.rule, run)
        until = wake_at if lifecycle_at is None else min(wake_at, lifecycle_at)
        with self.lock:
            # A wait that would end after the grace of a stop is not begun: nobody would be there to
            # make the attempt.
            while self.now() < until <= self.grace_at and not self.is_aborted:
                self.backoff_wakeup.wait(until)
        if not nap.claim():
            return None
        if self.is_aborted or until > self.grace_at:
            return STOPPED
        # Both at the same instant count as expired: the attempt would have no time.
        return (
            WOKE if until == wake_at and until != lifecycle_at else TimedOut(TimeoutScope.LIFECYCLE)
        )

    def _finish(
        self,
        worker: EngineWorker,
        run: LifecycleRun,
        end: End,
        problem: BaseException | None = None,
    ) -> bool:
        verb = None if self.settlement is None else self.decider.verb_for(end)
        if verb is not None and not self._settle(worker, run, verb, problem):
            return False
        return self._close(worker, run)

    def _settle(
        self, worker: EngineWorker, run: LifecycleRun, verb: Verb, problem: BaseException | None
    ) -> bool:
        """Settle the run with its source. False when the source did not answer in time and another
        worker took over. ``problem`` is what went wrong in a first attempt that was made already.
        """
        settlement = self.settlement
        if settlement is None:
            return True
        attempt: SettlementAttempt | None = self.settlements.first_attempt(
            run, verb, settlement.timeout
        )
        while attempt is not None:
            # Before it is asked whether the call is over, for the same reason as in ``_call``.
            self._publish(worker, attempt)
            if self._is_over(run):
                return False
            if problem is None:
                problem = self._tell_source(attempt, settlement.verbs[verb])
            if not self._owns(attempt):
                return False
            nap = self.settlements.answered(worker, attempt, problem)
            # A cycle of frame and exception would keep the payload alive until the next collection.
            problem = None  # its traceback holds on to this frame
            if nap is None:
                return True
            if not self._wait_to_settle(nap):
                return False
            attempt = self.settlements.next_attempt(nap, settlement.timeout)
        return True

    def _tell_source(self, attempt: SettlementAttempt, tell: Hook) -> BaseException | None:
        """Call ack, nack or release_after; what went wrong, if anything did."""
        context = self.context.copy()
        self.instrumentation.enter(attempt, context)
        try:
            answer = context.run(tell, *verb_arguments(attempt.run, attempt.verb))
        except BaseException as error:
            return error
        return unawaited_settlement(answer, attempt.verb.value)

    def _wait_to_settle(self, nap: SettlementAttempt) -> bool:
        """Wait before the source is told again. False when the supervisor took the run away."""
        with self.lock:
            while self.settlements.waits(nap):
                self.backoff_wakeup.wait(nap.wake_at)
        return nap.claim()

    # -- the source -------------------------------------------------------------------------

    def _publish(self, worker: EngineWorker, attempt: Attempt) -> None:
        worker.attempt = attempt
        if attempt.deadline_at is not None and attempt.deadline_at < self.deadlines.next_check:
            self._watch_for(attempt.deadline_at)

    def _watch_for(self, deadline_at: float) -> None:
        """The supervisor must wake earlier than it intends to."""
        with self.lock:
            self.deadlines.next_check = min(self.deadlines.next_check, deadline_at)
            self.watchdog_wakeup.notify()

    def _fetch(self, worker: EngineWorker, at_most: int) -> bool:
        if self.stuck is not None:
            return self._fetch_again(at_most)
        attempt = Attempt(self.call, None, FETCH, self.loop.fetch_attempt)
        attempt.began_at = self.now()
        timeout = self.plan.bounds.fetch_timeout
        if timeout is not None:
            attempt.scope, attempt.deadline_at = TimeoutScope.STEP, attempt.began_at + timeout
        self._publish(worker, attempt)
        # Published first, as in ``_call``: either the abort sees this fetch, or the fetch sees the
        # abort.
        if self.is_aborted:
            attempt.claim()
            return True
        self.instrumentation.emit("fetch.began", attempt=attempt, requested=at_most)
        # The intake holds it while it is read: if the fetch hangs, what it has brought so far is
        # handed back.
        self.intake.reading = delivery = FetchResult(at_most)
        context = self.context.copy()
        self.instrumentation.enter(attempt, context)
        try:
            context.run(self.reader.read, at_most, delivery)
        except BaseException as error:
            delivery.error = error
        # The supervisor gave this fetch up and has started another worker in the place of this one.
        if not attempt.claim():
            self._fetched_late(attempt, delivery)
            return False
        worker.attempt = None
        with self.lock:
            self._receive(delivery, attempt)
        return True

    def _fetch_again(self, at_most: int) -> bool:
        """The previous fetch still hangs: wait for that one, since two must not overlap."""
        timeout = self.plan.bounds.fetch_timeout
        with self.lock:
            attempt = self._waiting_attempt(at_most)
            until = self.now() + (timeout or 0.0)
            while self.intake.late is None and not self.is_aborted and self.now() < until:
                self.fetch_wakeup.wait(until)
            self._take_late(attempt)
        return True

    def _release_unstarted_later(self) -> None:
        self._release_unstarted()

    def _release_unstarted(self) -> None:
        """Return what was not begun, without waiting for a source that hangs."""
        left = self.intake.take_returning()
        try:
            grace_ends_at = self.now() + self.plan.bounds.release_grace
            release = self.releasing()
            if release is not None:
                self._release_all(left, release, grace_ends_at)
            if self.reader.is_open:
                self._close_reader(grace_ends_at)
        except BaseException as error:  # Ctrl-C, or no thread: what is left is still named
            self.interrupt(error)
        finally:
            self.report_stranded(left.give_up())

    def _release_all(self, left: ReleaseQueue, release: Hook, grace_ends_at: float) -> None:
        while left and self.now() < grace_ends_at:
            if left.needs_releaser:
                self._add_releaser(left, release)
            step = self.now() + RELEASE_INTERVAL
            until = min(step, grace_ends_at) if left.needs_releaser else grace_ends_at
            while left and self.now() < until:
                self.watchdog_wakeup.wait(until)

    def _add_releaser(self, left: ReleaseQueue, release: Hook) -> None:
        try:
            self.clock.spawn("ergon-release", lambda: self._release(left, release))
        except Exception:
            if not left.releasers:
                raise
            left.releasers = MAX_RELEASES  # no thread can be started: those there must do
        left.releasers += 1

    def _release(self, left: ReleaseQueue, release: Hook) -> None:
        while True:
            with self.lock:
                transaction = left.begin()
            if transaction is None:
                return
            if not self._release_one(left, release, transaction):
                return  # the grace is over, and the supervisor has reported it as stranded
            with self.lock:
                self.watchdog_wakeup.notify()

    def _release_one(self, left: ReleaseQueue, release: Hook, transaction: Transaction) -> bool:
        """Hand one back, with retries. False when the call no longer waits for it."""
        number, since, channel = 0, self.instant(), self.settlements.channel_losses
        while True:
            problem: BaseException | None = None
            try:
                answer = self.context.copy().run(release, transaction)
                problem = unawaited_settlement(answer, Verb.RELEASE.value)
            except BaseException as error:
                problem = error
            with self.lock:
                again_at = None
                if problem is not None and left.is_waited_for(transaction):
                    again_at = self.settlements.release_again(
                        transaction, number, since, channel, problem
                    )
                if again_at is None:
                    is_ours = left.end(transaction)
                    if is_ours:
                        self.release_ended(transaction, problem, number + 1, since)
                    problem = None  # its traceback holds on to this frame
                    return is_ours
                while self.now() < again_at and left.is_waited_for(transaction):
                    self.backoff_wakeup.wait(again_at)
                # The supervisor has given up in the meantime and reported it as stranded.
                if not left.is_waited_for(transaction):
                    return False
                number += 1

    def _close_reader(self, grace_ends_at: float) -> None:
        under_way = [True]

        def close() -> None:
            try:
                self.context.copy().run(self.reader.close)
            except BaseException as error:
                self.close_failed(error)
            with self.lock:
                under_way.clear()
                self.watchdog_wakeup.notify()

        # In a thread of its own: code behind the last ``yield`` may hang, and the call waits for it
        # only until the grace is over.
        self.clock.spawn("ergon-close", close)
        while under_way and self.now() < grace_ends_at:
            self.watchdog_wakeup.wait(grace_ends_at)
