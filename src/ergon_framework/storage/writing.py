"""The one writing connection of this process to a file: opened when needed, dropped when spent."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from ergon_framework.errors import StoreBrokenError, StoreError, StoreUnavailableError
from ergon_framework.storage.connections import Connect, Watch, open_writer
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.faults import broken, is_busy, is_spent, is_unsynced, translate
from ergon_framework.storage.schema import Schema

# SQLite looks for the write lock at ever longer intervals, so that one busy process could starve
# the others. It waits this long at a time for us, and we ask again until patience ends.
_SLICE = 0.003

# SQLite begins even immediate transactions on a file that may only be read; this it refuses.
_WRITE_NOTHING = "UPDATE ergon_schema SET version = version WHERE 0"

_unsynced: dict[tuple[int, int], StoreBrokenError] = {}
"""Files whose disk did not confirm a write to this process."""

declare("storage.commit.before", "storage.commit.after")


class WritingConnection:
    """Begins, commits and undoes transactions. Used by one thread at a time."""

    def __init__(self, path: Path, connect: Connect, watch: Watch) -> None:
        self._path = path
        self._connect = connect
        self._watch = watch
        self._schemas: list[Schema] = []
        self._connection: sqlite3.Connection | None = None
        self._execute: Callable[[str], object]  # on a cursor of its own: making one takes time
        self._generation = -1
        self._file: tuple[int, int] | None = None  # which the connection has open
        self._may_create = True
        self._is_synced = True  # commits wait for the disk

    def adopt(self, schema: Schema, patience: float) -> None:
        """Open now and bring the tables of one more part up to date, so that trouble shows."""
        if schema in self._schemas:
            self.ready(patience)
            return
        self._schemas.append(schema)
        try:
            self._open(patience)
        except BaseException:
            self._schemas.remove(schema)
            raise

    def begin(
        self, patience: float, before_waiting: Callable[[], None] | None = None, *, is_synced: bool
    ) -> sqlite3.Connection:
        """Start a transaction, waiting for other writers as long as patience allows."""
        watch = self._watch
        connection = self._connection
        if (
            connection is None
            or monotonic() >= watch.next_at
            or watch.generation != self._generation
        ):
            connection = self.ready(patience)
        elif _unsynced:
            self._refuse_broken()
        if is_synced is not self._is_synced:
            self._execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            self._is_synced = is_synced
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if before_waiting is not None:
                before_waiting()
            if connection.in_transaction:  # left by an interrupt at the wrong moment
                connection = self._open(patience)
            elif not is_busy(error):
                raise self.failed(error) from error
            self._begin_after_others(connection, patience)
        return connection

    def commit(self) -> None:
        """Bring the transaction to disk."""
        try:
            failpoint("storage.commit.before")
            self._execute("COMMIT")
            failpoint("storage.commit.after")
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise ended_early(self._path) from error
            raise self.failed(error) from error
        except OSError as error:
            raise StoreUnavailableError(
                f"a commit to {self._path} failed: {error}", remedy="try again"
            ) from error
        # Before anybody is told: SQLite commits into a file that has no name any more.
        if self._is_synced and not self._watch.leads_to(self._file):
            self._watch.look()
            raise gone(self._path)

    def undo(self, connection: sqlite3.Connection, error: BaseException) -> BaseException:
        """Roll back, and say what to raise."""
        if isinstance(error, sqlite3.Error) and translate(error, self._path) is not None:
            error = self.failed(error)
        if self._connection is connection:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.drop()
        return error

    def failed(self, error: sqlite3.Error) -> StoreError:
        """What a failure of the store means for the connection and for whoever asked."""
        if is_unsynced(error) and (file := self._watch.identity):
            _unsynced[file] = broken(self._path, error)
        if is_spent(error):
            self.drop()
        return translate(error, self._path) or StoreError(
            f"{self._path} refused a transaction: {error}", remedy="nothing of it was written"
        )

    def ready(self, patience: float) -> sqlite3.Connection:
        """The connection, opened anew when the old one is spent or the file another one."""
        watch = self._watch
        if monotonic() >= watch.next_at:
            watch.look()
        if self._connection is None or self._generation != watch.generation:
            return self._open(patience)
        if _unsynced:
            self._refuse_broken()
        return self._connection

    def drop(self) -> None:
        """Throw the connection away, whatever state it is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _begin_after_others(self, connection: sqlite3.Connection, patience: float) -> None:
        deadline = monotonic() + patience
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or monotonic() >= deadline:
                    raise self.failed(error) from error

    def _refuse_broken(self) -> None:
        found = _unsynced.get(self._watch.identity or (0, 0))
        if found is not None:
            raise StoreBrokenError(found.message, remedy=found.remedy)

    def _open(self, patience: float) -> sqlite3.Connection:
        self.drop()
        self._watch.look()
        self._refuse_broken()
        try:
            self._connection = connection = open_writer(
                self._path, self._connect, patience, may_create=self._may_create
            )
            connection.execute(f"PRAGMA busy_timeout = {int(_SLICE * 1000)}")
            self._execute = connection.cursor().execute
            self._is_synced = True
            self._generation = self._watch.look()
            self._file = self._watch.identity
            self._migrate(connection, patience)
        except BaseException as error:
            self.drop()
            if isinstance(error, sqlite3.Error):
                raise self.failed(error) from error
            raise
        self._may_create = False
        return connection

    def _migrate(self, connection: sqlite3.Connection, patience: float) -> None:
        """Closing the connection is what undoes it when it fails."""
        self._begin_after_others(connection, patience)
        for schema in self._schemas:
            schema.apply(connection, self._path)
        connection.execute(_WRITE_NOTHING)
        connection.execute("COMMIT")


def gone(path: Path) -> StoreUnavailableError:
    """The error of a commit into a file that was removed, or that another one has replaced."""
    return StoreUnavailableError(
        f"{path} was moved, removed or replaced while it was open; whether what was written last is"
        " kept is not known",
        remedy="bring the file back, see whether it is there, and if not do the same again",
    )


def ended_early(path: Path) -> StoreError:
    """The error of work that ended the transaction, and with it everybody's."""
    return StoreError(
        f"work on {path} ended the transaction it was given",
        remedy="leave BEGIN, COMMIT and ROLLBACK to the store",
    )
