"""The event loop of async handlers, in a thread of its own.

Where all handlers are async, the loop reads the requests itself (``LoopReader``) and hands nothing
to other threads. Imported only when a handler or a hook is async: asyncio takes long to load.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ergon_framework.core.wire import Outcome
from ergon_framework.errors import describe
from ergon_framework.executor.invocation import Flight
from ergon_framework.executor.stdio import Intake, say
from ergon_framework.executor.thread_pool import Board, Item

CLOSE_PATIENCE = 2.0
"""Seconds that tasks left over by handlers have to end."""


class LoopThread:
    """Runs flights and awaitables; ``answer`` is told each outcome, in the loop's thread."""

    def __init__(self, answer: Callable[[Flight, Outcome], Any]) -> None:
        self._answer = answer
        self.loop = asyncio.new_event_loop()
        self._inbox: deque[Flight] = deque()
        self.after_each: Callable[[], Any] | None = None
        self._is_called = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="ergon-loop", daemon=True)
        self._thread.start()

    def submit(self, flight: Flight) -> None:
        """Begin a flight. Several that come in a row cost one wake-up."""
        self._inbox.append(flight)
        if not self._is_called:
            self._is_called = True
            self.loop.call_soon_threadsafe(self._begin_all)

    def cancel(self, flight: Flight) -> None:
        """Cancel a flight from another thread."""
        self.loop.call_soon_threadsafe(_cancel, flight)

    def run(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Any:
        """Await something on the loop and wait for it, in another thread than the loop's."""
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.loop)
        return future.result(timeout)

    def close(self) -> None:
        """End the loop, its leftover tasks included; one that is stuck is left behind."""
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * CLOSE_PATIENCE)

    def begin(self, flight: Flight) -> None:
        """Begin a flight, on the loop's own thread."""
        flight.task = self.loop.create_task(self._fly(flight), context=flight.scope)

    def _begin_all(self) -> None:
        self._is_called = False  # first: whoever comes from now on calls again
        while self._inbox:
            self.begin(self._inbox.popleft())

    async def _fly(self, flight: Flight) -> None:
        self._answer(flight, await flight.run_async())
        if self.after_each is not None:
            self.after_each()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_closing:
            try:
                self.loop.run_forever()
            except BaseException as error:  # a task of the user's raised SystemExit
                say(f"a task in the background ended with {describe(error)}")
        self._finish()

    def _finish(self) -> None:
        try:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_PATIENCE))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        except BaseException as error:
            say(f"the event loop ended with {describe(error)}")
        self.loop.close()


def _cancel(flight: Flight) -> None:
    # One that has not begun would never come to answer; it sees for itself that it is too late.
    if flight.task is not None and flight.is_begun:
        flight.task.cancel()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class LoopReader:
    """Begins requests as they come. Between ``start`` and ``stop`` it lives on the loop."""

    def __init__(
        self,
        thread: LoopThread,
        board: Board,
        intake: Intake,
        *,
        read: Callable[[], tuple[list[Item], bool]],
        run: Callable[[Item], Any],
    ) -> None:
        self._thread = thread
        self._loop = thread.loop
        self._board = board
        self._intake = intake
        self._take_in = read
        self._run = run
        self._is_reading = False

    def start(self) -> None:
        """Begin to read."""
        self._thread.after_each = self._go_on
        self._board.is_reading = True
        self._loop.call_soon_threadsafe(self._go_on)

    def stop(self) -> None:
        """Read no more."""
        self._loop.call_soon_threadsafe(self._pause)

    def _go_on(self) -> None:
        """Begin what may begin; read only when nothing waits for its turn."""
        while True:
            with self._board.lock:
                item = self._board.take()
                is_full = bool(self._board.waiting) or self._board.is_ended
            if item is None:
                break
            if isinstance(item, Flight) and item.is_async:
                self._thread.begin(item)
            else:
                self._run(item)  # there is nothing to call: no such handler, or no request at all
        if is_full:
            self._pause()
        elif not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._intake.source, self._read)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._intake.source)

    def _read(self) -> None:
        if not self._intake.has_come():
            return  # a loop that was interrupted calls twice for one readiness
        items, is_end = self._take_in()
        with self._board.lock:
            self._board.add(items)
            if is_end:
                self._board.end()
        self._go_on()
