"""The client for threads: a few kept connections to one node, shared by all callers.

A request is sent once. A kept connection that the node has closed is noticed before anything is
sent over it; one that dies with a request in it is an error, as with a new one, since the caller
counts attempts. What cut it off silently may have cut off the others too, so the other kept
connections are closed, and no attempt is spent on each of them.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Self, TypeAlias

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
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import NodeUnavailableError

RECEIVE_BYTES = 64 << 10
"""Bytes asked of a socket at once; more than that would cost a fresh mapping each time."""


class HttpConnection:
    """A connection to a node. One thread uses it at a time."""

    def __init__(self, endpoint: Endpoint, timeout: float, connect_timeout: float) -> None:
        self._timeout = timeout
        self._socket = _connected(endpoint, connect_timeout)
        self._news = activity_check(self._socket.fileno())

    def expire(self, deadline: float | None) -> None:
        """Limit the next step to ``deadline``, or to the usual timeout without one."""
        seconds = self._timeout if deadline is None else deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def receive(self, reader: ResponseReader) -> None:
        """Read from the socket into the reader."""
        data = self._socket.recv(RECEIVE_BYTES)
        if data:
            reader.feed(data)
        else:
            reader.end()

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer, least of all the end of the connection."""
        return not self._news.poll(0)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def activity_check(descriptor: int) -> select.poll:
    """A function that says whether bytes came in or the peer has closed, without reading them."""
    news = select.poll()
    news.register(descriptor, select.POLLIN)
    return news


def _connected(endpoint: Endpoint, timeout: float) -> socket.socket:
    context = endpoint.context()
    plain = socket.create_connection((endpoint.host, endpoint.port), timeout)
    try:
        # A request is sent in one or two writes: waiting to fill a packet would delay the second by
        # the other side's acknowledgement.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return plain
        secure = context.wrap_socket(plain, server_hostname=endpoint.host)
    except BaseException:
        plain.close()
        raise
    try:
        # Before the first byte of a request: facts must not reach the node of another zone, however
        # valid its certificate.
        endpoint.check_zone(secure.getpeercert())
    except BaseException:
        secure.close()
        raise
    return secure


Exchanging: TypeAlias = Callable[[HttpConnection, ResponseReader], None]
"""One request over a connection, and as much of its answer as the caller needs."""


_BROKEN = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


def _send_and_receive(
    connection: HttpConnection,
    reader: ResponseReader,
    pieces: Iterable[bytes],
    deadline: float | None,
) -> None:
    """Send a request and read its whole answer.

    A node that refuses says so and closes, whatever is still to come: a request that could not be
    sent to its end may have an answer all the same.
    """
    broken: OSError | None = None
    connection.expire(deadline)
    try:
        for piece in pieces:
            connection.send(piece)
    except _BROKEN as error:
        # Not raised yet, see above: the answer that says why may lie in the socket already.
        broken = error
    try:
        connection.receive(reader)
        while not reader.is_done:
            connection.expire(deadline)
            connection.receive(reader)
    except (OSError, NodeUnavailableError):
        if broken is not None:
            raise broken from None
        raise
    # A request that was not sent whole leaves the connection in an unknown place.
    reader.keeps_alive = reader.keeps_alive and broken is None


class HttpTransport:
    """Talks to the node at ``url``; at most ``connections`` at the same time, others wait.

    ``timeout`` seconds bound a whole call, and each step of sending or receiving a blob. The node
    proves by its certificate that it is that of ``expected_zone``; without TLS, it is believed what
    it says, and with ``asked_zone`` each new connection begins with that question.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Tls = None,
        expected_zone: str | None = None,
        token: str | None = None,
        asked_zone: str | None = None,
        timeout: float = 30.0,
        connections: int = 8,
    ) -> None:
        self.url = url
        self._endpoint = Endpoint(url, tls, expected_zone, token, asked_zone)
        self._timeout = timeout
        self._most = connections
        self._is_closed = False
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[HttpConnection] = []
        self._places = threading.BoundedSemaphore(self._most)

    def renew(self) -> None:
        """In a process that was just forked: the parent reads answers from the same sockets."""
        # Closed in the child only: the sockets of the parent stay open, as each process has its own
        # descriptor.
        kept = self._idle
        self._begin()
        for connection in kept:
            connection.close()

    def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:
        """The answer to a unary call such as ``bsfg.v1.Boundary/AppendFact``."""
        request = self._endpoint.call(method, body)
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)

        def talk(connection: HttpConnection, reader: ResponseReader) -> None:
            _send_and_receive(connection, reader, (request,), deadline)

        return answer_of(self._exchange(talk, ResponseReader, deadline))

    def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        """Send a blob."""
        head = self._endpoint.put_head(bucket, key, size, digest)

        def talk(connection: HttpConnection, reader: ResponseReader) -> None:
            _send_and_receive(connection, reader, chain((head,), counted(chunks, size)), None)

        return answer_of(self._exchange(talk, ResponseReader))

    def get_object(
        self, bucket: str, key: str, *, start: int = 0, digest: bytes | None = None
    ) -> HttpObjectStream:
        """Begin to receive an object, from its byte ``start`` on; only ``digest`` if given."""
        head = self._endpoint.get_head(bucket, key, start, digest)
        used: list[HttpConnection] = []

        def talk(connection: HttpConnection, reader: ResponseReader) -> None:
            used[:] = [connection]
            connection.expire(None)
            connection.send(head)
            while not (reader.is_headed if reader.status < 300 else reader.is_done):
                connection.receive(reader)

        reader = self._exchange(talk, lambda: ResponseReader(limit=None), is_kept=False)
        stream = HttpObjectStream(self, used[0], reader)
        try:
            stream.begin(bucket, key, start)
        except BaseException:
            stream.close()
            raise
        return stream

    def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        """What the node knows about an object; ``BoundaryNotFoundError`` when it has none."""
        head = self._endpoint.object_request("HEAD", bucket, key, [])

        def talk(connection: HttpConnection, reader: ResponseReader) -> None:
            connection.expire(None)
            connection.send(head)
            while not reader.is_done:
                connection.receive(reader)

        reader = self._exchange(talk, lambda: ResponseReader(is_head=True))
        if reader.status >= 300:
            raise no_object(reader, bucket, key)
        return object_of_headers(bucket, key, reader.headers)

    def close(self) -> None:
        """Close all connections, those in use when their call ends. May be called twice."""
        with self._lock:
            self._is_closed = True
        self._drop_idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- connections ----

    def _exchange(
        self,
        talk: Exchanging,
        make_reader: Callable[[], ResponseReader],
        deadline: float | None = None,
        *,
        is_kept: bool = True,
    ) -> ResponseReader:
        """Talk over a kept connection, or a new one.

        Unless ``is_kept``, the caller has the connection and its place afterwards.
        """
        # A place is taken before a connection: the limit counts calls under way, and a caller waits
        # here and not in the kernel.
        self._enter(deadline)
        try:
            reader = make_reader()
            # A kept connection is not retried on a new one if it breaks: the node may have got the
            # request, and whoever called decides whether to repeat it.
            connection = self._kept() or self._connect(deadline)
            self._attempt(talk, reader, connection)
        except BaseException:
            self.leave()
            raise
        if is_kept:
            self.give_back(connection, reader)
            self.leave()
        return reader

    def _attempt(
        self, talk: Exchanging, reader: ResponseReader, connection: HttpConnection
    ) -> None:
        try:
            talk(connection, reader)
        except OSError as error:
            connection.close()
            raise self.lost(error) from error
        except NodeUnavailableError:
            connection.close()
            # They lead to the same node, which has just closed or reset one of them.
            self._drop_idle()
            raise
        except BaseException:
            connection.close()
            raise

    def _connect(self, deadline: float | None) -> HttpConnection:
        connection = self._connected(deadline)
        if self._endpoint.asked_zone is None or self._is_kept_after_look(connection, deadline):
            return connection
        return self._connected(deadline)

    def _connected(self, deadline: float | None) -> HttpConnection:
        try:
            return HttpConnection(self._endpoint, self._timeout, self._left(deadline))
        except OSError as error:
            raise self._endpoint.unreachable(error) from error

    def _is_kept_after_look(self, connection: HttpConnection, deadline: float | None) -> bool:
        """Refuse the node of another zone; whether it keeps the connection for more requests."""
        reader, request = ResponseReader(), self._endpoint.look()

        def talk(connection: HttpConnection, reader: ResponseReader) -> None:
            _send_and_receive(connection, reader, (request,), deadline)

        self._attempt(talk, reader, connection)
        try:
            self._endpoint.check_name(reader.headers)
        except BaseException:
            connection.close()
            raise
        if not reader.keeps_alive:
            connection.close()
        return reader.keeps_alive

    def _left(self, deadline: float | None) -> float:
        """Seconds; connecting may always take a moment, even when time is up."""
        return self._timeout if deadline is None else max(0.001, deadline - time.monotonic())

    def _enter(self, deadline: float | None) -> None:
        if self._is_closed:
            raise NodeUnavailableError("this client is closed", reason="closed")
        if not self._places.acquire(timeout=self._left(deadline)):
            raise NodeUnavailableError(
                f"all connections to {self.url} are in use",
                reason="connections_busy",
                remedy="allow more connections, or close streams that are no longer read",
            )

    def _kept(self) -> HttpConnection | None:
        """A kept connection that is still good; the others are closed on the way."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            # Anything that came since the last answer is the end of the connection, or an answer to
            # nobody.
            if connection is None or connection.is_quiet():
                return connection
            connection.close()

    def _drop_idle(self) -> None:
        """Drop idle connections, so that the next call opens a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def give_back(self, connection: HttpConnection, reader: ResponseReader) -> None:
        """Keep a connection for the next call when it can carry one."""
        with self._lock:
            if reader.is_done and reader.keeps_alive and not self._is_closed:
                # Under the lock of ``close``: a connection that is given back while the client
                # closes is not kept.
                self._idle.append(connection)
                return
        connection.close()

    def leave(self) -> None:
        """Free one place of the pool."""
        self._places.release()

    def lost(self, error: Exception) -> Exception:
        """What it means that a connection failed while it was used; no kept one is trusted then."""
        self._drop_idle()
        return self._endpoint.lost(error)


class HttpObjectStream:
    """The bytes of an object as they come in."""

    size = 0
    digest = ""

    def __init__(
        self, transport: HttpTransport, connection: HttpConnection, reader: ResponseReader
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._reader = reader
        self._rest = b""
        self._is_closed = False

    def begin(self, bucket: str, key: str, start: int) -> None:
        """Check the head of the answer, and skip bytes that were not asked for."""
        about, behind = object_begun(self._reader, bucket, key, start)
        self.size, self.digest = about.size, about.digest
        while behind > 0:
            # The end of the stream gives no bytes, and must end this loop.
            behind -= len(self.read(behind)) or behind

    def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; none at the end."""
        while not self._rest:
            self._rest = self._reader.take()
            if self._rest or self._reader.is_done:
                break
            try:
                self._connection.receive(self._reader)
            except OSError as error:
                raise self._transport.lost(error) from error
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    def close(self) -> None:
        """Close the stream, read to the end or not."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.give_back(self._connection, self._reader)
            self._transport.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
