"""One request with its response: what the server and the application say to each other.

The server knows HTTP and nothing of facts; the node knows operations and nothing of sockets. Both
see an ``Exchange``. ``HttpRequest`` is the one that comes from a socket, and ``RequestBody`` is a
body that is read while it arrives.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from ergon_framework.boundary.http.responses import JSON, Headers, HttpRefusal


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request. Without TLS its identity is empty."""

    identity: str = ""
    """The zone in the certificate's SAN URI ``bsfg://zone/<name>``, else its common name."""
    address: str = ""
    is_secure: bool = False


class Exchange(Protocol):
    """Lives on the event loop's thread. Exactly one of ``reply`` and ``stream`` is called."""

    method: str
    path: str
    """The path as sent: percent-encoded, without the query."""
    query: str
    caller: Caller
    body: bytes
    """The whole body, unless the application wanted to stream it."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, or has said that it sends nothing more."""

    def header(self, name: str) -> str | None:
        """A request header by its lower-case name."""

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: Headers = (),
    ) -> None:
        """Answer. May be called at once or later; a client that has gone is no error."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error, as if ``handle`` had raised it."""

    async def has_more(self, least: int = 1) -> bool:
        """Wait for ``least`` bytes of a streamed body, or for its end; whether there are any."""

    def take(self) -> list[bytes]:
        """All of them that have arrived, piece by piece; taking them paces the client.

        Any thread may call it, even while none have: what came meanwhile need not wait.
        """

    async def stream(
        self,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str = "application/octet-stream",
        headers: Headers = (),
    ) -> None:
        """Answer with ``length`` bytes, as fast as the client takes them.

        Raises ``ConnectionError`` when the client goes or stops taking them.
        """


class Application(Protocol):
    """What the server serves."""

    def is_streamed(self, method: str, path: str) -> bool:
        """Whether the body of such a request is read with ``take``; asked before the body."""

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer the exchange, now, later, or in the coroutine returned.

        A ``BoundaryError`` that it raises becomes the reply; anything else an ``internal`` error
        without its text.
        """


HIGH_WATER = 1 << 20
"""Bytes of a streamed body that wait for the application; beyond that the socket is not read."""


class RequestBody:
    """The body of a request as it arrives. About ``HIGH_WATER`` bytes are held at most.

    It lives on the event loop; only ``take`` may be called from another thread.
    """

    __slots__ = (
        *("_least", "_lock", "_loop", "_parts", "_repace", "_waiter"),
        *("error", "is_ended", "is_full", "size"),
    )

    def __init__(self, repace: Callable[[], None]) -> None:
        self.is_full = False
        self._repace = repace
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes that have arrived and were not taken yet."""
        self._least = 1
        self.is_ended = False
        self.error: Exception | None = None
        """Why no more bytes will arrive, although they should."""
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """Add received bytes of the body."""
        with self._lock:
            self._parts.append(data)
            self.size += len(data)
            self.is_full = self.is_full or self.size >= HIGH_WATER
        if self.size >= self._least:
            self._wake()

    def end(self) -> None:
        """All bytes have arrived."""
        self.is_ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more bytes will arrive, although they should."""
        if not self.is_ended:
            self.error = error
            self._wake()

    async def has_more(self, least: int) -> bool:
        """Wait for so many bytes, or for the end; whether there are any to take.

        Raises what ``fail`` was given, and that at once.
        """
        self._least = min(least, HIGH_WATER)  # beyond that nothing comes
        while self.error is None:
            if self.size >= self._least or self.is_ended:
                return self.size > 0
            self._waiter = self._loop.create_future()
            await self._waiter
        raise self.error

    def take(self) -> list[bytes]:
        """All that has arrived and was not taken yet, piece by piece."""
        with self._lock:
            parts, self._parts, self.size = self._parts, [], 0
            was_full, self.is_full = self.is_full, False
        if was_full:
            self._loop.call_soon_threadsafe(self._repace)
        return parts

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Responder(Protocol):
    """The connection a request came in on."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, or has said that it sends nothing more."""

    def answer(
        self, request: HttpRequest, status: int, body: bytes, content_type: str, headers: Headers
    ) -> None:
        """Write the whole answer, and go on to the next request."""

    async def answer_stream(
        self,
        request: HttpRequest,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        content_type: str,
        headers: Headers,
    ) -> None:
        """Write the answer piece by piece, and go on to the next request."""

    def fail(self, request: HttpRequest, error: BaseException) -> None:
        """Answer with an error, or cut an answer short that has begun."""

    def send_continue(self, request: HttpRequest) -> None:
        """Tell a client that waits for it to send the body."""


class HttpRequest:
    """See ``Exchange``; what begins with ``is_`` is the server's own book-keeping."""

    __slots__ = (
        "_headers",
        "_line",
        "body",
        "caller",
        "expects_continue",
        "held",
        "is_answered",
        "is_chunked",
        "is_complete",
        "is_kept",
        "method",
        "parts",
        "path",
        "query",
        "received",
        "refusal",
        "upload",
        "wire_bytes",
    )

    def __init__(
        self, line: Responder, caller: Caller, method: str, url: str, headers: dict[bytes, bytes]
    ) -> None:
        self._line = line
        self._headers = headers
        self.caller = caller
        self.method = method
        self.path, _, self.query = url.partition("?")
        self.body = b""
        self.parts: list[bytes] = []
        self.upload: RequestBody | None = None
        self.refusal: HttpRefusal | None = None
        self.held = 0
        """Bytes of it that count against the memory for all bodies."""
        self.received = 0
        """Bytes of the body so far."""
        self.wire_bytes = 0
        """Bytes that carried it, where they are more than the body."""
        self.is_kept = False
        """Whether the connection may serve another request afterwards."""
        self.is_chunked = False
        self.is_complete = False
        self.is_answered = False
        self.expects_continue = False

    @property
    def is_ready(self) -> bool:
        """Whether the request can be handled now."""
        return self.is_complete or self.upload is not None or self.refusal is not None

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, or has said that it sends nothing more."""
        return self._line.is_gone

    def header(self, name: str) -> str | None:
        """A request header by its lower-case name."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = JSON,
        headers: Headers = (),
    ) -> None:
        """Answer at once. A client that has gone is no error; a second answer is."""
        self._check_open()
        self._line.answer(self, status, body, content_type, headers)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, as if ``handle`` had raised it."""
        self._line.fail(self, error)

    async def has_more(self, least: int = 1) -> bool:
        """Wait for so many bytes of the body, or for its end; whether there are any to take."""
        if self.upload is None:
            return bool(self.body)
        if self.expects_continue:
            self._line.send_continue(self)
        return await self.upload.has_more(least)

    def take(self) -> list[bytes]:
        """What has arrived of the body, or the whole of it when it was not streamed."""
        if self.upload is not None:
            return self.upload.take()
        body, self.body = self.body, b""
        return [body] if body else []

    async def stream(
        self,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str = "application/octet-stream",
        headers: Headers = (),
    ) -> None:
        """Answer piece by piece; an error before the first piece can still become the answer."""
        self._check_open()
        await self._line.answer_stream(self, status, length, chunks, content_type, headers)

    def _check_open(self) -> None:
        if self.is_answered:
            raise RuntimeError(f"{self.method} {self.path} has been answered already")
