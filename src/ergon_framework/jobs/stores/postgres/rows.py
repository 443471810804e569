"""Rows of the job table, and what the rest of the product sees of them."""

from __future__ import annotations

from typing import Any, Protocol

from ergon_framework.jobs.stores.documents import (
    asked_of,
    entries_of,
    failure_from,
    options_from,
    step_from,
)
from ergon_framework.jobs.stores.pages import JobRowPage
from ergon_framework.jobs.stores.postgres.statements import COLUMNS
from ergon_framework.jobs.stores.transitions import BLOCKED, ENDED
from ergon_framework.jobs.stores.unreadable import (
    READ_ERRORS,
    UNREADABLE,
    RowError,
    check_arguments,
    check_instant,
    checked,
    note_of,
    problem_of,
    status_of,
)
from ergon_framework.ports.jobstore import ClaimedJob, Job, Unreadable

Row = tuple[Any, ...]
Held = tuple[int, int]
"""One claim of one job: its number and its fence. A job alone may be claimed again meanwhile."""

SEQ, EXECUTOR, QUEUE, PRIORITY, RUN_AT = 0, 4, 5, 15, 16
"""Where a claimed row has what decides whose it is, and its place."""

_STAGES = frozenset(range(7))
_AS_THEY_ARE = (
    *("id", "handler", "executor", "queue", "args", "kwargs", "priority", "created_at", "run_at"),
    *("expires_at", "limit_key", "attempts", "is_charged", "deliveries", "excused"),
    *("is_solo", "fence", "why", "worker", "claimed_at", "lease_expires_at", "purge_at", "result"),
)


class StatementResult(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows a statement changed."""

    def fetchall(self) -> list[Row]:
        """Its rows."""


def page_of(cursor: StatementResult) -> JobRowPage:
    """The jobs of a statement that asked for all their columns."""
    rows = cursor.fetchall()
    page = JobRowPage([], [], len(rows), rows[-1][SEQ] if rows else 0)
    for row in rows:
        fields = dict(zip(COLUMNS, row, strict=True))
        try:
            page.jobs.append(checked(_job(fields)))
        except READ_ERRORS as error:
            page.unreadable.append(_unreadable_row(fields, problem_of(error)))
    return page


def _unreadable_row(row: dict[str, Any], problem: str) -> Unreadable:
    status = row["status"]
    if status == UNREADABLE:
        note = note_of(row["why"])
        status, problem = note.status, note.problem
    return Unreadable(
        key=row["seq"],
        id=row["id"],
        queue=row["queue"],
        status=status,
        problem=problem,
        since=row["changed_at"],
    )


def _job(row: dict[str, Any]) -> Job:
    if row["stage"] not in _STAGES:
        raise RowError("stage: not one of those a job goes through")
    options, key = options_from(row["options"]), row["unique_key"]
    return Job(
        key=row["seq"],
        status=status_of(row["status"]),
        unique_key=options.waiting_key if key is None else key,
        limit=row["key_limit"],
        is_limited=row["stage"] == BLOCKED,
        finished_at=row["changed_at"] if row["stage"] == ENDED else None,
        last_error=failure_from(row["last_error"]),
        history=entries_of(row["history"]),
        step=step_from(row),
        **options.of_job(),
        **{name: row[name] for name in _AS_THEY_ARE},
    )


def claimed_job(row: Row) -> ClaimedJob:
    """A job that was just claimed, as its worker needs it."""
    check_arguments(row[6], row[7])
    check_instant("created_at", row[12])
    # Its columns are those of a ``ClaimedJob`` in their order, except the options, which come last.
    return ClaimedJob(*row[:13], *row[14:15], *asked_of(row[13]))
