"""The client for event loops: the same calls as coroutines, the same codec underneath."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeAlias, cast

from ergon_framework.boundary.http.client import RECEIVE_BYTES, activity_check
from ergon_framework.boundary.http.codec import (
    ResponseReader,
    answer_of,
    counted,
    no_object,
    object_begun,
    object_of_headers,
)
from ergon_framework.boundary.http.endpoint import Endpoint, Tls
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.errors import BoundaryError, NodeUnavailableError

MAX_UNREAD = 1 << 20
"""Bytes of a streamed answer that may wait here for their reader."""


class AsyncConnection(asyncio.BufferedProtocol):
    """One request at a time. Every event on the connection wakes the coroutine that waits.

    Connections of one event loop may share the ``room`` in which they receive.
    """

    def __init__(self, room: memoryview) -> None:
        self._room = room
        self.reader = ResponseReader()
        self._transport: asyncio.Transport
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_reading = True
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()

    # ---- what the client does ----

    def begin(self, reader: ResponseReader, deadline: float | None = None) -> None:
        """Expect an answer; whatever still waits at the deadline gets a ``TimeoutError``."""
        self.reader = reader
        self._deadline = deadline
        # An earlier deadline needs an earlier timer; a later one is found when the timer looks.
        if deadline is not None and (self._timer is None or deadline < self._timer.when()):
            self._look_at(deadline)

    def end(self) -> None:
        """The answer is there, or as much of it as has a deadline."""
        self._deadline = None

    def write(self, data: bytes) -> None:
        """Send, or keep to be sent."""
        self._transport.write(data)

    @property
    def is_answered(self) -> bool:
        """Whether the answer has come, so that sending more is pointless."""
        return self.reader.is_headed or self._error is not None

    async def wait_for_head(self) -> None:
        """Until status and headers are there."""
        while not self.reader.is_headed:
            await self._wait()

    async def wait_done(self) -> None:
        """Until the whole answer is there."""
        while not self.reader.is_done:
            await self._wait()

    async def wait_drained(self, seconds: float) -> None:
        """Until the other side has taken most of what was sent."""
        if self._drained is not None and self._error is None:
            async with asyncio.timeout(seconds):
                # Shielded: the timeout of one caller must not cancel what the transport will set.
                await asyncio.shield(self._drained)

    async def take(self) -> bytes:
        """The bytes of the body that have come since, at least one unless it has ended."""
        while not self.reader.held and not self.reader.is_done:
            await self._wait()
        data = self.reader.take()
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        return data

    def certificate(self) -> Mapping[str, Any] | None:
        """The certificate of the peer."""
        found: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    def is_closing(self) -> bool:
        """Whether the connection can no longer be used."""
        return self._gone.done() or self._transport.is_closing()

    def is_quiet(self) -> bool:
        """Whether it can be used, and nothing came since the last answer: the loop may not have
        seen yet that it has ended.
        """
        if self.is_closing():
            return False
        # The kernel knows of an end before the loop does: a request on it would be lost, and nobody
        # knows whether it was carried out.
        return not activity_check(self._transport.get_extra_info("socket").fileno()).poll(0)

    def close(self) -> None:
        """Close the connection at once. Data that is still unsent would be useless."""
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Until it is gone."""
        await asyncio.shield(self._gone)

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # One timer that looks again serves many calls; one for each would be set in vain each time.

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._look_at(self._deadline)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    # ---- what the loop tells ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for incoming bytes: asyncio calls ``buffer_updated`` before it asks for a
        buffer again.
        """
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when bytes were read into the buffer."""
        self.data_received(bytes(self._room[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Parse bytes that came in."""
        reader = self.reader
        if reader.is_done:  # an answer without a request
            self.close()
            return
        try:
            reader.feed(data)
        except BoundaryError as error:
            self._fail(error)
            self.close()
        # A reader that is slow must not make this process hold the whole object.
        if reader.is_streamed and reader.held > MAX_UNREAD:
            self._is_reading = False
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Called by asyncio when the peer has closed its side."""
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is lost."""
        self._ended(exc)
        # A sender that waits for room would wait for ever.
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        """Called by asyncio when the peer reads too slowly."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Called by asyncio when the peer has caught up."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _ended(self, error: Exception | None) -> None:
        if not self.reader.is_done and self._error is None:
            if error is not None:
                self._fail(error)
            else:
                try:
                    self.reader.end()
                except BoundaryError as trouble:
                    self._fail(trouble)
        self._wake()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


AsyncExchanging: TypeAlias = Callable[[AsyncConnection], Awaitable[None]]
"""One request over a connection, and as much of its answer as the caller needs."""


class AsyncHttpTransport:
    """Talks to the node at ``url``; at most ``connections`` at the same time, others wait.

    It belongs to one event loop. ``timeout`` seconds bound a whole call, and each step of sending
    or receiving a blob. A call that is cancelled is given up, not undone.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Tls = None,
        expected_zone: str | None = None,
        timeout: float = 30.0,
        connections: int = 8,
    ) -> None:
        self.url = url
        self._endpoint = Endpoint(url, tls, expected_zone)
        self._timeout = timeout
        self._room = memoryview(bytearray(RECEIVE_BYTES))
        self._idle: list[AsyncConnection] = []
        self._places = asyncio.Semaphore(connections)
        self._is_closed = False

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as the other colour
        """The answer to a unary call such as ``bsfg.v1.Boundary/AppendFact``."""
        request = self._endpoint.call(method, body)

        async def talk(connection: AsyncConnection) -> None:
            connection.write(request)
            await connection.wait_done()

        seconds = self._timeout if timeout is None else timeout
        reader, connection = await self._exchange(talk, ResponseReader, seconds)
        self.give_back(connection)
        return answer_of(reader)

    async def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        """Send a blob; the chunks are made in another thread, so they may read a file."""
        head = self._endpoint.put_head(bucket, key, size, digest)

        async def talk(connection: AsyncConnection) -> None:
            connection.write(head)
            pieces = counted(chunks, size)
            # A node that refuses says so and closes, whatever is still to come.
            while not connection.is_answered:
                chunk = await asyncio.to_thread(next, pieces, None)
                if chunk is None:
                    break
                connection.write(chunk)
                await connection.wait_drained(self._timeout)
            else:
                # The body was not sent to its end: the connection cannot carry another request.
                connection.reader.keeps_alive = False
            async with asyncio.timeout(self._timeout):
                await connection.wait_done()

        reader, connection = await self._exchange(talk, ResponseReader, None)
        self.give_back(connection)
        return answer_of(reader)

    async def get_object(
        self,
        bucket: str,
        key: str,
        *,
        start: int = 0,
        digest: bytes | None = None,
        fact_offset: int | None = None,
    ) -> AsyncHttpObjectStream:
        """Begin to receive an object, from its byte ``start`` on; only ``digest`` if given."""
        head = self._endpoint.get_head(bucket, key, start, digest, fact_offset)

        async def talk(connection: AsyncConnection) -> None:
            connection.write(head)
            await connection.wait_for_head()
            if connection.reader.status >= 300:
                await connection.wait_done()

        reader, connection = await self._exchange(
            talk, lambda: ResponseReader(limit=None), self._timeout
        )
        stream = AsyncHttpObjectStream(self, connection, reader, self._timeout)
        try:
            await stream.begin(bucket, key, start)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        """What the node knows about an object; ``BoundaryNotFoundError`` when it has none."""
        head = self._endpoint.object_request("HEAD", bucket, key, [])

        async def talk(connection: AsyncConnection) -> None:
            connection.write(head)
            await connection.wait_done()

        reader, connection = await self._exchange(
            talk, lambda: ResponseReader(is_head=True), self._timeout
        )
        self.give_back(connection)
        if reader.status >= 300:
            raise no_object(reader, bucket, key)
        return object_of_headers(bucket, key, reader.headers)

    async def close(self) -> None:
        """Close all connections, those in use when their call ends. May be called twice."""
        self._is_closed = True
        for connection in self._drop_idle():
            await connection.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- connections ----

    async def _exchange(
        self,
        talk: AsyncExchanging,
        make_reader: Callable[[], ResponseReader],
        seconds: float | None,
    ) -> tuple[ResponseReader, AsyncConnection]:
        """Talk over a kept connection, or a new one. Give the connection back."""
        if self._is_closed:
            raise NodeUnavailableError("this client is closed", reason="closed")
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        try:
            # The common case has a place free, and needs no timer.
            if self._places.locked():
                async with asyncio.timeout_at(deadline):
                    await self._places.acquire()
            else:
                await self._places.acquire()  # at once
            try:
                connection = self._kept()
                if connection is None:
                    async with asyncio.timeout_at(deadline):
                        connection = await self._connect()
                reader = make_reader()
                await self._attempt(talk, reader, connection, deadline)
                return reader, connection
            except BaseException:
                self._places.release()
                raise
        except TimeoutError as error:
            raise self._endpoint.lost(error) from error

    def _kept(self) -> AsyncConnection | None:
        """A kept connection that is still good; the others are closed on the way."""
        # The last one first: it is the least likely to have been closed by the other side.
        while self._idle:
            kept = self._idle.pop()
            if kept.is_quiet():
                return kept
            kept.close()
        return None

    async def _attempt(
        self,
        talk: AsyncExchanging,
        reader: ResponseReader,
        connection: AsyncConnection,
        deadline: float | None,
    ) -> None:
        connection.begin(reader, deadline)
        try:
            await talk(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | NodeUnavailableError):
                # A node that went away took all connections along; each would fail its caller in
                # turn.
                self._drop_idle()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise self._endpoint.lost(error) from error
            raise
        connection.end()

    async def _connect(self) -> AsyncConnection:
        endpoint = self._endpoint
        context = endpoint.context()
        options: dict[str, Any] = {}
        if context is not None:
            options = {"ssl": context, "server_hostname": endpoint.host}
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: AsyncConnection(self._room), endpoint.host, endpoint.port, **options
                )
        except (OSError, ConnectionError) as error:
            raise endpoint.unreachable(error) from error
        try:
            # Before anything is sent: a certificate of the right authority may belong to another
            # zone.
            endpoint.check_zone(connection.certificate())
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop_idle(self) -> list[AsyncConnection]:
        """Drop idle connections, so that the next call opens a new one."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        return idle

    def give_back(self, connection: AsyncConnection) -> None:
        """Keep a connection for the next call when it can carry one."""
        self._places.release()
        reader = connection.reader
        if reader.is_done and reader.keeps_alive and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()

    def lost(self, error: Exception) -> Exception:
        """What a failure in the middle of a stream means; no kept connection is trusted then."""
        self._drop_idle()
        return self._endpoint.lost(error)


class AsyncHttpObjectStream:
    """The bytes of an object as they come in."""

    size = 0
    digest = ""

    def __init__(
        self,
        transport: AsyncHttpTransport,
        connection: AsyncConnection,
        reader: ResponseReader,
        timeout: float,
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._reader = reader
        self._timeout = timeout
        self._rest = b""
        self._is_closed = False

    async def begin(self, bucket: str, key: str, start: int) -> None:
        """Check the head of the answer, and skip bytes that were not asked for."""
        about, behind = object_begun(self._reader, bucket, key, start)
        self.size, self.digest = about.size, about.digest
        while behind > 0:
            behind -= len(await self.read(behind)) or behind

    async def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; none at the end."""
        if not self._rest:
            try:
                async with asyncio.timeout(self._timeout):
                    self._rest = await self._connection.take()
            except OSError as error:
                raise self._transport.lost(error) from error
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    async def close(self) -> None:
        """Close the stream, read to the end or not."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.give_back(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
