"""Sends a dead-lettered job back with other arguments, as a new job that names the old one.

The old job ends as cancelled, its history names the new one, and both changes are one commit: after
a crash there are both or neither. A job is sent back in this way once. A caller that repeats the
request, because the answer was lost, gets the same new job if it names that job's id, and otherwise
an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ergon_framework.core.job import EDITED, EditRequested, InvalidTransition
from ergon_framework.errors import DuplicateJobError, JobStateError
from ergon_framework.jobs.admin import MAX_CONFLICTS, key_holder, too_busy
from ergon_framework.jobs.newjob import new_id, new_job
from ergon_framework.jobs.payload_codec import PayloadCodec, encoding_of
from ergon_framework.jobs.payload_codec_store import decoded_job, loaded_job
from ergon_framework.jobs.results import found
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.erasure import is_erased
from ergon_framework.jobs.views import entries
from ergon_framework.ports.job_options import Handlers
from ergon_framework.ports.jobstore import EnqueueResult, FullJobStore, Job, NewJob
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.urls import option_for, pasteable
from ergon_framework.telemetry.notices import emit

ORIGIN = "edited_from"
"""The name in the new job's metadata under which the id of the old job is stored."""
_KEPT = (
    *("queue", "priority", "timeout", "max_attempts", "max_deliveries", "retry"),
    *("unique_key", "unique", "limit_key", "limit", "result_ttl", "correlation_id"),
    *("trace_context", "tags"),
)
"""What the new job takes over from the old one. Expiry and due time are not among it: the old
expiry is over, and the new job is due now.
"""
_decode = msgspec.json.decode


class JobEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What to change, who asks, and the id of the new job."""

    args: Sequence[Any] | None = None  # None: those of the old job
    kwargs: Mapping[str, Any] | None = None  # the same
    by: str = ""
    reason: str = ""
    new_id: str | None = None  # None: one is made


def edit_and_requeue(
    store: FullJobStore,
    settler: Settler,
    codec: PayloadCodec,
    handlers: Handlers | None,
    job_id: str,
    edit: JobEdit,
    max_payload: int,
) -> EnqueueResult:
    """End a dead-lettered job and store another one in its place, in one commit."""
    # Made once: a repeated attempt must not store a second job.
    wanted = edit.new_id or new_id()

    def attempt() -> EnqueueResult:
        job = found(store, job_id)
        became = became_of(job)
        if became is not None and became == edit.new_id:
            return EnqueueResult(became, False)
        _refuse(store, job, became)
        job = _readable(job, codec)
        made = _replacement(job, handlers, edit, wanted, max_payload)
        request = EditRequested(wanted, edit.by, edit.reason)
        try:
            settlement = settler.settle_stored(job, request, store.now())
        except InvalidTransition as error:
            raise _cannot(store, job, became) from error
        try:
            is_replaced = store.replace(settlement, made)
        except DuplicateJobError:
            _ask_again_if_edited(store, job_id)
            raise
        if is_replaced:
            emit("job.edited", job_id=job.id, became=wanted, by=edit.by)
            emit("job.enqueued", job_id=wanted, handler=made.handler, queue=made.queue)
            return EnqueueResult(wanted, True)
        _ask_again_if_edited(store, job_id)
        holder = key_holder(store, job)
        if holder is not None:
            raise DuplicateJobError(
                f"the job {job.id} cannot come back: {holder} holds its unique key now",
                remedy="wait for that one, or cancel it; then try again",
                details={"job_id": job.id, "unique_key": job.unique_key, "id": holder},
            )
        raise ConflictError

    return retry_conflicts(attempt, max_attempts=MAX_CONFLICTS, give_up=lambda: too_busy(job_id))


def _ask_again_if_edited(store: FullJobStore, job_id: str) -> None:
    """Raise an error that makes the caller read again, if another caller has just sent the job
    back: then the job that holds its unique key is the one that it became.
    """
    if became_of(found(store, job_id)) is not None:
        raise ConflictError


def became_of(job: Job) -> str | None:
    """The id of the job that was stored in place of this one; None if it was not edited."""
    found = [each for each in entries(job) if each.get("event") == EDITED]
    return str(found[-1].get("became")) if found and job.why == EDITED else None


def latest_of(store: FullJobStore, job_id: str) -> Job:
    """Follow the edits of a job to the one that it has become in the end."""
    job = found(store, job_id)
    while (became := became_of(job)) is not None:
        job = found(store, became)
    return job


def origin_of(job: Job) -> str | None:
    """The id of the job in whose place this one was stored."""
    return (job.metadata or {}).get(ORIGIN)


def _refuse(store: FullJobStore, job: Job, became: str | None) -> None:
    details = {"job_id": job.id, "status": job.status.value}
    if is_erased(job):
        raise JobStateError(
            f"the job {job.id} was erased: it has no arguments to be edited",
            remedy="enqueue it again with its arguments",
            details=details,
        )
    if became is not None:
        raise _cannot(store, job, became)
    if job.step is not None:
        requeue = pasteable("jobs requeue", job.id, option_for(store))
        raise JobStateError(
            f"the job {job.id} is a step of the flow {job.step.flow_id}, whose other steps count on"
            " it: it cannot become another job",
            remedy=f"enqueue the flow anew, or send the step back as it is:  {requeue}",
            details={**details, "flow_id": job.step.flow_id},
        )


def _cannot(store: FullJobStore, job: Job, became: str | None) -> JobStateError:
    details = {"job_id": job.id, "status": job.status.value}
    remedy = "only a dead-lettered job can"
    if became is not None:
        show = pasteable("jobs show", became, option_for(store))
        remedy = f"it was sent back as {became}, and this shows it:  {show}"
        details["became"] = became
    what = f"the job {job.id} is {job.status} and cannot be edited"
    return JobStateError(what, remedy=remedy, details=details)


def _readable(job: Job, codec: PayloadCodec) -> Job:
    """The job with plain arguments. Refused if that needs a key or an object that is missing.

    It is refused even when all arguments are given anew: they would be stored unencrypted.
    """
    loaded, problems = loaded_job(job, codec)
    # A payload that is only compressed can be read without a key.
    loaded = decoded_job(loaded, codec)
    if encoding_of(loaded.args) is None:
        return loaded
    raise JobStateError(
        f"the arguments of the job {job.id} cannot be read here:"
        f" {problems.get('args', 'they are encrypted')}",
        remedy="give this process the keys and the object store of the workers, under [jobs.codec]",
        details={"job_id": job.id, "status": job.status.value},
    )


def _replacement(
    job: Job, handlers: Handlers | None, edit: JobEdit, wanted: str, max_payload: int
) -> NewJob:
    args = _decode(job.args) if edit.args is None else edit.args
    kwargs = _decode(job.kwargs) if edit.kwargs is None else edit.kwargs
    if handlers is not None:
        call = handlers.job_call(job.handler, args, kwargs)
        args, kwargs = call.args, call.kwargs
    made = new_job(job.handler, args, kwargs, max_payload=max_payload, id=wanted)
    kept = {name: getattr(job, name) for name in _KEPT}
    # After the check of the metadata: full metadata must not prevent a job from being corrected.
    metadata = {**(job.metadata or {}), ORIGIN: job.id}
    return msgspec.structs.replace(made, **kept, metadata=metadata)
