"""What the connections of one server share."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any, Protocol

from ergon_framework.boundary.http.exchange import Application, Exchange
from ergon_framework.boundary.http.heads import Heads
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import describe

logger = logging.getLogger("ergon_framework.boundary")

Denied = Callable[[str, str], None]
"""Told the address and why nobody there was served."""
Failed = Callable[[Exchange, BaseException], None]
"""Told the exchange and the error that was no answer."""


class Member(Protocol):
    """A connection, as the housekeeping sees it."""

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""

    def sweep(self, now: float) -> None:
        """Give up what takes too long."""

    def close(self) -> None:
        """Close when what has been written is on its way."""

    def abort(self) -> None:
        """Close at once."""


class Service:
    """The application with its limits, and who is connected to it."""

    def __init__(
        self,
        application: Application,
        limits: LimitSettings,
        clock: Callable[[], float],
        wall: Callable[[], float],
        on_error: Failed | None,
        on_denied: Denied | None,
    ) -> None:
        self.application = application
        self.limits = limits
        self.clock = clock
        """For how long."""
        self.wall = wall
        """For the time of day."""
        self.context: ssl.SSLContext | None = None
        """What new connections are secured with."""
        self.connections: set[Member] = set()
        self.heads = Heads()
        self.is_stopping = False
        self.date = formatdate(wall(), usegmt=True)
        self.changed = asyncio.Event()
        """Set, while the server stops, whenever a connection has less to do than before."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_error = on_error
        self._on_denied = on_denied

    def spawn(
        self, work: Coroutine[Any, Any, None], inner: Coroutine[Any, Any, None] | None = None
    ) -> None:
        """Run a coroutine beside the connections; ``inner`` is one that it would await."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if inner is not None:  # cancelled before it began, the outer one would leave it behind
            task.add_done_callback(lambda _task: inner.close())

    def failed(self, exchange: Exchange, error: BaseException) -> None:
        """Tell about an error that the client is not told."""
        if self._on_error is None:
            # Not its text, which may quote a payload.
            logger.error("%s %s: %s", exchange.method, exchange.path, type(error).__name__)
            return
        try:
            self._on_error(exchange, error)
        except Exception as fault:
            logger.error("on_error itself failed: %s", describe(fault))  # noqa: TRY400

    def denied(self, address: str, why: str) -> None:
        """Tell about somebody who was turned away."""
        if self._on_denied is None:
            logger.warning("%s was not served: %s", address, why)
            return
        try:
            self._on_denied(address, why)
        except Exception as fault:
            logger.error("on_denied itself failed: %s", describe(fault))  # noqa: TRY400

    def forget(self, connection: Member) -> None:
        """A connection is no more."""
        self.connections.discard(connection)
        self.changed.set()

    def sweep(self) -> None:
        """One round of housekeeping."""
        self.date = formatdate(self.wall(), usegmt=True)
        now = self.clock()
        for connection in tuple(self.connections):
            connection.sweep(now)

    async def until_quiet(self) -> None:
        """Wait until no request is under way; new ones are refused meanwhile."""
        await self._until(lambda: not any(each.is_busy for each in self.connections))

    async def until_empty(self) -> None:
        """Send everybody away; wait until they have gone and every coroutine has ended."""
        for connection in tuple(self.connections):
            connection.close()
        await self._until(lambda: not self.connections)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cut(self) -> None:
        """End what has not ended by itself."""
        for connection in tuple(self.connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await self.until_empty()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.changed.clear()
            await self.changed.wait()
