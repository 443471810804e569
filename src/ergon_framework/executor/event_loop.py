"""The event loop of async handlers, in a thread of its own.

Where all handlers are async, the loop reads the requests itself (``LoopReader``) and hands nothing
to other threads. Imported only when a handler or a hook is async: asyncio takes long to load.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ergon_framework.core.executor_protocol import Outcome
from ergon_framework.errors import describe
from ergon_framework.executor.batch import JobBatch, LoopGatherer
from ergon_framework.executor.invocation import Invocation
from ergon_framework.executor.stdio import RequestReader, stderr_line
from ergon_framework.executor.thread_pool import Item, RequestQueue

CLOSE_TIMEOUT = 2.0
"""Seconds that tasks left over by handlers have to end."""


class LoopThread:
    """Runs invocations and awaitables; ``answer`` is called with each outcome, in the loop's
    thread.
    """

    def __init__(self, answer: Callable[[Invocation, Outcome], Any], limit: int = 1) -> None:
        """``limit``: how many invocations there are at once, at most."""
        self._answer = answer
        self.loop = asyncio.new_event_loop()
        self._gatherer = LoopGatherer(self.loop, limit, self._begin_batch)
        self._inbox: deque[Invocation] = deque()
        self.after_each: Callable[[], Any] | None = None
        self._is_called = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="ergon-loop", daemon=True)
        self._thread.start()

    def submit(self, invocation: Invocation) -> None:
        """Begin an invocation. Several that come in a row cost one wake-up."""
        self._inbox.append(invocation)
        # Without a lock: ``_begin_all`` clears the flag before it reads, so that nothing is left
        # behind.
        if not self._is_called:
            self._is_called = True
            self.loop.call_soon_threadsafe(self._begin_all)

    def cancel(self, invocation: Invocation) -> None:
        """Cancel an invocation from another thread."""
        self.loop.call_soon_threadsafe(_cancel, invocation)

    def run(
        self,
        awaitable: Awaitable[Any],
        timeout: float | None = None,
        overdue: Callable[[], TimeoutError] | None = None,
    ) -> Any:
        """Await something on the loop and wait for it, in another thread than the loop's.

        After ``timeout`` seconds it is cancelled, and what ``overdue`` gives is raised.
        """
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            # A ``TimeoutError`` may also be what the awaited code raised.
            if future.done() or overdue is None:
                raise  # of what was awaited
            future.cancel()
            raise overdue() from None

    def close(self) -> None:
        """Close the loop and cancel its tasks. A loop that is stuck is left behind."""
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * CLOSE_TIMEOUT)

    def begin(self, invocation: Invocation) -> None:
        """Begin an invocation, on the loop's own thread."""
        handler = invocation.handler
        if handler is not None and handler.batch:
            self._gatherer.gather(invocation, handler)
            return
        self._begin_one(invocation)

    def _begin_one(self, invocation: Invocation) -> None:
        # In the request's own context: what a handler sets must not reach the next one.
        invocation.task = self.loop.create_task(self._run_one(invocation), context=invocation.scope)

    def _begin_all(self) -> None:
        # First: a thread that adds an item from now on schedules another call.
        self._is_called = False
        while self._inbox:
            self.begin(self._inbox.popleft())

    def _begin_batch(self, batch: JobBatch) -> None:
        if len(batch.members) == 1:
            self._begin_one(batch.members[0])
            return
        task = self.loop.create_task(self._run_batch(batch), context=contextvars.copy_context())
        for invocation in batch.members:
            invocation.task = task

    async def _run_batch(self, batch: JobBatch) -> None:
        await batch.run_async(self._answer)
        if self.after_each is not None:
            self.after_each()

    async def _run_one(self, invocation: Invocation) -> None:
        self._answer(invocation, await invocation.run_async())
        if self.after_each is not None:
            self.after_each()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_closing:
            try:
                # A task that raises SystemExit stops the loop; the other handlers go on.
                self.loop.run_forever()
            except BaseException as error:  # a task of the user's raised SystemExit
                stderr_line(f"a task in the background ended with {describe(error)}")
        self._finish()

    def _finish(self) -> None:
        try:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                # Bounded: a task that swallows its cancellation must not keep the process.
                self.loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_TIMEOUT))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        except BaseException as error:
            stderr_line(f"the event loop ended with {describe(error)}")
        self.loop.close()


def _cancel(invocation: Invocation) -> None:
    # One that has not begun would never come to answer; it sees for itself that it is too late.
    if invocation.task is None or not invocation.is_begun:
        return
    batch = invocation.batch
    if batch is not None:
        if batch.is_cancelled:  # for another of its requests; once more would disturb its cleaning
            return
        batch.is_cancelled = True
    invocation.task.cancel()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class LoopReader:
    """Begins requests as they come. Between ``start`` and ``stop`` it lives on the loop."""

    def __init__(
        self,
        thread: LoopThread,
        queue: RequestQueue,
        reader: RequestReader,
        *,
        read: Callable[[], tuple[list[Item], bool]],
        run: Callable[[Item], Any],
    ) -> None:
        self._thread = thread
        self._loop = thread.loop
        self._queue = queue
        self._reader = reader
        self._read_items = read
        self._run = run
        self._is_reading = False

    def start(self) -> None:
        """Start reading requests."""
        # After each answer: a place is free, and the next request may begin.
        self._thread.after_each = self._go_on
        self._queue.is_reading = True
        self._loop.call_soon_threadsafe(self._go_on)

    def stop(self) -> None:
        """Read no more."""
        self._loop.call_soon_threadsafe(self._pause)

    def _go_on(self) -> None:
        """Begin requests while slots are free, and read on when none waits for a slot."""
        while True:
            with self._queue.lock:
                item = self._queue.take()
                is_full = bool(self._queue.waiting) or self._queue.is_ended
            if item is None:
                break
            if isinstance(item, Invocation) and item.is_async:
                self._thread.begin(item)
            else:
                self._run(item)  # there is nothing to call: no such handler, or no request at all
        if is_full:
            self._pause()
        elif not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._reader.source, self._read)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._reader.source)

    def _read(self) -> None:
        if not self._reader.has_come():
            return  # a loop that was interrupted calls twice for one readiness
        items, is_end = self._read_items()
        with self._queue.lock:
            self._queue.add(items)
            if is_end:
                self._queue.end()
        self._go_on()
