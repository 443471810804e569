"""The store that the durable parts stand on: one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ergon_framework.errors import StoreReadOnlyError, StoreUnavailableError
from ergon_framework.storage import openfile
from ergon_framework.storage.connections import Connect, connect, real_path, same_file
from ergon_framework.storage.openfile import OpenFile
from ergon_framework.storage.schema import Schema

__all__ = ["Database", "same_file"]

T = TypeVar("T")


class Database:
    """One SQLite file, as one part of this process uses it. Any thread may call any method.

    Parts that use the same file share its one writing connection. ``work`` is called with a
    connection, possibly by another thread than the caller's, together with the work of others: it
    is short, touches nothing but the connection, and does not begin or end transactions. No cursor
    leaves it, neither returned nor in a closure or an error: dropped later, in another thread, it
    would reset a statement that somebody else is executing. Close cursors where they were used.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        schema: Schema,
        busy_timeout: float = 5.0,
        read_only: bool = False,
        connect: Connect = connect,
    ) -> None:
        self.path = Path(path).absolute()
        self._schema = schema
        self._patience = busy_timeout
        self._is_read_only = read_only
        self._connect = connect
        self._file: OpenFile | None = openfile.acquire(real_path(self.path), connect)
        try:
            self._open(self._file)
        except BaseException:
            self.close()
            raise

    @property
    def identity(self) -> tuple[int, int] | None:
        """The file's device and number when it was last looked at; None when it was not there."""
        file = self._file or self._refuse_closed()
        return file.watch.identity

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
        process, but a power cut may undo it, and only it and what came after. That is for what
        nobody was promised, such as a lease.

        Callers that arrive while a commit is under way share the next one. When ``work`` raises,
        its own changes are undone and nobody else's; when the commit fails, everybody's are. Fetch
        all rows before returning: no cursor may leave ``work``.

        ``within`` is for who cannot wait as long as others do: so many seconds until ``work``
        begins, in line and for the lock. ``before_waiting`` is called, if at all, before others are
        waited for; ``within`` knows nothing of it.
        """
        file = self._file or self._refuse_closed()
        if self._is_read_only:
            raise StoreReadOnlyError(f"{self.path} was opened for reading only")
        if within is not None:
            return file.writer.write_within(work, within, is_synced=is_synced)
        return file.writer.write(
            work, self._patience, is_synced=is_synced, before_waiting=before_waiting
        )

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` on the state of the last commit; it is not held up by writers.

        Every statement of ``work`` sees the same state. Fetch all rows before returning: no cursor
        may leave ``work``.
        """
        file = self._file or self._refuse_closed()
        return file.readers.read(work, self._patience)

    def data_version(self) -> int:
        """A number that changes when anybody, here or elsewhere, has committed."""
        file = self._file or self._refuse_closed()
        return file.readers.data_version(self._patience)

    def maintain(self) -> bool:
        """Shorten the write-ahead log if it is long and no other process does so; whether it was.

        It is tried after writes now and then, too.
        """
        file = self._file or self._refuse_closed()
        return not self._is_read_only and file.writer.maintain(self._patience)

    def close(self) -> None:
        """Let go of the file. Closing twice is fine."""
        file, self._file = self._file, None
        if file is not None:
            openfile.release(file, self._connect)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, file: OpenFile) -> None:
        if self._is_read_only:
            file.readers.read(lambda found: self._schema.check(found, self.path), self._patience)
        else:
            file.writer.adopt(self._schema, self._patience)

    def _refuse_closed(self) -> OpenFile:
        raise StoreUnavailableError(f"{self.path} is closed", remedy="open it again")
