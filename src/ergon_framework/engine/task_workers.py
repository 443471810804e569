"""The workers of the asyncio driver: pull a transaction, drive its lifecycle, plan when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import CoroutineType
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import (
    BEGAN,
    RETURNED,
    STOPPED,
    SUCCEEDED,
    WOKE,
    Call,
    End,
    Event,
    Expired,
    Scope,
    Sleep,
    Step,
    Verb,
    deadline,
)
from ergon_framework.core.loop import Finish
from ergon_framework.engine.classify import is_a, is_outbreak, never_awaited, not_told
from ergon_framework.engine.clocks import pause
from ergon_framework.engine.crew import Job
from ergon_framework.engine.decisions import (
    arguments,
    decide,
    set_current,
    tell_attempt,
    tell_began,
    told,
    verb_for,
)
from ergon_framework.engine.plan import ON_SUCCESS, Hook, StepPlan
from ergon_framework.engine.run import BACKOFF, Doing, Run, Settling, Worker
from ergon_framework.engine.task_source import FAIR_TURNS, TaskSource, absorb, forgive
from ergon_framework.engine.trampoline import DONE, FAILED, Stepped, Stepper, inside, wait_for
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import Transaction


class Suspended:
    """A hook that waits for something."""

    __slots__ = ("doing", "ours", "rest", "run", "step", "worker")

    def __init__(
        self, worker: Worker, doing: Doing, run: Run, step: Step, rest: Awaitable[Any]
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


class TaskWorkers(TaskSource):
    """The half of the asyncio driver that runs in worker tasks."""

    def _start(self, worker: Worker, job: Job | None) -> None:
        worker.stepper = Stepper()
        name = f"ergon-{self.plan.task}-{len(self.workers)}"
        worker.handle = self._begin_task(self._body(worker, job), name)
        worker.handle.add_done_callback(lambda _task: self._gone(worker))

    def _gone(self, worker: Worker) -> None:
        """Cancelled before its first step, a task runs nothing of its body."""
        if worker in self.workers:
            self._left(worker, asyncio.CancelledError())

    # -- a worker ----------------------------------------------------------------------------

    async def _body(self, worker: Worker, job: Job | None) -> None:
        outbreak: BaseException | None = None
        try:
            if worker.handle is None:  # an eager task factory runs us inside of ``_start``
                await pause()
            self.is_rousing = False
            goes_on = True if job is None else job(worker)
            if goes_on is True or (goes_on and await goes_on):
                await self._work(worker)
        except BaseException as error:
            outbreak = error
        self._left(worker, outbreak)

    async def _work(self, worker: Worker) -> None:
        ready = self.ready
        turns = FAIR_TURNS
        while True:
            if (self.stops or self.has_deadline) and self.must_decide():
                await pause()  # the supervisor needs the event loop to act
                continue
            if (self.is_gated or not ready) and not await self._idle(worker):
                return
            if (self.is_continuous or len(ready) > 1) and not self.is_rousing:
                self._rouse()
            try:
                transaction = ready.popleft()
            except IndexError:  # another worker was faster
                continue
            if not await self._live(worker, transaction):
                return
            turns -= 1
            if not turns or self.now() >= self.turn_ends_at:
                await self._end_turn()
                turns = FAIR_TURNS

    async def _idle(self, worker: Worker) -> bool:
        """Nothing can be begun now: do what the loop plans. False when nothing is left to do."""
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
                self.loop.fetching = False  # or the loop would wait for it
                raise
            await self._breathe()

    async def _rest(self) -> None:
        self.idle += 1
        try:
            await self.work.wait(None if self.ready else self.resume_at)
        finally:
            self._rested()

    # -- one lifecycle -----------------------------------------------------------------------

    async def _live(self, worker: Worker, transaction: Transaction) -> bool:
        """Drive one transaction to its end. False when the supervisor took the run away from us.

        As long as every hook returns, the machine has nothing to decide: this is its happy path,
        written out. The first other event enters it.
        """
        if not self.is_plain:
            return await self._live_watched(worker, transaction)
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
                return await self._finish(worker, run, SUCCEEDED)
        return event is not None and await self._drive(worker, run, event)

    async def _live_watched(self, worker: Worker, transaction: Transaction) -> bool:
        """The same with an object per attempt, which a sink hangs its notes on."""
        run = self._begin(worker, transaction)
        tell_began(self, run)
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

    async def _drive(self, worker: Worker, run: Run, event: Event) -> bool:
        """Do what the machine says until the end; starts at any event."""
        next_event: Event | None = event
        while next_event is not None:
            action = decide(self, run, next_event)
            if isinstance(action, Call):
                if action.attempt:  # retries without a wait must not keep the event loop either
                    await self._breathe()
                next_event = await self._attempt(worker, run, self.steps[action.step])
            elif isinstance(action, Sleep):
                next_event = await self._sleep(worker, run, action.seconds)
            else:
                return await self._finish(worker, run, action)
        return False

    async def _attempt(self, worker: Worker, run: Run, step: StepPlan) -> Event | None:
        """One call of a hook, off the happy path."""
        event = self._try(worker, run, step)
        return await self._resume(event) if isinstance(event, Suspended) else event

    def _try(self, worker: Worker, run: Run, step: StepPlan) -> Event | Suspended | None:
        """The same as far as it goes without waiting."""
        if step.hook is None:
            return RETURNED
        attempt = Attempt(self.call, run, step.phase, run.attempt)
        given = arguments(run, step.step)
        return self._call(worker, run, step, attempt, attempt, *given)

    def _call(
        self, worker: Worker, run: Run, step: StepPlan, doing: Doing, current: Any, *given: Any
    ) -> Event | Suspended | None:
        """Call a hook and go as far as it goes without waiting.

        None when the supervisor took the run away meanwhile.
        """
        if self.is_timed and not self.arm(doing, run, step.timeout):
            return Expired(doing.scope) if self._owns(doing) else None
        worker.attempt = doing
        if doing.deadline_at is not None and doing.deadline_at < self.next_check:
            self._watch_for(doing.deadline_at)
        if self.is_aborted:
            return STOPPED if doing.claim() else None
        context = self.context.copy()
        if self.sink is not None:
            self.enter(doing, context)
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
        if worker.handle.cancelling():
            return Suspended(worker, doing, run, step.step, given_back(value))
        if type(value) is CoroutineType:
            return self._failed(doing, step.step, never_awaited(value, step.phase))
        return self._returned(doing, run, step.step, value)

    async def _resume(self, suspended: Suspended) -> Event | None:
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
        if not doing.expired and not self.is_aborted and await absorb():
            self._cancelled_outside(None)
        event = self._returned(doing, suspended.run, step, result)
        if doing.expired:
            forgive()
        return event

    def _note_cancels(self, suspended: Suspended, error: BaseException | None) -> None:
        """Find out whether somebody else has cancelled the worker while the hook waited."""
        rest, ours = suspended.rest, suspended.worker.cancels - suspended.ours
        if isinstance(rest, Stepped) and rest.cancels > ours:
            self._cancelled_outside(error)

    def _failed(self, attempt: Doing, step: Step, error: BaseException) -> Event | None:
        if is_a(error, asyncio.CancelledError):
            forgive()
        if self.is_aborted and not is_outbreak(error) and attempt.claim():
            # It was cut off: what it raised on its way out is no failure of the transaction.
            tell_attempt(self, attempt, Failure(Kind.CANCELLED, "aborted"), None)
            return STOPPED
        return super()._failed(attempt, step, error)

    async def _sleep(self, worker: Worker, run: Run, seconds: float) -> Event | None:
        """Wait before the next attempt; a wait that outlives the grace of a stop ends at once."""
        nap = Attempt(self.call, run, BACKOFF, run.attempt)
        worker.attempt = nap
        wake_at = self.now() + seconds
        lifecycle_at = deadline(self.rule, run)
        until = wake_at if lifecycle_at is None else min(wake_at, lifecycle_at)
        try:
            while self.now() < until <= self.grace_at and not self.is_aborted:
                await self.naps.wait(until)
        except asyncio.CancelledError as error:
            self._cancelled_outside(error)
        if not nap.claim():
            return None
        if self.is_aborted or until > self.grace_at:
            return STOPPED
        return WOKE if until == wake_at and until != lifecycle_at else Expired(Scope.LIFECYCLE)

    async def _finish(self, worker: Worker, run: Run, end: End) -> bool:
        verb = None if self.settlement is None else verb_for(self, end)
        if verb is not None and not await self._settle(worker, run, verb):
            return False
        return self._close(worker, run)

    async def _settle(self, worker: Worker, run: Run, verb: Verb) -> bool:
        """Tell the source. False when it did not answer in time and another worker went on."""
        settlement = self.settlement
        if settlement is None:
            return True
        attempt: Settling | None = self._settling(run, verb, settlement.timeout)
        while attempt is not None:
            self._publish(worker, attempt)
            if self._is_over(run):
                return False
            problem = await self._tell_source(worker, attempt, settlement.verbs[verb])
            if not self._owns(attempt):
                return False
            nap = self._settled(worker, attempt, problem)
            problem = None  # its traceback holds on to this frame
            if nap is None:
                return True
            if not await self._wait_to_settle(nap):
                return False
            attempt = self._next_settling(nap, settlement.timeout)
        return True

    async def _tell_source(
        self, worker: Worker, attempt: Settling, tell: Hook
    ) -> BaseException | None:
        """Call ack, nack or release_after; what went wrong, if anything did."""
        problem: BaseException | None = None
        ours, telling = worker.cancels, None
        context = self.context.copy()
        self.enter(attempt, context)
        try:
            answer = context.run(tell, *told(attempt.run, attempt.verb))
            telling = inside(context, answer)
            problem = not_told(await telling, attempt.verb.value)
        except BaseException as error:
            problem = error
        if telling is not None and telling.cancels > worker.cancels - ours:
            self._cancelled_outside(problem)
        if attempt.expired and problem is not None and is_a(problem, asyncio.CancelledError):
            forgive()
            problem = TimeoutError("no answer")
        try:
            return problem
        finally:
            del problem  # its traceback holds on to this frame

    async def _wait_to_settle(self, nap: Settling) -> bool:
        """Wait before the source is told again. False when the supervisor took the run away."""
        try:
            while self._waits_to_settle(nap):
                await self.naps.wait(nap.wake_at)
        except asyncio.CancelledError as error:
            if nap.ticket:  # else the call has ended without this worker, and cancelled it itself
                self._cancelled_outside(error)
        return nap.claim()
