"""Threads of a worker for payloads in an object store, so that no other thread waits for one.

The store thread renews leases and the event loop watches time limits. Neither may wait for a disk,
or for a bucket that takes seconds to answer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from ergon_framework.engine.clocks import SYSTEM_CLOCK

logger = logging.getLogger("ergon.jobs")

MAX_THREADS = 4
"""How many payloads are read or written at once, each of them in memory."""
MAX_IDLE = 10.0
"""Seconds without work after which a thread ends."""


class PayloadThreads:
    """Makes calls in threads that are started when they are needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self.under_way = 0
        """How many calls have not returned."""

    def submit(self, call: Callable[[], None]) -> None:
        """Make the call in a thread, soon. The call handles its own errors."""
        with self._changed:
            self.under_way += 1
            self._waiting.append(call)
            if self._idle >= len(self._waiting):
                self._changed.notify_all()
            elif self._threads < MAX_THREADS:
                self._threads += 1
                SYSTEM_CLOCK.spawn("ergon-payloads", self._run)

    def wait(self, seconds: float) -> bool:
        """Wait so long for all calls to return. Returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.under_way, seconds)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                logger.exception("a payload was not handled")
            finally:
                with self._changed:
                    self.under_way -= 1
                    self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, MAX_IDLE)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
