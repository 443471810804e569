"""The body of a streamed request, between the socket and the application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

HIGH = 1 << 20


class Upload:
    """Holds about ``HIGH`` bytes at most: beyond that the socket is not read.

    It lives on the event loop; only ``take`` may be called from another thread.
    """

    __slots__ = (
        *("_error", "_is_ended", "_least", "_lock", "_loop", "_parts", "_repace", "_size"),
        *("_waiter", "is_full"),
    )

    def __init__(self, repace: Callable[[], None]) -> None:
        self.is_full = False
        self._repace = repace
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._parts: list[bytes] = []
        self._size = 0
        self._least = 1
        self._is_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """More bytes have arrived."""
        with self._lock:
            self._parts.append(data)
            self._size += len(data)
            self.is_full = self.is_full or self._size >= HIGH
        if self._size >= self._least:
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

    async def has_more(self, least: int) -> bool:
        """Wait for so many bytes, or for the end; whether there are any to take.

        Raises what ``fail`` was given, and that at once.
        """
        self._least = min(least, HIGH)  # beyond that nothing comes
        while self._error is None:
            if self._size >= self._least or self._is_ended:
                return self._size > 0
            self._waiter = self._loop.create_future()
            await self._waiter
        raise self._error

    def take(self) -> list[bytes]:
        """All that has arrived and was not taken yet, piece by piece."""
        with self._lock:
            parts, self._parts, self._size = self._parts, [], 0
            was_full, self.is_full = self.is_full, False
        if was_full:
            self._loop.call_soon_threadsafe(self._repace)
        return parts

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
