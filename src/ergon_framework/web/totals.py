"""Counters and histograms of ``/metrics``: what all processes have done since the server started.

Processes write to the stores what they have done so far: workers in their heartbeats and when they
end, providers in roll-ups by minute. At each scrape the server adds what has grown since the last
one. So the numbers of all processes add up, a number never goes down while the server lives, and
after a restart of the server they begin at 0 again, which Prometheus expects of counters. Of
processes and minutes that began before the server did, only what grows after the first scrape is
counted; if that one could not read the calls of a store, the minute in which the server started
counts in full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

from ergon_framework.jobs.totals import BOUNDS as JOB_BOUNDS
from ergon_framework.jobs.totals import OTHERS, numbers_of, recycled_of, worker_id
from ergon_framework.jobs.totals import OUTCOMES as JOB_OUTCOMES
from ergon_framework.ports.jobstore import WorkerRecord
from ergon_framework.ports.providerstore import MinuteOfLane, ProviderInspector
from ergon_framework.telemetry.prometheus_text import (
    Family,
    HistogramSeries,
    LabelledHistogramFamily,
)

CALL_OUTCOMES = ("succeeded", "failed", "dead_lettered")
CALL_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds, in seconds, of the buckets for attempts of provider calls."""
MAX_LABEL_SETS = 199
"""How many queues, or providers with a capability, have series of their own; further ones are
counted together. With five outcomes each, all their series fit into a response.
"""
MINUTE, HOUR, OVERLAP = 60.0, 3600.0, 120.0
"""In seconds: the length of a roll-up, how far back roll-ups are read, and by how much the clocks
of writers may differ.
"""

Numbers = Sequence[float]
Exposed = Family | LabelledHistogramFamily
"""A metric that several stores may have, so that its series are added up."""


class Growth:
    """Adds up how much the numbers of many sources have grown since they were first seen."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, Numbers] = {}
        self.totals: dict[tuple[str, ...], list[float]] = {}
        """The sums, by labels."""

    def take(
        self, source: Hashable, labels: tuple[str, ...], now: Numbers, *, is_new: bool
    ) -> None:
        """Add the numbers of a source. When it is seen for the first time, they count in full if it
        ``is_new``.
        """
        before = self._seen.get(source, None if is_new else now)
        # A number that went down means another process with the same name.
        if before is None or any(old > new for old, new in zip(before, now, strict=True)):
            before = [0.0] * len(now)  # It has begun anew.
        self._seen[source] = now
        # Labels may come from outside: without a bound, any client that names queues could fill the
        # memory.
        if labels not in self.totals and len(self.totals) >= MAX_LABEL_SETS:
            labels = (OTHERS,) * len(labels)
        total = self.totals.setdefault(labels, [0.0] * len(now))
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            total[place] += new - old

    def keep(self, is_kept: Callable[[Any], bool]) -> None:
        """Forget all other sources, which are over. Their totals stay."""
        self._seen = {source: seen for source, seen in self._seen.items() if is_kept(source)}


class ServerStart:
    """When the server started, by the clock of a store.

    The clock of another machine may be wrong, and any clock may be set.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def by(self, now: float) -> float:
        """The instant of the start by a clock that now shows ``now``."""
        return now - (self._clock() - self._at)


class JobCounters:
    """What all workers have done. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._growth = Growth()
        self._recycled = Growth()
        self._start = ServerStart()
        self._workers: Collection[tuple[str, float]] = ()
        self.known: Sequence[Exposed] = ()
        """The families of the last read. Reading it needs no lock, because the reader of the store
        may hang.
        """

    def families(self, workers: Iterable[WorkerRecord], now: float) -> list[Exposed]:
        """Add what workers have done since the last scrape, including ended ones. Returns all
        totals.

        ``now`` is by the clock of their store.
        """
        with self._lock:
            since = self._start.by(now)
            # A name may be given to another process later.
            alive = {(worker_id(each), each.started_at): each for each in workers}
            for worker, record in alive.items():
                # Known at the last scrape, or begun since the server started: everything that it
                # reports has happened meanwhile.
                is_new = worker in self._workers or worker[1] >= since
                for queue, document in record.totals.items():
                    numbers = numbers_of(document)
                    if numbers is not None:
                        self._growth.take((*worker, queue), (queue,), numbers, is_new=is_new)
                self._take_recycled(worker, record, is_new=is_new)
            self._workers = alive.keys()
            self._growth.keep(lambda source: source[:2] in alive)
            self._recycled.keep(lambda source: source[:2] in alive)
            self.known = families = [*_of_jobs(self._growth), _of_recycled(self._recycled)]
            return families

    def totals(self) -> dict[str, list[float]]:
        """What was done, by queue, in the form of
        :func:`~ergon_framework.jobs.totals.numbers_of`.
        """
        with self._lock:
            return {queue: list(numbers) for (queue,), numbers in self._growth.totals.items()}

    def _take_recycled(
        self, worker: tuple[str, float], record: WorkerRecord, *, is_new: bool
    ) -> None:
        for executor, numbers in recycled_of(record.executors).items():
            for reason, number in numbers.items():
                labels = (executor, reason)
                self._recycled.take((*worker, *labels), labels, [number], is_new=is_new)


def _of_jobs(growth: Growth) -> Iterator[Exposed]:
    first = len(JOB_OUTCOMES)
    yield Family(
        "ergon_job_attempts_total",
        "counter",
        "Attempts of jobs by what became of the job; failed ones are dead-lettered.",
        _by_outcome(growth),
    )
    yield LabelledHistogramFamily(
        "ergon_job_duration_seconds",
        "How long attempts of jobs took in their executor.",
        JOB_BOUNDS,
        [
            HistogramSeries({"queue": queue}, [*map(int, numbers[first:-1])], numbers[-1])
            for (queue,), numbers in growth.totals.items()
        ],
    )


def _of_recycled(growth: Growth) -> Family:
    found = [
        ({"executor": executor, "reason": reason}, numbers[0])
        for (executor, reason), numbers in growth.totals.items()
    ]
    text = "Processes of executors that were replaced, by the limit that they had reached."
    return Family("ergon_executor_recycled_total", "counter", text, found)


def _by_outcome(growth: Growth) -> list[tuple[dict[str, str], float]]:
    """Attempts by queue and outcome.

    A metric has room for five outcomes of as many queues as there are; cancellations come last, and
    only of queues that had some.
    """
    usual: list[tuple[dict[str, str], float]] = []
    rare: list[tuple[dict[str, str], float]] = []
    for (queue,), numbers in growth.totals.items():
        for place, outcome in enumerate(JOB_OUTCOMES):
            series = {"queue": queue, "outcome": outcome}, numbers[place]
            if outcome != "cancelled":
                usual.append(series)
            elif numbers[place]:
                rare.append(series)
    return usual + rare


class CallCounters:
    """The provider calls of all processes. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._growth = Growth()
        self._start = ServerStart()
        self._has_missed = False
        self._read_at: float | None = None
        self.known: Sequence[Exposed] = ()
        """The families of the last read. Reading it needs no lock, because the reader of the store
        may hang.
        """

    def families(self, inspector: ProviderInspector, now: float) -> list[Exposed]:
        """Add the minutes that have changed since the last scrape. Returns all totals."""
        with self._lock:
            is_first, since = self._read_at is None, self._start.by(now)
            if self._has_missed:
                since -= since % MINUTE
            # Minutes that were read before may still grow: clocks of writers differ, and batches
            # arrive late.
            changed = now - HOUR if self._read_at is None else self._read_at - OVERLAP
            for each in inspector.minutes(now - HOUR, changed):
                _, provider, capability = each.key
                source = (each.key, each.minute)
                numbers = _numbers(each)
                is_new = not is_first or each.minute >= since
                self._growth.take(source, (provider, capability), numbers, is_new=is_new)
            self._read_at = now
            self._growth.keep(lambda source: source[1] > now - HOUR - OVERLAP)
            self.known = families = [*_of_calls(self._growth)]
            return families

    def saw_nothing(self, now: float) -> None:
        """Note that a scrape found a store without tables: all that they hold later is new."""
        with self._lock:
            self._read_at = now

    def missed(self) -> None:
        """Note that a scrape could not read the store.

        If it was the first scrape, it is unknown how many calls the minute of the start had before
        the start. Then all of that minute counts: a few calls from before the start do less harm
        than missing ones after it.
        """
        with self._lock:
            self._has_missed = self._has_missed or self._read_at is None


def _numbers(each: MinuteOfLane) -> Numbers:
    rollup = each.rollup
    counts, seconds = rollup.durations.counted(CALL_BOUNDS)
    return (rollup.succeeded, rollup.failed, rollup.dead_lettered, *counts, seconds)


def _of_calls(growth: Growth) -> Iterator[Exposed]:
    first = len(CALL_OUTCOMES)
    lanes = [
        ({"provider": provider, "capability": capability}, numbers)
        for (provider, capability), numbers in growth.totals.items()
    ]
    yield Family(
        "ergon_provider_calls_total",
        "counter",
        "Provider calls that ended, by outcome.",
        [
            ({**labels, "outcome": outcome}, numbers[place])
            for labels, numbers in lanes
            for place, outcome in enumerate(CALL_OUTCOMES)
        ],
    )
    yield Family(
        "ergon_provider_attempts_total",
        "counter",
        "Attempts of provider calls, failed ones included.",
        [(labels, sum(numbers[first:-1])) for labels, numbers in lanes],
    )
    yield LabelledHistogramFamily(
        "ergon_provider_attempt_duration_seconds",
        "How long attempts of provider calls took, within 2 %.",
        CALL_BOUNDS,
        [
            HistogramSeries(labels, [*map(int, numbers[first:-1])], numbers[-1])
            for labels, numbers in lanes
        ],
    )
