"""A way to wake a thread that waits for descriptors or for time."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress

_LONGEST_WAIT = 3600.0


class Bell:
    """A pipe that one thread listens to; anybody may ring, a signal handler too."""

    def __init__(self) -> None:
        self.listener, self.button = os.pipe()
        os.set_blocking(self.listener, False)
        os.set_blocking(self.button, False)
        self._lock = threading.RLock()  # a signal handler may ring while its thread does
        self._poll = select.poll()
        self._poll.register(self.listener, select.POLLIN)

    def ring(self) -> None:
        """Wake whoever waits, or will wait next; after the end, nobody."""
        with self._lock, suppress(BlockingIOError):  # full of rings: one more tells nothing new
            if self.button >= 0:
                os.write(self.button, b"!")

    def wait(self, until: float) -> None:
        """Wait for a ring or for a moment on the monotonic clock; now and then for less."""
        seconds = min(max(0.0, until - time.monotonic()), _LONGEST_WAIT)
        self._poll.poll(int(seconds * 1000) + 1)  # rounded up: waking early is waking twice
        with suppress(BlockingIOError):
            os.read(self.listener, 4096)

    def close(self) -> None:
        """Give both ends back; who rings late must not write to what has the number next."""
        with self._lock:
            listener, button = self.listener, self.button
            self.listener = self.button = -1
        os.close(listener)
        os.close(button)
