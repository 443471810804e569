"""The SQLite job store: what clients and workers need."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ergon_framework.jobs.stores.options import text_of
from ergon_framework.jobs.stores.sqlite import adding
from ergon_framework.jobs.stores.sqlite.claiming import Claim, Turns
from ergon_framework.jobs.stores.sqlite.moves import Moves
from ergon_framework.jobs.stores.sqlite.moving import SqliteMoving
from ergon_framework.jobs.stores.sqlite.rows import SQL, page_of
from ergon_framework.jobs.stores.unreadable import unreadable_job
from ergon_framework.ports.jobstore import (
    Added,
    Ask,
    Claimed,
    Hold,
    Job,
    NewJob,
    Settlement,
)
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.external_transaction import Joinable, joined

_SQL = load(SQL, "jobs.sql")


class SqliteJobStore(SqliteMoving):
    """Jobs in one SQLite file, which any number of processes on this machine may share."""

    is_synced = True
    durability = "An acknowledged job is synced to disk in the SQLite file and survives power cuts."

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        read_only: bool = False,
    ) -> None:
        super().__init__(path, clock=clock, busy_timeout=busy_timeout, read_only=read_only)
        self._turns: Turns = {}

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store all of them or none; raises DuplicateJobError."""
        return (
            self._write(lambda moves: adding.add(moves, jobs), "add", is_work=True) if jobs else []
        )

    def add_in(self, connection: Joinable, jobs: Sequence[NewJob]) -> list[Added]:
        """Add jobs in the caller's own transaction on the same file, which the caller commits.

        ``connection`` is one of sqlite3, or a connection or session of SQLAlchemy with sqlite3
        under it. The jobs are there when it commits and not before, or never. Workers find them at
        their next look; :meth:`announce`, called after the commit, wakes them at once.
        """
        with joined(connection, self.path, _SQL["lock"]) as cursor:
            return adding.add(Moves(cursor, self.now()), jobs) if jobs else []

    def exchange(
        self, settlements: Sequence[Settlement], ask: Ask | None
    ) -> tuple[list[bool], Claimed]:
        """Apply what happened, then claim, in one commit."""

        def work(moves: Moves) -> tuple[list[bool], Claimed]:
            applied = [moves.apply(settlement) for settlement in settlements]
            return applied, Claimed([]) if ask is None else Claim(moves, ask, self._turns).run()

        # A claim is a promise to nobody: after a power cut the job is due again, and is run again.
        return self._write(work, "exchange", is_synced=bool(settlements))

    def renew(self, holds: Sequence[Hold], lease: float) -> list[bool]:
        """Prolong leases and charge attempts; False for a job this holder has lost."""

        def work(moves: Moves) -> list[bool]:
            until = moves.now + lease
            return [_renew(moves.cursor, hold, until) for hold in holds]

        return self._write(work, "renew", is_synced=False)

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Cut leases that end later than they could if they were renewed now."""
        latest = self.now() + min((*leases.values(), others))
        any_later = _SQL["any_later"]
        if self._read(lambda cursor: cursor.execute(any_later, (latest,)).fetchone()) is None:
            return 0

        def work(moves: Moves) -> int:
            values = (text_of(leases), moves.now, others)
            return moves.cursor.execute(_SQL["shorten"], values).rowcount

        return self._write(work, "renew", is_synced=False)

    def overdue(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        return self._readable(_SQL["overdue"], (self.now(), limit))

    def find(self, job_id: str) -> Job | None:
        """One job."""
        page = self._read(lambda cursor: page_of(cursor, _SQL["find"], (job_id,)))
        if page.odd:
            raise unreadable_job(job_id, page.odd[0].problem)
        return page.jobs[0] if page.jobs else None

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        values = (unique_key,)
        row = self._read(lambda cursor: cursor.execute(_SQL["key_holder"], values).fetchone())
        return None if row is None else str(row[1])


def _renew(cursor: sqlite3.Cursor, hold: Hold, until: float) -> bool:
    values = (until, hold.is_charged, hold.key, hold.id, hold.fence)
    return cursor.execute(_SQL["renew"], values).rowcount == 1
