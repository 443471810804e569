"""Connections to one SQLite file: how they are opened, the one that writes, and those that read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TypeVar

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreUnavailableError,
    StoreUnsafeError,
)
from ergon_framework.storage import secure_files
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.sqlite.errors import broken, is_busy, is_spent, is_unsynced, translate
from ergon_framework.storage.sqlite.migrations import SqliteSchema

Connect = Callable[[str, float], sqlite3.Connection]
"""Opens a connection, given a URI and how many seconds SQLite waits for a lock."""


@dataclass(frozen=True)
class SqliteLimits:
    """How much a process asks of one SQLite file, and how often it looks at it.

    The parts of a process that have the same file open share its connections: the limits of the
    part that opened it first hold for all of them.
    """

    max_readers: int = 8
    """Connections that read at once."""
    max_group_size: int = 512
    """The most callers whose writes share one commit."""
    checkpoint_bytes: int = 4 << 20
    """Size of the write-ahead log, in bytes, from which it is checkpointed."""
    checkpoint_interval: int = 64
    """Commits between two checks of the size of the log."""
    watch_interval: float = 0.5
    """Seconds between two checks that the path still names the open file."""
    fork_timeout: float = 5.0
    """Seconds that a fork waits for transactions of other threads."""


DEFAULT_LIMITS = SqliteLimits()

_CACHED_STATEMENTS = 256  # compiled statements that a connection keeps
_MAIN_FILE = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
# Checkpoints are made by ``Checkpointer``, in one process at a time.
_PRAGMAS = ("PRAGMA wal_autocheckpoint = 0",)
# FULL: a commit waits for the disk. NORMAL would lose the last commits in a power cut.
_WRITER_PRAGMAS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
)
# On macOS fsync leaves the data in the drive's own cache.
_MACOS_PRAGMAS = ("PRAGMA fullfsync = ON", "PRAGMA checkpoint_fullfsync = ON")


def connect(uri: str, timeout: float) -> sqlite3.Connection:
    """A plain connection that leaves transactions to us and may be used by any thread."""
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
    )


def open_reader(path: Path, connect: Connect, timeout: float) -> sqlite3.Connection:
    """A connection that cannot write."""
    with _refusing_unsafe_files():
        secure_files.check_database(path)
    return _prepared(connect(f"{path.as_uri()}?mode=ro", timeout), _PRAGMAS)


def open_writer(
    path: Path, connect: Connect, timeout: float, *, may_create: bool
) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return, to a file in WAL mode."""
    prepare_file(path, may_create=may_create)
    connection = connect(f"{path.as_uri()}?mode={'rwc' if may_create else 'rw'}", timeout)
    pragmas = _PRAGMAS + _WRITER_PRAGMAS + (_MACOS_PRAGMAS if sys.platform == "darwin" else ())
    try:
        _use_wal(connection, path, time.monotonic() + timeout)
        # Only now: before SQLite has accepted it, the file might be anything that somebody named by
        # mistake.
        tighten_file(path)
    except BaseException:
        connection.close()
        raise
    return _prepared(connection, pragmas)


def prepare_file(path: Path, *, may_create: bool) -> None:
    """Check a file before a library opens it to write; make it, private, if that is asked for."""
    with _refusing_unsafe_files():
        secure_files.prepare_database(path, may_create=may_create)


def tighten_file(path: Path) -> None:
    """Close a file to other users, now that a library has found a database in it."""
    with _refusing_unsafe_files():
        secure_files.tighten_database(path)


@contextmanager
def _refusing_unsafe_files() -> Iterator[None]:
    """Raise our refusal of an unsafe file; SQLite itself reports every other problem better."""
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
    """Where a path leads, links included; a link of another user is refused."""
    with _refusing_unsafe_files():
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
        # Waits as SQLite's busy handler does, which a change of the journal mode does not use.
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise


def same_file(connection: sqlite3.Connection, path: str | Path) -> bool:
    """Whether a caller's own connection has this file as its main database."""
    # A cursor of ours and bytes: what the caller makes of rows and of text is not asked.
    with closing(sqlite3.Cursor(connection)) as cursor:
        [file] = cursor.execute(_MAIN_FILE).fetchone()
    try:
        # By inode: the caller may have opened the same file through a link or a relative path.
        return bool(file) and Path(os.fsdecode(file)).samefile(path)
    except OSError:
        return False


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class FileWatch:
    """Notices that the path leads to another file than the one that was opened, or to none.

    SQLite goes on writing into a file that was moved or removed: acknowledged and gone.
    """

    def __init__(self, path: Path, *, interval: float = DEFAULT_LIMITS.watch_interval) -> None:
        self._interval = interval
        self.generation = 0
        self.refusal: StoreUnavailableError | None = None
        self._path = path
        self._place = str(path)
        self.identity: tuple[int, int] | None = None
        """The file's device and number when it was last looked at; None when it was not there."""
        self.next_at = 0.0

    def look(self) -> int:
        """The generation of the file there now; a connection of an older one must not be used."""
        if self.refusal is not None:
            raise StoreUnavailableError(self.refusal.message, remedy=self.refusal.remedy)
        self.next_at = time.monotonic() + self._interval
        found = _identify(self._path)
        # Device and inode, because a restored backup has the same name and another inode.
        if found != self.identity:
            self.identity = found
            self.generation += 1
        return self.generation

    def leads_to(self, file: tuple[int, int] | None) -> bool:
        """Whether the path still leads to this file, or that cannot be checked; changes nothing."""
        try:
            found = os.stat(self._place)  # noqa: PTH116 - asked at each commit: a Path takes longer
        except (FileNotFoundError, NotADirectoryError):
            return False
        # A permission that was lost for a moment is no proof that the file is gone; a commit that
        # is on disk must not be reported as failed for that.
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == file

    def look_sometimes(self) -> int:
        """Like :meth:`look`, but reads the path at most once per ``interval``."""
        return self.look() if time.monotonic() >= self.next_at else self.generation

    def refuse(self, refusal: StoreUnavailableError) -> None:
        """Make every later :meth:`look` raise, and with it every use of the file."""
        self.refusal = refusal
        self.next_at = 0.0


# SQLite looks for the write lock at ever longer intervals, so that one busy process could starve
# the others. It waits this long at a time for us, and we ask again until the timeout.
_LOCK_WAIT = 0.003  # seconds

# SQLite begins even immediate transactions on a file that may only be read; this it refuses.
_WRITE_NOTHING = "UPDATE ergon_schema SET version = version WHERE 0"

_unsynced: dict[tuple[int, int], StoreBrokenError] = {}
"""Files whose disk did not confirm a write to this process, by device and inode."""

declare("storage.commit.before", "storage.commit.after")


class WriteConnection:
    """The one connection that writes: begins, commits and undoes. Used by one thread at a time."""

    def __init__(self, path: Path, connect: Connect, watch: FileWatch) -> None:
        self._path = path
        self._connect = connect
        self._watch = watch
        self._schemas: list[SqliteSchema] = []
        self._connection: sqlite3.Connection | None = None
        self._execute: Callable[[str], object]  # on a cursor of its own: making one takes time
        self._generation = -1
        self._file: tuple[int, int] | None = None  # which the connection has open
        self._may_create = True
        self._is_synced = True  # commits wait for the disk

    def adopt(self, schema: SqliteSchema, timeout: float) -> None:
        """Open the file now and migrate the tables of one more part, so that problems show."""
        if schema in self._schemas:
            self.ready(timeout)
            return
        self._schemas.append(schema)
        try:
            self._open(timeout)
        except BaseException:
            self._schemas.remove(schema)
            raise

    def begin(
        self, timeout: float, before_waiting: Callable[[], None] | None = None, *, is_synced: bool
    ) -> sqlite3.Connection:
        """Start a transaction, waiting for other writers up to the timeout."""
        watch = self._watch
        connection = self._connection
        if (
            connection is None
            # Looked at by time and not at every transaction: a ``stat`` is one more system call.
            or monotonic() >= watch.next_at
            or watch.generation != self._generation
        ):
            connection = self.ready(timeout)
        elif _unsynced:
            self._refuse_broken()
        if is_synced is not self._is_synced:
            # Heartbeats and renewals may be lost in a power cut: the leases expire, and all is as
            # if the worker had died. They need no fsync.
            self._execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            self._is_synced = is_synced
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if before_waiting is not None:
                before_waiting()
            # Opened anew and not rolled back: what an interrupt left half done is not worth finding
            # out.
            if connection.in_transaction:  # left by an interrupt at the wrong moment
                connection = self._open(timeout)
            elif not is_busy(error):
                raise self.failed(error) from error
            self._begin_after_others(connection, timeout)
        return connection

    def commit(self) -> None:
        """Bring the transaction to disk."""
        try:
            failpoint("storage.commit.before")
            self._execute("COMMIT")
            failpoint("storage.commit.after")
        except sqlite3.Error as error:
            # "cannot commit - no transaction is active": the work has committed or rolled back by
            # itself.
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise ended_early(self._path) from error
            raise self.failed(error) from error
        except OSError as error:
            raise StoreUnavailableError(
                f"a commit to {self._path} failed: {error}", remedy="try again"
            ) from error
        # Before the commit is acknowledged: SQLite also commits into a file that was removed or
        # replaced, where no other process will ever look. A commit without a sync is no promise.
        if self._is_synced:
            self.refuse_moved()

    def undo(self, connection: sqlite3.Connection, error: BaseException) -> BaseException:
        """Roll back, and say what to raise."""
        if isinstance(error, sqlite3.Error) and translate(error, self._path) is not None:
            error = self.failed(error)
        # ``failed`` may have dropped it, and another may be open by now.
        if self._connection is connection:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.drop()
        return error

    def failed(self, error: sqlite3.Error) -> StoreError:
        """The error for the caller; a connection that cannot be used again is dropped."""
        if is_unsynced(error) and (file := self._watch.identity):
            # After a failed fsync the kernel forgets which pages were not written: a second one
            # would succeed and prove nothing. So this process writes to the file no more.
            _unsynced[file] = broken(self._path, error)
        if is_spent(error):
            self.drop()
        return translate(error, self._path) or StoreError(
            f"{self._path} refused a transaction: {error}", remedy="nothing of it was written"
        )

    def ready(self, timeout: float) -> sqlite3.Connection:
        """The connection, reopened if it was dropped or the path names another file now."""
        watch = self._watch
        if monotonic() >= watch.next_at:
            watch.look()
        if self._connection is None or self._generation != watch.generation:
            return self._open(timeout)
        if _unsynced:
            self._refuse_broken()
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def refuse_moved(self) -> None:
        """Raise StoreUnavailableError if the path leads to another file than the connection's."""
        if not self._watch.leads_to(self._file):
            self._watch.look()
            raise gone(self._path)

    def drop(self) -> None:
        """Throw the connection away, whatever state it is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _begin_after_others(self, connection: sqlite3.Connection, timeout: float) -> None:
        deadline = monotonic() + timeout
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

    def _open(self, timeout: float) -> sqlite3.Connection:
        self.drop()
        self._watch.look()
        self._refuse_broken()
        try:
            self._connection = connection = open_writer(
                self._path, self._connect, timeout, may_create=self._may_create
            )
            connection.execute(f"PRAGMA busy_timeout = {int(_LOCK_WAIT * 1000)}")
            self._execute = connection.cursor().execute
            # The pragmas of a new connection say FULL.
            self._is_synced = True
            self._generation = self._watch.look()
            self._file = self._watch.identity
            self._migrate(connection, timeout)
        except BaseException as error:
            self.drop()
            if isinstance(error, sqlite3.Error):
                raise self.failed(error) from error
            raise
        # Made once. A file that disappears later was removed by somebody, and an empty one in its
        # place would look like lost data.
        self._may_create = False
        return connection

    def _migrate(self, connection: sqlite3.Connection, timeout: float) -> None:
        """Closing the connection is what undoes it when it fails."""
        self._begin_after_others(connection, timeout)
        for schema in self._schemas:
            schema.apply(connection, self._path)
        # Fails here, when the store is opened, on a file system or a file that may only be read.
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
    """The error of work that ended the transaction, which is that of the whole group."""
    return StoreError(
        f"work on {path} ended the transaction it was given",
        remedy="leave BEGIN, COMMIT and ROLLBACK to the store",
    )


T = TypeVar("T")

_VERSIONS_PER_COUNTER = 1 << 32  # larger than any number of commits that a connection counts


@dataclass(slots=True)
class _Reader:
    connection: sqlite3.Connection
    generation: int

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()


class ReadPool:
    """Read connections. One is opened when all others are busy, up to ``max_size``."""

    def __init__(
        self,
        path: Path,
        connect: Connect,
        watch: FileWatch,
        *,
        max_size: int = DEFAULT_LIMITS.max_readers,
    ) -> None:
        self._path = path
        self._connect = connect
        self._watch = watch
        self._max_size = max_size
        self._free = threading.Condition(threading.Lock())
        self._idle: list[_Reader] = []
        self._busy = 0
        self._is_closed = False
        self._counting = threading.Lock()
        self._counter: _Reader | None = None
        self._counters = 0  # how many there have been: each counts from its own start

    def read(self, work: Callable[[sqlite3.Connection], T], timeout: float) -> T:
        """Run ``work`` on the state of the last commit."""
        reader = self._take(timeout)
        is_usable = True
        try:
            reader.connection.execute("BEGIN")
            return work(reader.connection)
        except sqlite3.Error as error:
            is_usable = not is_spent(error)
            ours = translate(error, self._path)
            if ours is None:
                raise
            raise ours from error
        finally:
            self._give_back(reader, is_usable)

    def data_version(self, timeout: float) -> int:
        """A number that changes when any connection has committed."""
        with self._counting:
            counter = self._counter
            try:
                if counter is None or counter.generation != self._watch.look_sometimes():
                    self._close_counter()
                    counter = self._counter = self._open(timeout)
                    self._counters += 1
                [version] = counter.connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                self._close_counter()
                raise self._translated(error) from error
            return self._counters * _VERSIONS_PER_COUNTER + int(version)

    def close(self) -> None:
        """Close what is idle, and what is busy when it comes back."""
        with self._free:
            self._is_closed = True
            self._close_idle()
        with self._counting:
            self._close_counter()

    def hold(self, timeout: float) -> bool:
        """Close everything and stop new reads until :meth:`resume`; False when some still read."""
        self._counting.acquire()
        self._close_counter()
        self._free.acquire()
        is_quiet = self._free.wait_for(lambda: not self._busy, timeout)
        self._close_idle()
        return is_quiet

    def resume(self) -> None:
        """Allow reads again. The thread that called :meth:`hold` calls it: it has the locks."""
        self._free.release()
        self._counting.release()

    def _take(self, timeout: float) -> _Reader:
        generation = self._watch.look_sometimes()
        with self._free:
            if not self._idle and self._busy >= self._max_size:
                self._free.wait_for(lambda: self._idle or self._busy < self._max_size, timeout)
            if self._busy >= self._max_size:
                raise StoreUnavailableError(
                    f"all {self._max_size} read connections to {self._path} are in use",
                    remedy="keep reads short, and do not read inside a read",
                )
            self._busy += 1
            reader = self._idle.pop() if self._idle else None
        # A connection of an earlier generation is one to a file that is no longer behind the path.
        if reader is not None and reader.generation == generation:
            return reader
        try:
            if reader is not None:
                reader.close()
            return self._open(timeout)
        except BaseException as error:
            # Free the place: a pool must not run out of places while its file is missing.
            with self._free:
                self._busy -= 1
                self._free.notify_all()
            if isinstance(error, sqlite3.Error):
                raise self._translated(error) from error
            raise

    def _give_back(self, reader: _Reader, is_usable: bool) -> None:
        connection = reader.connection
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            is_usable = False
        with self._free:
            self._busy -= 1
            if is_usable and not self._is_closed:
                self._idle.append(reader)
            else:
                reader.close()
            self._free.notify_all()

    def _open(self, timeout: float) -> _Reader:
        connection = open_reader(self._path, self._connect, timeout)
        return _Reader(connection, self._watch.look())

    def _close_idle(self) -> None:
        for reader in self._idle:
            reader.close()
        self._idle.clear()

    def _close_counter(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None

    def _translated(self, error: sqlite3.Error) -> StoreError:
        return translate(error, self._path) or StoreError(f"{self._path} cannot be read: {error}")
