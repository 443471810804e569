"""What is left of a job that was erased: when and how it ended, and nothing of its subject."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.ports.jobstore import Job

ERASED = "erased"
"""The last event in the history of a job that was erased."""
_KEPT = frozenset(
    {
        *("at", "event", "status", "attempt", "delivery", "worker", "lost_by", "seconds", "delay"),
        *("kind", "code", "why"),
    }
)
"""Fields of a history that are chosen by programs, and not by what a job is about."""
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


def _without_texts(entry: bytes) -> bytes | None:
    """An entry of a history without what people and handlers wrote; None: it cannot be read."""
    try:
        found = _decode(entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return _encode({name: value for name, value in found.items() if name in _KEPT})
