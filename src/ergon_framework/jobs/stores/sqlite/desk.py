"""The store's other two sides: the operator's desk and the cron schedules."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.gates import queue_of
from ergon_framework.jobs.stores.options import text_of
from ergon_framework.jobs.stores.own_moves import DUE, ENDED, RUNNING
from ergon_framework.jobs.stores.readable import Reader
from ergon_framework.jobs.stores.sqlite import adding, looking, sweeping
from ergon_framework.jobs.stores.sqlite.gates import settings_of
from ergon_framework.jobs.stores.sqlite.ground import Ground
from ergon_framework.jobs.stores.sqlite.moves import Moves
from ergon_framework.jobs.stores.sqlite.rows import SQL, job_or_odd, lossy, odd_row, page_of
from ergon_framework.jobs.stores.unreadable import (
    MISREAD,
    Told,
    argument_problem,
    is_misread,
    key_is_held,
    note_of,
    unreadable_job,
    was_status,
)
from ergon_framework.ports.jobstore import (
    Job,
    Named,
    NewJob,
    Queue,
    Schedule,
    Search,
    Sweep,
    Unreadable,
    WorkerRecord,
)
from ergon_framework.storage.sql_files import load

_DESK = load(SQL, "desk.sql")
_JOBS = load(SQL, "jobs.sql")
_SCHEDULES = load(SQL, "schedules.sql")


class SqliteDesk(Ground):
    """What operators and cron need."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reader = Reader()
        self._told = Told()

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return looking.search(self._read, search, limit, self._told)

    def count(self, search: Search) -> int:
        """How many match."""
        return self._read(lambda cursor: looking.count(cursor, search))

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first."""

        def work(cursor: sqlite3.Cursor) -> list[Unreadable]:
            seqs = cursor.execute(_JOBS["aside"], (-1 if limit is None else limit,)).fetchall()
            return [odd_row(cursor, seq, "") for (seq,) in seqs]

        return self._read(work)

    def restore_unreadable(self, key: Any) -> bool:
        """Read such a row again, and put it back where it stood."""

        def work(moves: Moves) -> bool:
            found = moves.cursor.execute(_JOBS["is_aside"], (key,)).fetchone()
            if found is None:
                return False
            status = was_status(note_of(found[0]))
            stage = RUNNING if status is JobStatus.ACTIVE else ENDED if status.is_final else DUE
            try:
                moves.cursor.execute(_JOBS["put_back"], (stage, status.value, key))
            except sqlite3.IntegrityError as error:
                raise key_is_held(odd_row(moves.cursor, key, "").id) from error
            if (problem := _problem(moves.cursor, key)) is not None:
                raise unreadable_job(str(key), problem)
            return True

        return self._write(work, "desk", is_work=True)

    def discard_unreadable(self, key: Any) -> bool:
        """Delete such a row for good."""

        def work(moves: Moves) -> bool:
            return moves.cursor.execute(_JOBS["discard"], (key,)).rowcount == 1

        return self._write(work, "desk")

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not been moved since they were read."""
        return self._write(lambda moves: sweeping.purge(moves, jobs), "desk")

    def sweep(self, limit: int) -> Sweep:
        """Purge what has been kept long enough, end what is outdated, forget dead workers.

        Also lets jobs run again that wait for a limit key nobody holds.
        """
        return self._write(lambda moves: sweeping.sweep(moves, limit), "sweep")

    def _readable(self, statement: str, values: tuple[Any, ...]) -> list[Job]:
        """The jobs that a statement finds; rows that cannot be read are set aside."""
        page = self._read(lambda cursor: page_of(cursor, statement, values))
        while page.odd and not self._is_read_only:
            odd = [(each.key, each.problem) for each in page.odd]
            self._write(lambda moves: moves.set_all_aside(odd), "exchange")  # noqa: B023 - at once
            page = self._read(lambda cursor: page_of(cursor, statement, values))
        return page.jobs

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue that has jobs or settings, by name."""
        return self._read(lambda cursor: looking.queues(cursor, self.now()))

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change ``is_paused``, ``max_active``, ``rate`` or ``burst``; the answer has no counts."""

        def work(moves: Moves) -> Queue:
            settings = settings_of(moves.cursor, name).changed(changes, moves.now)
            if settings.is_plain:
                moves.cursor.execute(_DESK["unset_queue"], (name,))
            else:
                values = (name, *(getattr(settings, field) for field in settings.__slots__))
                moves.cursor.execute(_DESK["set_queue"], values)
            return queue_of(name, settings)

        return self._write(work, "desk", is_work=True)

    # ---- workers --------------------------------------------------------------------------------

    def tell(self, record: WorkerRecord) -> None:
        """Note that a worker lives; a record with state ``gone`` removes it."""

        def work(moves: Moves) -> None:
            if record.state == "gone":
                moves.cursor.execute(_DESK["gone"], (record.id,))
            else:
                moves.cursor.execute(_DESK["tell"], (record.id, moves.now, text_of(record)))
                names = text_of(["", *record.executors])
                moves.cursor.execute(_DESK["tell_executors"], (moves.now, names))

        self._write(work, "desk", is_synced=False)

    def workers(self) -> list[WorkerRecord]:
        """Those that told of themselves, by id."""
        rows = self._read(lambda cursor: _all(cursor, _DESK["workers"]))
        return self._reader.workers(rows)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        while True:
            try:
                return self._read(looking.named)
            except (*MISREAD, sqlite3.OperationalError) as error:
                if not is_misread(error) or not self._set_odd_rows_aside(error):
                    raise

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        values = (executor, due_before, limit)
        return self._readable(_DESK["waiting_for"], values)

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All, by name."""
        rows = self._read(lambda cursor: _all(cursor, _SCHEDULES["all"]))
        return self._reader.schedules(rows)

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace the definition, keeping nothing of the old one."""

        def work(moves: Moves) -> None:
            moves.cursor.execute(_SCHEDULES["put"], msgspec.structs.astuple(schedule))

        self._write(work, "desk")

    def drop_schedule(self, name: str) -> bool:
        """Remove one; whether it was there."""

        def work(moves: Moves) -> bool:
            return moves.cursor.execute(_SCHEDULES["drop"], (name,)).rowcount == 1

        return self._write(work, "desk")

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Move ``next_at`` on and add the jobs, in one commit, if it still is ``expected``.

        A job whose id or unique key is taken is skipped: the schedule goes on without it.
        """

        def work(moves: Moves) -> bool:
            moves.cursor.execute(_SCHEDULES["advance"], (next_at, expected, name))
            if moves.cursor.rowcount != 1:
                return False
            moves.is_work |= adding.add_new(moves, jobs) > 0
            return True

        return self._write(work, "fire")


def _all(cursor: sqlite3.Cursor, statement: str) -> list[tuple[Any, ...]]:
    """All rows, a text that is not UTF-8 as well as it can be read."""
    try:
        return cursor.execute(statement).fetchall()
    except sqlite3.OperationalError as error:
        if not is_misread(error):
            raise
        with lossy(cursor):
            return cursor.execute(statement).fetchall()


def _problem(cursor: sqlite3.Cursor, seq: int) -> str | None:
    """What is wrong with a row; None if it is a job that can be run."""
    job = job_or_odd(cursor, seq)
    if not isinstance(job, Job):
        return "it is gone" if job is None else job.problem
    return argument_problem(job)
