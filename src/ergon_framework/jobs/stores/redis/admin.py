"""Searches of a Redis job store, read in pages, and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.documents import has_error, has_labels
from ergon_framework.jobs.stores.redis.rows import NUMBERS, STATUSES
from ergon_framework.ports.jobstore import Job, Search

PAGE_SIZE = 200
"""Jobs that are looked at together; those that do not match by their rows are not sent."""
_END = 2**53  # above all numbers: Redis keeps them as scores, which are exact up to here
_INDEXED = frozenset({JobStatus.RETRYING, JobStatus.FAILED, JobStatus.CANCELLED})


class LookAt(Protocol):
    """Reads some jobs, and says where to go on."""

    def __call__(
        self,
        where: str,
        which: list[str] | int | None,
        most: int = 0,
        wanted: tuple[Any, ...] | None = None,
    ) -> tuple[list[Job], int | None]:
        """See ``Transitions.look_at``."""


Running = Callable[[], list[bytes]]
"""The tags of running jobs: the number of each in 8 bytes, and its id."""


def search(look_at: LookAt, running: Running, wanted: Search, limit: int | None) -> Iterator[Job]:
    """Matching jobs, the newest first; between pages nothing of the store is held."""
    found = _found(look_at, running, wanted)
    left = _END if limit is None else limit
    while left > 0 and (job := next(found, None)) is not None:
        yield job
        left -= 1


def count_in(counts: Iterable[tuple[str, bytes]], wanted: Search) -> int | None:
    """How many match, where the counts by status and queue tell; None where they do not."""
    if wanted.ids or wanted.below is not None or wanted.flow is not None or wanted.is_released:
        return None
    if not (wanted.handler is None and wanted.code is None and wanted.before is None):
        return None
    if wanted.labels or (wanted.error, wanted.since, wanted.until) != (None, None, None):
        return None
    number = 0
    for name, value in counts:
        status, _, queue = name.partition(":")
        if wanted.statuses and STATUSES[int(status)] not in wanted.statuses:
            continue
        if wanted.queue is None or queue == wanted.queue:
            number += int(value)
    return number


def _found(look_at: LookAt, running: Running, wanted: Search) -> Iterator[Job]:
    below = _END if wanted.below is None else wanted.below
    statuses = [NUMBERS[status] for status in wanted.statuses]
    must = (
        *(statuses or None, wanted.queue, wanted.before, None, wanted.is_released),
        *(wanted.since, wanted.until),
    )
    if wanted.ids:
        jobs, _ = look_at("ids", list(dict.fromkeys(wanted.ids)), 0, must)
        jobs.sort(key=lambda job: -job.key)
        yield from (job for job in jobs if job.key < below and _matches(job, wanted))
        return
    if wanted.statuses == (JobStatus.ACTIVE,) and wanted.flow is None and not wanted.labels:
        ids = _ids_below(running(), below)
        for first in range(0, len(ids), PAGE_SIZE):
            jobs, _ = look_at("ids", ids[first : first + PAGE_SIZE], 0, must)
            yield from (job for job in jobs if _matches(job, wanted))
        return
    where, next_below = _place(wanted), below
    while next_below is not None:
        jobs, next_below = look_at(where, next_below, PAGE_SIZE, must)
        yield from (job for job in jobs if _matches(job, wanted))


def _ids_below(tags: Iterable[bytes], below: int) -> list[str]:
    """The ids of the jobs with a smaller number, the newest first."""
    smaller = (tag for tag in tags if int.from_bytes(tag[:8]) < below)
    return [tag[8:].decode() for tag in sorted(smaller, reverse=True)]


def _place(wanted: Search) -> str:
    """The index to read, so that few jobs have to be read."""
    if wanted.flow is not None:
        return f"flow:{wanted.flow}"
    if wanted.labels:
        return f"tag:{wanted.labels[0]}"
    if len(wanted.statuses) == 1 and wanted.statuses[0] in _INDEXED:
        return str(NUMBERS[wanted.statuses[0]])
    return "all"


def _matches(job: Job, wanted: Search) -> bool:
    """What the scripts do not look at."""
    if wanted.flow is not None and (job.step is None or job.step.flow_id != wanted.flow):
        return False
    if wanted.is_released and job.step is not None and job.step.join_id is not None:
        return False
    if wanted.handler is not None and job.handler != wanted.handler:
        return False
    if not has_labels(job, wanted) or not has_error(job.last_error, wanted):
        return False
    return wanted.code is None or (
        job.last_error is not None and job.last_error.code == wanted.code
    )
