"""The store's other two sides: the operator's desk and the cron schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ergon_framework.jobs.stores.gates import queue_of
from ergon_framework.jobs.stores.options import text_of
from ergon_framework.jobs.stores.readable import Reader
from ergon_framework.jobs.stores.sqlite import adding, looking, sweeping
from ergon_framework.jobs.stores.sqlite.gates import settings_of
from ergon_framework.jobs.stores.sqlite.ground import Ground
from ergon_framework.jobs.stores.sqlite.moves import Moves
from ergon_framework.jobs.stores.sqlite.rows import SQL, jobs_from
from ergon_framework.ports.jobstore import (
    Job,
    Named,
    NewJob,
    Queue,
    Schedule,
    Search,
    Sweep,
    WorkerRecord,
)
from ergon_framework.storage.statements import load

_DESK = load(SQL, "desk.sql")
_SCHEDULES = load(SQL, "schedules.sql")


class SqliteDesk(Ground):
    """What operators and cron need."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reader = Reader()

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return looking.search(self._read, search, limit)

    def count(self, search: Search) -> int:
        """How many match."""
        return self._read(lambda cursor: looking.count(cursor, search))

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not been moved since they were read."""
        return self._write(lambda moves: sweeping.purge(moves, jobs), "desk")

    def sweep(self, limit: int) -> Sweep:
        """Purge what has been kept long enough, end what is outdated, forget dead workers.

        Also lets jobs run again that wait for a limit key nobody holds.
        """
        return self._write(lambda moves: sweeping.sweep(moves, limit), "sweep")

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
        rows = self._read(lambda cursor: cursor.execute(_DESK["workers"]).fetchall())
        return self._reader.workers(rows)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        return self._read(looking.named)

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        values = (executor, due_before, limit)
        return self._read(lambda cursor: jobs_from(cursor.execute(_DESK["waiting_for"], values)))

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All, by name."""
        rows = self._read(lambda cursor: cursor.execute(_SCHEDULES["all"]).fetchall())
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
