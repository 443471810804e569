"""What people ask of jobs that are there already: to be cancelled, to run now, to begin anew.

The core decides what the job's state allows; the store applies it if nobody was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from ergon_framework.core.job import CancelAsked, JobStatus, Refused, RequeueAsked, RunAsked
from ergon_framework.errors import DuplicateJobError, JobStateError
from ergon_framework.jobs.claims import Judgement
from ergon_framework.jobs.results import found
from ergon_framework.ports.jobstore import Job, JobDesk, JobStore, ScheduleStore, Search
from ergon_framework.telemetry.notices import tell

T = TypeVar("T")
Progress = Callable[[int], object]
Asked = CancelAsked | RunAsked | RequeueAsked

RACES = 100
"""How often a job may be moved by somebody else before we give up."""
BATCH = 500
"""Jobs that are moved or purged in one commit."""
_REFUSED = {
    CancelAsked: ("cannot be cancelled", "only a job that waits can be cancelled"),
    RunAsked: ("cannot be run again", "only a job that waits, failed or was cancelled can"),
    RequeueAsked: ("cannot be requeued", "only a dead-lettered job can"),
}


class Store(JobStore, JobDesk, ScheduleStore, Protocol):
    """A store that serves all three ports.

    One that also has ``holder(unique_key)``, which answers the id of the job that holds the key,
    lets us say why a job cannot come back.
    """


class Requeued(NamedTuple):
    """How many jobs were sent back, and how many not because others hold their unique keys."""

    done: int
    held: int


def ask(store: Store, judgement: Judgement, job_id: str, asked: Asked) -> JobStatus:
    """Move one job; answers the state it was in before."""
    for _ in range(RACES):
        job = found(store, job_id)
        try:
            settlement = judgement.decided(job, asked, store.now())
        except Refused as error:
            what, remedy = _REFUSED[type(asked)]
            raise JobStateError(
                f"the job {job.id} is {job.status} and {what}",
                remedy=remedy,
                details={"job_id": job.id, "status": job.status.value},
            ) from error
        (is_applied,), _ = store.exchange([settlement], None)
        if is_applied:
            is_cancelled = isinstance(asked, CancelAsked)
            tell("job.cancelled" if is_cancelled else "job.requeued", job_id=job.id)
            return job.status
        holder = _holder(store, job)
        if holder is not None:
            raise DuplicateJobError(
                f"the job {job.id} cannot come back: {holder} holds its unique key now",
                remedy="wait for that one, or cancel it; then try again",
                details={"job_id": job.id, "unique_key": job.unique_key, "id": holder},
            )
    raise JobStateError(
        f"the job {job_id} is moved by somebody else all the time", remedy="try again later"
    )


def _holder(store: Store, job: Job) -> str | None:
    """The id of another job that holds the unique key of one that has ended."""
    holder_of: Any = getattr(store, "holder", None)
    if job.unique_key is None or not job.status.is_final or holder_of is None:
        return None
    holder: str | None = holder_of(job.unique_key)
    return None if holder == job.id else holder


def requeue_all(
    store: Store, judgement: Judgement, search: Search, limit: int | None, progress: Progress
) -> Requeued:
    """Send every matching dead-lettered job back. Those moved meanwhile are left."""
    done = held = 0
    for batch in _batches(store.search(search, limit)):
        now = store.now()
        dead = [job for job in batch if job.status is JobStatus.FAILED]
        settlements = [judgement.decided(job, RequeueAsked(), now) for job in dead]
        applied, _ = store.exchange(settlements, None)
        done += sum(applied)
        for job, is_applied in zip(dead, applied, strict=True):
            if is_applied:
                tell("job.requeued", job_id=job.id)
        left = [job for job, is_applied in zip(dead, applied, strict=True) if not is_applied]
        held += sum(_holder(store, job) is not None for job in left)
        progress(done)
    return Requeued(done, held)


def purge_all(store: Store, search: Search, limit: int | None, progress: Progress) -> int:
    """Delete every matching job that has ended; how many."""
    done = 0
    for batch in _batches(store.search(search, limit)):
        done += store.purge([job for job in batch if job.status.is_final])
        progress(done)
    if done:
        tell("dead_letters.purged", kind="job", count=done)
    return done


def _batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    return batches(jobs, BATCH)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many items, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
