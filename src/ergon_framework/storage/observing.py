"""What a look at a server gives: one observation for each thing that was looked at."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 9
SLOW = 0.02
"""Seconds for one question, above which a store is far away."""
ASKEW = 1.0
"""Seconds by which two clocks may differ before that is worth knowing."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One of them; with a remedy it is worth knowing, and when it is grave, work may be lost."""

    what: str
    found: str
    remedy: str = ""
    is_grave: bool = False


def latency(ask: Callable[[], object]) -> Observation:
    """How long a question takes that costs the server nothing."""
    took = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        ask()
        took.append(time.perf_counter() - begun)
    middle = statistics.median(took)
    remedy = "" if middle < SLOW else "bring workers and store closer together"
    return Observation("latency", f"{middle * 1000:.2f} ms for one question", remedy)


def skew(theirs: float, asked_at: float, answered_at: float) -> Observation:
    """By how much the server's clock differs from ours."""
    difference = theirs - (asked_at + answered_at) / 2
    if abs(difference) < max(ASKEW, answered_at - asked_at):
        return Observation("clock", f"{difference * 1000:+.0f} ms from this machine's")
    return Observation(
        "clock",
        f"{difference:+.1f} s from this machine's",
        "Ergon goes by the server's clock alone, so nothing breaks; logs of both will not line up:"
        " run NTP on both",
    )
