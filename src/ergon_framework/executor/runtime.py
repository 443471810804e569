"""The life of an executor process: hooks, reading, running, answering, and ending well.

The calling thread supervises: it handles signals and watches deadlines. A pool of threads reads
and runs plain handlers; async handlers run on one event loop, which reads for itself when there
are no others. With one request in flight, hooks and plain handlers share one thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ergon_framework.core.executor_protocol import (
    NOT_THROUGH,
    Outcome,
    Refusal,
    Request,
    Status,
)
from ergon_framework.executor import outcomes
from ergon_framework.executor.hooks import HookRunner, HookStep
from ergon_framework.executor.invocation import CUT_OFF, NEVER, Invocation
from ergon_framework.executor.registry import Registry
from ergon_framework.executor.stdio import (
    OutcomeWriter,
    Pipes,
    RequestReader,
    WakePipe,
    is_pollable,
    stderr_line,
)
from ergon_framework.executor.thread_pool import HandlerThreads, Item, RequestQueue

if TYPE_CHECKING:
    from ergon_framework.executor.batch import ThreadGatherer
    from ergon_framework.executor.event_loop import LoopReader, LoopThread


CANCEL_GRACE = 0.3
"""Seconds an async handler has to end after it was cancelled, before the process is killed."""


class Runtime:
    """Serves the requests of one pair of pipes until their end, or until ``stop``."""

    def __init__(
        self,
        registry: Registry,
        pipes: Pipes,
        *,
        limit: int = 1,
        on_ready: Callable[[], Any] | None = None,
        cancel_grace: float = CANCEL_GRACE,
    ) -> None:
        self._cancel_grace = cancel_grace
        self._pid = os.getpid()
        self._registry = registry
        self._on_ready = on_ready
        self._wake_pipe = WakePipe()
        self._queue = RequestQueue(limit, self._wake_pipe.wake)
        self._gatherer: ThreadGatherer | None = None
        if registry.largest_batch:
            from ergon_framework.executor.batch import ThreadGatherer

            self._gatherer = ThreadGatherer(limit)
        self._reader = RequestReader(pipes.source)
        self._writer = OutcomeWriter(pipes.target, gathers=limit > 1, on_broken=self.stop)
        self._hooks = HookRunner(registry, self._wait_for, self._call_within)
        self._watched: tuple[float, HookStep] | None = (
            None  # a plain step, and until when it has time
        )
        self._is_stop_reported = False
        self._loop: LoopThread | None = None
        self._loop_reader: LoopReader | None = None
        self._threads = HandlerThreads(
            self._queue,
            wait=self._reader.wait,
            read=self._read,
            before=self._open,
            run=self._run,
            after=self._close,
            failed=self._fail,
        )
        self._is_traced = False
        self._is_stopped = False  # a stop was requested
        self._is_closed = False  # all is done
        self._failure: BaseException | None = None

    @property
    def wake_fd(self) -> int:
        """A descriptor; writing to it wakes the supervisor, as a signal should."""
        return self._wake_pipe.write_end

    def run(self) -> None:
        """Serve until the end. Raises what a start-up or shut-down hook raised."""
        self._threads.start()
        self._supervise()
        if self._loop is not None:
            self._loop.close()
        # After the loop: its last outcomes have to be written.
        self._writer.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Read no more, finish what was read, and end. Safe in a signal handler."""
        self._is_stopped = True
        self._wake_pipe.wake()

    def cancel(self, job_id: str) -> None:
        """Tell the handler of a job that it is cancelled, from any thread.

        An async handler is cancelled; one of a batch only sees it, for its call is not its own.
        """
        # A copy under the lock: the threads change both lists.
        with self._queue.lock:
            both = (*self._queue.in_flight, *self._queue.waiting)
            found = [
                each
                for each in both
                if isinstance(each, Invocation) and each.request.job_id == job_id
            ]
        for invocation in found:
            invocation.cancel()
            if invocation.is_async and invocation.batch is None and self._loop is not None:
                self._loop.cancel(invocation)

    def close(self) -> None:
        """Close the descriptors, in a process that goes on; ``stop`` may not be called then."""
        self._wake_pipe.close()
        self._reader.close()

    # -- the supervisor --------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._is_closed:
            if self._is_stopped:
                self._end()
            watched = self._watched
            if watched is not None and self._is_overdue(*watched):
                continue
            with self._queue.lock:
                overdue = self._queue.overdue(time.monotonic())
                alarm = self._queue.alarm if watched is None else min(self._queue.alarm, watched[0])
            for invocation in overdue:
                self._cut_off(invocation)
            if not overdue:
                self._wake_pipe.wait(alarm)

    def _is_overdue(self, until: float, step: HookStep) -> bool:
        """Whether a step has had its time; then this process ends, for its thread is stuck."""
        if time.monotonic() >= until:
            self._fail(step.overdue())
            return True
        if self._is_stopped and not self._is_stop_reported:  # the worker may kill us before that
            self._is_stop_reported = True
            stderr_line(f"asked to end, and {step.name} {NOT_THROUGH}")
        return False

    def _cut_off(self, invocation: Invocation) -> None:
        """Cancel what can be cancelled; give up on what cannot, and on this process with it."""
        loop = self._loop
        if invocation.is_async and not invocation.is_cancelled and loop is not None:
            self._queue.prolong(invocation, time.monotonic() + self._cancel_grace)
            loop.cancel(invocation)
            return
        job_id = invocation.request.job_id
        is_begun = invocation.is_begun  # once cancelled, it never begins
        outcome = outcomes.timed_out(job_id, CUT_OFF) if is_begun else outcomes.not_begun(job_id)
        # Answered first: whoever claims the request decides what becomes of it, the handler or this
        # deadline.
        if not self._answer(invocation, outcome):
            return  # it has ended at the last moment
        if is_begun:
            stderr_line(
                f"the handler {invocation.request.function_name!r} of job {job_id!r} does not stop"
                " at its deadline; what was taken is finished, then this process ends"
            )
        # A thread that is stuck cannot be ended: the process is, once its other requests are
        # answered.
        self._end()
        if not invocation.is_async and not _is_replaced(invocation):
            self._threads.replace_one()

    def _end(self) -> None:
        with self._queue.lock:
            is_news = self._queue.end()
        if is_news:
            self._reader.halt()
            if self._loop_reader is not None:
                self._loop_reader.stop()

    # -- reading, running and answering ------------------------------------------------------------

    def _read(self) -> tuple[list[Item], bool]:
        """What has come, as items to run, and whether that was all."""
        frames, is_end = self._reader.read()
        items = [each if isinstance(each, Refusal) else self._invocation(each) for each in frames]
        return items, is_end

    def _invocation(self, request: Request) -> Invocation:
        handler = self._registry.find(request.function_name)
        return Invocation(request, handler, is_traced=self._is_traced)

    def _run(self, item: Item) -> bool:
        """Run an item; False when the supervisor has answered in the place of this thread."""
        if isinstance(item, Refusal):
            self._writer.put(outcomes.written(item.outcome)[1])
            return True
        if item.is_async and self._loop is not None:
            self._loop.submit(item)
            return True
        handler = item.handler
        if handler is not None and handler.batch and self._gatherer is not None:
            batch = self._gatherer.gather(item, handler)
            return batch is None or batch.run(self._answer)
        outcome = item.run()
        if hasattr(type(outcome.result), "__await__"):  # a plain function that calls an async one
            outcome = item.scope.run(self._awaited, outcome)
        return self._answer(item, outcome)

    def _awaited(self, outcome: Outcome) -> Outcome:
        try:
            result = self._event_loop().run(outcome.result)
            return outcomes.succeeded(outcome.job_id, result)
        except BaseException as error:
            return outcomes.failed(outcome.job_id, error)

    def _answer(self, invocation: Invocation, outcome: Outcome) -> bool:
        """Answer a request unless it was answered already; whether this call did."""
        # A fork in a handler that returns: its answer would be a second one to the same request.
        if os.getpid() != self._pid:
            _end_a_child(outcome)
        outcome, line = outcomes.written(outcome)
        if not self._queue.claim(invocation):
            return False
        # Before it is removed: the last answer must be on its way when the supervisor finds nothing
        # in flight.
        self._writer.put(line)
        invocation.end_span(outcome)
        self._queue.remove(invocation)
        if invocation.is_async and self._loop_reader is None:
            self._threads.wake_another()  # a worker that ran a handler comes back by itself
        return True

    # -- the first and the last worker -----------------------------------------------------------

    def _open(self) -> bool:
        """Open what the handlers need; whether the threads shall read."""
        if self._registry.has_async:
            self._event_loop()
        self._hooks.open()
        if self._on_ready is not None:
            self._on_ready()
        # Known only now: start-up hooks may have loaded it.
        self._is_traced = "opentelemetry.sdk.trace" in sys.modules
        loop = self._loop
        # Reading is left to the loop only where every handler is async and the input can be polled.
        if loop is None or self._registry.has_sync or not is_pollable(self._reader.source):
            return True
        from ergon_framework.executor.event_loop import LoopReader

        self._loop_reader = LoopReader(
            loop, self._queue, self._reader, read=self._read, run=self._run
        )
        self._loop_reader.start()
        return False

    def _event_loop(self) -> LoopThread:
        """The loop of what is async, begun at the first need."""
        if self._loop is None:
            from ergon_framework.executor.event_loop import LoopThread

            self._loop = LoopThread(self._answer, self._queue.limit)
        return self._loop

    def _wait_for(self, awaitable: Awaitable[Any], step: HookStep) -> Any:
        return self._event_loop().run(awaitable, step.timeout, step.overdue)

    def _call_within(self, step: HookStep) -> Any:
        """Run a step in this thread, which cannot be interrupted; when time is over, the supervisor
        ends the process.

        Handlers run in the same thread: what a lifespan opens may belong to it.
        """
        seconds = NEVER if step.timeout is None else step.timeout
        self._watched = (time.monotonic() + seconds, step)
        self._wake_pipe.wake()
        try:
            return step.run()
        finally:
            self._watched = None

    def _close(self) -> None:
        failure = self._hooks.close()
        if failure is not None:
            self._fail(failure)
        self._is_closed = True
        self._wake_pipe.wake()

    def _fail(self, error: BaseException) -> None:
        # The first error stands: what follows is often only its consequence.
        self._failure = self._failure or error
        self._end()
        self._is_closed = True
        self._wake_pipe.wake()


def _is_replaced(invocation: Invocation) -> bool:
    """Whether its thread, which the requests of a batch share, was given up for another of them."""
    batch = invocation.batch
    if batch is None:
        return False
    was_given_up: bool = batch.is_given_up
    batch.is_given_up = True
    return was_given_up


def _end_a_child(outcome: Outcome) -> NoReturn:
    """End a child process that a handler forked and that returned from the handler. A lock that
    another thread held at the fork would never be free in it.
    """
    for thread in threading.enumerate():  # those that it started itself: no others are left
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if outcome.status is Status.SUCCESS:
        os._exit(0)
    stderr_line(f"a forked child failed: {outcome.error_type}: {outcome.error_message}")
    os._exit(1)
