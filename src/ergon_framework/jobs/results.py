"""Waiting for a job's end, woken by the store and never busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobFailedError, JobNotFoundError, ResultTimeoutError
from ergon_framework.jobs.shape import decoded, error_shape
from ergon_framework.ports.jobstore import Job, JobStore, Topic

APART = 0.005
"""Seconds between two looks at the store: in a busy one, jobs end all the time."""
POLL = 1.0
"""Seconds after which one looks without having been woken."""


def wait_for(
    store: JobStore,
    job_id: str,
    timeout: float | None,
    poll: float = POLL,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Job:
    """The job in its final state."""
    job = found(store, job_id)
    if job.status.is_final:
        return job
    until = None if timeout is None else now() + timeout
    with closing(store.listen(Topic.DONE)) as bell:
        while True:
            looked_at = now()
            job = found(store, job_id)  # after the bell is there, so that no end is missed
            if job.status.is_final:
                return job
            left = poll if until is None else min(poll, until - now())
            if left <= 0:
                raise timed_out(job, timeout)
            if bell.wait(left):
                sleep(max(0.0, min(looked_at + APART - now(), left)))


def found(store: JobStore, job_id: str) -> Job:
    """The job of that id."""
    job = store.find(job_id)
    if job is None:
        raise not_found(job_id)
    return job


def result_of(job: Job) -> Any:
    """What a completed job returned; raises JobFailedError for one that ended otherwise."""
    if job.status is JobStatus.COMPLETED:
        return None if job.result is None else decoded(job.result)
    is_cancelled = job.status is JobStatus.CANCELLED
    failure = job.last_error
    if is_cancelled or failure is None:
        failure = Failure(Kind.CANCELLED if is_cancelled else Kind.DEFECT, job.status.value)
    how = "was cancelled" if is_cancelled else f"failed: {failure.message or failure.code}"
    details = {"job_id": job.id, "status": job.status.value, **error_shape(failure)}
    remedy = f"ergon why {job.id} tells more"
    raise JobFailedError(f"the job {job.id} {how}", remedy=remedy, details=details)


def not_found(job_id: str) -> JobNotFoundError:
    """There is no such job."""
    return JobNotFoundError(
        f"there is no job {job_id!r}",
        remedy="look for its id with ergon jobs list; ended jobs are kept for a while only",
        details={"job_id": job_id},
    )


def timed_out(job: Job, timeout: float | None) -> ResultTimeoutError:
    """The job goes on, but nobody waits for it any longer."""
    return ResultTimeoutError(
        f"the job {job.id} is still {job.status} after {timeout:g} seconds",
        remedy="wait longer; the job goes on",
        details={"job_id": job.id, "status": job.status.value},
    )
