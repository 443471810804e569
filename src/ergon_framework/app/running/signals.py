"""Hearing SIGTERM and SIGINT for certain.

A Python signal handler runs in the main thread, and only when that thread comes round to it: one
that has just gone to sleep on a lock may not do so for a long time. So the signal is also taken
from the file descriptor to which the interpreter writes it at once, by a thread of our own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from ergon_framework.engine.clocks import SYSTEM_CLOCK

SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEATED = 0.5
"""Seconds within which another signal is the same wish: a terminal signals a process by Ctrl-C, and
the parent passes it on once more; ``timeout`` signals both the child and its group."""
_END = 0
_BY_HANDLER = 0x80


class SignalEar:
    """Calls ``heard`` with each signal, in a thread of its own, from ``with`` to its end.

    What comes within half a second of a signal is that signal again, and not told.
    Outside of the main thread, where Python lets nobody handle signals, it hears nothing.
    """

    def __init__(
        self, heard: Callable[[int], Any], *, now: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        self._heard = heard
        self._now = now
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._read_end = self._write_end = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._read_end, self._write_end = os.pipe()
            os.set_blocking(self._write_end, False)
            self._fd_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
            SYSTEM_CLOCK.spawn("ergon-signals", self._listen)
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._fd_before)
        os.write(self._write_end, bytes([_END]))  # the thread closes both ends

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """The handler: somebody else, such as an event loop, may have taken the descriptor."""
        with suppress(BlockingIOError):  # full of signals: then one more tells nothing new
            os.write(self._write_end, bytes([_BY_HANDLER | number]))

    def _listen(self) -> None:
        written = handled = heard = 0
        told_at: float | None = None
        while (byte := os.read(self._read_end, 1)[0]) != _END:
            number = byte & ~_BY_HANDLER
            if number not in SIGNALS:
                continue
            # Each signal comes once by each way, unless one of the two ways is closed.
            written, handled = written + (byte == number), handled + (byte != number)
            if max(written, handled) > heard:
                heard += 1
                now = self._now()
                if told_at is None or now - told_at >= REPEATED:
                    told_at = now
                    self._heard(number)
        os.close(self._read_end)
        os.close(self._write_end)
