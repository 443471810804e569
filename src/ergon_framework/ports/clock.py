"""The clock a threaded engine waits on. Only ``engine/clocks.py`` and its virtual twin sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Signal(Protocol):
    """A condition on the engine's lock. Wait and notify only while holding that lock."""

    def wait(self, until: float | None) -> None:
        """Sleep until notified or until the clock shows ``until``; may wake early."""

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` sleepers."""

    def notify_all(self) -> None:
        """Wake every sleeper."""


class Clock(Protocol):
    """Time for threads: reading it, waiting on it, and starting threads that wait on it."""

    def now(self) -> float:
        """Monotonic seconds."""

    def signal(self, lock: threading.Lock) -> Signal:
        """A condition on ``lock`` whose waits follow this clock."""

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Start a daemonic thread that takes part in this clock's time."""

    def join_time(self) -> None:
        """The calling thread takes part in this clock's time from now on."""

    def leave_time(self) -> None:
        """The calling thread no longer does."""
