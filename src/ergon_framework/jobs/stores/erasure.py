"""What is left of a job that was erased: when and how it ended, and nothing of its subject."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.ports.flow import used_ids
from ergon_framework.ports.jobstore import Job, JobAdmin, Search

ERASED = "erased"
"""The last event in the history of a job that was erased."""
_KEPT = frozenset(
    {
        *("at", "event", "status", "attempt", "delivery", "worker", "lost_by", "seconds", "delay"),
        *("kind", "code", "why"),
    }
)
"""Fields of a history that are chosen by programs, and not by what a job is about."""
_AT_ONCE = 500  # jobs that are looked for together
_MARK = b'"event":"%b"' % ERASED.encode()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


def erased(job: Job, now: float) -> Job:
    """The same job without arguments, result, messages, tags, metadata, keys and lineage."""
    failure = job.last_error
    entry = {"at": format_rfc3339(now), "event": ERASED, "status": job.status.value}
    return msgspec.structs.replace(
        job,
        args=b"[]",
        kwargs=b"{}",
        result=None,
        uses=None,
        unique=None,
        unique_key=None,
        limit_key=None,
        correlation_id=None,
        trace_context=None,
        tags=(),
        metadata=None,
        last_error=None if failure is None else replace(failure, message=""),
        history=(*filter(None, map(_without_texts, job.history)), _encode(entry)),
    )


def is_erased(job: Job) -> bool:
    """Whether nothing is left of it that could be run again."""
    return bool(job.history) and _MARK in job.history[-1]


def missing_for_retry(
    store: JobAdmin, flow_id: str, *, is_skip: bool = False
) -> tuple[str, str] | None:
    """A step that was erased, and the step of the flow that cannot run again without it.

    Both are one where the step itself has lost its arguments. None: nothing is missing. With
    ``is_skip`` the steps that failed do not run again, so that what they use is not asked for.
    """
    users: dict[str, str] = {}
    badly = (JobStatus.FAILED, JobStatus.CANCELLED)
    for step in store.search(Search(flow=flow_id, statuses=badly)):
        if is_erased(step):
            return step.id, step.id
        if is_skip and step.status is JobStatus.FAILED:
            continue
        for _, source in step.uses or ():
            for used in used_ids(source, flow_id):
                users.setdefault(used, step.id)
    erased_one = erased_among(store, users)
    return None if erased_one is None else (erased_one.id, users[erased_one.id])


def erased_among(store: JobAdmin, ids: Iterable[str]) -> Job | None:
    """One of these jobs that has completed, and was erased."""
    rest = iter(ids)
    while some := tuple(islice(rest, _AT_ONCE)):
        for job in store.search(Search(ids=some, statuses=(JobStatus.COMPLETED,))):
            if is_erased(job):
                return job
    return None


def _without_texts(entry: bytes) -> bytes | None:
    """An entry of a history without what people and handlers wrote; None: it cannot be read."""
    try:
        found = _decode(entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return _encode({name: value for name, value in found.items() if name in _KEPT})
