"""One request with its reply, as the application sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.boundary.http.refusals import Refusal
from ergon_framework.boundary.http.replies import JSON
from ergon_framework.boundary.http.statuses import Headers
from ergon_framework.boundary.http.upload import Upload


class Line(Protocol):
    """The connection a request came in on."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, or has said that it sends nothing more."""

    def answer(
        self, request: Request, status: int, body: bytes, content_type: str, headers: Headers
    ) -> None:
        """Write the whole answer, and go on to the next request."""

    async def answer_stream(
        self,
        request: Request,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        content_type: str,
        headers: Headers,
    ) -> None:
        """Write the answer piece by piece, and go on to the next request."""

    def fail(self, request: Request, error: BaseException) -> None:
        """Answer with an error, or cut an answer short that has begun."""

    def send_continue(self, request: Request) -> None:
        """Tell a client that waits for it to send the body."""


class Request:
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
        self, line: Line, caller: Caller, method: str, url: str, headers: dict[bytes, bytes]
    ) -> None:
        self._line = line
        self._headers = headers
        self.caller = caller
        self.method = method
        self.path, _, self.query = url.partition("?")
        self.body = b""
        self.parts: list[bytes] = []
        self.upload: Upload | None = None
        self.refusal: Refusal | None = None
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
        """Whether it can be handled."""
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
