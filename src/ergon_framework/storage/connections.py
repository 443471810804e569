"""How connections to the file are opened, and whether it is still the same file."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ergon_framework.errors import StoreUnavailableError, StoreUnsafeError
from ergon_framework.storage import secure_files
from ergon_framework.storage.faults import is_busy

Connect = Callable[[str, float], sqlite3.Connection]
"""Opens a connection, given a URI and how many seconds SQLite waits for a lock."""

_STATEMENTS = 256  # compiled statements that a connection keeps
_MAIN = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
_EVERY = 0.5  # seconds between two looks at what file the path leads to
_ALWAYS = ("PRAGMA wal_autocheckpoint = 0",)
# FULL: a commit waits for the disk. NORMAL would lose the last commits in a power cut.
_WRITING = ("PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON", "PRAGMA temp_store = MEMORY")
# On macOS fsync leaves the data in the drive's own cache.
_MACOS = ("PRAGMA fullfsync = ON", "PRAGMA checkpoint_fullfsync = ON")


def connect(uri: str, timeout: float) -> sqlite3.Connection:
    """A plain connection that leaves transactions to us and may be used by any thread."""
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )


def open_reader(path: Path, connect: Connect, timeout: float) -> sqlite3.Connection:
    """A connection that cannot write."""
    with _told():
        secure_files.check_database(path)
    return _prepared(connect(f"{path.as_uri()}?mode=ro", timeout), _ALWAYS)


def open_writer(
    path: Path, connect: Connect, timeout: float, *, may_create: bool
) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return, to a file in WAL mode."""
    prepare_file(path, may_create=may_create)
    connection = connect(f"{path.as_uri()}?mode={'rwc' if may_create else 'rw'}", timeout)
    pragmas = _ALWAYS + _WRITING + (_MACOS if sys.platform == "darwin" else ())
    try:
        _use_wal(connection, path, time.monotonic() + timeout)
        tighten_file(path)
    except BaseException:
        connection.close()
        raise
    return _prepared(connection, pragmas)


def prepare_file(path: Path, *, may_create: bool) -> None:
    """Check a file before a library opens it to write; make it, private, if that is asked for."""
    with _told():
        secure_files.prepare_database(path, may_create=may_create)


def tighten_file(path: Path) -> None:
    """Close a file to other users, now that a library has found a database in it."""
    with _told():
        secure_files.tighten_database(path)


@contextmanager
def _told() -> Iterator[None]:
    """Only a refusal of ours ends it here: what else is wrong SQLite tells better."""
    try:
        yield
    except secure_files.UnsafeFileError as error:
        raise StoreUnsafeError(
            f"{error.filename} was not opened: {error.strerror}",
            remedy="keep stores in a folder that only their users may write to",
        ) from error
    except OSError:
        return


def real_path(path: Path) -> Path:
    """Where a path leads, links included; a link of somebody else is refused."""
    with _told():
        secure_files.refuse_foreign_link(path)
    return path.resolve()


def _prepared(connection: sqlite3.Connection, pragmas: tuple[str, ...]) -> sqlite3.Connection:
    try:
        for pragma in pragmas:
            connection.execute(pragma)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Switch to write-ahead logging, also when others are opening the same fresh file."""
    while True:
        try:
            [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            _await_others(connection)  # SQLite does not wait by itself when changing the mode
        else:
            if mode != "wal":
                raise StoreUnavailableError(
                    f"{path} cannot have a write-ahead log (SQLite keeps to {mode!r})",
                    remedy="put it on a local disk",
                )
            return


def _await_others(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise


def same_file(connection: sqlite3.Connection, path: str | Path) -> bool:
    """Whether a caller's own connection has this file as its main database."""
    # A cursor of ours and bytes: what the caller makes of rows and of text is not asked.
    with closing(sqlite3.Cursor(connection)) as cursor:
        [file] = cursor.execute(_MAIN).fetchone()
    try:
        return bool(file) and Path(os.fsdecode(file)).samefile(path)
    except OSError:
        return False


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Watch:
    """Notices that the path leads to another file than the one that was opened, or to none.

    SQLite goes on writing into a file that was moved or removed: acknowledged and gone.
    """

    def __init__(self, path: Path) -> None:
        self.every = _EVERY
        self.generation = 0
        self.refusal: StoreUnavailableError | None = None
        self._path = path
        self._place = str(path)
        self._known: tuple[int, int] | None = None
        self.next_at = 0.0

    @property
    def identity(self) -> tuple[int, int] | None:
        """The file's device and number when it was last looked at; None when it was not there."""
        return self._known

    def look(self) -> int:
        """The generation of the file there now; a connection of an older one must not be used."""
        if self.refusal is not None:
            raise StoreUnavailableError(self.refusal.message, remedy=self.refusal.remedy)
        self.next_at = time.monotonic() + self.every
        found = _identify(self._path)
        if found != self._known:
            self._known = found
            self.generation += 1
        return self.generation

    def leads_to(self, file: tuple[int, int] | None) -> bool:
        """Whether the path still leads to this file, or it cannot be told; changes nothing."""
        try:
            found = os.stat(self._place)  # noqa: PTH116 - asked at each commit: a Path takes longer
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == file

    def look_sometimes(self) -> int:
        """Like :meth:`look`, but mostly from memory."""
        return self.look() if time.monotonic() >= self.next_at else self.generation

    def refuse(self, refusal: StoreUnavailableError) -> None:
        """Let every further look fail, and with it every use of the file."""
        self.refusal = refusal
        self.next_at = 0.0
