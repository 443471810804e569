"""What time it is at a server, without asking it each time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from ergon_framework.errors import StoreError

GOOD_FOR = 30.0
"""Seconds after which the server is asked again."""


class ServerClock:
    """The server's time, asked for now and then; in between, this machine counts seconds."""

    def __init__(self, ask: Callable[[], float], ticks: Callable[[], float]) -> None:
        self._ask = ask
        self._ticks = ticks
        self._lock = threading.Lock()
        self.set()

    def __call__(self) -> float:
        """What time it is there."""
        at, time_then = self._known
        passed = self._ticks() - at
        if passed >= GOOD_FOR and self._lock.acquire(blocking=False):
            try:
                # When the server does not answer, counting on is better than no time at all.
                with suppress(StoreError):
                    self.set()
            finally:
                self._lock.release()
            at, time_then = self._known
            passed = self._ticks() - at
        return time_then + passed

    def set(self) -> None:
        """Ask the server."""
        before = self._ticks()
        answer = self._ask()
        after = self._ticks()
        self._known = (before + after) / 2, answer

    def renew(self) -> None:
        """In a process that was just forked."""
        self._lock = threading.Lock()
