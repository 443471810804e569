"""A link between two zones that loses, repeats, delays and cuts what it carries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ergon_framework.boundary.client.transport import AsyncObjectStream
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.errors import BoundaryError, NodeUnavailableError

FAULTS = ("drop", "lose_reply", "duplicate", "delay", "cut")


class Torn:
    """A stream that ends with an error after a few bytes."""

    def __init__(self, inner: AsyncObjectStream, after: int) -> None:
        self.size, self.digest = inner.size, inner.digest
        self._inner, self._left = inner, after

    async def read(self, most: int = 1 << 16) -> bytes:
        if self._left <= 0:
            raise NodeUnavailableError("the link was cut", reason="connection_lost")
        piece = await self._inner.read(min(most, self._left))
        self._left -= len(piece)
        return piece

    async def close(self) -> None:
        await self._inner.close()


class FaultyLink:
    """Carries calls as its script says; without one, faithfully."""

    def __init__(self, inner: InProcessTransport) -> None:
        self.inner = inner
        self.script: deque[str] = deque()
        self.is_cut = False
        self.late: deque[tuple[str, bytes]] = deque()
        self.calls: list[str] = []

    async def call(self, method: str, body: bytes, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        self.calls.append(method)
        fault = self._fault()
        if fault == "delay":
            self.late.append((method, body))
            raise NodeUnavailableError("no answer in time", code="deadline_exceeded")
        if fault == "drop":
            raise NodeUnavailableError("lost on the way", reason="connection_lost")
        answer = await self.inner.call(method, body, timeout=timeout)
        if fault == "duplicate":
            answer = await self.inner.call(method, body, timeout=timeout)
        if fault == "lose_reply":
            raise NodeUnavailableError("the answer was lost", reason="connection_lost")
        return answer

    async def deliver_late(self) -> None:
        """What was held up arrives now, after what was sent later; nobody waits for the answer."""
        while self.late:
            method, body = self.late.pop()
            try:
                await self.inner.call(method, body)
            except BoundaryError:
                continue

    async def put_object(
        self,
        bucket: str,
        key: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        digest: str | None = None,
    ) -> bytes:
        self._fault()
        return await self.inner.put_object(bucket, key, chunks, size=size, digest=digest)

    async def get_object(
        self,
        bucket: str,
        key: str,
        *,
        start: int = 0,
        digest: bytes | None = None,
        fact_offset: int | None = None,
    ) -> AsyncObjectStream:
        fault = self._fault()
        if fault in {"drop", "lose_reply", "delay"}:
            raise NodeUnavailableError("lost on the way", reason="connection_lost")
        stream = await self.inner.get_object(
            bucket, key, start=start, digest=digest, fact_offset=fact_offset
        )
        return Torn(stream, stream.size // 2) if fault == "duplicate" else stream

    async def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        return await self.inner.head_object(bucket, key)

    async def close(self) -> None:
        pass

    def _fault(self) -> str:
        if self.is_cut:
            raise NodeUnavailableError("the link is cut", reason="connect_failed")
        fault = self.script.popleft() if self.script else ""
        if fault == "cut":
            self.is_cut = True
            raise NodeUnavailableError("the link is cut", reason="connect_failed")
        return fault
