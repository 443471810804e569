"""The files of facts that wait: copied beside the spool, each for one fact, synced before it.

A copy is named after its digest and a random word. It belongs to one row, so that the end of one
fact never takes a file away from another.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import BinaryIO

from ergon_framework.boundary.objectstore.disk import sync_file, sync_folder
from ergon_framework.boundary.spool.records import SpooledFile
from ergon_framework.errors import StoreError, StoreFullError, StoreUnavailableError
from ergon_framework.storage.secure_files import Folder

_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}|new\.[0-9a-f]{16}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class SpoolFolder:
    """The copies of one spool. Any thread may call any method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, source: Iterable[bytes]) -> tuple[str, bytes, int]:
        """Copy bytes and bring the copy to disk: its name here, its digest and its size."""
        try:
            return self._copy(source)
        except OSError as error:
            raise _told(error, self.folder) from error

    def measure(self, source: Iterable[bytes]) -> tuple[bytes, int]:
        """The digest and the size of a file that stays where it is."""
        return _pour(source, None)

    def place(self, file: SpooledFile) -> Path:
        """Where the bytes of a file lie."""
        return self.folder / file.path if file.is_copy else Path(file.path)

    def is_there(self, file: SpooledFile) -> bool:
        """Whether a file of that size is where it should be."""
        try:
            return self.place(file).stat().st_size == file.size
        except OSError:
            return False

    def drop(self, files: Collection[SpooledFile]) -> None:
        """Remove copies whose fact has gone; one that cannot be is swept later."""
        for file in files:
            if file.is_copy:
                with contextlib.suppress(OSError):
                    self.place(file).unlink()

    def sweep(self, known: Collection[str], before: float) -> int:
        """Remove copies that no fact refers to and that were made before an instant; how many."""
        swept = 0
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                if path.name not in known and _NAME.fullmatch(path.name):
                    with contextlib.suppress(OSError):
                        if path.stat().st_mtime < before:
                            path.unlink()
                            swept += 1
        return swept

    def _copy(self, source: Iterable[bytes]) -> tuple[str, bytes, int]:
        with Folder.ensure(self.folder, parents=True) as folder:
            if folder.is_new:
                sync_folder(self.folder.parent)
            word = secrets.token_hex(8)
            hidden = self.folder / f"new.{word}"
            made = folder.open_file(hidden.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(made, "wb") as copy:
                digest, size = _pour(source, copy)
                copy.flush()
                sync_file(copy.fileno())
            kept = hidden.rename(self.folder / f"{digest.hex()}.{word}")
        except BaseException:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise
        sync_folder(self.folder)
        return kept.name, digest, size


def _pour(source: Iterable[bytes], copy: BinaryIO | None) -> tuple[bytes, int]:
    sha, size = hashlib.sha256(), 0
    for chunk in source:
        sha.update(chunk)
        size += len(chunk)
        if copy is not None:
            copy.write(chunk)
    return sha.digest(), size


def _told(error: OSError, folder: Path) -> StoreError:
    if error.errno in _FULL:
        return StoreFullError(
            f"there is no room left in {folder}", remedy="free some disk space, then try again"
        )
    return StoreUnavailableError(
        f"a file cannot be copied to {folder}: {error.strerror}",
        remedy="make the folder writable, or add the file with copy=False",
    )
