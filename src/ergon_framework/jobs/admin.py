"""Cancel, retry, requeue and purge jobs of a store, for clients and operators.

Whether a job may be cancelled, run now or requeued is decided by the core from the job's state; the
store applies the decision if the job has not changed since it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ergon_framework.core.job import (
    CancelRequested,
    InvalidTransition,
    JobStatus,
    RequeueRequested,
    RescheduleRequested,
    RunRequested,
)
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import DuplicateJobError, JobStateError
from ergon_framework.jobs.bulk import slices
from ergon_framework.jobs.flow_client import found_flow
from ergon_framework.jobs.results import found
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.erasure import is_erased
from ergon_framework.ports.jobstore import CancelRequest, FullJobStore, Job, Search
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.urls import option_for, pasteable
from ergon_framework.telemetry.notices import emit

T = TypeVar("T")
Progress = Callable[[int], object]
Request = CancelRequested | RunRequested | RescheduleRequested | RequeueRequested

MAX_CONFLICTS = 100
"""How many times a request is repeated because the job changed between the read and the write."""
_REFUSED = {
    CancelRequested: ("cannot be cancelled", "only a job that waits can be cancelled"),
    RunRequested: ("cannot be run again", "only a job that waits, failed or was cancelled can"),
    RescheduleRequested: ("cannot be rescheduled", "only a job that waits can"),
    RequeueRequested: ("cannot be requeued", "only a dead-lettered job can"),
}
_NOTICES = {CancelRequested: "job.cancelled", RescheduleRequested: "job.rescheduled"}


class Requeued(NamedTuple):
    """How many jobs were sent back, and how many were not because other jobs hold their unique
    keys.
    """

    done: int
    held: int


def request_transition(
    store: FullJobStore, settler: Settler, job_id: str, request: Request
) -> JobStatus:
    """Apply the request of a client or operator to one job. Returns the state that the job was in
    before.
    """

    def attempt() -> JobStatus:
        job = found(store, job_id)
        _refuse_bound(store, job, request)
        try:
            settlement = settler.settle_stored(job, request, store.now())
        except InvalidTransition as error:
            what, remedy = _REFUSED[type(request)]
            if isinstance(request, CancelRequested) and job.status is JobStatus.ACTIVE:
                command = pasteable("jobs cancel --running", job.id, option_for(store))
                remedy = f"cancel(running=True) asks its worker to end it, and so does:  {command}"
            elif is_erased(job):
                what, remedy = f"was erased: it {what}", "enqueue it again with its arguments"
            raise JobStateError(
                f"the job {job.id} is {job.status} and {what}",
                remedy=remedy,
                details={"job_id": job.id, "status": job.status.value},
            ) from error
        (is_applied,), _ = store.settle_and_claim([settlement], None)
        if is_applied:
            emit(_NOTICES.get(type(request), "job.requeued"), job_id=job.id)
            return job.status
        holder = key_holder(store, job)
        if holder is not None:
            raise DuplicateJobError(
                f"the job {job.id} cannot come back: {holder} holds its unique key now",
                remedy="wait for that one, or cancel it; then try again",
                details={"job_id": job.id, "unique_key": job.unique_key, "id": holder},
            )
        raise ConflictError

    return retry_conflicts(attempt, max_attempts=MAX_CONFLICTS, give_up=lambda: too_busy(job_id))


def request_cancel(
    store: FullJobStore, settler: Settler, job_id: str, request: CancelRequested
) -> JobStatus:
    """Cancel a job that waits, or ask its worker to end it. Returns the state that the job was in
    before.
    """

    def attempt() -> JobStatus:
        job = found(store, job_id)
        if job.status is not JobStatus.ACTIVE:
            return request_transition(store, settler, job_id, request)
        asked = CancelRequest(at=format_rfc3339(store.now()), by=request.by, reason=request.reason)
        if not store.request_cancel(job, asked):
            raise ConflictError
        emit("job.cancel_requested", job_id=job.id, by=request.by)
        return job.status

    def is_moved(error: Exception) -> bool:
        """Whether the job began to run, or came back to its queue, between the two reads."""
        status = error.details.get("status") if isinstance(error, JobStateError) else None
        return isinstance(error, ConflictError) or status == JobStatus.ACTIVE

    return retry_conflicts(
        attempt, max_attempts=MAX_CONFLICTS, give_up=lambda: too_busy(job_id), is_conflict=is_moved
    )


def too_busy(job_id: str) -> JobStateError:
    """The error for a job that changed between the read and the write in every attempt."""
    return JobStateError(
        f"the job {job_id} is moved by somebody else all the time", remedy="try again later"
    )


def _refuse_bound(store: FullJobStore, job: Job, request: Request) -> None:
    """Refuse what a single step of a flow cannot do: start before its turn, or start in a stopped
    flow.
    """
    step = job.step
    if step is None or isinstance(request, CancelRequested):
        return
    is_waiting = job.status is JobStatus.PENDING and (step.join_id or step.signal)
    if is_waiting:
        what = "waits for other steps" if step.join_id else f"waits for the signal {step.signal!r}"
        why = pasteable("why", job.id, option_for(store))
        remedy = f"this tells more:  {why}"
    elif job.status.is_final and found_flow(store, step.flow_id).status.is_stopping:
        what = "belongs to a flow that was stopped"
        retry = pasteable("flows retry", step.flow_id, option_for(store))
        remedy = f"this lets the flow go on:  {retry}"
    else:
        return
    details = {"job_id": job.id, "flow_id": step.flow_id, "status": job.status.value}
    raise JobStateError(f"the job {job.id} {what}", remedy=remedy, details=details)


def key_holder(store: FullJobStore, job: Job) -> str | None:
    """The id of another job that holds the unique key of one that has ended."""
    holder_of: Any = getattr(store, "holder", None)
    if job.unique_key is None or not job.status.is_final or holder_of is None:
        return None
    holder: str | None = holder_of(job.unique_key)
    return None if holder == job.id else holder


def requeue_all(
    store: FullJobStore,
    settler: Settler,
    search: Search,
    limit: int | None,
    progress: Progress,
    request: RequeueRequested,
) -> Requeued:
    """Send every matching dead-lettered job back. Jobs that changed meanwhile are left alone."""
    done = held = 0
    for batch in slices(store.search(search, limit)):
        now = store.now()
        dead = [job for job in batch if job.status is JobStatus.FAILED and not is_erased(job)]
        settlements = [settler.settle_stored(job, request, now) for job in dead]
        applied, _ = store.settle_and_claim(settlements, None)
        done += sum(applied)
        for job, is_applied in zip(dead, applied, strict=True):
            if is_applied:
                emit("job.requeued", job_id=job.id)
        left = [job for job, is_applied in zip(dead, applied, strict=True) if not is_applied]
        held += sum(key_holder(store, job) is not None for job in left)
        progress(done)
    return Requeued(done, held)


def purge_all(store: FullJobStore, search: Search, limit: int | None, progress: Progress) -> int:
    """Delete every matching job that has ended. Returns how many."""
    done = 0
    for batch in slices(store.search(search, limit)):
        done += store.purge([job for job in batch if job.status.is_final])
        progress(done)
    if done:
        emit("dead_letters.purged", kind="job", count=done)
    return done


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of this length; the last list may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
