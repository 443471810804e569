"""The asyncio driver: the calling task supervises, a few long-lived worker tasks do the rest.

The same machine as the thread driver, with one more means: a call that is overdue is cancelled
first. Only code that swallows the cancellation beyond a short grace is abandoned and counted.
"""

from __future__ import annotations

import asyncio

from ergon_framework.core.loop import StopReason
from ergon_framework.engine.decisions import cut_off
from ergon_framework.engine.outcome import conclude
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import BACKOFF, Doing, Worker
from ergon_framework.engine.task_workers import TaskWorkers
from ergon_framework.ports.notice import Sink


class TaskEngine(TaskWorkers):
    """Drives one call with asyncio. Made inside a running event loop."""

    def __init__(self, plan: EnginePlan, *, sink: Sink | None = None) -> None:
        super().__init__(plan, sink)

    async def run(self) -> Report:
        """Drive the call to its end. Raises what RFC-004 and RFC-005 say a call ends with."""
        self.emit("call.began")
        try:
            self.hear_stop()
            await self._supervise()
            self.gather()
            await self._hand_back()
        except GeneratorExit:  # the event loop was closed around us: nothing can be awaited
            self.gather()
            self.account()
            raise
        except BaseException as error:
            self.interrupt(error)
            self.gather()
        self.account()
        return conclude(self, self.report())

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
                    self._hire(None)
                if not self.is_finished:
                    await self.watch.wait(self.next_alarm())
                troubles = 0
            except GeneratorExit:
                raise
            except asyncio.CancelledError as error:
                # Whoever cancels the call wants it to end: no grace, but nobody left behind.
                self._stop(error)
                self.outbreak = error
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
        for worker, attempt in self.overdue(now):
            if not attempt.expired:
                self._cancel(worker, attempt, now)
            elif attempt.claim():
                self._replace(worker, attempt)

    def _cancel(self, worker: Worker, attempt: Doing, now: float) -> None:
        """Ask an overdue call to end; it has a short grace to do so."""
        attempt.expired = True
        attempt.deadline_at = now + self.plan.bounds.cancel_grace
        self.next_check = min(self.next_check, attempt.deadline_at)
        self._cancel_task(worker)

    def _cancel_task(self, worker: Worker) -> None:
        worker.cancels += 1
        worker.handle.cancel()

    def _part_with(self, worker: Worker) -> None:
        if worker.attempt is not None and worker.attempt.ticket:
            self._cancel_task(worker)
        super()._part_with(worker)

    async def _abort(self, reason: StopReason) -> None:
        """End everything now. Nothing that swallows its cancellation is waited for."""
        self.begin_abort(reason)
        for worker in self.workers:
            attempt = worker.attempt
            if attempt is not None and attempt.ticket and attempt.phase != BACKOFF:
                self._cancel_task(worker)
        self.work.notify_all()
        self.naps.notify_all()
        self.fetched.notify_all()
        patience = self.now() + self.plan.bounds.cancel_grace
        while self.workers and self.now() < patience:
            await self.watch.wait(patience)
        for worker in list(self.workers):
            attempt = worker.attempt
            if attempt is not None and attempt.claim():
                try:
                    if attempt.phase != BACKOFF:
                        self.give_up_on(worker, attempt)
                    else:  # it waits for nobody, and leaves when the event loop comes to it
                        self.dismiss(worker)
                finally:
                    cut_off(self, attempt)
        self.is_finished = True


def _nothing() -> None:
    """Only wakes the event loop."""
