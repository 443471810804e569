"""Bytes on their way to one client, as fast as it takes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from ergon_framework.boundary.http.request import Request


class Outflow:
    """Writes to a transport, which may go away at any time."""

    __slots__ = ("_drained", "_flowed_at", "_taken", "_transport", "_written", "is_paused")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport: asyncio.Transport | None = transport
        self._drained: asyncio.Future[None] | None = None
        self._written = 0
        self._taken = 0
        self._flowed_at = now
        self.is_paused = False

    def write(self, data: bytes) -> None:
        """Send, or keep until the client reads. One that has gone is no error."""
        if self._transport is not None:
            self._written += len(data)
            self._transport.write(data)

    async def write_stream(
        self, request: Request, head: bytes, length: int, chunks: AsyncIterator[bytes]
    ) -> None:
        """Send the pieces; the head goes with the first, so that an error before it is answered."""
        left = length
        async with contextlib.aclosing(_closing(chunks)) as pieces:
            async for piece in pieces:
                left -= len(piece)
                if left < 0:
                    break
                self.write(head + piece)
                head, request.is_answered = b"", True
                await self._drain()
        if left:
            was = "more" if left < 0 else f"{length - left}"
            raise RuntimeError(f"the stream should have had {length} bytes and had {was}")
        if head:
            request.is_answered = True
            self.write(head)

    def resume(self) -> None:
        """The client has read enough for more to be written."""
        self.is_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def lose(self) -> None:
        """The client has gone."""
        self._transport = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(_gone())

    def is_stuck(self, now: float, patience: float) -> bool:
        """Whether something waits to be read and nothing has been for so long; look regularly."""
        kept = self._transport.get_write_buffer_size() if self._transport else 0
        taken = self._written - kept
        if not kept or taken != self._taken:
            self._taken, self._flowed_at = taken, now
        return now - self._flowed_at > patience

    async def _drain(self) -> None:
        if self.is_paused and self._transport is not None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._transport is None:
            raise _gone()


async def discard(chunks: AsyncIterator[bytes]) -> None:
    """Close a stream that nobody will read."""
    async with contextlib.aclosing(_closing(chunks)):
        pass


async def _closing(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


def _gone() -> ConnectionResetError:
    return ConnectionResetError("the client has gone")
