"""Rows of the job table, and what the rest of the product sees of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec

from ergon_framework.core.failure import Failure
from ergon_framework.core.instants import format_instant
from ergon_framework.core.job import JobStatus, Move
from ergon_framework.ports.jobstore import Job, Leased, NewJob
from ergon_framework.storage.statements import load

SQL = "ergon_framework.jobs.stores.sql"

Candidate = tuple[Any, ...]
"""A row of the statement ``candidates``, whose first columns are what :func:`leased` needs."""

ENDED, RUNNING, DUE, LATER, BLOCKED = range(5)
"""The stages of a job; the schema says what each means."""

_SQL = load(SQL, "jobs.sql")
_AS_THEY_ARE = (
    *("id", "handler", "executor", "queue", "priority", "created_at", "run_at", "expires_at"),
    *("unique_key", "limit_key", "attempts", "deliveries", "excused", "fence", "why", "worker"),
    *("claimed_at", "lease_expires_at", "purge_at", "result"),
)


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job may ask of its worker; the store does not look at it."""

    timeout: float | None = None
    max_attempts: int | None = None
    max_deliveries: int | None = None
    retry: str | None = None
    result_ttl: float | None = None
    correlation_id: str | None = None
    trace_context: dict[str, str] | None = None

    @classmethod
    def of(cls, job: NewJob) -> Options:
        """Those of a new job."""
        return cls(
            job.timeout,
            job.max_attempts,
            job.max_deliveries,
            None if job.retry is None else job.retry.decode(),
            job.result_ttl,
            job.correlation_id,
            job.trace_context,
        )


NO_OPTIONS = Options()
_encode = msgspec.json.Encoder().encode
_failure = msgspec.json.Decoder(Failure).decode
_options = msgspec.json.Decoder(Options).decode

# Binding bytes, None or a bool costs the sqlite3 module several times as much as binding a
# bytearray, a str or a number. On hot paths only the latter are bound.


def text_of(value: Any) -> str:
    """JSON, to be stored as text."""
    return _encode(value).decode()


def payload(cursor: sqlite3.Cursor, seq: int) -> tuple[bytes, bytes]:
    """Arguments that are too large to stand in the job's own row."""
    args, kwargs = cursor.execute(_SQL["payload"], (seq,)).fetchone()
    return args, kwargs


def jobs_from(cursor: sqlite3.Cursor) -> list[Job]:
    """The jobs of a ``SELECT *`` that was just executed."""
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()  # all, for the cursor is used again to get large arguments
    return [_job(cursor, dict(zip(names, row, strict=True))) for row in rows]


def _job(cursor: sqlite3.Cursor, row: Mapping[str, Any]) -> Job:
    args, kwargs = row["args"], row["kwargs"]
    if args is None:
        args, kwargs = payload(cursor, row["seq"])
    history = row["history"]
    options = NO_OPTIONS if row["options"] is None else _options(row["options"])
    return Job(
        key=row["seq"],
        status=JobStatus(row["status"]),
        args=args,
        kwargs=kwargs,
        limit=row["key_limit"],
        is_limited=row["stage"] == BLOCKED,
        is_charged=bool(row["is_charged"]),
        is_solo=bool(row["is_solo"]),
        finished_at=row["changed_at"] if row["stage"] == ENDED else None,
        last_error=None if row["last_error"] is None else _failure(row["last_error"]),
        timeout=options.timeout,
        max_attempts=options.max_attempts,
        max_deliveries=options.max_deliveries,
        retry=None if options.retry is None else options.retry.encode(),
        result_ttl=options.result_ttl,
        correlation_id=options.correlation_id,
        trace_context=options.trace_context,
        history=tuple(history.encode().split(b"\n")) if history else (),
        **{name: row[name] for name in _AS_THEY_ARE},
    )


def leased(cursor: sqlite3.Cursor, row: Candidate, queue: str, now: float) -> Leased:
    """A candidate as the worker that has just claimed it needs it."""
    seq, fence, job_id, handler, executor, args, kwargs = row[:7]
    attempts, deliveries, excused, is_solo, created_at, options = row[7:13]
    if args is None:
        args, kwargs = payload(cursor, seq)
    asked = NO_OPTIONS if options is None else _options(options)
    retry = asked.retry
    return Leased(
        key=seq,
        fence=fence + 1,
        id=job_id,
        handler=handler,
        executor=executor,
        queue=queue,
        args=args,
        kwargs=kwargs,
        attempts=attempts,
        deliveries=deliveries + 1,
        excused=excused,
        is_solo=is_solo == 1,
        created_at=created_at,
        claimed_at=now,
        timeout=asked.timeout,
        max_attempts=asked.max_attempts,
        max_deliveries=asked.max_deliveries,
        retry=None if retry is None else retry.encode(),
        result_ttl=asked.result_ttl,
        correlation_id=asked.correlation_id,
        trace_context=asked.trace_context,
    )


def entry_of(move: Move, deliveries: int, now: float) -> bytes:
    """What the history says of a move that the store made by itself."""
    entry = {
        "at": format_instant(now),
        "event": move.event,
        "status": move.status,
        "attempt": move.attempts,
        "delivery": deliveries,
    }
    if move.failure is not None:
        failure = move.failure
        entry |= {"kind": failure.kind, "code": failure.code, "message": failure.message}
    if move.why:
        entry["why"] = move.why
    return _encode(entry)
