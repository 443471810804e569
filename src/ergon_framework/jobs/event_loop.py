"""The worker's event loop: descriptors, the nearest due time, and calls from other threads.

asyncio would do, at twice the processor time (`make benchlibraries`).
"""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ergon_framework.engine.clocks import SYSTEM_CLOCK

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Handler = Callable[[int], None]


class EventLoop:
    """Waits for descriptors, for the nearest due time, and for calls that other threads post."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_waiting = False
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self.watch(self._wake_read, READ, self._drain)
        self.now = SYSTEM_CLOCK.now
        self.at = self.now()  # when the current turn began to handle events

    def watch(self, descriptor: int, events: int, handler: Handler) -> None:
        """Call ``handler`` when the descriptor is ready; replaces an earlier handler of the
        descriptor.
        """
        try:
            self._selector.register(descriptor, events, handler)
        except KeyError:
            self._selector.modify(descriptor, events, handler)

    def forget(self, descriptor: int) -> None:
        """Stop watching the descriptor. Call this before it is closed."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop call this. May be called from any thread."""
        # The lock orders this against ``turn``: either the turn sees the call before it waits, or
        # this sees that the loop waits and wakes it. Only the first of many calls writes a byte.
        with self._lock:
            self._posted.append(call)
            if not self._is_waiting:
                return
            self._is_waiting = False
        self._wake()

    def turn(self, until: float | None) -> None:
        """Wait until something happens, at most until the given instant, and handle all of it."""
        with self._lock:
            self._is_waiting = not self._posted
        seconds = 0.0 if self._posted else None if until is None else max(0.0, until - self.now())
        ready = self._selector.select(seconds)
        self.at = self.now()
        for key, events in ready:
            key.data(events)
        self._is_waiting = False
        while self._posted:
            self._posted.popleft()()

    def close(self) -> None:
        """Close the descriptors that belong to the loop itself."""
        self._selector.close()
        with self._lock:
            self._is_waiting = False
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _wake(self) -> None:
        with suppress(OSError):  # Full: the loop is awake already. Closed: nobody waits any more.
            os.write(self._wake_write, b"!")

    def _drain(self, _events: int) -> None:
        with suppress(BlockingIOError):
            while len(os.read(self._wake_read, 4096)) == 4096:
                pass
