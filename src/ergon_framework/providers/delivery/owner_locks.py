"""Locked files that show which process of this machine is making a call right now.

A queue delivers a message again when its worker died, and also when the worker only lost its
connection. In the first case no process makes the call any more, in the second the worker still
does. A locked file distinguishes the two, because the system releases the lock of a process that
dies. Where no file can be checked, such as on another machine, the lease of the idempotency key has
to run out.

The file also says until when the lease lasts, by the clock that counts from the start of the
machine, which cannot be set. So a wall clock that is set forward does not end the lease of an owner
that lives here. The file of an owner follows from its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ergon_framework.storage.secure_files import Folder

_MAX_CONTENT = 512  # bytes of an owner's name, and of the end of its lease
_MAX_TRIES = 10
_MAX_AGE = 86_400.0
"""Seconds after which an unlocked file is of no use: the lease of its key ended long ago."""
SWEEP_INTERVAL = 3600.0
"""Seconds between two sweeps of such files."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """The clock of this machine that cannot be set. Unlike ``time.monotonic`` it counts on while
    the machine sleeps, as the clocks of other machines do.
    """
    return time.clock_gettime(_BOOT_CLOCK)


def new_owner(name: str) -> str:
    """A name for an owner of the call ``name``, different each time."""
    return f"{_digest(name)}.{uuid.uuid4()}"


class OwnerLock:
    """A call that this process is making."""

    __slots__ = ("_file", "_path")

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    def release(self) -> None:
        """Remove the file: the call has ended."""
        # A process that finds the file unlocked takes its owner for dead, so the name goes before
        # the lock.
        with contextlib.suppress(OSError):
            # The file may have been deleted, and another call may have made one of that name.
            if _has_name(self._path, self._file):
                self._path.unlink()
        os.close(self._file)


class OwnerLocks:
    """The locked files of one user on this machine. Any thread may call any method."""

    def __init__(
        self,
        *,
        sweep_interval: float = SWEEP_INTERVAL,
        ticks: Callable[[], float] = time.monotonic,
        boot_clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self._sweep_interval = sweep_interval
        self._ticks = ticks
        self._boot_clock = boot_clock
        self._swept_at = float("-inf")

    def folder(self) -> Path:
        """The folder of the files; made if it is not there, refused if it belongs to another
        user.
        """
        # Asked each time: a program may set its temporary folder late.
        folder = Path(tempfile.gettempdir()) / f"ergon-held-{os.getuid()}"
        Folder.ensure_private(folder).close()  # another user may have made the folder before us
        return folder

    def acquire(self, name: str, owner: str, lease: float = 0.0) -> OwnerLock | None:
        """Lock the call ``name`` for ``owner``, whose lease lasts for ``lease`` seconds from now;
        None when it is locked, or cannot be.

        The call may be made without a lock: then the lease of its key has to run out if it dies.
        """
        content = f"{owner}\n{self._boot_clock() + lease}"
        try:
            folder = self.folder()
            self._sweep_when_due(folder)
            path = _path_of(folder, name)
            for _ in range(_MAX_TRIES):
                file = _opened(path, os.O_RDWR | os.O_CREAT)
                lock = _locked(path, file, content)
                if lock is not None:
                    return lock
        except OSError:  # the call is locked, or no file can be made
            return None
        return None

    def dead_owner(self, name: str) -> str | None:
        """The owner that made the call on this machine and died; None if none did, or it lives."""
        try:
            file = _opened(_path_of(self.folder(), name), os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The content of a file whose lock we got: its owner cannot be alive. Closing gives the
            # lock back.
            return _content(file)[0] or None
        except (OSError, ValueError):
            return None
        finally:
            os.close(file)

    def lease_left(self, owner: str) -> float:
        """Seconds that the lease of an owner that lives on this machine still lasts, by a clock
        that cannot be set; 0 if it is over, or if the owner is dead or unknown here.
        """
        digest, mark, _ = owner.partition(".")
        if not mark or len(digest) != _DIGEST_LENGTH or not digest.isalnum():
            return 0.0
        try:
            file = _opened(self.folder() / digest, os.O_RDWR)
        except OSError:
            return 0.0
        try:
            # Without a lock the owner is dead, whatever its file says.
            if not _is_locked(file):
                return 0.0
            held_by, ends_at = _content(file)
            return max(0.0, ends_at - self._boot_clock()) if held_by == owner else 0.0
        except (OSError, ValueError):
            return 0.0
        finally:
            os.close(file)

    def _sweep_when_due(self, folder: Path) -> None:
        now = self._ticks()
        if now >= self._swept_at + self._sweep_interval:
            self._swept_at = now
            sweep(folder, time.time() - _MAX_AGE)


OWNER_LOCKS = OwnerLocks()
"""The locks of this process."""


def sweep(folder: Path, before: float) -> None:
    """Remove unlocked files from before that instant: their owners died, and no delivery has asked
    for them since.
    """
    for path in folder.iterdir():
        try:
            if path.lstat().st_mtime >= before:
                continue
            file = _opened(path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under the lock: between the look and the lock another call may have made a file of
            # that name.
            if _has_name(path, file):
                path.unlink()
        except OSError:  # locked: a call that takes very long
            continue
        finally:
            os.close(file)


_DIGEST_LENGTH = 64  # hexadecimal digits of a SHA-256


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _path_of(folder: Path, name: str) -> Path:
    return folder / _digest(name)


def _content(file: int) -> tuple[str, float]:
    """The owner that a file names, and when its lease ends by the clock of the machine."""
    owner, _, ends_at = os.pread(file, _MAX_CONTENT, 0).decode().partition("\n")
    return owner, float(ends_at or 0.0)


def _is_locked(file: int) -> bool:
    """Whether another opened file has the lock. It is shared, so that askers see no lock of others
    who ask.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _locked(path: Path, file: int, content: str) -> OwnerLock | None:
    """Lock an open file and write the content; otherwise close it.

    None when the file was deleted between its opening and the lock, by an owner that ended: a lock
    on a file without a name would exclude no other process.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _has_name(path, file):
            # Under the lock, and cut first: a shorter content would leave the end of the old one.
            os.ftruncate(file, 0)
            os.pwrite(file, content.encode(), 0)
            return OwnerLock(path, file)
    except OSError:
        os.close(file)
        raise
    os.close(file)
    return None


def _has_name(path: Path, file: int) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _opened(path: Path, flags: int) -> int:
    with Folder.ensure_private(path.parent) as folder:
        return folder.open_file(path.name, flags)
