"""Counts what a worker has done since it started, by queue: outcomes, and how long attempts took.

A heartbeat carries the totals to the store, and ``/metrics`` of a server adds up those of all
workers. Totals only grow, so a reader that misses a heartbeat has lost nothing at the next. A
worker that ends leaves its totals behind in a record of its own, for a while.
"""

from __future__ import annotations

import os
import socket
import threading
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.ports.jobstore import ENDED, JobAdmin, WorkerRecord

OUTCOMES = ("completed", "retrying", "failed", "held", "released", "cancelled")
"""The outcomes of an attempt; ``failed`` is dead-lettered."""
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the buckets of a histogram, in seconds."""
MAX_QUEUES = 200
"""How many queues are counted separately. Users choose names without a limit, and a heartbeat must
stay small.
"""
OTHERS = "(others)"
"""The name under which all further queues are counted."""


ENDED_KEPT = 1800.0
"""Seconds for which the totals of a worker that has ended are kept; scrapes come more often."""
_MARK = f" {ENDED} "
# Its name, because Python 3.11 is slow to look up a member of an enum.
_COMPLETED = JobStatus.COMPLETED


def ended_record(record: WorkerRecord) -> WorkerRecord:
    """The record that a worker leaves behind.

    Its key is not the worker's name: the next worker may have that, and must not replace the
    record.
    """
    return WorkerRecord(
        id=f"{record.id}{_MARK}{record.started_at!r}",
        host=record.host,
        pid=record.pid,
        version=record.version,
        started_at=record.started_at,
        state=ENDED,
        totals=record.totals,
        executors={
            name: {"recycled": numbers} for name, numbers in recycled_of(record.executors).items()
        },
    )


def recycled_of(executors: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """How many processes of each executor were replaced, by the limit that they had reached."""
    recycled = {
        name: pool.get("recycled") for name, pool in executors.items() if isinstance(pool, Mapping)
    }
    return {
        name: {str(reason): number for reason, number in numbers.items() if type(number) is int}
        for name, numbers in recycled.items()
        if isinstance(numbers, Mapping) and numbers
    }


def worker_id(record: WorkerRecord) -> str:
    """The name of the worker that a record belongs to."""
    return record.id.rpartition(_MARK)[0] if record.has_ended else record.id


def outcome_of(transition: Transition) -> str:
    """The word for the outcome of a job."""
    status = transition.status
    if status is _COMPLETED:  # Nearly all jobs: asking an enum for its value takes longer.
        return "completed"
    is_excused = transition.event in ("held", "released") and not status.is_final
    return transition.event if is_excused else status.value


class _QueueTotals:
    """The totals of one queue."""

    __slots__ = ("buckets", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0


class WorkerTotals:
    """The totals of a worker. The thread that settles jobs counts, and the one that writes
    heartbeats reads.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _QueueTotals] = {}

    def count(self, queue: str, outcome: str, seconds: float | None) -> None:
        """Count one outcome, and the duration of its attempt if there was one."""
        totals = self._queues.get(queue) or self._new_queue(queue)
        totals.outcomes[outcome] = totals.outcomes.get(outcome, 0) + 1
        if seconds is not None:
            totals.buckets[bisect_left(BOUNDS, seconds)] += 1
            if seconds > 0.0:
                totals.seconds += seconds

    def _new_queue(self, queue: str) -> _QueueTotals:
        name = OTHERS if len(self._queues) >= MAX_QUEUES else queue
        return self._queues.setdefault(name, _QueueTotals())

    def document(self) -> dict[str, Any]:
        """The totals as a heartbeat carries them."""
        return {
            queue: {
                "outcomes": dict(totals.outcomes),
                "buckets": list(totals.buckets),
                "seconds": round(totals.seconds, 6),
            }
            for queue, totals in list(self._queues.items())
        }


class DrainTotals:
    """What the drains of this process have done with one store.

    They leave one record behind, which grows, like that of a worker that has ended. Another record
    is begun when nothing was written for long and the last may have been deleted; otherwise a
    reader that adds up would count its numbers twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._is_recorded = True
        self._recorded_at: float | None = None
        self._started_at = 0.0
        self._totals = WorkerTotals()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock in a forked process, because a thread of the parent may have held the old
        one.
        """
        self._lock = threading.Lock()

    def begin(self, now: float) -> None:
        """A drain begins."""
        with self._lock:
            recorded_at = self._recorded_at
            is_recent = recorded_at is not None and 0 <= now - recorded_at < ENDED_KEPT / 2
            if self._pid != os.getpid() or (self._is_recorded and not is_recent):
                self._pid, self._is_recorded, self._recorded_at = os.getpid(), True, None
                self._started_at, self._totals = now, WorkerTotals()

    def count(self, queue: str, outcome: str, seconds: float | None) -> None:
        """Count one outcome, and the duration of its attempt if there was one."""
        with self._lock:
            self._totals.count(queue, outcome, seconds)
            self._is_recorded = False

    def leave(self, store: JobAdmin, now: float, version: str) -> None:
        """Write the new totals, and delete records that others left long ago."""
        with self._lock:  # Held also while writing, because a number must not go down.
            if self._is_recorded:
                return
            host = socket.gethostname()
            record = WorkerRecord(
                id=f"inline-{host}-{self._pid}",
                host=host,
                pid=self._pid,
                version=version,
                started_at=self._started_at,
                totals=self._totals.document(),
            )
            store.heartbeat(ended_record(record))
            is_first = self._recorded_at is None
            self._is_recorded, self._recorded_at = True, now
        if is_first:
            delete_ended(store, now)


def delete_ended(store: JobAdmin, now: float) -> None:
    """Delete records of ended workers that are so old that every scrape has read them."""
    for each in store.ended_workers():
        if each.seen_at < now - ENDED_KEPT:
            store.heartbeat(gone_record(each))


def gone_record(record: WorkerRecord) -> WorkerRecord:
    """A record that deletes another one."""
    return WorkerRecord(
        id=record.id,
        host=record.host,
        pid=record.pid,
        version=record.version,
        started_at=record.started_at,
        state="gone",
    )


def numbers_of(document: Any) -> tuple[float, ...] | None:
    """The totals of one queue in a row: outcomes, buckets, seconds. None if they have another form.

    A worker of another version may have other buckets.
    """
    if not isinstance(document, Mapping):
        return None
    outcomes, buckets = document.get("outcomes"), document.get("buckets")
    seconds = document.get("seconds")
    if not isinstance(outcomes, Mapping) or not isinstance(buckets, list | tuple):
        return None
    found = (*(outcomes.get(each, 0) for each in OUTCOMES), *buckets, seconds)
    is_whole = len(found) == len(OUTCOMES) + len(BOUNDS) + 2
    return found if is_whole and all(type(each) in (int, float) for each in found) else None
