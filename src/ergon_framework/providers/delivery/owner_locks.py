"""Who is making a call right now, on this machine: known even when it dies without a word.

A queue delivers a message again when its worker is lost, and also when only the connection was. In
the first case nobody makes the call any more, in the second somebody still does. A locked file
tells them apart, because the system lets go of a lock when its holder dies. Where it cannot tell,
such as on another machine, the lease of the key has to run out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from pathlib import Path

from ergon_framework.storage.secure_files import Folder

_LONGEST = 255
_TRIES = 10
_OLD = 86_400.0
"""Seconds after which a file that nobody holds is of no use: its lease has run out long ago."""
_SWEEPS = 3600.0
"""Seconds between two looks for such files."""

_swept_at = 0.0


class OwnerLock:
    """A call that is being made here."""

    __slots__ = ("_file", "_path")

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    def release(self) -> None:
        """It has ended."""
        with contextlib.suppress(OSError):
            if _is_same(self._path, self._file):
                self._path.unlink()
        os.close(self._file)


def acquire(name: str, owner: str) -> OwnerLock | None:
    """Say that ``owner`` makes the call ``name`` now; None when somebody else does, or one cannot.

    Without it nothing is wrong: the lease of the key has to run out then.
    """
    try:
        folder = _folder()
        _sweep_now_and_then(folder)
        path = folder / hashlib.sha256(name.encode()).hexdigest()
        for _ in range(_TRIES):
            file = _opened(path, os.O_RDWR | os.O_CREAT)
            held = _locked(path, file, owner)
            if held is not None:
                return held
    except OSError:  # somebody holds it, or there is no place for it
        return None
    return None


def _locked(path: Path, file: int, owner: str) -> OwnerLock | None:
    """The file, locked, with the owner's name; closed when that cannot be."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_same(path, file):
            os.ftruncate(file, 0)
            os.pwrite(file, owner.encode(), 0)
            return OwnerLock(path, file)
    except OSError:
        os.close(file)
        raise
    os.close(file)  # its name was taken away before it was locked
    return None


def _is_same(path: Path, file: int) -> bool:
    """Whether a file still has its name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False


def dead_owner(name: str) -> str | None:
    """Who made the call here and died; None when nobody did, or still lives."""
    try:
        path = _folder() / hashlib.sha256(name.encode()).hexdigest()
        file = _opened(path, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.pread(file, _LONGEST, 0).decode() or None
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(file)


def _opened(path: Path, flags: int) -> int:
    with Folder.ensure_private(path.parent) as folder:
        return folder.open_file(path.name, flags)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"ergon-held-{os.getuid()}"
    Folder.ensure_private(folder).close()  # who made it before us may have filled it
    return folder


def _sweep_now_and_then(folder: Path) -> None:
    global _swept_at  # noqa: PLW0603 - one folder for the process
    now = time.monotonic()
    if _swept_at and now < _swept_at + _SWEEPS:
        return
    _swept_at = now
    sweep(folder, time.time() - _OLD)


def sweep(folder: Path, before: float) -> None:
    """Remove what owners left behind who died before then; nobody came back for their calls."""
    for path in folder.iterdir():
        try:
            if path.lstat().st_mtime >= before:
                continue
            file = _opened(path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(path, file):
                path.unlink()
        except OSError:  # a call that takes very long
            continue
        finally:
            os.close(file)
