"""How the asyncio driver talks to the source: one fetch at a time, and handing back at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from typing import Any

from ergon_framework.core.lifecycle import Scope, Verb
from ergon_framework.core.loop import StopReason
from ergon_framework.engine.classify import is_a, not_told
from ergon_framework.engine.clocks import AsyncSignal, pause
from ergon_framework.engine.crew import Crew
from ergon_framework.engine.delivery import Delivery
from ergon_framework.engine.intake import RELEASE_STEP, Returning
from ergon_framework.engine.plan import EnginePlan, Hook
from ergon_framework.engine.run import FETCH, Doing, Worker
from ergon_framework.engine.trampoline import await_inside, inside
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction

FAIR_TURNS = 32
"""Things a worker does in a row before it lets the rest of the event loop run, should none of them
await anything."""
FAIR_TIME = 0.01
"""Seconds after which it does so. All workers of a call share them, however many there are."""


class TaskSource(Crew):
    """Fetching and handing back with asyncio, and the signals all tasks of a call share."""

    def __init__(self, plan: EnginePlan, sink: Sink | None) -> None:
        self.event_loop = asyncio.get_running_loop()
        super().__init__(plan, self.event_loop.time, sink)
        self.lock = nullcontext()
        self.work: AsyncSignal = AsyncSignal()
        self.naps: AsyncSignal = AsyncSignal()
        self.watch: AsyncSignal = AsyncSignal()
        self.fetched: AsyncSignal = AsyncSignal()
        self.turns = FAIR_TURNS  # left of the fetches, retries and releases of this turn
        self.turn_ends_at = self.now() + FAIR_TIME
        self.is_turn_over = False

    # -- fairness ----------------------------------------------------------------------------

    async def _breathe(self) -> None:
        """Called wherever the driver decides what to do next: lets others run now and then."""
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

    def _publish(self, worker: Worker, attempt: Attempt) -> None:
        worker.attempt = attempt
        if attempt.deadline_at is not None and attempt.deadline_at < self.next_check:
            self._watch_for(attempt.deadline_at)

    def _watch_for(self, deadline_at: float) -> None:
        """The supervisor must wake earlier than it intends to."""
        self.next_check = deadline_at
        self.watch.notify()

    async def _fetch(self, worker: Worker, at_most: int) -> bool:
        if self.stuck is not None:
            return await self._fetch_again(at_most)
        attempt = Attempt(self.call, None, FETCH, self.loop.fetch_attempt)
        attempt.began_at = self.now()
        timeout = self.plan.bounds.fetch_timeout
        if timeout is not None:
            attempt.scope, attempt.deadline_at = Scope.STEP, attempt.began_at + timeout
        self._publish(worker, attempt)
        self.emit("fetch.began", attempt=attempt, requested=at_most)
        self.reading = delivery = Delivery(at_most)
        context = self.context.copy()
        self.enter(attempt, context)
        ours, reading = worker.cancels, None
        try:
            reading = inside(context, self.reader.read_async(at_most, delivery, self._breathe))
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

    def _receive(self, delivery: Delivery, attempt: Doing) -> None:
        error = delivery.error
        was_cancelled = error is not None and is_a(error, asyncio.CancelledError)
        if was_cancelled and (attempt.expired or self.is_aborted):
            forgive()
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
        while self.late is None and not self.is_aborted and self.now() < until:
            await self.fetched.wait(until)
        self._take_late(attempt)
        return True

    def _cancelled_outside(self, error: BaseException | None) -> None:
        """Somebody cancelled a task of this call: it ends now, and nothing of it has failed."""
        if error is None or not is_a(error, asyncio.CancelledError):
            error = asyncio.CancelledError()
        forgive()
        self._stop(error)
        self.stops += 2
        self.begin_abort(self.loop.reason or StopReason.STOPPED)

    def _broke_out(self, error: BaseException) -> None:
        if is_a(error, asyncio.CancelledError):
            self._cancelled_outside(error)
        else:
            super()._broke_out(error)

    def _hand_back_later(self) -> None:
        handing_back = self._begin_task(self._hand_back())
        # Cancelled before its first step, it would have done nothing, not even named them.
        handing_back.add_done_callback(lambda _task: self.strand(self.take_returning().give_up()))

    def _begin_task(self, body: Coroutine[Any, Any, None], name: str | None = None) -> Any:
        """A task that is kept until it is done."""
        try:
            task = self.event_loop.create_task(body, name=name)
        except BaseException:  # a task factory of the user's may raise
            body.close()
            raise
        keep(task)
        return task

    async def _hand_back(self) -> None:
        """Return what was not begun, without waiting for a source that hangs."""
        left = self.take_returning()
        tasks: set[asyncio.Task[None]] = set()
        try:
            patience = self.now() + self.plan.bounds.release_grace
            release = self.releasing()
            if release is not None:
                await self._release_all(left, release, patience, tasks)
            if self.reader.is_open:
                tasks.add(self._begin_task(self._close_reader()))
                await asyncio.wait(tasks, timeout=max(0.0, patience - self.now()))
        except GeneratorExit:
            raise
        except BaseException as error:  # no longer, but what is left is still named
            self.interrupt(error)
            if isinstance(error, asyncio.CancelledError):
                self.outbreak = error
        finally:
            for task in tasks:
                keep(task)
                task.cancel()
            self.strand(left.give_up())

    async def _release_all(
        self, left: Returning, release: Hook, patience: float, tasks: set[asyncio.Task[None]]
    ) -> None:
        while left and self.now() < patience:
            if left.needs_releaser:
                left.releasers += 1
                tasks.add(self._begin_task(self._release(left, release)))
            step = self.now() + RELEASE_STEP
            until = min(step, patience) if left.needs_releaser else patience
            while left and self.now() < until:
                await self.watch.wait(until)

    async def _release(self, left: Returning, release: Hook) -> None:
        while (transaction := left.begin()) is not None:
            if not await self._release_one(left, release, transaction):
                return  # the supervisor lost patience and called it stranded
            self.watch.notify()
            if self._is_cancelled():
                return
            await self._breathe()

    async def _release_one(self, left: Returning, release: Hook, transaction: Transaction) -> bool:
        """Hand one back, several times if need be. False when nobody waits for it any more."""
        number, since, channel = 0, self.instant(), self.channel_losses
        while True:
            problem: BaseException | None = None
            try:
                context = self.context.copy()
                answer = await await_inside(context, context.run(release, transaction))
                problem = not_told(answer, Verb.RELEASE.value)
            except GeneratorExit:
                raise
            except BaseException as error:
                problem = error
            again_at = None
            if problem is not None and not self._is_cancelled():
                again_at = self._release_again(transaction, number, since, channel, problem)
            if again_at is None:
                is_ours = left.end(transaction)
                if is_ours:
                    self.release_ended(transaction, problem, number + 1, since)
                problem = None  # its traceback holds on to this frame
                return is_ours
            while self.now() < again_at and left.is_waited_for(transaction):
                await self.naps.wait(again_at)
            if not left.is_waited_for(transaction):
                return False
            number += 1

    async def _close_reader(self) -> None:
        try:
            await await_inside(self.context.copy(), self.reader.aclose())
        except Exception as error:
            self.close_failed(error)

    def _is_cancelled(self) -> bool:
        """Whether somebody cancelled the task that asks."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0


_KEPT: set[asyncio.Task[Any]] = set()
"""Tasks nobody awaits: the event loop itself holds them only weakly."""


def keep(task: asyncio.Task[Any]) -> None:
    """Hold on to a task until it is done."""
    _KEPT.add(task)
    task.add_done_callback(_KEPT.discard)


def forgive() -> None:
    """The engine's own cancellation was delivered: the worker task goes on."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


async def absorb() -> int:
    """Take away a cancellation that a hook left on its worker: it is not the next hook's.

    The number of those that arrived meanwhile, which are not the hook's.
    """
    task = asyncio.current_task()
    pending = 0 if task is None else task.cancelling()
    if task is None or not pending:
        return 0
    with suppress(asyncio.CancelledError):
        await pause()
    arrived = task.cancelling() - pending
    forgive()
    return arrived
