"""A folder that a zone lives in: an SQLite file, a folder of objects or both, and one lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ergon_framework.boundary.objectstore.disk import sync_folder
from ergon_framework.boundary.restore_mark import refuse_half_restored
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.secure_files import UnsafeFileError, make_folder, open_file

FILE, OBJECTS, LOCK = "facts.db", "objects", "node.lock"


class DataFolder:
    """A zone's folder, locked for this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        renew_after_fork(self)

    @classmethod
    def lock(cls, path: str | Path, *, is_restored: bool = False) -> DataFolder:
        """Take the folder for this process, or say who has it.

        A restore that was cut off is refused to everybody but the one who restores it again.
        """
        folder = Path(path).absolute()
        if not is_restored:
            refuse_half_restored(folder, FILE)
        try:
            _make(folder)
            descriptor = open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            where = error.filename if isinstance(error, UnsafeFileError) else folder
            raise ConfigurationError(
                f"{where} cannot be used: {error.strerror}",
                remedy="name a folder that this user may write to, and nobody else",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise ConfigurationError(
                f"{folder} is in use by another node"
                + (f", process {holder}" if holder.isdigit() else ""),
                remedy="stop that one first, or name another folder",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return cls(folder, descriptor)

    def renew(self) -> None:
        """In a process that was just forked: the lock is the parent's, and ends with it."""
        self._leave()

    def close(self) -> None:
        """Let go of it. Closing twice is fine."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also for children that have it too
        self._leave()

    def _leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _make(folder: Path) -> None:
    """Create the folder so that its name survives a power cut, like everything in it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder, parents=True)
    for each in missing:
        sync_folder(each.parent)
