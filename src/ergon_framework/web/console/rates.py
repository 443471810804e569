"""How fast jobs are done, from the totals in the heartbeats of workers, and how many wait.

A rate is what happened between two reads, so the first read after a pause has none.
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
"""Seconds for which reads are remembered."""
SPACING = 5.0
"""Seconds between two reads that are remembered."""
WINDOW = 60.0
"""Seconds over which a rate is computed."""
POINTS = 60
"""How many points a chart has."""

_DONE = tuple(OUTCOMES.index(each) for each in ("completed", "failed"))
_FAILED = OUTCOMES.index("failed")


class _Look(NamedTuple):
    at: float
    totals: Mapping[str, Sequence[float]]
    whole: Sequence[float]
    """The totals of all queues together; empty if no worker has sent any."""
    backlog: int
    oldest_due: float


class JobRates:
    """Remembers totals, read by read. Only one thread at a time may call ``note``."""

    def __init__(self) -> None:
        self._counters = JobCounters()
        self._looks: deque[_Look] = deque()

    def note(
        self,
        records: Iterable[WorkerRecord],
        now: float,
        *,
        backlog: int = 0,
        oldest_due: float | None = None,
    ) -> None:
        """Add what workers report now; ``now`` is by the clock of their store.

        ``backlog``: how many jobs wait. ``oldest_due``: for how many seconds the oldest has been
        due.
        """
        self._counters.families(records, now)
        totals = {queue: tuple(each) for queue, each in self._counters.totals().items()}
        whole = tuple(sum(each) for each in zip(*totals.values(), strict=True))
        found = _Look(now, totals, whole, backlog, oldest_due or 0.0)
        looks = self._looks
        # The last one is replaced while it is close to the one before it, because a rate needs the
        # newest.
        if len(looks) > 1 and now - looks[-2].at < SPACING:
            looks.pop()
        if looks and now < looks[-1].at:  # The clock was set back.
            looks.clear()
        looks.append(found)
        while now - looks[0].at > KEPT:
            looks.popleft()

    def document(self) -> dict[str, Any]:
        """The rates by queue and in total. Numbers are None after one read only."""
        base = self._base()
        if base is None:
            nothing = {"seconds": None, "done": None, "failed": None, "p50": None, "p95": None}
            return {**nothing, "queues": {}, "points": [], "charts": {}, "charts_seconds": None}
        last = self._looks[-1]
        seconds = last.at - base.at
        grown = {queue: _grown(base, last, queue) for queue in last.totals}
        whole = _growth(base.whole, last.whole)
        charts = self._charts()
        return {
            "seconds": round(seconds, 1),
            "done": _done(whole) / seconds if whole else 0.0,
            "failed": whole[_FAILED] / seconds if whole else 0.0,
            "p50": quantile(whole, 0.5),
            "p95": quantile(whole, 0.95),
            "queues": {queue: _done(each) / seconds for queue, each in grown.items()},
            "points": charts["done"],
            "charts": charts,
            "charts_seconds": round(last.at - self._looks[0].at, 1),
        }

    def _base(self) -> _Look | None:
        """The earliest read of the last minute, or the one before the last."""
        if len(self._looks) < 2:
            return None
        last = self._looks[-1].at
        recent = [each for each in self._looks if last - each.at <= WINDOW]
        base = recent[0] if len(recent) > 1 else self._looks[-2]
        return base if base.at < last else None

    def _charts(self) -> dict[str, list[list[float]]]:
        """Points of a chart: the time from 0 to 1, and a number. No two points are too close to
        draw.

        A rate and a duration are those of the time before their point, from the first read on.
        """
        looks = list(self._looks)[:: max(1, len(self._looks) // POINTS)]
        if looks[-1] is not self._looks[-1]:
            looks.append(self._looks[-1])
        first, whole = looks[0].at, max(looks[-1].at - looks[0].at, 0.001)

        def placed(look: _Look) -> float:
            return round((look.at - first) / whole, 4)

        found: dict[str, list[list[float]]] = {
            "done": [],
            "failed": [],
            "p95": [],
            "backlog": [[placed(each), each.backlog] for each in looks],
            "oldest_due": [[placed(each), each.oldest_due] for each in looks],
        }
        for before, after in pairwise(looks):
            seconds = after.at - before.at
            if seconds <= 0:
                continue
            grown, place = _growth(before.whole, after.whole), placed(after)
            failed = grown[_FAILED] if grown else 0.0
            found["done"].append([place, round(_done(grown) / seconds, 4)])
            found["failed"].append([place, round(failed / seconds, 4)])
            longest = quantile(grown, 0.95)
            if longest is not None:
                found["p95"].append([place, longest])
        for name in ("done", "failed"):
            found[name][:0] = [[0.0, rate] for _, rate in found[name][:1]]
        return found


def _grown(before: _Look, after: _Look, queue: str) -> list[float]:
    return _growth(before.totals.get(queue, ()), after.totals[queue])


def _growth(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """How much totals have grown. Totals that are new have grown from nothing."""
    return [b - a for a, b in zip(old or (0.0,) * len(new), new, strict=True)]


def _done(numbers: Sequence[float]) -> float:
    return sum(numbers[place] for place in _DONE) if numbers else 0.0


def quantile(numbers: Sequence[float], share: float) -> float | None:
    """The upper bound of the bucket in which this share of attempts lies; None without attempts."""
    counts = numbers[len(OUTCOMES) : -1]
    wanted, seen = share * sum(counts), 0.0
    if not wanted:
        return None
    for bound, count in zip(BOUNDS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return BOUNDS[-1]
