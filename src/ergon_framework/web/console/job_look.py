"""Reads the state of a job store at a cost that does not grow with its jobs and queues; families of
dead letters.

``ergon top`` and ``ergon dlq`` use it, too, so nothing here needs the server, which belongs to an
extra.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from ergon_framework.core.job import JobStatus
from ergon_framework.core.text import one_line
from ergon_framework.jobs.views import error_view, moment, queue_views, unsynced, worker_view
from ergon_framework.ports.jobstore import (
    FullJobStore,
    Job,
    Queue,
    Search,
    StatusCounts,
    WorkerRecord,
    bound_for,
)
from ergon_framework.web.console.attention import JobsSeen
from ergon_framework.web.console.formatting import error_family
from ergon_framework.web.console.rates import JobRates

Row = TypeVar("Row", bound=Mapping[str, Any])
LATEST_DEAD = 100
"""How many dead-lettered jobs are read to compare their errors."""
MOST_LOOKED_AT = 200
"""How many queues are all counted."""
MOST_OF_MANY = 100
"""Where there are more queues: the first ones are counted, and those with due jobs."""
MOST_NAMED = 1_000
"""How many queue names are counted."""
MOST_COMPARED = 1000
"""How many dead-lettered jobs, the latest, are grouped by their errors."""
MAX_MESSAGE = 160
"""How many characters of an error stand for a family."""
_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)


def seen_in(store: FullJobStore, rates: JobRates) -> JobsSeen:
    """The state of a store, and what workers have done since the last read."""
    now, workers = store.now(), store.workers()
    ended = store.ended_workers()
    names = store.queue_names(limit=MOST_NAMED + 1)
    looked, is_all, are_more_due = names, len(names) <= MOST_LOOKED_AT, False
    if not is_all:
        due = store.queue_names(limit=MOST_OF_MANY + 1, is_due=True)
        are_more_due = len(due) > MOST_OF_MANY
        aside = [each.queue for each in store.unreadable(MOST_OF_MANY)]
        looked = sorted({*names[:MOST_OF_MANY], *due[:MOST_OF_MANY], *aside})
    records = store.look_at_queues(looked, most=bound_for(len(looked)))
    latest = store.search(Search(statuses=(JobStatus.FAILED,)), LATEST_DEAD)
    queues = shown_queues(store, records, workers, now)
    totals = summed(records) if is_all else store.count_by_status()
    backlog = sum(totals.counts.get(each.value, 0) for each in _WAITING)
    waits = [each["oldest_due"] for each in queues if each["oldest_due"] is not None]
    rates.note([*workers, *ended], now, backlog=backlog, oldest_due=max(waits, default=None))
    return JobsSeen(
        now,
        queues,
        [worker_view(each, now) for each in workers],
        [
            {"handler": each.handler, "last_error": _failure(each)}
            for each in islice(latest, LATEST_DEAD)
        ],
        unsynced(store),
        totals=totals,
        number=min(len(names), MOST_NAMED),
        is_all=is_all,
        are_more=len(names) > MOST_NAMED,
        are_more_due=are_more_due,
    )


def shown_queues(
    store: FullJobStore, records: Sequence[Queue], workers: Sequence[WorkerRecord], now: float
) -> list[dict[str, Any]]:
    """Queues as plain values, with how long the oldest due job of each has waited."""
    views = queue_views(records, store.named(), workers, now)
    for view, queue in zip(views, records, strict=True):
        due = queue.oldest_due_at
        view["oldest_due"] = None if due is None else round(max(0.0, now - due), 3)
    return views


def summed(queues: Iterable[Queue]) -> StatusCounts:
    """The jobs of all queues together."""
    counts: dict[str, int] = {}
    more: set[str] = set()
    for queue in queues:
        more.update(queue.more)
        for status, number in queue.counts.items():
            counts[status] = counts.get(status, 0) + number
    return StatusCounts(counts=counts, more=tuple(sorted(more)))


def totals_of(seen: JobsSeen) -> dict[str, Any]:
    """Jobs by status, and the number of queues, as plain values."""
    counts = {status.value: seen.total(status.value) for status in JobStatus}
    return {
        "counts": {status: number for status, (number, _) in counts.items()},
        "more": [status for status, (_, are_more) in counts.items() if are_more],
        "queues_in_all": len(seen.queues) if seen.number is None else seen.number,
        "are_more_queues": seen.are_more,
    }


def busiest_first(rows: Iterable[Row]) -> list[Row]:
    """Queues by how many jobs wait and run, then by dead letters: those that matter come first."""

    def backlog(queue: Mapping[str, Any]) -> tuple[int, int]:
        counts = queue["counts"]
        return counts["pending"] + counts["retrying"] + counts["active"], counts["failed"]

    return sorted(rows, key=backlog, reverse=True)


def families(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Families of jobs, the largest first. The message of a family is that of its latest job."""
    found: dict[tuple[str, str, str], _Family] = {}
    # By what a job itself says, because most jobs of a family say the same.
    known: dict[tuple[str, str, str], _Family] = {}
    for job in jobs:  # the newest first
        failure = job.last_error
        code, message = (job.why, "") if failure is None else (failure.code, failure.message)
        said = job.handler, code, message
        family = known.get(said)
        if family is None:
            family = found.setdefault(error_family(*said), _Family(job, code, message))
            known[said] = family
        family.take(job)
    return [each.view() for each in sorted(found.values(), key=lambda one: -one.number)]


class _Family:
    """Jobs that failed for the same reason."""

    def __init__(self, latest: Job, code: str, message: str) -> None:
        self._latest, self._code, self._message = latest, code, message
        self.number = 0
        self._first, self._last = math.inf, -math.inf
        self._queues: dict[str, None] = {}

    def take(self, job: Job) -> None:
        """Count one job of the family."""
        self.number += 1
        self._queues[job.queue] = None
        if job.finished_at is not None:
            self._first = min(self._first, job.finished_at)
            self._last = max(self._last, job.finished_at)

    def view(self) -> dict[str, Any]:
        """The family as plain values."""
        has_ended = self._last >= self._first
        return {
            "number": self.number,
            "handler": self._latest.handler,
            "code": self._code,
            "message": one_line(self._message)[:MAX_MESSAGE],
            "latest_id": self._latest.id,
            "last_at": moment(self._last if has_ended else None),
            "first_at": moment(self._first if has_ended else None),
            "queues": list(self._queues),
        }


def _failure(job: Job) -> dict[str, str] | None:
    return None if job.last_error is None else error_view(job.last_error)
