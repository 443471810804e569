"""The dead letters: rows that were set aside, with their reason, one JSON object per line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ergon_framework.connector.jsonl.append_file import AppendFile
from ergon_framework.connector.jsonl.codec import NEWLINE
from ergon_framework.storage.secure_files import Folder

LETTERS = "dead_letters.jsonl"
_MAX_REASON = 2000


class DeadLetters:
    """The file of dead letters in the folder of the connector's state."""

    def __init__(self, folder: Folder, *, fsync: bool) -> None:
        self._folder = folder
        self._fsync = fsync
        self._file = self._opened()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    @property
    def is_writable(self) -> bool:
        """Whether letters can be written."""
        return self._file.is_writable

    def append(self, letters: Iterable[dict[str, Any]]) -> None:
        """Write letters. They are on disk when this returns."""
        self.reopen_after_failure()
        lines = [msgspec.json.encode(each, enc_hook=str) + NEWLINE for each in letters]
        self._file.append(lambda: lines)

    def read(self) -> Iterator[dict[str, Any]]:
        """The letters, oldest first."""
        with open(self._folder.open_file(LETTERS, os.O_RDONLY), "rb") as file:
            for text in file:
                if text.endswith(NEWLINE):  # the last one may be being written
                    yield msgspec.json.decode(text)

    def reopen_after_failure(self) -> None:
        """Open the file again after a failed write. Half a letter is cut off."""
        if not self._file.is_writable:
            self._file.close()
            self._file = self._opened()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _opened(self) -> AppendFile:
        return AppendFile(self._folder, LETTERS, "dead_letters", fsync=self._fsync)


def letter(reason: str, place: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """A dead letter: when, where, why, and what."""
    text = reason[:_MAX_REASON].encode("utf-8", "backslashreplace").decode("utf-8")
    return {"at": datetime.now(UTC).isoformat(), **place, "reason": text, **content}
