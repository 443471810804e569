"""The connection to one broker: made at its first use, and made again after it was lost.

A fetch waits for a broker that is away, for as long as nobody asks for a stop. A dispatch and a
settlement do not wait: they fail at once, and whoever called them decides. When a connection is
tried again is decided in ``core/broker_reconnect.py``, for threads and for asyncio alike.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.core.broker_reconnect import Outage
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    ConfigurationError,
    ConnectorError,
    StoreError,
    StoreUnavailableError,
    describe,
)
from ergon_framework.ports.dice import roll
from ergon_framework.redaction import redacted_text
from ergon_framework.telemetry.notices import emit

C = TypeVar("C")
logger = logging.getLogger("ergon.connector")


class BrokerUnavailableError(ConnectorError):
    """The broker cannot be reached for now."""

    code = "broker_unavailable"
    failure_kind = "transient"


class ConnectorClosedError(ConnectorError):
    """The connector was closed."""

    code = "connector_closed"


class ConnectionState:
    """What is known about the connection to one broker. Its owner guards it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outage = Outage()
        self.is_closed = False
        self._refusal: str | None = None
        """What to do about a broker that is there and refuses; None when it cannot be reached."""

    @property
    def is_healthy(self) -> bool:
        """Whether it can be used, as far as is known: before the first use it can."""
        return not self.is_closed and self.outage.since is None

    def check(self, now: float) -> None:
        """Refuse to connect now: closed, or tried a moment ago."""
        if self.is_closed:
            raise closed(self.name)
        if not self.outage.may_try(now):
            raise self.away(now)

    def failed(self, error: BaseException, now: float) -> ConnectorError | ConfigurationError:
        """A connection broke or could not be made; the error for whoever needs it."""
        is_refused = isinstance(error, ConfigurationError)
        text = redacted_text(describe(error))[:300]
        was_there = self.outage.since is None
        kind = Kind.REJECTED if is_refused else Kind.LOST
        asked = getattr(error, "retry_after_seconds", None)  # a server may say when to come again
        failure = Failure(kind, "broker_unavailable", text, asked)
        is_tried = self.outage.failed(failure, now, roll())
        if isinstance(error, ConfigurationError):
            if was_there:  # a consumer that streams tries again, and nobody else would say why
                logger.warning("%s", text)
            return error
        self._refusal = _refusal_of(error)
        if was_there:
            logger.warning("%s, and is tried again: %s", self._trouble, text)
        found = self.away(now)
        # Each time: who waits for a broker is alive, and readers of notices are to know that.
        emit("broker.away", broker=self.name, reason=text, delay=found.retry_after_seconds)
        if not is_tried:
            found.retry_after_seconds = None
        return found

    def connected(self, now: float) -> None:
        """A connection was made."""
        was_away = self.outage.since is not None
        seconds = self.outage.connected(now)
        if was_away:
            logger.info("%s is back after %.1f s", self.name, seconds)
            emit("broker.back", broker=self.name, seconds=seconds)

    def away(self, now: float) -> BrokerUnavailableError:
        """The error for whoever needs the broker now."""
        error = BrokerUnavailableError(
            f"{self._trouble}: {self.outage.reason}",
            remedy=self._refusal
            or "see that the broker runs and can be reached; ergon doctor tells more",
        )
        error.retry_after_seconds = max(0.0, self.outage.retry_at - now)
        return error

    @property
    def _trouble(self) -> str:
        return f"{self.name} cannot be {'reached' if self._refusal is None else 'used'}"


def _refusal_of(error: BaseException) -> str | None:
    """What to do where a system has answered, and refused; None where it could not be reached."""
    if getattr(error, "is_refusal", False) or (
        isinstance(error, StoreError) and not isinstance(error, StoreUnavailableError)
    ):
        return getattr(error, "remedy", "") or "see what it refuses; ergon doctor tells more"
    return None


def closed(name: str) -> ConnectorClosedError:
    """The error of a connector that was closed."""
    return ConnectorClosedError(
        f"the connector to {name} is closed",
        remedy="open a new one; close it after the last use",
    )


class BrokerConnection(Generic[C]):
    """A client for threads. ``connect`` makes it and ``close`` ends it; both may block.

    What ``connect`` raises means that the broker is away, unless it is a ConfigurationError, which
    waiting does not repair.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], C],
        close: Callable[[C], object],
        wakeup: Wakeup,
    ) -> None:
        self._connect = connect
        self._close = close
        self._wakeup = wakeup
        self.state = ConnectionState(name)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the connection in a forked child, because it is the parent's."""
        self._lock = threading.Lock()
        self._client: C | None = None

    def get(self) -> C:
        """The client. Connects if needed, once, unless that failed a moment ago."""
        client = self._client
        if client is not None:
            return client
        with self._lock:
            client = self._client
            if client is None:
                client = self._client = self._made()
        if self.state.is_closed:  # while it was made
            self._end()
            raise closed(self.state.name)
        return client

    def wait(self) -> C | None:
        """The client, as soon as the broker can be reached. None when a stop was asked for."""
        while True:
            try:
                return self.get()
            except BrokerUnavailableError as error:
                until = current_clock().now() + (error.retry_after_seconds or 0.0)
            self._wakeup.wait(until, lambda: self.state.is_closed)
            if self._wakeup.is_stopped:
                return None

    def lost(self, client: C, error: BaseException) -> ConnectorError | ConfigurationError:
        """Note that the connection broke. Returns the error to raise; the next use
        connects again.
        """
        if self._client is not client:  # whoever connects now may take long
            return self.state.away(current_clock().now())
        with self._lock:
            if self._client is not client:
                return self.state.away(current_clock().now())
            self._client = None
            found = self.state.failed(error, current_clock().now())
        with suppress(Exception):  # it is broken already
            self._close(client)
        return found

    def drop(self, client: C) -> None:
        """Note that the client has ended, without an outage: the next use connects
        again, at once.
        """
        with self._lock:
            if self._client is not client:
                return
            self._client = None
        with suppress(Exception):
            self._close(client)

    @property
    def is_connected(self) -> bool:
        """Whether there is a client now."""
        return self._client is not None

    def is_current(self, client: C) -> bool:
        """Whether deliveries of this client can still be settled."""
        return self._client is client

    def close(self) -> None:
        """End the connection; may be called twice. One that is being made ends when it is made."""
        self.state.is_closed = True
        self._wakeup.notify()
        self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                self._close(client)

    def _made(self) -> C:
        clock = current_clock()
        self.state.check(clock.now())
        try:
            client = self._connect()
        except Exception as error:
            raise self.state.failed(error, clock.now()) from error
        self.state.connected(clock.now())
        return client


class AsyncBrokerConnection(Generic[C]):
    """The async version of :class:`BrokerConnection`; a client belongs to the loop that made it."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[C]],
        close: Callable[[C], Awaitable[object]],
        wakeup: Wakeup,
    ) -> None:
        self._connect = connect
        self._close = close
        self._wakeup = wakeup
        self.state = ConnectionState(name)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the connection in a forked child, because it is the parent's."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock | None = None
        self._client: C | None = None

    async def get(self) -> C:
        """The client. Connects if needed, once, unless that failed a moment ago."""
        loop = asyncio.get_running_loop()
        if self._client is not None and self._loop is loop:
            return self._client
        if self._loop is not loop or self._lock is None:
            # The loop before has ended, and its client with it.
            if self._loop is not None and self._loop.is_running():
                raise ConnectorError(
                    f"the connector to {self.state.name} is used in another event loop, which"
                    " still runs",
                    remedy="open one connector for each event loop",
                )
            self._loop, self._lock, self._client = loop, asyncio.Lock(), None
        async with self._lock:
            if self._client is None:
                self._client = await self._made(loop)
            client = self._client
        if self.state.is_closed:  # while it was made
            self._client = None
            with suppress(Exception):
                await self._close(client)
            raise closed(self.state.name)
        return client

    async def wait(self) -> C | None:
        """The client, as soon as the broker can be reached. None when a stop was asked for."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await self.get()
            except BrokerUnavailableError as error:
                until = loop.time() + (error.retry_after_seconds or 0.0)
            await self._wakeup.wait_async(until, lambda: self.state.is_closed)
            if self._wakeup.is_stopped:
                return None

    async def lost(self, client: C, error: BaseException) -> ConnectorError | ConfigurationError:
        """Note that the connection broke. Returns the error to raise; the next use
        connects again.
        """
        now = asyncio.get_running_loop().time()
        if self._client is not client:
            return self.state.away(now)
        self._client = None
        found = self.state.failed(error, now)
        with suppress(Exception):  # it is broken already
            await self._close(client)
        return found

    async def drop(self, client: C) -> None:
        """Note that the client has ended, without an outage: the next use connects
        again, at once.
        """
        if self._client is client:
            self._client = None
            with suppress(Exception):
                await self._close(client)

    @property
    def is_connected(self) -> bool:
        """Whether there is a client now."""
        return self._client is not None

    def is_current(self, client: C) -> bool:
        """Whether deliveries of this client can still be settled."""
        return self._client is client

    async def aclose(self) -> None:
        """End the connection; may be called twice."""
        self.abandon()
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            with suppress(Exception):
                await self._close(client)

    def abandon(self) -> None:
        """Refuse every use from now on, where nothing can be awaited."""
        self.state.is_closed = True
        self._wakeup.notify()

    async def _made(self, loop: asyncio.AbstractEventLoop) -> C:
        self.state.check(loop.time())
        try:
            client = await self._connect()
        except Exception as error:
            raise self.state.failed(error, loop.time()) from error
        self.state.connected(loop.time())
        return client
