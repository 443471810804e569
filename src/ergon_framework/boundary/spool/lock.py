"""One drain at a time: whoever holds the lock file sends, in whatever process it runs."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.secure_files import open_file

_held: weakref.WeakSet[DrainLock] = weakref.WeakSet()


class DrainLock:
    """A lock of this very object: neither another process nor another drain here gets it too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def try_gain(self) -> bool:
        """Take it if nobody has it; never waits."""
        try:
            descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreUnavailableError(
                f"{self._path} cannot be used: {error.strerror}",
                remedy="make the outbox's folder writable",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        self._descriptor = descriptor
        _held.add(self)
        return True

    def release(self) -> None:
        """Let go of it. Doing it twice is fine."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also for children that have it too
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """In a forked child: let go, so that the lock ends with the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        _held.discard(self)
        if descriptor >= 0:
            os.close(descriptor)

    def refusal(self) -> StoreUnavailableError:
        """The error for who does not want to wait."""
        try:
            holder = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            holder = ""
        who = f"process {holder}" if holder.isdigit() else "another process"
        return StoreUnavailableError(
            f"{who} drains this outbox already ({self._path.name})",
            remedy="let that one do it, or stop it first; a process that died holds nothing",
        )


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
