"""How far each inbox file is settled, kept in an append-only journal.

Two kinds of entries, one JSON object per line::

    {"file": "a.jsonl", "line": 7, "check": 123}                    line 7 is settled
    {"file": "a.jsonl", "below": 8, "offset": 431, "check": 456}    so is all before line 8

``check`` is a checksum of the settled content: of the line, or of both ends of the settled part of
the file. An entry counts only while the content is still the same, so a new file under an old name
is never mistaken for work already done. What the journal does not say is delivered again.
"""

from __future__ import annotations

import logging
import os
from io import BufferedReader
from typing import Any

import msgspec

from ergon_framework.connector.jsonl.codec import NEWLINE, MalformedLineError, decode
from ergon_framework.connector.jsonl.drop_folder import DropFolder
from ergon_framework.connector.jsonl.files import AppendFile
from ergon_framework.connector.jsonl.lines import Line, fingerprint
from ergon_framework.storage.secure_files import Folder

_log = logging.getLogger(__name__)
_SLACK = 1000  # entries the journal may hold beyond twice what the last compaction left


class FileProgress:
    """One inbox file: all before its frontier is settled, all before its cursor was read."""

    __slots__ = (
        "ahead",
        "check",
        "is_at_end",
        "line",
        "name",
        "next_line",
        "next_offset",
        "offset",
        "remembered",
        "stalled_size",
        "unfolded",
    )

    def __init__(self, name: str, line: int = 1, offset: int = 0, check: int = 0) -> None:
        self.name = name
        self.line = self.next_line = line
        self.offset = self.next_offset = offset
        self.check = check  # of the content before the cursor
        self.ahead: dict[int, tuple[int, int]] = {}  # settled beyond the frontier: end, checksum
        self.remembered: dict[int, int] = {}  # the same from the journal, not read again yet
        self.is_at_end = False
        self.stalled_size = -1  # the size at which the last line was found unfinished
        self.unfolded = 0  # line entries that one frontier entry could replace

    @property
    def is_settled(self) -> bool:
        """Whether every line up to the end of the file is settled."""
        return self.is_at_end and self.line == self.next_line

    def resume(self, file: BufferedReader) -> None:
        """Step over the newline of a last line that was read before its newline came."""
        if self.next_offset:
            around = os.pread(file.fileno(), 2, self.next_offset - 1)
            if len(around) == 2 and around[:1] != NEWLINE and around[1:] == NEWLINE:
                self.next_offset += 1
                self.check = fingerprint(file, self.next_offset)
        if self.line == self.next_line:
            self.offset = self.next_offset

    def read(self, line: Line) -> None:
        """Move the cursor behind ``line``."""
        self.next_line = line.number + 1
        self.next_offset = line.end
        self.remembered.pop(line.number, None)

    def settle(self, line: Line) -> None:
        """Mark ``line`` as settled and move the frontier as far as it goes."""
        self.unfolded += 1
        self.ahead[line.number] = (line.end, line.check)
        while self.line in self.ahead:
            self.offset = self.ahead.pop(self.line)[0]
            self.line += 1
        if self.line == self.next_line:
            self.offset = self.next_offset


class Progress:
    """The journal and what it says. The caller holds a lock around every method but ``sync``."""

    def __init__(self, inbox: DropFolder, folder: Folder, name: str, *, fsync: bool) -> None:
        self._inbox = inbox
        self._files: dict[str, FileProgress] = {}
        self._folder = folder
        self._journal = AppendFile(folder, name, "progress", fsync=fsync)
        self._entries = 0
        self._compact_at = _SLACK
        self._load()
        self._compact()

    @property
    def is_sound(self) -> bool:
        """Whether further settlements can be recorded."""
        return self._journal.is_sound

    def of(self, name: str) -> FileProgress:
        """What is known about the file ``name``; a fresh start when nothing is."""
        return self._files.setdefault(name, FileProgress(name))

    def verified(self, name: str, file: BufferedReader) -> FileProgress:
        """The same, after making sure that what was read is still what the file holds."""
        known = self.of(name)
        if known.check == fingerprint(file, known.next_offset):
            known.resume(file)
            return known
        _log.warning("%s changed where it had been read; it counts as a new file", name)
        fresh = self._files[name] = FileProgress(name)
        fresh.remembered = known.remembered
        return fresh

    def forget_missing(self, names: set[str]) -> None:
        """Drop what is known about files that are gone."""
        for name in self._files.keys() - names:
            del self._files[name]

    def record(self, lines: list[Line]) -> int:
        """Write down that ``lines`` are settled; returns the ticket for :meth:`sync`."""
        entries = []
        for line in lines:
            file = line.file
            if self._files.get(file.name) is not file:
                continue  # the file was replaced or removed: its new content is other work
            file.settle(line)
            entries.append(_frontier(file) if file.is_settled else _settled(line))
        return self._write(entries)

    def fold(self, file: FileProgress) -> None:
        """Replace the line entries of a wholly settled file by one entry."""
        if file.is_settled and file.unfolded:
            self._write([_frontier(file)])

    def sync(self, ticket: int) -> None:
        """Wait until the entries with this ticket are on disk."""
        self._journal.sync(ticket)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _write(self, entries: list[dict[str, Any]]) -> int:
        ticket = self._journal.write([_packed(entries)])
        self._entries += len(entries)
        self._compact()
        return ticket

    def _load(self) -> None:
        fd = self._folder.open_file(self._journal.path.name, os.O_RDONLY)
        with open(fd, "rb") as journal:
            for text in journal:
                self._entries += 1
                try:
                    self._apply(decode(text))
                except (MalformedLineError, KeyError, TypeError):
                    _log.warning("skipped a damaged entry in %s", self._journal.path)
        self.forget_missing(set(self._inbox.all_names()))

    def _apply(self, entry: dict[str, Any]) -> None:
        name = entry["file"]
        if "below" not in entry:
            self.of(name).remembered[entry["line"]] = entry["check"]
            return
        before = self.of(name).remembered
        file = FileProgress(name, entry["below"], entry["offset"], entry["check"])
        file.remembered = {line: check for line, check in before.items() if line >= file.line}
        self._files[name] = file

    def _compact(self) -> None:
        if self._entries < self._compact_at:
            return
        entries = [entry for file in self._files.values() for entry in self._entries_of(file)]
        self._journal.replace(_packed(entries))
        self._entries = len(entries)
        self._compact_at = 2 * self._entries + _SLACK

    def _entries_of(self, file: FileProgress) -> list[dict[str, Any]]:
        entries = []
        check = self._check_at_frontier(file)
        if file.offset and check is not None:
            entries.append(_entry(file.name, below=file.line, offset=file.offset, check=check))
        settled = file.remembered | {line: check for line, (_, check) in file.ahead.items()}
        entries += [_entry(file.name, line=line, check=check) for line, check in settled.items()]
        return entries

    def _check_at_frontier(self, file: FileProgress) -> int | None:
        if file.offset == file.next_offset:
            return file.check
        try:
            with self._inbox.open(file.name) as content:
                # A checksum of content that is no longer what was read would bless other work.
                is_same = fingerprint(content, file.next_offset) == file.check
                return fingerprint(content, file.offset) if is_same else None
        except OSError:
            return None


def _settled(line: Line) -> dict[str, Any]:
    return _entry(line.file.name, line=line.number, check=line.check)


def _frontier(file: FileProgress) -> dict[str, Any]:
    file.unfolded = 0
    return _entry(file.name, below=file.line, offset=file.offset, check=file.check)


def _entry(name: str, **values: int) -> dict[str, Any]:
    return {"file": name, **values}


def _packed(entries: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + NEWLINE for entry in entries)
