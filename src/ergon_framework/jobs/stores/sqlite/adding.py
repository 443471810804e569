"""Adding jobs within one transaction."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.options import is_special, options_text
from ergon_framework.jobs.stores.own_moves import DUE, LATER, Standing
from ergon_framework.jobs.stores.refusals import id_taken, key_held
from ergon_framework.jobs.stores.sqlite.moves import Moves
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.ports.jobstore import Added, NewJob, OnDuplicate
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.errors import is_barred

LARGE = 2048
"""Bytes of arguments above which they get a row of their own."""

# A purged job's number may be given to a new one, even of the same id. It does not begin with the
# same fence: a worker that comes back late with the old job finds that it has lost it.
_fences = itertools.count(int.from_bytes(os.urandom(5)))

_SQL = load(SQL, "jobs.sql")
_PLAIN = _SQL["insert_plain"]
_FULL = _SQL["insert"]


def add(moves: Moves, jobs: Sequence[NewJob]) -> list[Added]:
    """Add all of them; raises DuplicateJobError, and then the caller rolls back."""
    if len(jobs) == 1:
        return [_add(moves, jobs[0])]
    if any(job.unique_key is not None or _is_large(job) for job in jobs):
        return [_add(moves, job) for job in jobs]
    _insert_many(moves, jobs)
    return [Added(job.id, True) for job in jobs]


def add_new(moves: Moves, jobs: Sequence[NewJob]) -> int:
    """Add those that can be added, and leave out the others; how many there were."""
    added = 0
    for job in jobs:
        if moves.cursor.execute(_SQL["has_id"], (job.id,)).fetchone() is None:
            with suppress(DuplicateJobError):
                added += add(moves, [job])[0].is_new
    return added


def _add(moves: Moves, job: NewJob) -> Added:
    if job.unique_key is None or (holder := _holder(moves, job.unique_key)) is None:
        _insert(moves, job)
        return Added(job.id, True)
    if job.on_duplicate is OnDuplicate.EXISTING:
        return Added(holder[1], False)
    if job.on_duplicate is OnDuplicate.REJECT or holder[2] == JobStatus.ACTIVE:
        raise key_held(job, holder[1])
    moves.replace(holder)
    _insert(moves, job)
    return Added(job.id, True, holder[1])


def _holder(moves: Moves, key: str) -> Standing | None:
    """Who holds a unique key."""
    row: Standing | None = moves.cursor.execute(_SQL["key_holder"], (key,)).fetchone()
    return row


def _insert(moves: Moves, job: NewJob) -> None:
    row = _row(job, moves.now)
    try:
        if is_special(job):
            moves.cursor.execute(_FULL, row + _rest(job))
        else:
            moves.cursor.execute(_PLAIN, row)
    except sqlite3.IntegrityError as error:
        if is_barred(error):
            raise
        raise id_taken(job) from None
    if row[-1] is None:
        values = (moves.cursor.lastrowid, job.args, job.kwargs)
        moves.cursor.execute(_SQL["insert_payload"], values)


def _insert_many(moves: Moves, jobs: Sequence[NewJob]) -> None:
    """Insert jobs without large arguments."""
    now, connection = moves.now, moves.cursor.connection
    statement, rows = _PLAIN, [_row(job, now) for job in jobs]
    if any(map(is_special, jobs)):
        statement, rows = _FULL, [row + _rest(job) for row, job in zip(rows, jobs, strict=True)]
    before = connection.total_changes
    try:
        moves.cursor.executemany(statement, rows)
    except sqlite3.IntegrityError as error:
        if is_barred(error):
            raise
        # Those before it are there, until the caller rolls back.
        raise id_taken(jobs[connection.total_changes - before]) from None


def _is_large(job: NewJob) -> bool:
    return len(job.args) + len(job.kwargs) > LARGE


def _row(job: NewJob, now: float) -> tuple[Any, ...]:
    """What every job has."""
    run_at = now + job.delay if job.run_at is None else job.run_at
    is_large = _is_large(job)
    return (
        DUE if run_at <= now else LATER,
        next(_fences),
        now,
        run_at,
        job.queue,
        job.executor,
        job.priority,
        job.id,
        job.handler,
        None if is_large else bytearray(job.args),
        None if is_large else bytearray(job.kwargs),
    )


def _rest(job: NewJob) -> tuple[Any, ...]:
    """What some jobs have."""
    return (
        job.expires_at,
        job.unique_key,
        job.limit_key,
        job.limit,
        options_text(job),
    )
