"""SQLite's errors, translated into errors of our own."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.storage.freeze import SQLITE_WORD
from ergon_framework.storage.urls import SQLITE

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNSYNCED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
_UNWRITABLE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
_WRITING = _UNSYNCED | {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE}
_SPENT = _DAMAGED | {  # a connection that raised one of these is not used again
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
_LITTLE_ROOM = 1 << 16
# Of a table of ours that was made, or the file would not be open. Not of ``ergon_schema``, which
# says whether they were made.
_LOST_TABLE = re.compile(r"no such table: (?:main\.)?(ergon_(?!schema$)\w+)")
_WRITE_LOCK = 120  # the byte of the -shm file that the writer of a WAL database locks


def _codes(error: sqlite3.Error) -> tuple[int, int]:
    """The primary and the extended result code; zeros for errors of the Python module itself."""
    extended: int = getattr(error, "sqlite_errorcode", 0)
    return extended & 0xFF, extended


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock, so that waiting helps."""
    return _codes(error)[0] == sqlite3.SQLITE_BUSY


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk is full."""
    return _codes(error)[0] == sqlite3.SQLITE_FULL


def is_write_failure(error: sqlite3.Error) -> bool:
    """Whether a write failed: disk full, no permission, or an I/O error."""
    primary, extended = _codes(error)
    return primary in _UNWRITABLE or extended in _WRITING


def is_unsynced(error: sqlite3.Error) -> bool:
    """Whether an fsync failed: what is on disk is unknown, and a second fsync may succeed without
    having written it.
    """
    return _codes(error)[1] in _UNSYNCED


def is_moved_away(error: sqlite3.Error) -> bool:
    """Whether the store was shut after a move; no other constraint says it."""
    is_trigger = _codes(error)[1] == sqlite3.SQLITE_CONSTRAINT_TRIGGER
    return is_trigger and str(error).startswith(SQLITE_WORD)


def is_spent(error: sqlite3.Error) -> bool:
    """Whether the connection should be thrown away after this error."""
    return _codes(error)[0] in _SPENT


def translate(error: sqlite3.Error, path: Path) -> StoreError | None:
    """The store's error for it; None when it is about the statement and not about the store."""
    primary, extended = _codes(error)
    if is_moved_away(error):
        from ergon_framework.ports.transfer import moved_away

        source = shlex.quote(f"{SQLITE}{path.absolute()}")
        return moved_away(str(path), str(error).removeprefix(SQLITE_WORD), source)
    if extended in _UNSYNCED:
        return broken(path, error)
    if is_busy(error):
        return _locked(path)
    if is_full(error) or (primary in _SPENT and has_no_room(path)):
        return StoreFullError(
            f"there is no room left for {path}", remedy="free some disk space, then try again"
        )
    if primary == sqlite3.SQLITE_READONLY and extended != sqlite3.SQLITE_READONLY_DBMOVED:
        return StoreReadOnlyError(
            f"{path} may only be read",
            remedy="make the file and its folder writable, or open it with read_only=True",
        )
    if primary in _DAMAGED:
        return _damaged(primary, path, error)
    if primary == sqlite3.SQLITE_CANTOPEN or extended == sqlite3.SQLITE_READONLY_DBMOVED:
        return _not_opened(path, error)
    if primary in _SPENT and path.is_dir():  # which opens for reading, and cannot be read
        return _is_folder(path)
    if primary in _SPENT:
        return StoreUnavailableError(
            f"{path} cannot be used for now: {error}", remedy="look after its disk, then try again"
        )
    if primary == sqlite3.SQLITE_ERROR and (lost := _LOST_TABLE.fullmatch(str(error))):
        return _lost(path, lost[1])
    return None


def broken(path: Path, error: Exception) -> StoreBrokenError:
    """The error of a store whose disk did not confirm a write."""
    return StoreBrokenError(
        f"{path} takes no more writes from this process: its disk did not confirm one ({error})",
        remedy="check the disk, then start the process again; what was acknowledged is safe",
    )


def _locked(path: Path) -> StoreUnavailableError:
    who = ", ".join(sorted(set(_holders(path)))) or "another connection, here or elsewhere,"
    return StoreUnavailableError(
        f"{path} is locked; {who} may hold it",
        remedy="end the transaction that is open there, or wait longer (busy_timeout); inside a"
        " transaction of your own, enqueue with connection=, in Django with on_commit(handler) or"
        " in_transaction(handler)",
    )


def _damaged(primary: int, path: Path, error: sqlite3.Error) -> StoreSchemaError:
    if primary == sqlite3.SQLITE_NOTADB:
        return StoreSchemaError(
            f"{path} is not an SQLite database, or an encrypted one",
            remedy="name another file, or move this one away",
        )
    return StoreSchemaError(
        f"{path} is damaged: {error}",
        remedy="restore a backup, or save what can be read with `sqlite3 FILE .recover`",
    )


def _lost(path: Path, table: str) -> StoreSchemaError:
    return StoreSchemaError(
        f"{path} has lost the table {table}, which was made",
        remedy="restore a backup of the file; to begin anew, end the programs that use it and move"
        " it away, with its -wal and -shm",
    )


def _is_folder(path: Path) -> StoreUnavailableError:
    return StoreUnavailableError(f"{path} is a folder", remedy="name a file in it")


def _not_opened(path: Path, error: sqlite3.Error) -> StoreError:
    folder = path.parent
    if not folder.is_dir():
        return StoreUnavailableError(
            f"there is no folder {folder} for the store {path.name}", remedy="create the folder"
        )
    if path.is_dir():
        return _is_folder(path)
    if not path.exists():
        if not os.access(folder, os.W_OK):
            return StoreReadOnlyError(
                f"{path} cannot be created: {folder} may only be read",
                remedy="make the folder writable, or name another one",
            )
        if not _is_on_disk(folder):
            return StoreReadOnlyError(
                f"{path} cannot be created: {folder} is on no disk",
                remedy="name a file in another folder",
            )
        return StoreUnavailableError(
            f"{path} is not there",
            remedy="bring it back, and it is used again; it is created only when first opened",
        )
    return StoreUnavailableError(
        f"{path} cannot be opened: {error}",
        remedy="make the file readable and writable, and its folder too",
    )


def refuse_unwritable(path: Path) -> None:
    """Raise what making the file, or writing to it, would raise; nothing is made or opened."""
    is_there = path.is_file()
    if is_there and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return
    if is_there or not _is_makable(path):
        raise _not_opened(path, sqlite3.OperationalError("it may only be read"))


def _is_makable(path: Path) -> bool:
    folder = path.parent
    is_usable = folder.is_dir() and os.access(folder, os.W_OK) and _is_on_disk(folder)
    return is_usable and not path.exists()


def has_no_room(path: Path) -> bool:
    """Whether the disk has no room: SQLite reports that in several ways."""
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return False
    return room.f_blocks > 0 and room.f_bavail * room.f_frsize < _LITTLE_ROOM


def _is_on_disk(folder: Path) -> bool:
    """Whether a folder is on a disk. A virtual file system of the kernel has no space at all."""
    try:
        return os.statvfs(folder).f_blocks > 0
    except OSError:
        return True


def _holders(path: Path) -> Iterator[str]:
    """The processes that hold a lock on the file, as far as the system shows them.

    Opening the files to ask about their locks is no way: closing them again would drop ours.
    """
    try:
        database = path.stat().st_ino
        shared = Path(f"{path}-shm").stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        match line.split():
            # The kernel writes ``->`` in lines of those that wait; they have other fields, and do
            # not match.
            case [_, "POSIX", _, "WRITE", pid, place, start, end]:
                inode = int(place.rpartition(":")[2])
                held = inode == database or (
                    inode == shared and int(start) <= _WRITE_LOCK <= _last(end)
                )
                if held:
                    yield _name(int(pid))


def _last(end: str) -> int:
    return _WRITE_LOCK if end == "EOF" else int(end)


def _name(pid: int) -> str:
    if pid == os.getpid():
        return "another connection of this process"
    try:
        command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({command})"
