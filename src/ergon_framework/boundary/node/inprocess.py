"""A way to a node in the same process and on the same event loop, without a socket.

For tests, and for several zones in one program. Everything but HTTP itself is as on the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec

from ergon_framework.boundary.append_batcher import store_trouble
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.http.codec import error_of_answer
from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.boundary.http.responses import STATUS, Headers
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.objects_api import PREFIX
from ergon_framework.errors import BoundaryError, NodeUnavailableError, StoreError


@dataclass(slots=True)
class _Exchange:
    """A request and its answer."""

    method: str
    path: str
    caller: Caller
    body: bytes = b""
    query: str = ""
    is_gone: bool = False
    sent: dict[str, str] = field(default_factory=dict)
    pieces: Iterator[bytes] = field(default_factory=lambda: iter(()))
    arrived: list[bytes] = field(default_factory=list)
    answer: asyncio.Future[tuple[int, dict[str, str], bytes]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def header(self, name: str) -> str | None:
        return self.sent.get(name)

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: Headers = (),
    ) -> None:
        if not self.answer.done():
            named = {name.lower(): value for name, value in headers}
            self.answer.set_result((status, named | {"content-type": content_type}, body))

    def fail(self, error: BaseException) -> None:
        if isinstance(error, StoreError):
            error = store_trouble(error)
        if not isinstance(error, BoundaryError):
            error = BoundaryError("the node failed to answer")
        self.reply(STATUS.get(error.code, 500), msgspec.json.encode(error.to_dict()))

    async def has_more(self, least: int = 1) -> bool:
        self.arrived = list(islice(self.pieces, 1))
        return bool(self.arrived)

    def take(self) -> list[bytes]:
        arrived, self.arrived = self.arrived, []
        return arrived

    async def stream(
        self,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str = "application/octet-stream",
        headers: Headers = (),
    ) -> None:
        body = b"".join([piece async for piece in chunks])
        self.reply(status, body, content_type=content_type, headers=headers)


class InProcessTransport:
    """Calls a node's application as if over the wire, as the caller it was given."""

    def __init__(self, application: NodeApplication, identity: str = "") -> None:
        self._application = application
        self._caller = Caller(identity, "in process", is_secure=bool(identity))

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as the other transports
        """The answer to a unary call such as ``bsfg.v1.Boundary/AppendFact``."""
        exchange = _Exchange("POST", f"/{method}", self._caller, body)
        try:
            async with asyncio.timeout(timeout):
                _status, _headers, answer = await self._ask(exchange)
        except TimeoutError as error:
            raise NodeUnavailableError(
                "no answer in time", code="deadline_exceeded", reason="timeout"
            ) from error
        return answer

    async def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        """Send a blob."""
        sent = {"content-length": str(size)} | ({"digest-sha256": digest} if digest else {})
        exchange = _Exchange(
            "PUT", _path(bucket, key), self._caller, sent=sent, pieces=iter(chunks)
        )
        return (await self._ask(exchange))[2]

    async def get_object(
        self,
        bucket: str,
        key: str,
        *,
        start: int = 0,
        digest: bytes | None = None,
        fact_offset: int | None = None,
    ) -> InProcessStream:
        """Begin to receive an object from its byte ``start`` on; with a ``digest``, only those
        bytes.
        """
        sent = {"range": f"bytes={start}-"} if start else {}
        query = f"digest={quote(digest_text(digest))}" if digest else ""
        query += "" if fact_offset is None else f"&fact_offset={fact_offset}"
        path = _path(bucket, key)
        exchange = _Exchange("GET", path, self._caller, query=query, sent=sent)
        _status, headers, body = await self._ask(exchange)
        return InProcessStream(body, start + len(body), headers.get("digest-sha256", ""))

    async def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        """What the node knows about an object."""
        stream = await self.get_object(bucket, key)
        return ObjectReceipt(bucket=bucket, key=key, digest=stream.digest, size=stream.size)

    async def close(self) -> None:
        """Nothing to close."""

    async def _ask(self, exchange: _Exchange) -> tuple[int, dict[str, str], bytes]:
        try:
            work: Any = self._application.handle(exchange)
            if work is not None:
                await work
        except (BoundaryError, StoreError) as error:
            exchange.fail(error)
        status, headers, body = await exchange.answer
        if status >= 300:
            raise error_of_answer(status, headers, body)
        return status, headers, body


class InProcessStream:
    """The bytes of an object."""

    def __init__(self, body: bytes, size: int, digest: str) -> None:
        self.size = size
        self.digest = digest
        self._left = body

    async def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; none at the end."""
        piece, self._left = self._left[:most], self._left[most:]
        return piece

    async def close(self) -> None:
        """Nothing to close."""


def _path(bucket: str, key: str) -> str:
    return f"{PREFIX}{quote(bucket, safe='')}/{quote(key, safe='')}"
