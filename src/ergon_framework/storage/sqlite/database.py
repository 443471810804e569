"""One SQLite file as the parts of this process use it: open files, and ``Database``.

The parts of a process that use one file share its writing connection (``OpenFile``), which is
closed before a fork and opened again after it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from ergon_framework.errors import StoreError, StoreReadOnlyError, StoreUnavailableError
from ergon_framework.storage.sqlite.connections import (
    DEFAULT_LIMITS,
    Connect,
    FileWatch,
    ReadPool,
    SqliteLimits,
    connect,
    real_path,
    same_file,
)
from ergon_framework.storage.sqlite.group_commit import GroupCommitWriter
from ergon_framework.storage.sqlite.migrations import SqliteSchema

__all__ = ["Database", "same_file"]


_files: dict[tuple[Path, Connect], OpenFile] = {}
_closing: list[OpenFile] = []
_lock = threading.RLock()


class OpenFile:
    """The writing connection and the read connections to one file."""

    def __init__(self, path: Path, connect: Connect, limits: SqliteLimits) -> None:
        self.path = path
        self.users = 0
        self.watch = FileWatch(path, interval=limits.watch_interval)
        self.writer = GroupCommitWriter(path, connect, self.watch, limits)
        self.readers = ReadPool(path, connect, self.watch, max_size=limits.max_readers)
        self._fork_timeout = limits.fork_timeout
        self._exclusive = contextlib.ExitStack()
        self._is_quiet = False

    def close(self) -> None:
        """Close every connection."""
        self.readers.close()
        self.writer.close()

    def before_fork(self) -> None:
        """Close every connection, so that the child inherits none, and keep other threads out."""
        self._is_quiet = False
        with contextlib.suppress(TimeoutError, StoreError):  # StoreError: this thread writes
            # Waits for the commit under way: forked in the middle of it, the child would hold half
            # of a transaction.
            self._exclusive.enter_context(self.writer.at_rest(self._fork_timeout))
            self.writer.drop()
            self._is_quiet = True
        self._is_quiet &= self.readers.hold(self._fork_timeout)

    def after_fork(self, *, in_child: bool) -> None:
        """Admit other threads again; in a child only if nothing was in use."""
        if in_child:
            self.writer.forget_threads()  # they exist only in the parent
            if not self._is_quiet:
                self.watch.refuse(_in_use(self.path))
        self._exclusive.close()
        self.readers.resume()


def _in_use(path: Path) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{path} was in use when this process was forked, and cannot be used in it",
        remedy="fork before the store is opened, or start processes by spawn",
    )


def acquire(path: Path, connect: Connect, limits: SqliteLimits) -> OpenFile:
    """The file as it is open already, or newly opened; give it back with :func:`release`."""
    with _lock:
        file = _files.get((path, connect))
        if file is None:
            file = _files[path, connect] = OpenFile(path, connect, limits)
        file.users += 1
        return file


def release(file: OpenFile, connect: Connect) -> None:
    """Count one user less; the last one closes the file."""
    with _lock:
        file.users -= 1
        if file.users:
            return
        del _files[file.path, connect]
        # Still known while it closes: a fork at this moment has to hold it, too.
        _closing.append(file)
    try:
        file.close()
    finally:
        with _lock:
            _closing.remove(file)


def _before_fork() -> None:
    # An SQLite connection must not cross a fork: the child's copy would rely on file locks that
    # only the parent has. Held until ``_after_fork``, so that no file is opened in between.
    _lock.acquire()
    for file in (*_files.values(), *_closing):
        file.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for file in (*_files.values(), *_closing):
        file.after_fork(in_child=in_child)
    _lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, in_child=False),
    after_in_child=partial(_after_fork, in_child=True),
)


T = TypeVar("T")


class Database:
    """One SQLite file, as one part of this process uses it. Any thread may call any method.

    Parts that use the same file share its one writing connection. ``work`` is called with a
    connection, possibly by another thread than the caller's, together with the work of others: it
    is short, touches nothing but the connection, and does not begin or end transactions. No cursor
    leaves it, neither returned nor in a closure or an error: dropped later, in another thread, it
    would reset a statement that another thread is executing. Close cursors where they were used.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        schema: SqliteSchema,
        busy_timeout: float = 5.0,
        opening_timeout: float | None = None,
        read_only: bool = False,
        connect: Connect = connect,
        limits: SqliteLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open the file. ``busy_timeout`` is how long other writers are waited for;
        ``opening_timeout`` goes before it while the file is opened.
        """
        self.path = Path(path).absolute()
        self._schema = schema
        self._timeout = busy_timeout
        self._is_read_only = read_only
        self._connect = connect
        self._file: OpenFile | None = acquire(real_path(self.path), connect, limits)
        try:
            self._open(self._file, busy_timeout if opening_timeout is None else opening_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def identity(self) -> tuple[int, int] | None:
        """The file's device and number when it was last looked at; None when it was not there."""
        file = self._file or self._refuse_closed()
        return file.watch.identity

    @property
    def pending_writes(self) -> int:
        """How many callers of this process wait for their turn to write to the file."""
        file = self._file or self._refuse_closed()
        return file.writer.queue.waiting

    def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        is_synced: bool = True,
        within: float | None = None,
        before_waiting: Callable[[], None] | None = None,
    ) -> T:
        """Run ``work`` in a transaction, and return what it returns once that is on disk.

        Without ``is_synced`` the commit does not wait for the disk: it survives the death of the
        process, but a power cut may undo it, and only it and what came after. That is for writes
        that are no promise to any caller, such as a lease.

        Callers that arrive while a commit is under way share the next one. When ``work`` raises,
        only its own changes are undone; when the commit fails, those of all callers are. Fetch
        all rows before returning: no cursor may leave ``work``.

        ``within`` is for callers that cannot wait as long as others: the seconds until ``work``
        begins, in the queue and for the lock. ``before_waiting`` is called before other writers
        are waited for, if they are; it is not called together with ``within``.
        """
        file = self._file or self._refuse_closed()
        if self._is_read_only:
            raise StoreReadOnlyError(f"{self.path} was opened for reading only")
        if within is not None:
            return file.writer.write_within(work, within, is_synced=is_synced)
        return file.writer.write(
            work, self._timeout, is_synced=is_synced, before_waiting=before_waiting
        )

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` on the state of the last commit; it is not held up by writers.

        Every statement of ``work`` sees the same state. Fetch all rows before returning: no cursor
        may leave ``work``.
        """
        file = self._file or self._refuse_closed()
        return file.readers.read(work, self._timeout)

    def data_version(self) -> int:
        """A number that changes when any connection, of this process or another one, has
        committed.
        """
        file = self._file or self._refuse_closed()
        return file.readers.data_version(self._timeout)

    def maintain(self) -> bool:
        """Shorten the write-ahead log if it is long and no other process does so; whether it was.

        It is tried after writes now and then, too.
        """
        file = self._file or self._refuse_closed()
        return not self._is_read_only and file.writer.maintain(self._timeout)

    def close(self) -> None:
        """Close the file. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            release(file, self._connect)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self, file: OpenFile, timeout: float) -> None:
        if self._is_read_only:
            file.readers.read(lambda found: self._schema.check(found, self.path), timeout)
        else:
            file.writer.adopt(self._schema, timeout)

    def _refuse_closed(self) -> OpenFile:
        raise StoreUnavailableError(f"{self.path} is closed", remedy="open it again")
