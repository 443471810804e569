"""Many jobs at once: cancelled, deleted, rescheduled or sent back, by a filter.

Jobs are changed in slices. Each is one commit of a bounded number of rows, and after it whoever
changes them rests for as long as it took: workers claim and settle between two slices. A job is
changed only if it still is as it was read. Whoever is stopped in the middle has changed whole
slices; the same call again goes on with what still matches.
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
"""Jobs that are changed in one commit."""
MAX_REST = 1.0
"""Seconds between two slices at most."""
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
        """Cancel those that wait, or also ask for the end of those that run; how many."""
        statuses = (*WAITING, JobStatus.ACTIVE) if running else WAITING
        return self._in_slices(statuses, "cancelled", lambda jobs: self._cancel(jobs, request))

    def reschedule(self, run_at: float) -> int:
        """Let those that wait be due at another instant; how many."""
        return self._in_slices(WAITING, "rescheduled", lambda jobs: self._reschedule(jobs, run_at))

    def delete(self) -> int:
        """Delete those that have ended; how many. Steps stay as long as their flow."""
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
    """Jobs that are changed together; after each slice there is a rest as long as it took."""
    rest = iter(jobs)
    while some := list(islice(rest, SLICE)):
        began_at = time.monotonic()
        yield some
        # Another process that waits for the lock of a file looks again now and then: whoever takes
        # it again at once would be faster every time.
        threading.Event().wait(min(time.monotonic() - began_at, MAX_REST))


def narrowed(search: Search, statuses: tuple[JobStatus, ...], what: str) -> Search:
    """The same search among jobs that can be changed so."""
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
