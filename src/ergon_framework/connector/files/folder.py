"""A folder that other programs put files into. Only regular files are read, and no link is
followed.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.connector.jsonl.codec import shown
from ergon_framework.storage.secure_files import Folder, UnsafeFileError

_BUFFER = 1 << 18
logger = logging.getLogger("ergon.connector.files")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """The state of a file at one moment. ``stamp`` differs when the file has changed."""

    name: str
    stamp: str
    size: int
    modified: float
    node: str = ""
    """What stays the same while a file grows; empty if there is nothing."""
    identity: str = ""
    """What distinguishes two files of one name; empty: size, time and beginning do."""


class LocalFolder:
    """One folder of this machine. It is kept open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = Folder.open(path, follow=True)
        self._ignored: set[str] = set()

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to this folder, and not to one that was mounted
        there since.
        """
        return self._folder.is_in_place

    def names(self, takes: Callable[[str], bool]) -> tuple[list[str], set[str]]:
        """The names of the files to read, in order, and the names of all files."""
        every = self._folder.names()
        return sorted(name for name in every if takes(name)), set(every)

    def look(self, name: str) -> FoundFile | None:
        """The present state of a file. None when it is gone, or may not be read."""
        try:
            seen = self._folder.look(name)
            if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1:
                self._folder.is_deliverable(name)  # it says why not
            return _found(name, seen)
        except FileNotFoundError:
            return None
        except UnsafeFileError as error:
            if name not in self._ignored:
                self._ignored.add(name)
                logger.warning("ignored %s: %s", self.shown(name), error.strerror)
            return None

    def open(self, found: FoundFile) -> tuple[io.BufferedReader, FoundFile] | None:
        """The file and its state when it is opened. None when it is gone."""
        try:
            file = io.FileIO(self._folder.open_delivered(found.name), "rb")
        except (FileNotFoundError, UnsafeFileError):
            return None
        return io.BufferedReader(file, _BUFFER), _found(found.name, os.fstat(file.fileno()))

    def shown(self, name: str) -> str:
        """The name of a file in errors and logs."""
        return os.fspath(self.path / shown(name))

    def close(self) -> None:
        """Close it."""
        self._folder.close()


def _found(name: str, seen: os.stat_result) -> FoundFile:
    known = f"{seen.st_ino}-{seen.st_size}-{seen.st_mtime_ns}-{seen.st_ctime_ns}"
    return FoundFile(
        name, digest(known, 8), seen.st_size, seen.st_mtime, f"{seen.st_dev}-{seen.st_ino}"
    )


def digest(text: str, size: int) -> str:
    """A short name for a longer text."""
    return hashlib.blake2b(os.fsencode(text), digest_size=size).hexdigest()
