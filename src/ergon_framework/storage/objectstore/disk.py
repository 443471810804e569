"""What the folder of blobs asks of a disk, and what the disk's refusals mean."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.storage import fsync, secure_files

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
HARMLESS = FULL | READ_ONLY | GONE | {errno.EMFILE, errno.ENFILE}
"""A sync that could not even begin, or one whose failure is known to have lost nothing else."""


sync_file = fsync.sync_file
sync_folder = fsync.sync_folder


def write_all(fd: int, views: Iterable[memoryview]) -> None:
    """Write every byte: one call may take fewer."""
    for view in views:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


def make_folder(path: Path) -> bool:
    """Make a private folder, or one for its parent's group, unless it is there; whether it was."""
    return secure_files.make_folder(path)


def is_locked(fd: int) -> bool:
    """Lock the file for this upload; returns whether another one has it. The lock ends with the
    process.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def lock(fd: int) -> None:
    """Wait for the file's lock, which others hold only for moments. It ends with the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_EX)


def is_at(path: Path, fd: int) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def remove(path: Path) -> bool:
    """Remove a file; whether it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def told(folder: Path) -> Iterator[None]:
    """Turn what the system says into errors of our own."""
    try:
        yield
    except OSError as error:
        raise translate(error, folder) from error


def translate(error: OSError, folder: Path) -> StoreError:
    """The store's error for it."""
    if error.errno in FULL:
        return StoreFullError(
            f"there is no room left for {folder}: {error.strerror}",
            remedy="free some disk space, then try again",
        )
    if error.errno in READ_ONLY:
        return StoreReadOnlyError(
            f"{folder} may only be read: {error.strerror}",
            remedy="make the folder and everything in it writable for this user",
        )
    if error.errno in GONE:
        return StoreUnavailableError(
            f"{folder} is not there, or not whole: {error.filename or error.strerror}",
            remedy="bring the folder back, or mount its disk; the next start makes what is missing",
        )
    return StoreUnavailableError(
        f"{folder} cannot be used for now: {error}", remedy="look after its disk, then try again"
    )


def broken(error: OSError, folder: Path) -> StoreBrokenError:
    """The error of a folder whose disk did not confirm a write."""
    return StoreBrokenError(
        f"{folder} takes no more uploads from this process: its disk did not confirm one ({error})",
        remedy="check the disk, then start the process again; what was acknowledged is safe",
    )
