"""Syncing files and folders to the medium, past the cache of the drive."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""The command of macOS that syncs past the drive's cache, where a plain fsync stops."""
_UNSUPPORTED = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOTTY})


def sync_file(fd: int, full_sync: int | None = FULL_SYNC) -> None:
    """Return when the file's bytes and its size are on the medium."""
    if full_sync is not None:
        try:
            fcntl.fcntl(fd, full_sync)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        else:
            return
    getattr(os, "fdatasync", os.fsync)(fd)


def sync_folder(path: Path) -> None:
    """Answer when the folder's entries are on the medium."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
