"""The body of a streamed request, between the socket and the application."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

HIGH = 1 << 20
LOW = HIGH // 4


class Upload:
    """Holds about ``HIGH`` bytes at most: beyond that the socket is not read."""

    __slots__ = ("_error", "_is_ended", "_parts", "_repace", "_size", "_waiter", "is_full")

    def __init__(self, repace: Callable[[], None]) -> None:
        self.is_full = False
        self._repace = repace
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._is_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """More bytes have arrived."""
        self._parts.append(data)
        self._size += len(data)
        self.is_full = self.is_full or self._size >= HIGH
        self._wake()

    def end(self) -> None:
        """All bytes have arrived."""
        self._is_ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more bytes will arrive, although they should."""
        if not self._is_ended:
            self._error = error
            self._wake()

    async def chunks(self) -> AsyncIterator[bytes]:
        """What has arrived, piece by piece; raises what ``fail`` was given, and that at once."""
        while self._error is None:
            if self._parts:
                yield self._take()
            elif self._is_ended:
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        raise self._error

    def _take(self) -> bytes:
        data = self._parts.popleft()
        self._size -= len(data)
        if self.is_full and self._size <= LOW:
            self.is_full = False
            self._repace()
        return data

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
