"""Driving the consuming half in both colours: one conversation at a time, and the lease kept."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TypeVar

from ergon_framework.boundary.client.consume_flow import keeping
from ergon_framework.boundary.client.flow import Script, TaskHands, ThreadHands
from ergon_framework.connector.boundary.line import Line
from ergon_framework.connector.boundary.reading import Reader
from ergon_framework.connector.boundary.window import Entry
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import WiringError

T = TypeVar("T")
LEAVING = 5.0
"""Seconds that the thread which keeps the lease has to end."""


class Driver:
    """Runs a reader's scripts, in threads or in tasks of one event loop, never in both."""

    def __init__(self, line: Line, reader: Reader) -> None:
        self.reader = reader
        self._line = line
        self._over = threading.Event()
        self._stop_waiting = threading.Event()
        self._switch = threading.Lock()
        self._turn = threading.Lock()
        self._hands: ThreadHands | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn_async: asyncio.Lock | None = None
        self._keeper: asyncio.Task[None] | None = None

    # ---- both ----

    def stop_waiting(self) -> None:
        """Let the fetch under way, or the next one, wait no longer."""
        self._stop_waiting.set()

    def _fetching(self, most: int, wait: float, gave_up: threading.Event) -> Script[list[Entry]]:
        def is_called_off() -> bool:
            return gave_up.is_set() or self._stop_waiting.is_set()

        try:
            return (yield from self.reader.fetch(most, wait, is_called_off))
        finally:
            # Only now: a stop may be asked just before the fetch that the engine has decided on.
            self._stop_waiting.clear()

    # ---- threads ----

    def now(self) -> float:
        """The time that scripts see."""
        return current_clock().now()

    def fetch(self, most: int, wait: float, gave_up: threading.Event) -> list[Entry]:
        """Up to so many facts to be handed out; whoever gives up sets the event."""
        self._keep()
        return self._run(self._fetching(most, wait, gave_up))

    def advance(self) -> None:
        """Confirm what can be confirmed; when this returns, it is."""
        self._run(self.reader.advance())

    def leave(self) -> None:
        """Let go of the name, and end the thread that kept it."""
        if self._thread is None:
            return
        self._over.set()
        if self._hands is not None:
            self._hands.wake()
        self._thread.join(LEAVING)
        self._run(self.reader.leave())

    def _run(self, script: Script[T]) -> T:
        with self._turn:
            return self._line.run(script)

    def _keep(self) -> None:
        with self._switch:
            if self._thread is not None and self._thread.is_alive():
                return
            clock, desk = current_clock(), self.reader.desk
            hands = ThreadHands(self._line.threads(), clock, self._over.is_set)
            self._hands = hands
            self._thread = clock.spawn(
                f"ergon-keeper-{desk.name}", lambda: hands.run(keeping(desk, self._over.is_set))
            )

    # ---- tasks ----

    async def fetch_async(self, most: int, wait: float, gave_up: threading.Event) -> list[Entry]:
        """The asyncio twin of :meth:`fetch`."""
        self._keep_async()
        return await self._run_async(self._fetching(most, wait, gave_up))

    async def advance_async(self) -> None:
        """The asyncio twin of :meth:`advance`."""
        await self._run_async(self.reader.advance())

    async def leave_async(self) -> None:
        """The asyncio twin of :meth:`leave`."""
        if self._keeper is None:
            return
        self._over.set()
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        await self._run_async(self.reader.leave())

    def drop_the_name(self) -> None:
        """Renew no more, from whatever thread; without a word to the node, whose lease ends."""
        self._over.set()
        keeper = self._keeper
        if keeper is not None and not keeper.done():
            with contextlib.suppress(RuntimeError):  # its loop is closed, and the task with it
                keeper.get_loop().call_soon_threadsafe(keeper.cancel)

    async def _run_async(self, script: Script[T]) -> T:
        async with self._own_turn():
            return await self._line.run_async(script)

    def _own_turn(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._turn_async is None:
            self._loop, self._turn_async = loop, asyncio.Lock()
        if self._loop is not loop:
            raise WiringError(
                "this BoundaryConnector belongs to another event loop",
                remedy="make one for each loop, or give it the node's URL",
            )
        return self._turn_async

    def _keep_async(self) -> None:
        if self._keeper is None and self._line.tasks is not None:
            desk, hands = self.reader.desk, TaskHands(self._line.tasks, self._over.is_set)
            self._keeper = asyncio.create_task(
                hands.run(keeping(desk, self._over.is_set)), name=f"ergon-keeper-{desk.name}"
            )
