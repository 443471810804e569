"""An SQLite file as the store uses it: transactions, and statements that are run in them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from ergon_framework.boundary.factstore.sql.session import AFTER, BEFORE, Row
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.write_guard import WriteGuard

T = TypeVar("T")

SQL = "ergon_framework.boundary.factstore.sqlite.sql"
SCHEMA = SqliteSchema("boundary", f"{SQL}.schema")
_FILES = ("consumers", "logs", "objects", "quarantine", "records", "store")
_STATEMENTS = {
    f"{file}.{name}": text for file in _FILES for name, text in load(SQL, f"{file}.sql").items()
}


class SqliteSession(sqlite3.Cursor):
    """The tables within one transaction, for statements by name and for others."""

    def one(self, statement: str, *values: Any) -> Row | None:
        """The first row, or None."""
        row: Row | None = self.execute(_STATEMENTS[statement], values).fetchone()
        return row

    def only(self, statement: str, *values: Any) -> Row:
        """The row of a statement that always finds one."""
        row: Row = self.execute(_STATEMENTS[statement], values).fetchone()
        return row

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Every row."""
        return self.execute(_STATEMENTS[statement], values).fetchall()

    def each(self, statement: str, *values: Any) -> Iterator[Row]:
        """Rows as they are asked for; other statements may be run in between."""
        with closing(self.connection.cursor()) as cursor:
            yield from cursor.execute(_STATEMENTS[statement], values)

    def run(self, statement: str, *values: Any) -> int:
        """Change something; how many rows it was."""
        return self.execute(_STATEMENTS[statement], values).rowcount

    def run_all(self, statement: str, rows: Iterable[Row]) -> None:
        """Run one statement for many rows of values."""
        self.executemany(_STATEMENTS[statement], rows)

    def add(self, statement: str, *values: Any) -> int:
        """Insert one row that gets a number; the number."""
        self.execute(_STATEMENTS[statement], values)
        return self.lastrowid or 0


class SqliteDatabase:
    """Runs transactions in the file of one zone."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        busy_timeout: float = 5.0,
    ) -> None:
        self.clock = clock
        self.guard: WriteGuard[SqliteSession] = WriteGuard()
        self.is_read_only = read_only
        self.file = Database(path, schema=SCHEMA, busy_timeout=busy_timeout, read_only=read_only)
        self._home = self.file.identity

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    @property
    def place(self) -> str:
        """Where the store is, for a reader of errors."""
        return str(self.path)

    def asked_now(self) -> float:
        """What time it is: the file has no clock of its own."""
        return self.clock()

    def close(self) -> None:
        """Close the database. May be called twice."""
        self.file.close()

    def write(
        self,
        work: Callable[[SqliteSession], T],
        call: str,
        *,
        is_synced: bool = True,
        before_waiting: Callable[[], None] | None = None,
    ) -> T:
        """Run one transaction that may change something."""

        def whole(connection: sqlite3.Connection) -> T:
            if self.guard.check is not None:
                self.within(connection, self.guard.check)
            result = self.within(connection, work)
            failpoint(BEFORE[call])
            return result

        result = self.file.write(whole, is_synced=is_synced, before_waiting=before_waiting)
        failpoint(AFTER[call])
        return result

    def read(self, work: Callable[[SqliteSession], T]) -> T:
        """Run something on what was committed last."""
        return self.file.read(lambda connection: self.within(connection, work))

    def within(self, connection: sqlite3.Connection, work: Callable[[SqliteSession], T]) -> T:
        """Run something in a transaction that has begun."""
        self._refuse_other()
        session = connection.cursor(SqliteSession)
        try:  # each append comes by: closing() would take several times as long
            return work(session)
        finally:
            session.close()

    def _refuse_other(self) -> None:
        """What is in memory, the epoch and the ids, is of the file that was opened.

        Ids of another one would be taken for duplicates, and peers would not notice that it is one.
        """
        if self.file.identity != self._home:
            raise StoreUnavailableError(
                f"{self.path} is another file than the one that was opened",
                remedy="bring the first one back, or start the node again to use this one",
            )
