"""What is measured on a server: its clock, its latency, and observations for ``doctor``."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

CLOCK_TTL = 30.0
"""Seconds after which the server is asked again."""


class ServerClock:
    """The server's time, asked for now and then; in between, this machine counts seconds.

    Who wants to know the time may be an event loop: only the first answer is waited for. A server
    that does not answer is left alone as long as one that did, and the seconds are counted on.
    """

    def __init__(self, ask: Callable[[], float], ticks: Callable[[], float]) -> None:
        self._ask = ask
        self._ticks = ticks
        self._lock = threading.Lock()
        self._asked_at = ticks()
        self.set()

    def __call__(self) -> float:
        """What time it is there."""
        now = self._ticks()
        if now - self._asked_at >= CLOCK_TTL:
            self._begin(now)
        at, time_then = self._known
        return time_then + (now - at)

    def set(self) -> None:
        """Ask the server."""
        before = self._ticks()
        answer = self._ask()
        after = self._ticks()
        # The server read its clock somewhere between: the middle is wrong by half of the round trip
        # at most.
        self._known = (before + after) / 2, answer

    def renew(self) -> None:
        """In a process that was just forked."""
        self._lock = threading.Lock()

    def _begin(self, now: float) -> None:
        """Ask the server in a thread, one at a time: the thread releases the lock."""
        if not self._lock.acquire(blocking=False):
            return
        self._asked_at = now
        try:
            threading.Thread(
                target=self._ask_again, args=(self._lock,), name="ergon-clock", daemon=True
            ).start()
        except RuntimeError:  # there are too many, or the process ends: counting on will do
            self._lock.release()

    def _ask_again(self, lock: threading.Lock) -> None:
        try:
            with suppress(Exception):  # counting on is better than no time at all
                self.set()
        finally:
            lock.release()


LATENCY_SAMPLES = 9
SLOW_LATENCY = 0.02
"""Seconds for one question, above which a store is far away."""
MAX_CLOCK_SKEW = 1.0
"""Seconds by which two clocks may differ before that is worth knowing."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A finding about a server. With a remedy it is worth knowing; if it is grave, work may be
    lost.
    """

    what: str
    found: str
    remedy: str = ""
    is_grave: bool = False


def latency(ask: Callable[[], object]) -> Observation:
    """How long a question takes that costs the server nothing."""
    took = []
    for _ in range(LATENCY_SAMPLES):
        begun = time.perf_counter()
        ask()
        took.append(time.perf_counter() - begun)
    middle = statistics.median(took)
    remedy = "" if middle < SLOW_LATENCY else "bring workers and store closer together"
    return Observation("latency", f"{middle * 1000:.2f} ms for one question", remedy)


def skew(theirs: float, asked_at: float, answered_at: float) -> Observation:
    """The difference between the server's clock and ours."""
    difference = theirs - (asked_at + answered_at) / 2
    # A difference smaller than the time that the answer took may be nothing but that time.
    if abs(difference) < max(MAX_CLOCK_SKEW, answered_at - asked_at):
        return Observation("clock", f"{difference * 1000:+.0f} ms from this machine's")
    return Observation(
        "clock",
        f"{difference:+.1f} s from this machine's",
        "Ergon goes by the server's clock alone, so nothing breaks; logs of both will not line up:"
        " run NTP on both",
    )
