"""Provider tables in an SQLite file, beside whatever else is in it.

Gates are written without waiting for the disk: that survives the death of any process. A power cut
can undo the last of them, but nothing that was recorded, claimed or finished, and the next of those
brings the ones before it to the disk too.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ergon_framework.errors import StoreError, StoreSchemaError, StoreUnavailableError
from ergon_framework.providers.migrations import HEAD, VERSION_TABLE, upgrade_remedy
from ergon_framework.providers.stores.database import (
    AFTER,
    BEFORE,
    FIND_MARK,
    LazyOpen,
    Row,
    SqlCursor,
    TableSpec,
    TaskMissingError,
    Values,
    refuse_moved_tables,
    to_datetime,
)
from ergon_framework.storage import incoming
from ergon_framework.storage.deadlines import PROVIDER_BUDGET
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.sqlite.connections import connect, open_reader
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.errors import translate
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.urls import SQLITE

T = TypeVar("T")

_REVISION = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - our own name


class _Tables(SqliteSchema):
    """The provider tables in a file. Alembic makes them; here only their version is checked."""

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """No files: nothing is made here."""
        return ()

    def apply(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuse tables that are not of this version."""
        super().apply(connection, path)
        self.check(connection, path)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuse tables that are not of this version."""
        found = _revision(connection)
        if found != HEAD:
            raise StoreSchemaError(
                f"{path} has provider tables of revision {found or 'none'}; this program works"
                f" with {HEAD}",
                remedy=upgrade_remedy(found, f"{SQLITE}{path}"),
            )
        url = f"{SQLITE}{path.absolute()}"
        marked = incoming.state_of(path, _found(connection, FIND_MARK))
        refuse_moved_tables(marked, str(path), url)


_TABLES = _Tables("providers", __name__)


def _revision(connection: sqlite3.Connection) -> str | None:
    found = _found(connection, _REVISION)
    return None if found is None else str(found)


def _found(connection: sqlite3.Connection, question: str) -> Any:
    """The single value of a query; None if the table is missing."""
    try:
        found = connection.execute(question).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return None
    return None if found is None else found[0]


class _SqliteCursor:
    """A cursor in a transaction."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def fetch(self, sql: str, values: Values) -> list[Row]:
        """Run a statement that answers with rows."""
        return self._cursor.execute(_sqlite_sql(sql), values).fetchall()

    def execute(self, sql: str, values: Values) -> int:
        """Run a statement that changes rows; how many."""
        return self._cursor.execute(_sqlite_sql(sql), values).rowcount

    def fetch_each(self, sql: str, values: Sequence[Values]) -> list[list[Row]]:
        """Run a statement once for each, in this order; what each answered."""
        execute, converted = self._cursor.execute, _sqlite_sql(sql)
        return [execute(converted, each).fetchall() for each in values]

    def executemany(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that answers nothing once for each, in this order."""
        self._cursor.executemany(_sqlite_sql(sql), values)

    def insert_missing(self, into: TableSpec, rows: Sequence[Row]) -> set[str]:
        """Insert rows unless they are there; the transaction keeps other writers out."""
        sql = _insertion(into)
        ids = msgspec.json.encode([row[0] for row in rows]).decode()
        known = {found for (found,) in self._cursor.execute(sql.select, (ids,))}
        fresh: dict[Any, Row] = {}
        for row in rows:
            if row[0] not in known:
                # A batch may bring a row twice: the first stays, as if it had been in the table.
                fresh.setdefault(row[0], row)
        self._cursor.executemany(sql.insert, fresh.values())
        return set(fresh)


class _Insertion(msgspec.Struct):
    select: str
    insert: str


# Bounded: statements with a list of values are written out for each length of the list.
@lru_cache(maxsize=1000)
def _sqlite_sql(sql: str) -> str:
    """A statement without ``FOR UPDATE``: a transaction of SQLite locks the whole file anyway."""
    return sql.replace("FOR UPDATE", "")


@cache
def _insertion(into: TableSpec) -> _Insertion:
    names = ", ".join(name for name, _ in into.columns)
    marks = ", ".join("?" for _ in into.columns)
    first = into.columns[0][0]
    table = into.table
    return _Insertion(
        f"SELECT {first} FROM {table} WHERE {first} IN (SELECT value FROM json_each(?))",  # noqa: S608 - our own names
        f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 - our own names
    )


class SqliteProviderDatabase:
    """One SQLite file. Callers that come during a commit share the next one."""

    def __init__(
        self, path: str | Path, clock: Callable[[], float] = time.time, busy_timeout: float = 5.0
    ) -> None:
        self.path = Path(path).absolute()
        self.name = str(self.path)
        self.is_closed = False
        self.now = clock
        self._busy_timeout = busy_timeout
        self._lazy = LazyOpen(self._opened)
        self._lazy.open_early()

    def write(
        self,
        call: str,
        work: Callable[[SqlCursor], T],
        *,
        is_synced: bool = True,
        is_large: bool = False,
    ) -> T:
        """Run ``work`` in a transaction, and return what it returns once that is committed."""

        def whole(connection: sqlite3.Connection) -> T:
            with closing(connection.cursor()) as cursor:
                result = work(_SqliteCursor(cursor))
            failpoint(BEFORE[call])
            return result

        # Only a call with less time than the busy timeout leaves the queue of commits early.
        seconds = PROVIDER_BUDGET.at_most(self._busy_timeout)
        within = seconds if seconds < self._busy_timeout else None
        try:
            result = self._lazy.get().write(whole, is_synced=is_synced, within=within)
            failpoint(AFTER[call])
            return result
        except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
            raise self._translated(error) from error

    def read(self, work: Callable[[SqlCursor], T]) -> T:
        """Run ``work``, which changes nothing."""

        def whole(connection: sqlite3.Connection) -> T:
            with closing(connection.cursor()) as cursor:
                return work(_SqliteCursor(cursor))

        try:
            return self._lazy.get().read(whole)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self._translated(error) from error

    def to_db_time(self, instant: float | None) -> Any:
        """An instant as text that sorts by time."""
        return None if instant is None else to_datetime(instant).isoformat(timespec="microseconds")

    def close(self) -> None:
        """Close the file. May be called twice."""
        self.is_closed = True
        database = self._lazy.wait_opened()
        if database is not None:
            database.close()

    def _opened(self) -> Database:
        if self.is_closed:
            raise StoreUnavailableError(f"{self.path} is closed", remedy="open it again")
        # In the time of the call that needs it: whoever holds the lock may keep it for long.
        seconds = PROVIDER_BUDGET.at_most(self._busy_timeout)
        try:
            if not self._has_tables(seconds):
                _make_tables(self.path, seconds)
            return Database(
                self.path,
                schema=_TABLES,
                busy_timeout=self._busy_timeout,
                opening_timeout=seconds,
            )
        except (sqlite3.Error, OSError) as error:
            raise self._translated(error) from error

    def _has_tables(self, seconds: float) -> bool:
        """Whether any of our migrations has run; a file that is not one is refused further on."""
        if not self.path.exists():
            return False
        with closing(open_reader(self.path, connect, seconds)) as connection:
            return _revision(connection) is not None

    def _translated(self, error: Exception) -> StoreError:
        if isinstance(error, OSError):
            return StoreUnavailableError(
                f"a write to {self.path} failed: {error}", remedy="try again"
            )
        if isinstance(error, sqlite3.Error):
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                return TaskMissingError(f"{self.path} refers to a row that is not there")
            found = translate(error, self.path)
            if found is not None:
                return found
        return StoreError(
            f"{self.path} refused a statement: {error}", remedy="nothing of it was written"
        )


def _make_tables(path: Path, seconds: float) -> None:
    """Make the tables as ``ergon db upgrade`` does; Alembic is imported only for that."""
    from ergon_framework.providers.migrations.commands import upgrade
    from ergon_framework.providers.migrations.database import database_of

    database = database_of(f"sqlite:///{path}")
    with database.connect(creates=True, timeout=seconds) as connection:
        upgrade(connection)
