"""Batch handlers: requests that are in flight together become one call, with an outcome each.

Requests are gathered for a moment, the ``linger``, and never for more than a small part of the time
that the first of them has left. A request that does not fit the signature fails alone. The call
belongs to all others: what it raises is the outcome of each of them.

Theory of operation. The thread that takes the first request of a batch waits for more, makes the
call and answers; threads that take later requests add them to the batch and continue. On the event
loop the first request sets a timer. At the deadline of a request in a thread that request alone is
answered, and the process is replaced as ever; an async call is cancelled, and requests that had
time left go back without a charge.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ergon_framework.core.executor_protocol import Outcome
from ergon_framework.executor import outcomes
from ergon_framework.executor.invocation import CUT_OFF, NEVER, Invocation
from ergon_framework.executor.registry import BatchResultError, Handler
from ergon_framework.ports.middleware import call_through
from ergon_framework.ports.unit_of_work import OBSERVERS, RUNNING, UnitOfWork, observed

if TYPE_CHECKING:
    import asyncio

_PART = 0.1
"""The part of the time to the earliest deadline that gathering may take."""
_SLACK = 0.05
"""Seconds; deadlines of requests that came together differ by less."""

Answer = Callable[[Invocation, Outcome], Any]


class JobBatch:
    """Requests for one batch handler that one call of it answers."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.members: list[Invocation] = []
        self.closes_at = time.monotonic() + handler.linger
        self.is_given_up = False  # its thread was replaced, since a deadline has passed
        self.is_cancelled = False
        self.timer: asyncio.TimerHandle | None = None

    def add(self, invocation: Invocation) -> None:
        """Add a request that the call will answer."""
        invocation.batch = self
        self.members.append(invocation)
        if invocation.ends_at != NEVER:
            now = time.monotonic()
            self.closes_at = min(self.closes_at, now + _PART * (invocation.ends_at - now))

    def run(self, answer: Answer) -> bool:
        """Call a plain handler and answer; False when the supervisor has answered for this
        thread.
        """
        # Alone, it runs as any other request, with an outcome and a span of its own.
        if len(self.members) == 1:
            (only,) = self.members
            return bool(answer(only, only.run()))
        ready = self._prepared(answer)
        if not ready:
            return True
        results = contextvars.copy_context().run(self._call, ready)
        is_ours = [bool(answer(*each)) for each in zip(self._members(ready), results, strict=True)]
        return all(is_ours)

    async def run_async(self, answer: Answer) -> None:
        """Await an async handler and answer; the task that does so has a context of its own."""
        ready = self._prepared(answer)
        if not ready:
            return
        try:
            results = self._each(ready, await self._begun(ready))
        except BaseException as error:
            # By the name of its class: importing asyncio would cost every process with plain
            # handlers.
            is_cut_off = self.is_cancelled and type(error).__name__ == "CancelledError"
            results = self._cut_off(ready) if is_cut_off else self._failed(ready, error)
        for invocation, outcome in zip(self._members(ready), results, strict=True):
            answer(invocation, outcome)

    def unit_of_work(self) -> UnitOfWork:
        """All of the jobs as one unit of work, for code that their handler calls."""
        units = [each.unit_of_work() for each in self.members]
        first = units[0]
        return first._replace(
            id=f"{first.id}+{len(units) - 1}",
            attempt=max(each.attempt for each in units),
            # The nearest deadline: whatever the handler calls must end in time for all of them.
            deadline=min((each.deadline for each in units if each.deadline), default=None),
            is_retried=all(each.is_retried for each in units),
        )

    # ---- inside ----

    def _prepared(self, answer: Answer) -> list[tuple[Invocation, Any]]:
        """The requests that can be run, with their arguments; all others are answered."""
        ready = []
        for each in self.members:
            call = each.scope.run(each.prepare)
            if isinstance(call, Outcome):
                answer(each, call)
            else:
                ready.append((each, call))
        return ready

    def _members(self, ready: Sequence[tuple[Invocation, Any]]) -> list[Invocation]:
        return [each for each, _ in ready]

    def _call(self, ready: Sequence[tuple[Invocation, Any]]) -> list[Outcome]:
        try:
            return self._each(ready, self._begun(ready))
        except BaseException as error:  # SystemExit too: a handler may not end the process
            return self._failed(ready, error)

    def _begun(self, ready: Sequence[tuple[Invocation, Any]]) -> Any:
        """What the handler returns: of an async one an awaitable."""
        RUNNING.set(self)
        handler = self.handler
        units = [args[0] for _, (_, args, _) in ready]
        function = partial(handler.call_together, units, self._members(ready))
        if not handler.layers and not OBSERVERS:
            return function()
        unit = self.unit_of_work()
        call = partial(call_through, handler.layers, unit, function)
        return observed(call, lambda _: unit, is_async=handler.is_async)() if OBSERVERS else call()

    def _each(self, ready: Sequence[tuple[Invocation, Any]], result: Any) -> list[Outcome]:
        ids = [each.request.job_id for each, _ in ready]
        problem = self.handler.batch_result_problem(result, len(ids))
        if problem:
            return [outcomes.failed(each, BatchResultError(problem)) for each in ids]
        values = [None] * len(ids) if result is None else result
        return [
            outcomes.failed(job_id, value, self.handler.give_up_on)
            if isinstance(value, BaseException)
            else outcomes.succeeded(job_id, value)
            for job_id, value in zip(ids, values, strict=True)
        ]

    def _failed(
        self, ready: Sequence[tuple[Invocation, Any]], error: BaseException
    ) -> list[Outcome]:
        final = self.handler.give_up_on
        return [outcomes.failed(each.request.job_id, error, final) for each, _ in ready]

    def _cut_off(self, ready: Sequence[tuple[Invocation, Any]]) -> list[Outcome]:
        now = time.monotonic()
        return [
            outcomes.timed_out(each.request.job_id, CUT_OFF)
            if each.is_cancelled or each.ends_at <= now + _SLACK
            else outcomes.cut_off_by_another(each.request.job_id)
            for each, _ in ready
        ]


class ThreadGatherer:
    """Brings together the requests that threads take; ``limit`` of them are there at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._open: dict[Handler, JobBatch] = {}

    def gather(self, invocation: Invocation, handler: Handler) -> JobBatch | None:
        """The batch that this thread shall run; None: another thread does."""
        with self._changed:
            batch = self._open.get(handler)
            if batch is not None:
                batch.add(invocation)
                if self._is_full(batch):
                    # The request that fills the batch removes it, so that the next request opens
                    # another one.
                    del self._open[handler]
                    self._changed.notify_all()
                return None
            batch = self._open[handler] = JobBatch(handler)
            batch.add(invocation)
            while not self._is_full(batch):
                left = batch.closes_at - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            # Still open: it was not filled before its time was over.
            if self._open.get(handler) is batch:
                del self._open[handler]
            return batch

    def _is_full(self, batch: JobBatch) -> bool:
        return len(batch.members) >= min(batch.handler.batch, self._limit)


class LoopGatherer:
    """Gathers batches on the event loop. Only its thread uses it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit: int, begin: Callable[[JobBatch], Any]
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._begin = begin
        self._open: dict[Handler, JobBatch] = {}

    def gather(self, invocation: Invocation, handler: Handler) -> None:
        """Add a request to a batch, and begin the batch if it is full."""
        batch = self._open.get(handler)
        if batch is None:
            batch = self._open[handler] = JobBatch(handler)
        batch.add(invocation)
        # The new request may have less time than the ones before.
        if batch.timer is not None:
            batch.timer.cancel()
        left = batch.closes_at - time.monotonic()
        if len(batch.members) >= min(handler.batch, self._limit) or left <= 0:
            self._close(batch)
        else:
            batch.timer = self._loop.call_later(left, self._close, batch)

    def _close(self, batch: JobBatch) -> None:
        del self._open[batch.handler]
        self._begin(batch)
