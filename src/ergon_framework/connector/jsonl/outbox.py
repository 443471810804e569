"""Writing a directory of JSON Lines files: numbered parts, each with one writer at a time."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from ergon_framework.connector.jsonl.codec import JsonlConnectorError
from ergon_framework.connector.jsonl.files import MOST_TAKEN, AppendFile, LockedError, taken
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.storage.secure_files import Folder

_PART = re.compile(r"part-(\d{8,})\.jsonl")


class Outbox:
    """Appends lines to ``part-00000001.jsonl`` and its successors.

    A part is continued after a restart until it has ``rotate_bytes``. Several connectors may write
    into one directory: each has a part to itself.
    """

    def __init__(self, directory: Path, *, rotate_bytes: int, fsync: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._folder = Folder.open(directory.absolute(), follow=True)
        self._rotate_bytes = rotate_bytes
        self._fsync = fsync
        self._lock = threading.Lock()
        self._part: AppendFile | None = None
        self._last = 0  # the number of the last part that was written
        self._closed = False
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the part is the parent's."""
        self._lock = threading.Lock()
        self._part = None

    @property
    def is_sound(self) -> bool:
        """Whether lines can still be written."""
        return self._part is None or self._part.is_sound

    def append(self, lines: list[bytes]) -> None:
        """Write all lines into one part. On disk when this returns.

        A part may be taken away at any moment. What was written into it after that would be seen by
        nobody, so it is written again, into another part.
        """
        if not lines:
            return
        for _ in range(MOST_TAKEN):
            part, ticket = self._write(b"".join(lines))
            part.sync(ticket)
            if part.is_in_place:
                return
        raise taken(self._folder.path / "part-*.jsonl")

    def _write(self, text: bytes) -> tuple[AppendFile, int]:
        with self._lock:
            if self._closed:
                raise JsonlConnectorError("the outbox is closed", remedy="open a new connector")
            part = self._part
            if part is None or part.size >= self._rotate_bytes or not part.is_in_place:
                part = self._part = self._turn_over()
            return part, part.write([text])

    def close(self) -> None:
        """Bring everything to disk and close the part."""
        with self._lock:
            self._closed = True
            if self._part is not None:
                self._part.close()
            self._folder.close()

    def _turn_over(self) -> AppendFile:
        if self._part is not None:
            self._part.close()
            self._part = None
        number = max(self._numbers(), default=0)
        if number < self._last:  # parts were taken away: no name is used twice
            number = self._last + 1
        elif number == 0 or self._is_full(number):
            number += 1
        while True:
            try:
                part = self._open(number)
                self._last = number
                return part
            except LockedError:
                number += 1  # another connector writes that one

    def _is_full(self, number: int) -> bool:
        try:
            return self._folder.look(self._name(number)).st_size >= self._rotate_bytes
        except FileNotFoundError:  # it was taken away since it was listed
            return True

    def _open(self, number: int) -> AppendFile:
        # Whoever takes the parts away may be another user: who reads them is the umask's business.
        return AppendFile(
            self._folder,
            self._name(number),
            "outbox",
            fsync=self._fsync,
            lock=True,
            is_public=True,
        )

    def _numbers(self) -> list[int]:
        found = (_PART.fullmatch(name) for name in self._folder.names())
        return [int(match[1]) for match in found if match is not None]

    def _name(self, number: int) -> str:
        return f"part-{number:08}.jsonl"
