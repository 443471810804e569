"""The whole fact store in one file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from ergon_framework.boundary.logs.sqlite.ground import SQL
from ergon_framework.boundary.logs.sqlite.moving import SqliteMoving
from ergon_framework.boundary.logs.tables.links import TableLinks
from ergon_framework.boundary.logs.tables.objects import TableObjects
from ergon_framework.boundary.logs.tables.serving import TableServing
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.storage.secure_files import make_folder, open_file
from ergon_framework.storage.sql_files import load

FILE = "facts.db"
"""What a backup's file is called."""

_PAGES = 1000  # copied at once: others go on in between
_STEPS = 10_000  # of SQLite's virtual machine, between two looks at the clock
_SQL = load(SQL, "store.sql")


class SqliteFactStore(SqliteMoving, TableServing, TableObjects, TableLinks):
    """A zone's facts in one SQLite file. Any thread may call any method."""

    acknowledgement = (
        "An acknowledged fact is synced to disk in the SQLite file of one machine: it survives the"
        " end of the process and power cuts, not the loss of that disk."
    )

    is_synced = True

    largest: int | None = None
    """Nobody but the settings limits a fact."""

    def quick_check(self, seconds: float) -> str | None:
        """What SQLite finds wrong with the file within so many seconds; None: nothing so far."""
        if seconds <= 0:
            return None
        until = time.monotonic() + seconds

        def work(connection: sqlite3.Connection) -> str | None:
            connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
            try:
                [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
            except sqlite3.OperationalError:
                return None  # there is more of it than can be looked at in that time
            except sqlite3.DatabaseError as error:
                return str(error)
            finally:
                connection.set_progress_handler(None, 0)
            return None if found == "ok" else str(found).replace("\n", " ")

        found = self._database.read(work)
        return None if found is None else f"{self.path} is damaged: {found}"

    def backup(self, folder: str) -> None:
        """Write a consistent copy that, when opened, begins a new epoch."""
        target = Path(folder).absolute() / FILE
        if target.exists():
            raise StoreError(f"{target} is there already", remedy="name an empty folder")
        partial = target.with_name(f"{FILE}.partial")
        try:
            make_folder(target.parent, parents=True)
            partial.unlink(missing_ok=True)
            os.close(open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # private
            self._database.read(lambda connection: _copy(connection, partial))
            _sync(partial)
            partial.rename(target)
            _sync(target.parent)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise StoreUnavailableError(
                f"no backup could be written to {target.parent}: {error}",
                remedy="see that the folder can be written and has room, then try again",
            ) from error


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """Copy what the reader sees, and leave word that it is a copy."""
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        connection.backup(copy, pages=_PAGES)
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute(_SQL["is_backup"])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
