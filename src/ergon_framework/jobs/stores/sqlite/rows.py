"""Rows of the job table, and what the rest of the product sees of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.options import asked_of, entries_of, failure_from, options_from
from ergon_framework.jobs.stores.own_moves import BLOCKED, ENDED
from ergon_framework.ports.jobstore import Job, Leased
from ergon_framework.storage.statements import load

SQL = "ergon_framework.jobs.stores.sql"

Candidate = tuple[Any, ...]
"""A row of the statement ``candidates``, whose first columns are what :func:`leased` needs."""

_SQL = load(SQL, "jobs.sql")
_AS_THEY_ARE = (
    *("id", "handler", "executor", "queue", "priority", "created_at", "run_at", "expires_at"),
    *("unique_key", "limit_key", "attempts", "deliveries", "excused", "fence", "why", "worker"),
    *("claimed_at", "lease_expires_at", "purge_at", "result"),
)


# Binding bytes, None or a bool costs the sqlite3 module several times as much as binding a
# bytearray, a str or a number. On hot paths only the latter are bound.


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
        last_error=failure_from(row["last_error"]),
        history=entries_of(row["history"]),
        **options_from(row["options"]).fields(),
        **{name: row[name] for name in _AS_THEY_ARE},
    )


def leased(cursor: sqlite3.Cursor, row: Candidate, queue: str, now: float) -> Leased:
    """A candidate as the worker that has just claimed it needs it."""
    seq, fence, job_id, handler, executor, args, kwargs = row[:7]
    attempts, deliveries, excused, is_solo, created_at, options = row[7:13]
    if args is None:
        args, kwargs = payload(cursor, seq)
    return Leased(
        seq,
        fence + 1,
        job_id,
        handler,
        executor,
        queue,
        args,
        kwargs,
        attempts,
        deliveries + 1,
        excused,
        is_solo == 1,
        created_at,
        now,
        *asked_of(options),
    )
