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
from pathlib import Path

_LONGEST = 255


class Held:
    """A call that is being made here."""

    __slots__ = ("_file", "_path")

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    def release(self) -> None:
        """It has ended."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)


def take(name: str, owner: str) -> Held | None:
    """Say that ``owner`` makes the call ``name`` now; None when somebody else does, or one cannot.

    Without it nothing is wrong: the lease of the key has to run out then.
    """
    try:
        path = _folder() / hashlib.sha256(name.encode()).hexdigest()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, owner.encode(), 0)
    except OSError:
        os.close(file)
        return None
    return Held(path, file)


def dead_owner(name: str) -> str | None:
    """Who made the call here and died; None when nobody did, or still lives."""
    try:
        path = _folder() / hashlib.sha256(name.encode()).hexdigest()
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.pread(file, _LONGEST, 0).decode() or None
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(file)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"ergon-held-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o77:
        raise PermissionError(folder)  # somebody else made it, and may have filled it
    return folder
