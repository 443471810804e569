"""How a zone tells what happens: notices to whoever listens, counts for the metrics, a log line.

A count exists for each event; a notice is built only when somebody listens.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.fan_out import FanOut, has_listeners

logger = logging.getLogger("ergon_framework.boundary")

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the latency histogram, in seconds."""


SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Histogram:
    """Counts of values by upper bound. Used by one thread."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times


class Telling:
    """The voice of one zone."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sink = FanOut(None, (), ())
        self._lock = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By metric and label value; the label is empty where there is none."""
        self.append_seconds = Histogram()
        self.commit_seconds = Histogram()
        self.commit_sizes = Histogram(SIZES)

    def count(self, what: str, label: str = "", times: int = 1) -> None:
        """Add to a counter, from any thread."""
        with self._lock:
            self.counts[what, label] += times

    def committed(self, facts: int, seconds: float) -> None:
        """A group of appends is on disk."""
        self.commit_sizes.add(facts)
        self.commit_seconds.add(seconds)

    def tell(self, name: str, **fields: Any) -> None:
        """A notice to whoever listens."""
        if has_listeners():
            self._sink.emit(Notice(name, self._clock(), fields))

    def warn(self, name: str, text: str, **fields: Any) -> None:
        """A notice, and a line in the log for people."""
        logger.warning("%s", text)
        self.tell(name, **fields)

    def note(self, name: str, text: str, **fields: Any) -> None:
        """A notice, and a line in the log at the level of information."""
        logger.info("%s", text)
        self.tell(name, **fields)
