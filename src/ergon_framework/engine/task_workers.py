"""The workers of the asyncio driver: pull a transaction, drive its lifecycle, plan when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import (
    BEGAN,
    RETURNED,
    STOPPED,
    WOKE,
    Call,
    End,
    Event,
    Expired,
    Scope,
    Sleep,
    Step,
    deadline,
)
from ergon_framework.core.loop import Finish
from ergon_framework.core.settlement import Verb
from ergon_framework.engine.clocks import pause
from ergon_framework.engine.decisions import (
    arguments,
    decide,
    expired,
    invoke,
    tell_attempt,
    verb_for,
)
from ergon_framework.engine.flight import BACKOFF, SETTLE
from ergon_framework.engine.outcome import SUCCEEDED
from ergon_framework.engine.run import Run, Worker
from ergon_framework.engine.task_source import TaskSource, forgive, keep
from ergon_framework.engine.trampoline import await_inside
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import Transaction

FAIR_TURNS = 32
"""Transactions after which a worker lets the rest of the event loop run, even if no hook awaits."""

Job = Callable[[Worker], Awaitable[bool]]


class TaskWorkers(TaskSource):
    """The half of the asyncio driver that runs in worker tasks."""

    def _hire(self, job: Job | None) -> None:
        worker = Worker()
        self.workers.append(worker)
        name = f"ergon-{self.plan.task}-{len(self.workers)}"
        worker.handle = self.event_loop.create_task(self._body(worker, job), name=name)
        keep(worker.handle)

    # -- a worker ----------------------------------------------------------------------------

    async def _body(self, worker: Worker, job: Job | None) -> None:
        outbreak: BaseException | None = None
        try:
            self.is_rousing = False
            if job is None or await job(worker):
                await self._work(worker)
        except BaseException as error:
            outbreak = error
        self._left(worker, outbreak)

    async def _work(self, worker: Worker) -> None:
        ready = self.ready
        concurrency = self.plan.loop.concurrency
        turns = FAIR_TURNS
        while True:
            if self.is_gated and not await self._idle(worker):
                return
            try:
                transaction = ready.popleft()
            except IndexError:
                if not await self._idle(worker):
                    return
                continue
            if ready and not self.is_rousing and (self.idle or len(self.workers) < concurrency):
                self._rouse()
            if not await self._live(worker, transaction):
                return
            turns -= 1
            if not turns:
                turns = FAIR_TURNS
                await pause()

    async def _idle(self, worker: Worker) -> bool:
        """Nothing can be begun now: do what the loop plans. False when nothing is left to do."""
        worker.attempt = None
        while True:
            action = self._plan()
            while action is None:
                if self.ready and self.may_start():
                    return True
                await self._rest()
                action = self._plan()
            if isinstance(action, Finish):
                return False
            if not await self._fetch(worker, action.at_most):
                return False
            await pause()

    async def _rest(self) -> None:
        self.idle += 1
        try:
            await self.work.wait(None if self.ready else self.resume_at)
        finally:
            self.idle -= 1
            self.is_rousing = False

    # -- one lifecycle -----------------------------------------------------------------------

    async def _live(self, worker: Worker, transaction: Transaction) -> bool:
        """Drive one transaction to its end. False when the supervisor took the run away from us.

        As long as every hook returns, the machine has nothing to decide: this is its happy path,
        written out. The first other event enters it.
        """
        run = Run(transaction, self.now())
        if self.sink is not None:
            self.emit("transaction.began", run=run)
        if not self.plan.compiled:
            return await self._drive(worker, run, BEGAN)
        event = await self._attempt(worker, run, Step.PROCESS)
        if event is RETURNED:
            run.step = Step.ON_SUCCESS
            event = await self._attempt(worker, run, Step.ON_SUCCESS)
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
                next_event = await self._attempt(worker, run, action.step)
            elif isinstance(action, Sleep):
                next_event = await self._sleep(worker, run, action.seconds)
            else:
                return await self._finish(worker, run, action)
        return False

    async def _attempt(self, worker: Worker, run: Run, step: Step) -> Event | None:
        """Call a hook. None when the supervisor took the run away meanwhile."""
        hook, phase, timeout = self.steps[step]
        if hook is None:
            return RETURNED
        attempt = Attempt(self.call, run, phase, run.attempt)
        if self.is_timed and not self.arm(attempt, run, timeout):
            return Expired(attempt.scope)
        self._publish(worker, attempt)
        if self.is_aborted:
            return STOPPED if attempt.claim() else None
        context = self.context.copy()
        if self.sink is not None:
            self.enter(attempt, context)
        try:
            answer = context.run(invoke, attempt, hook, arguments(self, run, step))
            result = await await_inside(context, answer)
        except BaseException as error:
            return self._failed(attempt, step, error)
        if not attempt.claim():
            self._late(attempt)
            return None
        if self.is_overdue(attempt):
            forgive()
            return expired(self, attempt)
        if step is Step.PROCESS:
            run.result = result
        if self.sink is not None:
            tell_attempt(self, attempt, None, None, result)
        return RETURNED

    def _failed(self, attempt: Attempt, step: Step, error: BaseException) -> Event | None:
        if isinstance(error, asyncio.CancelledError):
            forgive()
            if self.is_aborted and attempt.claim():
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
        while self.now() < until <= self.grace_at and not self.is_aborted:
            await self.naps.wait(until)
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
        attempt = Attempt(self.call, run, SETTLE, 0)
        attempt.note = verb
        attempt.deadline_at = self.now() + settlement.timeout
        self._publish(worker, attempt)
        arguments = (run.transaction, run.exception)[: 1 if verb is Verb.ACK else 2]
        problem: BaseException | None = None
        try:
            context = self.context.copy()
            answer = context.run(invoke, attempt, settlement.verbs[verb], arguments)
            await await_inside(context, answer)
        except BaseException as error:
            problem = error
        if attempt.expired and isinstance(problem, asyncio.CancelledError):
            forgive()
            problem = TimeoutError("no answer")
        if not attempt.claim():
            self._late(attempt)
            return False
        self._settled(run.transaction, verb, problem)
        return True
