"""Rows of the job table, and what the rest of the product sees of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.documents import (
    asked_of,
    entries_of,
    failure_from,
    options_from,
    step_from,
)
from ergon_framework.jobs.stores.pages import JobRowPage
from ergon_framework.jobs.stores.transitions import BLOCKED, ENDED
from ergon_framework.jobs.stores.unreadable import (
    READ_ERRORS,
    UNREADABLE,
    RowError,
    check_arguments,
    checked,
    is_misread,
    note_of,
    problem_of,
    shown,
    status_of,
)
from ergon_framework.ports.jobstore import ClaimedJob, Job, Unreadable
from ergon_framework.storage.sql_files import load

SQL = "ergon_framework.jobs.stores.sql"

T = TypeVar("T")
CandidateRow = tuple[Any, ...]
"""A row of the statement ``candidates``, whose first columns are what :func:`leased` needs."""

_SQL = load(SQL, "jobs.sql")
_AS_THEY_ARE = (
    *("id", "handler", "executor", "queue", "priority", "created_at", "run_at", "expires_at"),
    *("limit_key", "attempts", "deliveries", "excused", "fence", "why", "worker"),
    *("claimed_at", "lease_expires_at", "purge_at", "result"),
)


_STAGES = frozenset(range(7))
_TEXT, _BLOB, _NUMBER = (str,), (bytes, type(None)), (int, float)
_WHOLE, _PERHAPS, _TEXT_OR_NONE = (int,), (int, float, type(None)), (str, type(None))
_TYPES = (
    *(_WHOLE, _WHOLE, _TEXT, _TEXT, _TEXT, _BLOB, _BLOB, _WHOLE, _WHOLE, _WHOLE, _WHOLE),
    *(_NUMBER, _TEXT_OR_NONE, _TEXT, _PERHAPS, _TEXT_OR_NONE, _WHOLE, _WHOLE, _NUMBER),
    _TEXT_OR_NONE,
)
"""Of the columns of a candidate: SQLite keeps whatever it is given."""
_known_types: set[tuple[type, ...]] = set()


def check_candidate(row: CandidateRow) -> None:
    """Refuse a candidate with a column of another type than it has everywhere else."""
    types = tuple(map(type, row))
    if types not in _known_types:
        for n, (found, allowed) in enumerate(zip(types, _TYPES, strict=True)):
            if found not in allowed:
                raise RowError(f"column {n} of its claim: of another type")
        # Only types that were allowed are remembered, of which there are few combinations.
        _known_types.add(types)
    if row[13] not in _WAITING:
        raise RowError("status: not that of a job that waits")


def are_readable(rows: Sequence[CandidateRow]) -> bool:
    """Whether ``check_candidate`` would refuse none of them; False if it has to be asked."""
    known, waiting = _known_types, _WAITING
    unreadable = [
        row for row in rows if tuple(map(type, row)) not in known or row[13] not in waiting
    ]
    return not unreadable


_WAITING = frozenset({JobStatus.PENDING.value, JobStatus.RETRYING.value})


# Binding bytes, None or a bool costs the sqlite3 module several times as much as binding a
# bytearray, a str or a number. On hot paths only the latter are bound.


def payload(cursor: sqlite3.Cursor, seq: int) -> tuple[bytes, bytes]:
    """Arguments that are too large to stand in the job's own row."""
    found = cursor.execute(_SQL["payload"], (seq,)).fetchone()
    if found is None:
        raise RowError("args or kwargs: missing")
    args, kwargs = found
    return args, kwargs


def page_of(cursor: sqlite3.Cursor, statement: str, values: Any) -> JobRowPage:
    """The jobs that a ``SELECT *`` finds; where one cannot be read, each row by itself."""
    try:
        jobs = jobs_from(cursor.execute(statement, values))
        return JobRowPage(jobs, [], len(jobs), jobs[-1].key if jobs else 0)
    except (*READ_ERRORS, sqlite3.OperationalError) as error:
        if not is_misread(error):
            raise
    # A text that is not UTF-8 ends the whole statement. Numbers can be read, and then row by row.
    found = cursor.execute(statement.replace("SELECT *", "SELECT seq", 1), values)
    seqs = [seq for (seq,) in found.fetchall()]
    page = JobRowPage([], [], len(seqs), seqs[-1] if seqs else 0)
    for seq in seqs:
        job = job_or_unreadable(cursor, seq)
        if isinstance(job, Job):
            page.jobs.append(job)
        elif job is not None:
            page.unreadable.append(job)
    return page


def job_or_unreadable(cursor: sqlite3.Cursor, seq: int) -> Job | Unreadable | None:
    """One job, or what is wrong with its row; None if there is none."""
    try:
        jobs = jobs_from(cursor.execute(_SQL["by_seq"], (seq,)))
        return jobs[0] if jobs else None
    except (*READ_ERRORS, sqlite3.OperationalError) as error:
        if not is_misread(error):
            raise
        return unreadable_row(cursor, seq, problem_of(error))


def unreadable_rows(cursor: sqlite3.Cursor, which: str) -> list[tuple[int, str]]:
    """The rows of a statement that cannot be read, by number, with what is wrong."""
    seqs = [seq for (seq,) in cursor.execute(_SQL[which]).fetchall()]
    found = (job_or_unreadable(cursor, seq) for seq in seqs)
    return [(each.key, each.problem) for each in found if isinstance(each, Unreadable)]


def unreadable_row(cursor: sqlite3.Cursor, seq: int, problem: str) -> Unreadable:
    """A row that cannot be read, as far as it can be."""
    row = cursor.execute(_SQL["raw"], (seq,)).fetchone()
    job_id, queue, status, why, changed_at = row
    if status == UNREADABLE.encode():
        note = note_of(why)
        status, problem = note.status, note.problem or problem
    return Unreadable(
        key=seq,
        id=shown(job_id),
        queue=shown(queue),
        status=shown(status),
        problem=problem,
        since=changed_at if isinstance(changed_at, float) else 0.0,
    )


@contextmanager
def lossy(cursor: sqlite3.Cursor) -> Iterator[None]:
    """Read texts that are not UTF-8 as well as it goes."""
    connection = cursor.connection
    before = connection.text_factory
    connection.text_factory = lambda text: text.decode(errors="replace")
    try:
        yield
    finally:
        connection.text_factory = before


def lossy_if_misread(cursor: sqlite3.Cursor, work: Callable[[sqlite3.Cursor], T]) -> T:
    """What ``work`` reads; if some text is not UTF-8, a list that shows it damaged beats none."""
    try:
        return work(cursor)
    except (*READ_ERRORS, sqlite3.OperationalError) as error:
        if not is_misread(error):
            raise
        with lossy(cursor):
            return work(cursor)


def jobs_from(cursor: sqlite3.Cursor) -> list[Job]:
    """The jobs of a ``SELECT *`` that was just executed."""
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchall()  # all, for the cursor is used again to get large arguments
    return [checked(_job(cursor, dict(zip(names, row, strict=True)))) for row in rows]


def _job(cursor: sqlite3.Cursor, row: Mapping[str, Any]) -> Job:
    if row["stage"] not in _STAGES:
        raise RowError("stage: not one of those a job goes through")
    args, kwargs = row["args"], row["kwargs"]
    if args is None:
        args, kwargs = payload(cursor, row["seq"])
    options, key = options_from(row["options"]), row["unique_key"]
    return Job(
        key=row["seq"],
        status=status_of(row["status"]),
        unique_key=options.waiting_key if key is None else key,
        args=args,
        kwargs=kwargs,
        limit=row["key_limit"],
        is_limited=row["stage"] == BLOCKED,
        is_charged=bool(row["is_charged"]),
        is_solo=bool(row["is_solo"]),
        finished_at=row["changed_at"] if row["stage"] == ENDED else None,
        last_error=failure_from(row["last_error"]),
        history=entries_of(row["history"]),
        step=step_from(row),
        **options.of_job(),
        **{name: row[name] for name in _AS_THEY_ARE},
    )


def claimed_job(cursor: sqlite3.Cursor, row: CandidateRow, queue: str, now: float) -> ClaimedJob:
    """A candidate as the worker that has just claimed it needs it."""
    # The whole row at once: slices of it would take twice as long.
    (
        seq, fence, job_id, handler, executor, args, kwargs, attempts, deliveries, excused, is_solo,
        created_at, options, _, _, _, _, _, _, feeds,
    ) = row  # fmt: skip
    if args is None:
        args, kwargs = payload(cursor, seq)
    check_arguments(args, kwargs)
    asked = asked_of(options)
    if feeds is not None and asked:  # whoever was added as a step has options
        asked = (*asked, feeds)
    return ClaimedJob(
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
        *asked,
    )
