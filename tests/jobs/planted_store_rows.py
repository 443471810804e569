"""SQLite job stores with one realistic bug each in what they do with rows they cannot read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import (
    ClaimResult,
    FullJobStore,
    Job,
    Search,
    Settlement,
    Unreadable,
)


def spoil(store: FullJobStore, job_id: str) -> Callable[[], None]:
    """Write options that are no JSON; answers how to put them right."""
    assert isinstance(store, SqliteJobStore)

    def write(options: str | None) -> None:
        with closing(sqlite3.connect(store.path)) as connection, connection:
            values = (options, job_id)
            connection.execute("UPDATE ergon_jobs SET options = ? WHERE id = ?", values)

    write('{"timeout": ')
    return lambda: write(None)


def read_all(store: SqliteJobStore) -> None:
    """Raise at a row whose options are no JSON."""
    with closing(sqlite3.connect(store.path)) as connection:
        for (options,) in connection.execute("SELECT options FROM ergon_jobs"):
            msgspec.json.decode(options or "{}")


class StopsAtARescue(SqliteJobStore):
    """Reads all overdue jobs together, or none."""

    def expired_leases(self, limit: int) -> list[Job]:
        read_all(self)
        return super().expired_leases(limit)


class StopsAtASearch(SqliteJobStore):
    """Reads all jobs of a page together, or none."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        read_all(self)
        return super().search(search, limit)


class StopsAtAClaim(SqliteJobStore):
    """Reads all candidates together, or none."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        read_all(self)
        return super().settle_and_claim(settlements, ask)


class ListsOnlyWhatItSetAside(SqliteJobStore):
    """Does not look for rows that only readers meet."""

    def left_out(self) -> Iterator[Unreadable]:
        return iter(())


class DeletesWhatItCannotRead(SqliteJobStore):
    """Takes a row that nobody can read for one that nobody needs."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        answer = super().settle_and_claim(settlements, ask)
        for each in self.unreadable():
            self.discard_unreadable(each.key)
        return answer


class TakesBackAnything(SqliteJobStore):
    """Puts a row back without reading it again."""

    def restore_unreadable(self, key: Any) -> bool:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            statement = "UPDATE ergon_jobs SET stage = 2, status = 'pending' WHERE seq = ?"
            return connection.execute(statement, (key,)).rowcount == 1
