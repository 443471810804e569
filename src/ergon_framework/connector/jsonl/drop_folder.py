"""The folder that other programs put files into. Only regular files are read."""

from __future__ import annotations

import logging
import os
from io import BufferedReader
from pathlib import Path
from typing import Self

from ergon_framework.connector.jsonl.codec import shown
from ergon_framework.storage.secure_files import Folder, UnsafeFileError

_log = logging.getLogger("ergon_framework.connector.jsonl.drop_folder")


class DropFolder:
    """An inbox, kept open: everything in it is reached through it, and no link is followed."""

    def __init__(self, path: Path) -> None:
        self._folder = Folder.open(path.absolute(), follow=True)
        self._ignored: set[str] = set()

    def names(self) -> list[str]:
        """The files to read, in order. Anything that is no regular file is logged once."""
        found = [name for name in self._folder.names() if name.endswith(".jsonl")]
        return sorted(name for name in found if name[0] != "." and self._is_work(name))

    def all_names(self) -> list[str]:
        """Every name in the folder."""
        return self._folder.names()

    def open(self, name: str) -> BufferedReader:
        """One of the files; ``FileNotFoundError`` if it is gone, or none that holds work now."""
        try:
            return open(self._folder.open_delivered(name), "rb")
        except UnsafeFileError as error:
            raise FileNotFoundError(*error.args) from error

    def look(self, name: str) -> os.stat_result:
        """The system's status of a file."""
        return self._folder.look(name)

    def sync(self) -> None:
        """Sync the folder, so that the names of its files are on disk."""
        self._folder.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.close()

    def _is_work(self, name: str) -> bool:
        try:
            return self._folder.is_deliverable(name)
        except FileNotFoundError:  # removed since it was listed
            return False
        except UnsafeFileError as error:
            if name not in self._ignored:
                self._ignored.add(name)
                place = os.fspath(self._folder.path / shown(name))
                _log.warning("ignored %s: %s", place, error.strerror)
            return False
