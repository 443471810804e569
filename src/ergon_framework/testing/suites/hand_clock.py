"""The clock of the suites for stores: hours pass in an instant."""

from __future__ import annotations

import threading

START = 1_750_000_000.0
"""Seconds since 1970 that it shows at first."""


class HandClock:
    """A clock that stands still until somebody moves it."""

    def __init__(self, now: float = START) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """The time it shows."""
        return self._now

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += seconds

    def to(self, at: float) -> None:
        """Let it be that instant."""
        with self._lock:
            self._now = at
