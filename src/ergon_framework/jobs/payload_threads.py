"""Threads of a worker for payloads in an object store, so that nobody else waits for one.

The store thread renews leases and the event loop watches time limits: neither may wait for a bucket
that takes seconds to answer, or for a disk.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from ergon_framework.engine.clocks import SYSTEM_CLOCK

logger = logging.getLogger("ergon.jobs")

MAX_THREADS = 4
"""How many payloads are on their way at once, each of them in memory."""
MAX_IDLE = 10.0
"""Seconds after which a thread ends that has nothing to do."""


class PayloadThreads:
    """Calls what it is given, in threads that are started when they are needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self.under_way = 0
        """How many calls have not ended."""

    def submit(self, call: Callable[[], None]) -> None:
        """Call this in a thread, soon; it handles its own errors."""
        with self._changed:
            self.under_way += 1
            self._waiting.append(call)
            if self._idle >= len(self._waiting):
                self._changed.notify_all()
            elif self._threads < MAX_THREADS:
                self._threads += 1
                SYSTEM_CLOCK.spawn("ergon-payloads", self._run)

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end of all calls; whether all have ended."""
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
