"""An HTTP/1.1 server for one application: quick with small requests, hard to wear down."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ergon_framework.boundary.http.doorstep import Doorstep
from ergon_framework.boundary.http.exchange import Application
from ergon_framework.boundary.http.listening import BACKLOG, bound_sockets
from ergon_framework.boundary.http.service import Denied, Failed, Service
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import ConfigurationError

EVERY = 1.0
"""Seconds between two rounds of housekeeping, which all time limits share."""


class Contexts(Protocol):
    """Something that always has the current TLS context, such as ``Certificates``."""

    def server(self) -> ssl.SSLContext:
        """The context for the next connection."""


class Server:
    """Serves an application from ``start`` to ``stop``, on the running event loop.

    With ``names`` it answers under these and those of loopback only. With ``crowds_out`` a
    connection that asks nothing makes room for a new one when there are too many: for an
    application whose clients ask at once, such as probes.
    """

    def __init__(
        self,
        application: Application,
        *,
        host: str,
        port: int,
        limits: LimitSettings | None = None,
        tls: ssl.SSLContext | Contexts | None = None,
        names: Iterable[str] | None = None,
        crowds_out: bool = False,
        on_denied: Denied | None = None,
        on_error: Failed | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._port = port
        self._context = _source(tls)
        limits = limits or LimitSettings()
        self._service = Service(application, limits, clock, wall, on_error, on_denied)
        if names is not None:
            self._service.names = frozenset(name.lower().rstrip(".") for name in names)
        self._service.crowds_out = crowds_out
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it really listens on."""
        if not self._listeners:
            raise ConfigurationError("the server does not listen", remedy="start it first")
        host, port = self._listeners[0].sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def connections(self) -> int:
        """How many are open now, unfinished handshakes included."""
        return len(self._service.connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of request bodies in memory, blobs aside."""
        return self._service.held_bytes

    async def start(self) -> None:
        """Listen. An address that cannot be had is a ``ConfigurationError``."""
        loop = asyncio.get_running_loop()
        self._service.is_stopping = False
        if self._context is not None:
            self._service.context = self._context()
        for sock in bound_sockets(self._host, self._port):
            listener = await loop.create_server(self._greet, sock=sock, backlog=BACKLOG)
            self._listeners.append(listener)
        self._timer = loop.call_later(EVERY, self._tick)

    async def stop(self, grace: float = 10.0) -> None:
        """Accept nobody new, let what runs end within ``grace`` seconds, then close everything."""
        self._service.is_stopping = True
        for listener in self._listeners:
            listener.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._service.until_quiet()
                await self._service.until_empty()
        await self._service.cut()
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()

    def sweep(self) -> None:
        """One round of housekeeping; it comes by itself every second."""
        if self._context is not None:
            self._service.context = self._context()
        self._service.sweep()

    def _greet(self) -> Doorstep:
        return Doorstep(self._service, self._context)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._tick)
        self.sweep()


def _source(tls: ssl.SSLContext | Contexts | None) -> Callable[[], ssl.SSLContext] | None:
    if tls is None:
        return None
    return (lambda: tls) if isinstance(tls, ssl.SSLContext) else tls.server
