"""An event loop in a thread of its own, for requests of any thread and of any other loop.

Requests that run in a loop can be cut off at any moment, however slowly a server answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConnectorError

T = TypeVar("T")
CLOSE_TIMEOUT = 5.0
_inherited: list[Any] = []
"""Loops of a parent process. Closing one here would take its parent's watch on sockets away."""


class RequestLoop:
    """An event loop that starts at its first use. ``at_end`` is awaited in it before it ends."""

    def __init__(self, name: str, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._at_end = at_end
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the thread in a forked child, because it is the parent's."""
        _inherited.extend([] if self._loop is None else [self._loop])
        self._lock = threading.Lock()
        self._loop = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the event loop, in the context of the caller."""
        with self._lock:
            if self.is_closed:
                work.close()
                raise _closed()
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                SYSTEM_CLOCK.spawn(self._name, lambda: _serve(loop))
            return asyncio.run_coroutine_threadsafe(self._cut_off(work), self._loop)

    def close(self) -> None:
        """Cancel running requests, and end the thread. Closing twice is fine."""
        with self._lock:
            self.is_closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), loop)
        with suppress(Exception):
            ending.result(CLOSE_TIMEOUT)
        loop.call_soon_threadsafe(loop.stop)

    async def _cut_off(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except asyncio.CancelledError:
            if self.is_closed:  # whoever waits for it was not cancelled
                raise _closed() from None
            raise

    async def _end(self) -> None:
        running = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running, timeout=1.0)
        async with asyncio.timeout(1.0):
            await self._at_end()


def _closed() -> ConnectorError:
    return ConnectorError(
        "the connector is closed", remedy="open a new one; close it after the last use"
    )


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
