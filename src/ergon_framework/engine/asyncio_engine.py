"""The asyncio driver: the calling task supervises, a few long-lived worker tasks do the rest.

It drives the same state machine as the thread driver. In addition it can cancel a hook or a fetch
that is overdue. Only code that swallows the cancellation for longer than ``cancel_grace`` is
abandoned and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import nullcontext, suppress
from types import CoroutineType
from typing import Any

from ergon_framework.core.failure import Failure, Kind
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
    LifecycleStep,
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
from ergon_framework.engine.classify import is_a, is_fatal, never_awaited, unawaited_settlement
from ergon_framework.engine.clocks import AsyncSignal, pause
from ergon_framework.engine.decider import arguments, set_current, verb_arguments
from ergon_framework.engine.intake import RELEASE_INTERVAL, FetchResult, ReleaseQueue
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
from ergon_framework.engine.time_limit import keep
from ergon_framework.engine.trampoline import (
    DONE,
    FAILED,
    Stepped,
    Stepper,
    await_inside,
    inside,
    wait_for,
)
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction

FAIR_TURNS = 32
"""Steps that a worker takes in a row, none of which suspends, before it yields to the event
loop.
"""
FAIR_TIME = 0.01
"""Seconds after which a worker yields in any case. All workers of a call share this time, so that
the event loop is not kept longer when there are more of them.
"""


def clear_cancellation() -> None:
    """Clear the task's cancellation: it was the engine's own, and the worker goes on."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


async def clear_hook_cancellation() -> int:
    """Clear a cancellation that a hook has left on its worker, or the next hook would get it.

    Returns how many further cancellations arrived: those come from outside the engine, and the
    worker must act on them.
    """
    task = asyncio.current_task()
    pending = 0 if task is None else task.cancelling()
    if task is None or not pending:
        return 0
    with suppress(asyncio.CancelledError):
        await pause()
    arrived = task.cancelling() - pending
    clear_cancellation()
    return arrived


class Suspended:
    """A hook that has suspended: what it awaits, and the attempt that it belongs to."""

    __slots__ = ("doing", "ours", "rest", "run", "step", "worker")

    def __init__(
        self,
        worker: EngineWorker,
        doing: InProgress,
        run: LifecycleRun,
        step: LifecycleStep,
        rest: Awaitable[Any],
    ) -> None:
        self.worker = worker
        self.ours = worker.cancels
        self.doing = doing
        self.run = run
        self.step = step
        self.rest = rest


async def given_back(value: Any) -> Any:
    """``value``, for a hook that returned at once and left a cancellation on its worker."""
    return value


class AsyncioEngine(EngineCall):
    """Drives one call with asyncio. Made inside a running event loop."""

    def __init__(self, plan: EnginePlan, *, sink: Sink | None = None) -> None:
        self.event_loop = asyncio.get_running_loop()
        super().__init__(plan, self.event_loop.time, sink)
        self.lock = nullcontext()
        self.idle_wakeup: AsyncSignal = AsyncSignal()
        self.backoff_wakeup: AsyncSignal = AsyncSignal()
        self.watchdog_wakeup: AsyncSignal = AsyncSignal()
        self.fetch_wakeup: AsyncSignal = AsyncSignal()
        self.turns = FAIR_TURNS  # left of the fetches, retries and releases of this turn
        self.turn_ends_at = self.now() + FAIR_TIME
        self.is_turn_over = False

    async def run(self) -> Report:
        """Drive the call to its end. Raises what RFC-004 and RFC-005 say a call ends with."""
        self.instrumentation.emit("call.began")
        try:
            self.begin_requested_stop()
            await self._supervise()
            self.gather()
            await self._release_unstarted()
        except GeneratorExit:  # the event loop is being closed: nothing can be awaited any more
            self.gather()
            self.account()
            raise
        except BaseException as error:
            self.interrupt(error)
            self.gather()
        self.account()
        return self.conclude(self.report())

    def request_stop(self) -> None:
        """Ask for a graceful stop; a second time, for an immediate one. Safe from anywhere."""
        self.stops += 1
        if asyncio._get_running_loop() is self.event_loop:  # noqa: SLF001 - never raises, unlike its twin
            self._stop()
            # In a signal handler the loop may be asleep in its selector: this wakes it.
            self.event_loop.call_soon_threadsafe(_nothing)
        else:
            self.event_loop.call_soon_threadsafe(self._stop)

    # -- the supervisor ----------------------------------------------------------------------

    async def _supervise(self) -> None:
        troubles = 0
        while not self.is_finished:
            try:
                await self._look_after(self.now())
                if not self.workers and not self.is_finished:
                    self._start_worker(None)
                if not self.is_finished:
                    await self.watchdog_wakeup.wait(self.next_alarm())
                troubles = 0
            except GeneratorExit:
                raise
            except asyncio.CancelledError as error:
                # The caller cancelled the call: it ends without a grace, and leaves no worker.
                self._stop(error)
                # The cancellation replaces an earlier failure: asyncio expects a cancelled task to
                # end with ``CancelledError``.
                self.fatal = error
                self.stops += 2
            except BaseException as error:
                troubles += 1
                self._in_trouble(error, troubles)

    async def _look_after(self, now: float) -> None:
        self.wake_source()
        reason = self.must_abort(now)
        if reason is not None:
            await self._abort(reason)
            return
        for worker, attempt in self.deadlines.overdue(now):
            if not attempt.expired:
                self._cancel(worker, attempt, now)
            elif attempt.claim():
                self._replace_worker(worker, attempt)

    def _cancel(self, worker: EngineWorker, attempt: InProgress, now: float) -> None:
        """Ask an overdue call to end; it has a short grace to do so."""
        attempt.expired = True
        # A second deadline: the supervisor abandons a coroutine that has swallowed the cancellation
        # until then.
        attempt.deadline_at = now + self.plan.bounds.cancel_grace
        self.deadlines.next_check = min(self.deadlines.next_check, attempt.deadline_at)
        self._cancel_task(worker)

    def _cancel_task(self, worker: EngineWorker) -> None:
        worker.cancels += 1
        worker.handle.cancel()

    def _part_with(self, worker: EngineWorker) -> None:
        # The thread driver can only leave a worker behind; a task can be cancelled.
        if worker.attempt is not None and worker.attempt.ticket:
            self._cancel_task(worker)
        super()._part_with(worker)

    async def _abort(self, reason: StopReason) -> None:
        """End everything now. A task that swallows its cancellation is not waited for."""
        self.begin_abort(reason)
        for worker in self.workers:
            attempt = worker.attempt
            # Only hooks and fetches under way: one whose ticket is taken has come back already, and
            # waits are woken below.
            if attempt is not None and attempt.ticket and attempt.phase != BACKOFF:
                self._cancel_task(worker)
        self.idle_wakeup.notify_all()
        self.backoff_wakeup.notify_all()
        self.fetch_wakeup.notify_all()
        grace_ends_at = self.now() + self.plan.bounds.cancel_grace
        while self.workers and self.now() < grace_ends_at:
            await self.watchdog_wakeup.wait(grace_ends_at)
        for worker in list(self.workers):
            attempt = worker.attempt
            if attempt is not None and attempt.claim():
                try:
                    if attempt.phase != BACKOFF:
                        self.give_up_on(worker, attempt)
                    else:  # in a backoff no user code runs: it leaves at its next turn
                        self.forget_worker(worker)
                finally:
                    self.cut_off(attempt)
        self.is_finished = True

    # -- workers ----------------------------------------------------------------------------

    def _spawn(self, worker: EngineWorker, first: Continuation | None) -> None:
        worker.stepper = Stepper()
        name = f"ergon-{self.plan.task}-{len(self.workers)}"
        worker.handle = self._begin_task(self._body(worker, first), name)
        worker.handle.add_done_callback(lambda _task: self._gone(worker))

    def _gone(self, worker: EngineWorker) -> None:
        """Account for a worker whose task was cancelled before its first step.

        Nothing of its body has run then, so ``_left`` was never called.
        """
        if worker in self.workers:
            self._left(worker, asyncio.CancelledError())

    # -- a worker ----------------------------------------------------------------------------

    async def _body(self, worker: EngineWorker, first: Continuation | None) -> None:
        fatal: BaseException | None = None
        try:
            if worker.handle is None:  # an eager task factory runs us inside of ``_spawn``
                await pause()
            self.is_waking = False
            goes_on = True if first is None else first(worker)
            if goes_on is True or (goes_on and await goes_on):
                await self._work(worker)
        except BaseException as error:
            fatal = error
        self._left(worker, fatal)

    async def _work(self, worker: EngineWorker) -> None:
        ready, deadlines = self.ready, self.deadlines
        turns = FAIR_TURNS
        while True:
            if (self.stops or self.has_deadline) and self.must_decide():
                await pause()  # the supervisor needs the event loop to act
                continue
            if (deadlines.is_gated or not ready) and not await self._idle(worker):
                return
            if (self.is_continuous or len(ready) > 1) and not self.is_waking:
                self._wake_next_worker()
            try:
                transaction = ready.popleft()
            except IndexError:  # another worker was faster
                continue
            if not await self._run_one(worker, transaction):
                return
            turns -= 1
            if not turns or self.now() >= self.turn_ends_at:
                await self._end_turn()
                turns = FAIR_TURNS

    async def _idle(self, worker: EngineWorker) -> bool:
        """Called when no transaction is ready: do what the loop plans. False when nothing is left
        to do.
        """
        worker.attempt = None
        while True:
            while (self.stops or self.has_deadline) and self.must_decide():
                await pause()  # no fetch begins before the supervisor has acted
            action = self._plan()
            while action is None:
                if self.ready and self.may_start():
                    self._hand_over()
                    return True
                await self._rest()
                action = self._plan()
            if isinstance(action, Finish):
                return False
            try:
                if not await self._fetch(worker, action.at_most):
                    return False
            except BaseException:
                self.loop.fetching = False  # else the loop would wait for this fetch for ever
                raise
            await self._yield_to_loop()

    async def _rest(self) -> None:
        self.idle += 1
        try:
            await self.idle_wakeup.wait(None if self.ready else self.resume_at)
        finally:
            self.leave_rest()

    # -- one lifecycle -----------------------------------------------------------------------

    async def _run_one(self, worker: EngineWorker, transaction: Transaction) -> bool:
        """Drive one transaction to its end. False when the supervisor took the run away.

        As long as every hook returns, the machine has nothing to decide: this is its happy path,
        written out. The first other event enters it.
        """
        if not self.is_plain:
            return await self._run_one_observed(worker, transaction)
        run = self._begin(worker, transaction)
        step = self.on_process
        current: tuple[Any, ...] = (self.call, run, step.phase, 0, run.ticket)
        event: Any = self._call(worker, run, step, run, current, transaction)
        if type(event) is Suspended:
            event = await self._resume(event)
        if event is RETURNED:
            run.step = ON_SUCCESS
            step = self.on_success
            if step.hook is not None:
                run.deadline_at = None  # process's own must not be held against this step
                run.ticket.append(None)
                current = (self.call, run, step.phase, 0, run.ticket)
                event = self._call(worker, run, step, run, current, transaction, run.result)
                if type(event) is Suspended:
                    event = await self._resume(event)
            if event is RETURNED:
                run.end = SUCCEEDED
                if self.is_quiet:
                    return self._account_for(worker, run, SUCCEEDED)
                problem = None
                if self.ack_at_once is not None and not self.is_aborted:
                    problem = self._ack(self.ack_at_once, run)
                    if problem is None:
                        return self._close(worker, run)
                return await self._finish(worker, run, SUCCEEDED, problem)
        return event is not None and await self._drive(worker, run, event)

    async def _run_one_observed(self, worker: EngineWorker, transaction: Transaction) -> bool:
        """``_run_one`` with an object for each attempt, on which a sink keeps its span and
        notes.
        """
        run = self._begin(worker, transaction)
        self.instrumentation.began(run)
        if not self.plan.compiled:
            return await self._drive(worker, run, BEGAN)
        event: Any = self._try(worker, run, self.on_process)
        if type(event) is Suspended:
            event = await self._resume(event)
        if event is RETURNED:
            run.step, run.step_began_at = ON_SUCCESS, run.seen_at
            event = self._try(worker, run, self.on_success)
            if type(event) is Suspended:
                event = await self._resume(event)
            if event is RETURNED:
                run.end = SUCCEEDED
                return await self._finish(worker, run, SUCCEEDED)
        return event is not None and await self._drive(worker, run, event)

    async def _drive(self, worker: EngineWorker, run: LifecycleRun, event: LifecycleEvent) -> bool:
        """Carry out the actions of the lifecycle from ``event`` to its end."""
        next_event: LifecycleEvent | None = event
        while next_event is not None:
            action = self.decider.decide(run, next_event)
            if isinstance(action, CallHook):
                if action.attempt:  # retries without a wait must not keep the event loop either
                    await self._yield_to_loop()
                next_event = await self._attempt(worker, run, self.steps[action.step])
            elif isinstance(action, Sleep):
                next_event = await self._sleep(worker, run, action.seconds)
            else:
                return await self._finish(worker, run, action)
        return False

    async def _attempt(
        self, worker: EngineWorker, run: LifecycleRun, step: StepPlan
    ) -> LifecycleEvent | None:
        """Call a hook once, off the happy path."""
        event = self._try(worker, run, step)
        return await self._resume(event) if isinstance(event, Suspended) else event

    def _try(
        self, worker: EngineWorker, run: LifecycleRun, step: StepPlan
    ) -> LifecycleEvent | Suspended | None:
        """``_attempt`` as far as it gets without suspending."""
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
    ) -> LifecycleEvent | Suspended | None:
        """Call a hook and run it until it returns, raises or suspends for the first time.

        None when the supervisor took the run away meanwhile.
        """
        if self.is_timed and not self.arm(doing, run, step.timeout):
            return TimedOut(doing.scope) if self._owns(doing) else None
        worker.attempt = doing
        if doing.deadline_at is not None and doing.deadline_at < self.deadlines.next_check:
            self._watch_for(doing.deadline_at)
        if self.is_aborted:
            return STOPPED if doing.claim() else None
        context = self.context.copy()
        if self.sink is not None:
            self.instrumentation.enter(doing, context)
        try:
            context.run(set_current, current)
            answer = context.run(step.hook, *given)
        except BaseException as error:  # a plain function; a coroutine has not begun yet
            return self._failed(doing, step.step, error)
        if type(answer) is not CoroutineType:
            answer = wait_for(answer)
        stepper = worker.stepper
        try:
            outcome = context.run(stepper.send, answer)
        except GeneratorExit as error:
            stepper.renew()
            return self._failed(doing, step.step, error)
        if outcome is not DONE and outcome is not FAILED:
            return Suspended(worker, doing, run, step.step, Stepped(stepper, context, outcome))
        value, stepper.value = stepper.value, None
        if outcome is FAILED:
            return self._failed(doing, step.step, value)
        # The hook returned and left a cancellation on its worker's task: ``_resume`` finds out
        # whether it came from outside, in which case the call ends.
        if worker.handle.cancelling():
            return Suspended(worker, doing, run, step.step, given_back(value))
        if type(value) is CoroutineType:
            return self._failed(doing, step.step, never_awaited(value, step.phase))
        return self._returned(doing, run, step.step, value)

    async def _resume(self, suspended: Suspended) -> LifecycleEvent | None:
        """Wait for a hook that did not return at once."""
        doing, step = suspended.doing, suspended.step
        try:
            result = await suspended.rest
        except BaseException as error:
            self._note_cancels(suspended, error)
            return self._failed(doing, step, error)
        self._note_cancels(suspended, None)
        if type(result) is CoroutineType:
            return self._failed(doing, step, never_awaited(result, doing.phase))
        if not doing.expired and not self.is_aborted and await clear_hook_cancellation():
            self._cancelled_outside(None)
        event = self._returned(doing, suspended.run, step, result)
        if doing.expired:
            clear_cancellation()
        return event

    def _note_cancels(self, suspended: Suspended, error: BaseException | None) -> None:
        """Whether the worker's task was cancelled from outside while the hook waited."""
        rest, ours = suspended.rest, suspended.worker.cancels - suspended.ours
        if isinstance(rest, Stepped) and rest.cancels > ours:
            self._cancelled_outside(error)

    def _failed(
        self, attempt: InProgress, step: LifecycleStep, error: BaseException
    ) -> LifecycleEvent | None:
        if is_a(error, asyncio.CancelledError):
            clear_cancellation()
        if self.is_aborted and not is_fatal(error) and attempt.claim():
            # The engine cancelled the hook: what the hook raised because of that is no failure of
            # the transaction.
            self.instrumentation.attempt_ended(attempt, Failure(Kind.CANCELLED, "aborted"), None)
            return STOPPED
        return super()._failed(attempt, step, error)

    async def _sleep(
        self, worker: EngineWorker, run: LifecycleRun, seconds: float
    ) -> LifecycleEvent | None:
        """Wait before the next attempt; a wait that outlives the grace of a stop ends at once."""
        nap = Attempt(self.call, run, BACKOFF, run.attempt)
        worker.attempt = nap
        wake_at = self.now() + seconds
        lifecycle_at = deadline(self.rule, run)
        until = wake_at if lifecycle_at is None else min(wake_at, lifecycle_at)
        try:
            while self.now() < until <= self.grace_at and not self.is_aborted:
                await self.backoff_wakeup.wait(until)
        except asyncio.CancelledError as error:
            self._cancelled_outside(error)
        if not nap.claim():
            return None
        if self.is_aborted or until > self.grace_at:
            return STOPPED
        return (
            WOKE if until == wake_at and until != lifecycle_at else TimedOut(TimeoutScope.LIFECYCLE)
        )

    async def _finish(
        self,
        worker: EngineWorker,
        run: LifecycleRun,
        end: End,
        problem: BaseException | None = None,
    ) -> bool:
        verb = None if self.settlement is None else self.decider.verb_for(end)
        if verb is not None and not await self._settle(worker, run, verb, problem):
            return False
        return self._close(worker, run)

    async def _settle(
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
            self._publish(worker, attempt)
            if self._is_over(run):
                return False
            if problem is None:
                problem = await self._tell_source(worker, attempt, settlement.verbs[verb])
            if not self._owns(attempt):
                return False
            nap = self.settlements.answered(worker, attempt, problem)
            problem = None  # its traceback holds on to this frame
            if nap is None:
                return True
            if not await self._wait_to_settle(nap):
                return False
            attempt = self.settlements.next_attempt(nap, settlement.timeout)
        return True

    async def _tell_source(
        self, worker: EngineWorker, attempt: SettlementAttempt, tell: Hook
    ) -> BaseException | None:
        """Call ack, nack or release_after; what went wrong, if anything did."""
        problem: BaseException | None = None
        ours, settling = worker.cancels, None
        context = self.context.copy()
        self.instrumentation.enter(attempt, context)
        try:
            answer = context.run(tell, *verb_arguments(attempt.run, attempt.verb))
            settling = inside(context, answer)
            problem = unawaited_settlement(await settling, attempt.verb.value)
        except BaseException as error:
            problem = error
        if settling is not None and settling.cancels > worker.cancels - ours:
            self._cancelled_outside(problem)
        # Our own cancellation of an overdue settlement: to the rule of retries it is a timeout, not
        # a stop.
        if attempt.expired and problem is not None and is_a(problem, asyncio.CancelledError):
            clear_cancellation()
            problem = TimeoutError("no answer")
        try:
            return problem
        finally:
            del problem  # its traceback holds on to this frame

    async def _wait_to_settle(self, nap: SettlementAttempt) -> bool:
        """Wait before the source is told again. False when the supervisor took the run away."""
        try:
            while self.settlements.waits(nap):
                await self.backoff_wakeup.wait(nap.wake_at)
        except asyncio.CancelledError as error:
            if nap.ticket:  # else the call has ended without this worker, and cancelled it itself
                self._cancelled_outside(error)
        return nap.claim()

    # -- fairness ----------------------------------------------------------------------------

    async def _yield_to_loop(self) -> None:
        """Yield to the event loop when this turn is over. Called wherever the driver decides what
        to do next.
        """
        self.turns -= 1
        if self.turns <= 0 or self.now() >= self.turn_ends_at:
            await self._end_turn()

    async def _end_turn(self) -> None:
        """Let the event loop run; the next turn begins in its next round, for all workers."""
        if not self.is_turn_over:
            self.is_turn_over = True
            self.event_loop.call_soon(self._begin_turn)
        await pause()

    def _begin_turn(self) -> None:
        self.is_turn_over = False
        self.turns = FAIR_TURNS
        self.turn_ends_at = self.now() + FAIR_TIME

    # -- fetching ----------------------------------------------------------------------------

    def _publish(self, worker: EngineWorker, attempt: Attempt) -> None:
        worker.attempt = attempt
        if attempt.deadline_at is not None and attempt.deadline_at < self.deadlines.next_check:
            self._watch_for(attempt.deadline_at)

    def _watch_for(self, deadline_at: float) -> None:
        """The supervisor must wake earlier than it intends to."""
        self.deadlines.next_check = deadline_at
        self.watchdog_wakeup.notify()

    async def _fetch(self, worker: EngineWorker, at_most: int) -> bool:
        if self.stuck is not None:
            return await self._fetch_again(at_most)
        attempt = Attempt(self.call, None, FETCH, self.loop.fetch_attempt)
        attempt.began_at = self.now()
        timeout = self.plan.bounds.fetch_timeout
        if timeout is not None:
            attempt.scope, attempt.deadline_at = TimeoutScope.STEP, attempt.began_at + timeout
        self._publish(worker, attempt)
        self.instrumentation.emit("fetch.began", attempt=attempt, requested=at_most)
        self.intake.reading = delivery = FetchResult(at_most)
        context = self.context.copy()
        self.instrumentation.enter(attempt, context)
        ours, reading = worker.cancels, None
        try:
            reading = inside(
                context, self.reader.read_async(at_most, delivery, self._yield_to_loop)
            )
            await reading
        except BaseException as error:
            delivery.error = error
        if reading is not None and reading.cancels > worker.cancels - ours:
            self._cancelled_outside(delivery.error)
        if not attempt.claim():
            self._fetched_late(attempt, delivery)
            return False
        worker.attempt = None
        self._receive(delivery, attempt)
        return True

    def _receive(self, delivery: FetchResult, attempt: InProgress) -> None:
        error = delivery.error
        was_cancelled = error is not None and is_a(error, asyncio.CancelledError)
        # Our own cancellation again. What the fetch had brought by then is taken in like any
        # delivery; nothing at all is a timeout.
        if was_cancelled and (attempt.expired or self.is_aborted):
            clear_cancellation()
            delivery.error = None
            if not delivery.transactions:
                self.fetch_timed_out(attempt)
                return
        super()._receive(delivery, attempt)

    async def _fetch_again(self, at_most: int) -> bool:
        """The previous fetch still hangs: wait for that one, since two must not overlap."""
        timeout = self.plan.bounds.fetch_timeout
        attempt = self._waiting_attempt(at_most)
        until = self.now() + (timeout or 0.0)
        while self.intake.late is None and not self.is_aborted and self.now() < until:
            await self.fetch_wakeup.wait(until)
        self._take_late(attempt)
        return True

    def _cancelled_outside(self, error: BaseException | None) -> None:
        """A task of this call was cancelled from outside: the call ends now, and nothing failed."""
        if error is None or not is_a(error, asyncio.CancelledError):
            error = asyncio.CancelledError()
        clear_cancellation()
        self._stop(error)
        self.stops += 2
        self.begin_abort(self.loop.reason or StopReason.STOPPED)

    def _failed_fatally(self, error: BaseException) -> None:
        if is_a(error, asyncio.CancelledError):
            self._cancelled_outside(error)
        else:
            super()._failed_fatally(error)

    def _release_unstarted_later(self) -> None:
        handing_back = self._begin_task(self._release_unstarted())
        # A task that is cancelled before its first step runs no line of its body, so it would not
        # even report the transactions as stranded.
        handing_back.add_done_callback(
            lambda _task: self.report_stranded(self.intake.take_returning().give_up())
        )

    def _begin_task(self, body: Coroutine[Any, Any, None], name: str | None = None) -> Any:
        """Start a task and hold a reference until it is done: the event loop itself holds tasks
        only weakly.
        """
        try:
            task = self.event_loop.create_task(body, name=name)
        except BaseException:  # a task factory of the user's may raise
            body.close()
            raise
        keep(task)
        return task

    async def _release_unstarted(self) -> None:
        """Return what was not begun, without waiting for a source that hangs."""
        left = self.intake.take_returning()
        tasks: set[asyncio.Task[None]] = set()
        try:
            grace_ends_at = self.now() + self.plan.bounds.release_grace
            release = self.releasing()
            if release is not None:
                await self._release_all(left, release, grace_ends_at, tasks)
            if self.reader.is_open:
                tasks.add(self._begin_task(self._close_reader()))
                await asyncio.wait(tasks, timeout=max(0.0, grace_ends_at - self.now()))
        except GeneratorExit:
            # The event loop is being closed: nothing can be awaited any more.
            raise
        except BaseException as error:  # no longer, but what is left is still named
            self.interrupt(error)
            if isinstance(error, asyncio.CancelledError):
                self.fatal = error
        finally:
            for task in tasks:
                keep(task)
                task.cancel()
            self.report_stranded(left.give_up())

    async def _release_all(
        self,
        left: ReleaseQueue,
        release: Hook,
        grace_ends_at: float,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        while left and self.now() < grace_ends_at:
            if left.needs_releaser:
                left.releasers += 1
                tasks.add(self._begin_task(self._release(left, release)))
            step = self.now() + RELEASE_INTERVAL
            until = min(step, grace_ends_at) if left.needs_releaser else grace_ends_at
            while left and self.now() < until:
                await self.watchdog_wakeup.wait(until)

    async def _release(self, left: ReleaseQueue, release: Hook) -> None:
        while (transaction := left.begin()) is not None:
            if not await self._release_one(left, release, transaction):
                return  # the grace is over, and the supervisor has reported it as stranded
            self.watchdog_wakeup.notify()
            if self._is_cancelled():
                return
            await self._yield_to_loop()

    async def _release_one(
        self, left: ReleaseQueue, release: Hook, transaction: Transaction
    ) -> bool:
        """Hand one back, with retries. False when the call no longer waits for it."""
        number, since, channel = 0, self.instant(), self.settlements.channel_losses
        while True:
            problem: BaseException | None = None
            try:
                context = self.context.copy()
                answer = await await_inside(context, context.run(release, transaction))
                problem = unawaited_settlement(answer, Verb.RELEASE.value)
            except GeneratorExit:
                raise
            except BaseException as error:
                problem = error
            again_at = None
            if problem is not None and not self._is_cancelled():
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
                await self.backoff_wakeup.wait(again_at)
            if not left.is_waited_for(transaction):
                return False
            number += 1

    async def _close_reader(self) -> None:
        try:
            await await_inside(self.context.copy(), self.reader.aclose())
        except Exception as error:
            self.close_failed(error)

    def _is_cancelled(self) -> bool:
        """Whether the current task was cancelled."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0


def _nothing() -> None:
    """Do nothing: scheduling this callback is enough to wake the event loop."""
