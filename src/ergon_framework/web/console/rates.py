"""How fast work is done, from the totals that workers leave in their heartbeats.

Only what happened between two looks is known, so the first look after a pause tells no rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ergon_framework.jobs.totals import BOUNDS, OUTCOMES
from ergon_framework.ports.jobstore import WorkerRecord
from ergon_framework.web.totals import JobCounters

KEPT = 3600.0
"""Seconds of looks that are remembered."""
SPACING = 5.0
"""Seconds between two that are remembered."""
WINDOW = 60.0
"""Seconds over which a rate is told."""
POINTS = 60
"""Points of a chart."""

_DONE = tuple(OUTCOMES.index(each) for each in ("completed", "failed"))
_FAILED = OUTCOMES.index("failed")


class _Look(NamedTuple):
    at: float
    totals: Mapping[str, Sequence[float]]


class JobRates:
    """Remembers totals, look by look. One thread at a time may note."""

    def __init__(self) -> None:
        self._counters = JobCounters()
        self._looks: deque[_Look] = deque()

    def note(self, records: Iterable[WorkerRecord], now: float) -> None:
        """Take in what workers say by now; ``now`` is by the clock of their store."""
        self._counters.families(records, now)
        found = _Look(now, {queue: tuple(each) for queue, each in self._counters.totals().items()})
        looks = self._looks
        # The last one is replaced while it is close to the one before it: a rate needs the newest.
        if len(looks) > 1 and now - looks[-2].at < SPACING:
            looks.pop()
        if looks and now < looks[-1].at:  # the clock was set back
            looks.clear()
        looks.append(found)
        while now - looks[0].at > KEPT:
            looks.popleft()

    def document(self) -> dict[str, Any]:
        """Rates by queue and in all; numbers are None while only one look is known."""
        base = self._base()
        if base is None:
            return {"seconds": None, "done": None, "failed": None, "queues": {}, "points": []}
        last = self._looks[-1]
        seconds = last.at - base.at
        grown = {queue: _grown(base, last, queue) for queue in last.totals}
        whole = [sum(each) for each in zip(*grown.values(), strict=True)]
        return {
            "seconds": round(seconds, 1),
            "done": _done(whole) / seconds if whole else 0.0,
            "failed": whole[_FAILED] / seconds if whole else 0.0,
            "p50": quantile(whole, 0.5),
            "p95": quantile(whole, 0.95),
            "queues": {queue: _done(each) / seconds for queue, each in grown.items()},
            "points": self._points(),
        }

    def _base(self) -> _Look | None:
        """The earliest look of the last minute, or the one before the last."""
        if len(self._looks) < 2:
            return None
        last = self._looks[-1].at
        recent = [each for each in self._looks if last - each.at <= WINDOW]
        base = recent[0] if len(recent) > 1 else self._looks[-2]
        return base if base.at < last else None

    def _points(self) -> list[list[float]]:
        """Places in time, from 0 to 1, and rates, of which no two lie too close to draw."""
        looks = list(self._looks)[:: max(1, len(self._looks) // POINTS)]
        first, whole = looks[0].at, max(looks[-1].at - looks[0].at, 0.001)
        found = []
        for before, after in pairwise(looks):
            if after.at > before.at:
                done = sum(_done(_grown(before, after, queue)) for queue in after.totals)
                place = (after.at - first) / whole
                found.append([round(place, 4), round(done / (after.at - before.at), 4)])
        return found


def _grown(before: _Look, after: _Look, queue: str) -> list[float]:
    new = after.totals[queue]
    old = before.totals.get(queue, (0.0,) * len(new))
    return [b - a for a, b in zip(old, new, strict=True)]


def _done(numbers: Sequence[float]) -> float:
    return sum(numbers[place] for place in _DONE) if numbers else 0.0


def quantile(numbers: Sequence[float], share: float) -> float | None:
    """The upper end of the bucket in which such a share of attempts lies; None without attempts."""
    counts = numbers[len(OUTCOMES) : -1]
    wanted, seen = share * sum(counts), 0.0
    if not wanted:
        return None
    for bound, count in zip(BOUNDS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return BOUNDS[-1]
