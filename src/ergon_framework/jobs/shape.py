"""A job as plain values: the one shape in which jobs leave the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ergon_framework.core.failure import Failure
from ergon_framework.core.job import route
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.jobstore import Job

SILENT = 60.0
"""Seconds after which a worker that has told nothing counts as gone."""
_decode = msgspec.json.decode


def job_shape(job: Job, settings: JobsSettings) -> dict[str, Any]:
    """Everything there is to know about a job; what it leaves open is as the settings say."""
    rule = settings.rule(job.max_attempts, job.max_deliveries)
    return {
        "id": job.id,
        "status": job.status.value,
        "handler": job.handler,
        "executor": executor_of(job, settings) or None,
        "queue": job.queue,
        "attempts": job.attempts,
        "max_attempts": rule.retry.attempts,
        "deliveries": job.deliveries,
        "max_deliveries": rule.max_deliveries,
        "excused": job.excused,
        "priority": job.priority,
        "args": decoded(job.args),
        "kwargs": decoded(job.kwargs),
        "result": None if job.result is None else decoded(job.result),
        "last_error": None if job.last_error is None else error_shape(job.last_error),
        "why": job.why or None,
        "history": list(entries(job)),
        "created_at": moment(job.created_at),
        "run_at": moment(job.run_at),
        "claimed_at": moment(job.claimed_at),
        "lease_expires_at": moment(job.lease_expires_at),
        "finished_at": moment(job.finished_at),
        "expires_at": moment(job.expires_at),
        "purge_at": moment(job.purge_at),
        "timeout": settings.timeout if job.timeout is None else job.timeout,
        "retry": None if job.retry is None else decoded(job.retry),
        "worker": job.worker,
        "unique_key": job.unique_key,
        "limit_key": job.limit_key,
        "limit": job.limit if job.limit_key is not None else None,
        "correlation_id": job.correlation_id,
        "trace_context": job.trace_context,
    }


def executor_of(job: Job, settings: JobsSettings) -> str:
    """The executor that runs a job: the one it names, its queue's, or the default."""
    named = job.executor or route(job.handler)[0]
    return named or settings.routes.get(job.queue) or settings.default_executor


def error_shape(failure: Failure) -> dict[str, str]:
    """A failure's kind, code and message."""
    return {"kind": failure.kind.value, "code": failure.code, "message": failure.message}


def entries(job: Job) -> Iterator[dict[str, Any]]:
    """The job's history, the oldest event first."""
    for line in job.history:
        entry = decoded(line)
        yield entry if isinstance(entry, dict) else {"event": "unreadable"}


def last_told(job: Job, name: str) -> dict[str, Any] | None:
    """The last event of the job's history that tells this, if that is one of its latest life."""
    latest: dict[str, Any] | None = None
    for entry in entries(job):
        if entry.get("event") in ("requeued", "completed"):
            latest = None
        elif entry.get(name):
            latest = entry
    return latest


def moment(at: float | None) -> str | None:
    """An instant as RFC 3339 text."""
    return None if at is None else format_rfc3339(at)


def decoded(text: bytes) -> Any:
    """The value of stored JSON; None for bytes that no version of Ergon has written."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
