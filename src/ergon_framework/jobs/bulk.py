"""Cancels, deletes, reschedules or requeues all jobs that match a filter.

Jobs are changed in slices. Each slice is one commit of a bounded number of rows. After a slice the
caller pauses for as long as the slice took, so that workers can claim and settle in between. A job
is changed only if it has not changed since it was read. A call that is interrupted has changed
whole slices; the same call again continues with the jobs that still match.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from ergon_framework.core.job import CancelRequested, JobStatus, RescheduleRequested
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import JobError
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.jobstore import CancelRequest, FullJobStore, Job, Search
from ergon_framework.telemetry.notices import emit

SLICE = 100
"""How many jobs one commit changes."""
MAX_REST = 1.0
"""The longest pause between two slices, in seconds."""
WAITING = (JobStatus.PENDING, JobStatus.RETRYING)
FINAL = tuple(status for status in JobStatus if status.is_final)

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class BulkChange:
    """Changes the jobs of a search, slice by slice."""

    store: FullJobStore
    settler: Settler
    search: Search
    limit: int | None = None
    progress: Progress | None = None

    def cancel(self, request: CancelRequested, *, running: bool) -> int:
        """Cancel jobs that wait, or also ask for the end of jobs that run; returns how many."""
        statuses = (*WAITING, JobStatus.ACTIVE) if running else WAITING
        return self._in_slices(statuses, "cancelled", lambda jobs: self._cancel(jobs, request))

    def reschedule(self, run_at: float) -> int:
        """Change when jobs that wait are due; returns how many."""
        return self._in_slices(WAITING, "rescheduled", lambda jobs: self._reschedule(jobs, run_at))

    def delete(self) -> int:
        """Delete jobs that have ended; returns how many. Steps of a flow stay as long as their
        flow.
        """
        done = self._in_slices(FINAL, "deleted", self.store.purge)
        if done:
            emit("jobs.deleted", count=done)
        return done

    def _cancel(self, jobs: Sequence[Job], request: CancelRequested) -> int:
        now = self.store.now()
        waiting = [job for job in jobs if job.status is not JobStatus.ACTIVE]
        settlements = [self.settler.settle_stored(job, request, now) for job in waiting]
        applied, _ = self.store.settle_and_claim(settlements, None)
        for job in _chosen(waiting, applied):
            emit("job.cancelled", job_id=job.id)
        asked = CancelRequest(at=format_rfc3339(now), by=request.by, reason=request.reason)
        running = [job for job in jobs if job.status is JobStatus.ACTIVE]
        noted = [self.store.request_cancel(job, asked) for job in running]
        for job in _chosen(running, noted):
            emit("job.cancel_requested", job_id=job.id, by=request.by)
        return sum(applied) + sum(noted)

    def _reschedule(self, jobs: Sequence[Job], run_at: float) -> int:
        now = self.store.now()
        event = RescheduleRequested(max(0.0, run_at - now))
        settlements = [self.settler.settle_stored(job, event, now) for job in jobs]
        applied, _ = self.store.settle_and_claim(settlements, None)
        for job in _chosen(jobs, applied):
            emit("job.rescheduled", job_id=job.id)
        return sum(applied)

    def _in_slices(
        self,
        statuses: tuple[JobStatus, ...],
        what: str,
        change: Callable[[Sequence[Job]], int],
    ) -> int:
        done = 0
        for jobs in slices(self.store.search(narrowed(self.search, statuses, what), self.limit)):
            done += change([job for job in jobs if job.status in statuses])
            if self.progress is not None:
                self.progress(done)
        return done


def slices(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Yield the jobs that are changed together; after each slice, pause for as long as it took, but
    at most ``MAX_REST``.
    """
    rest = iter(jobs)
    while some := list(islice(rest, SLICE)):
        began_at = time.monotonic()
        yield some
        # Processes that wait for the lock of an SQLite file ask for it again after a pause. A
        # process that took the lock again at once would always be faster than they are.
        threading.Event().wait(min(time.monotonic() - began_at, MAX_REST))


def narrowed(search: Search, statuses: tuple[JobStatus, ...], what: str) -> Search:
    """The same search, limited to jobs that can be changed in this way."""
    wanted = tuple(each for each in statuses if not search.statuses or each in search.statuses)
    if not wanted:
        raise JobError(
            f"a job that is {search.statuses[0]} cannot be {what}",
            remedy=f"leave the status out, or give {', '.join(statuses)}",
            details={"field": "status"},
        )
    return msgspec.structs.replace(search, statuses=wanted)


def _chosen(jobs: Iterable[Job], applied: Iterable[bool]) -> list[Job]:
    return [job for job, is_applied in zip(jobs, applied, strict=True) if is_applied]
