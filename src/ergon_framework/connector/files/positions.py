"""Where each file was left, kept in a journal that only grows.

One JSON object per line::

    {"file": "a.csv", "id": "9f3c", "stamp": "…", "head": [40, 7]}    begun, or found again
    {"file": "a.csv", "rows": 3, "offset": 120, "check": 99}    the first three rows are settled
    {"file": "a.csv", "row": 7}                                 so is this one, before others
    {"file": "a.csv", "ended": true}                            there is no more under that stamp

``head`` and ``check`` are checksums of the first bytes, and of all before the offset. What the
journal does not say is delivered again. After a write that failed nobody knows what is on disk, so
the next one writes everything anew.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from ergon_framework.connector.files.folder import FoundFile
from ergon_framework.connector.files.rows import FoundRow, TextPlace
from ergon_framework.connector.jsonl.append_file import AppendFile, DirectoryLock, warn_of_lost
from ergon_framework.connector.jsonl.codec import NEWLINE
from ergon_framework.storage.secure_files import Folder

logger = logging.getLogger("ergon.connector.files")
JOURNAL = "positions.jsonl"
COMPACT_AFTER = 1000
"""Entries the journal may hold beyond twice what the last compaction left."""
_ENDED = struct.Struct(">6s8sQQI")


class FilePosition:
    """One file that was begun. Every row before the place ``settled`` is settled."""

    __slots__ = (
        "ahead",
        "cursor",
        "end",
        "head",
        "id",
        "name",
        "node",
        "remembered",
        "settled",
        "stamp",
    )

    def __init__(self, name: str, file_id: str, stamp: str, settled: TextPlace) -> None:
        self.name = name
        self.id = file_id
        self.stamp = stamp
        self.settled = settled
        self.cursor = settled
        """The place after the row that was read last."""
        self.end: TextPlace | None = None
        """Where the file ends, once it is read."""
        self.node = ""
        """The system's identity of the file, if this process has read it."""
        self.head = (0, 0)
        """The number of bytes at the beginning that were read, and a checksum of them."""
        self.ahead: dict[int, TextPlace] = {}
        """Settled rows after that place, with the place at which each ends."""
        self.remembered: set[int] = set()
        """The same from the journal, not read again yet."""

    def begins_with(self, head: bytes) -> bool:
        """Whether these are the first bytes of the file, as far as they were seen."""
        size, check = self.head
        return len(head) >= size and zlib.crc32(head[:size]) == check

    @property
    def is_settled(self) -> bool:
        """Whether the file was read to its end, and every row is settled."""
        return self.end is not None and self.end.rows == self.settled.rows

    def has(self, number: int) -> bool:
        """Whether a row is settled."""
        return number <= self.settled.rows or number in self.ahead or number in self.remembered

    def settle(self, row: FoundRow) -> None:
        """Mark a row as settled. The place moves only over an unbroken run of such rows."""
        self.remembered.discard(row.number)
        if row.number > self.settled.rows:
            self.ahead[row.number] = row.end
        while (end := self.ahead.pop(self.settled.rows + 1, None)) is not None:
            self.settled = end


class Positions:
    """The journal and its content. The caller holds a lock around every method but ``sync``."""

    def __init__(self, folder: Folder, *, fsync: bool, lock: DirectoryLock | None = None) -> None:
        self._folder = folder
        self._fsync = fsync
        self._begun: dict[str, FilePosition] = {}
        self._ended: dict[str, bytes] = {}  # packed: there may be very many
        self._entries = 0
        self._compact_at = COMPACT_AFTER
        self._journal = self._opened()
        if lock is not None:
            warn_of_lost(self._journal, lock)
        self._load()

    @property
    def is_writable(self) -> bool:
        """Whether a settlement can be recorded without rewriting the journal."""
        return self._journal.is_writable and self._journal.is_in_place

    def has_ended(self, found: FoundFile) -> bool:
        """Whether the file is as it was when its last row was settled."""
        ended = self._ended.get(found.name)
        return ended is not None and ended[6:14].hex() == found.stamp

    def of(self, name: str) -> FilePosition | None:
        """What is recorded about a file."""
        known = self._begun.get(name)
        return self._unpacked(name) if known is None and name in self._ended else known

    def _unpacked(self, name: str) -> FilePosition:
        file_id, stamp, *place = _ENDED.unpack(self._ended[name])
        return FilePosition(name, file_id.hex(), stamp.hex(), TextPlace(*place))

    def is_current(self, file: FilePosition) -> bool:
        """Whether this is the file of that name, and not an earlier file."""
        return self._begun.get(file.name) is file

    def begin(self, file: FilePosition) -> int:
        """Record that a file is read, with its stamp. Returns the ticket for :meth:`sync`."""
        ticket = self._write(_all_of(file))
        self._ended.pop(file.name, None)
        self._begun[file.name] = file
        return ticket

    def record(self, rows: Iterable[tuple[FilePosition, FoundRow]]) -> int:
        """Record that rows are settled. Returns the ticket for :meth:`sync`."""
        current = [(file, row) for file, row in rows if self.is_current(file)]
        new = [(file, row) for file, row in current if not file.has(row.number)]
        # The journal first: what it does not take is not settled.
        ticket = self._write([_settled(file, row) for file, row in new])
        for file, row in current:
            file.settle(row)
        return ticket

    def end(self, file: FilePosition, place: TextPlace) -> int:
        """Record that every row of the file is settled, and that it ends at this place."""
        ticket = self._write([_at(file, place), _entry(file, ended=True)])
        file.settled = place
        self._begun.pop(file.name, None)
        self._set_ended(file)
        return ticket

    def forget_missing(self, names: set[str]) -> None:
        """Forget files that are gone."""
        for name in self._begun.keys() - names:
            del self._begun[name]
        for name in self._ended.keys() - names:
            del self._ended[name]

    def sync(self, ticket: int) -> None:
        """Wait until everything written so far is on disk."""
        self._journal.sync(ticket)

    @property
    def is_in_place(self) -> bool:
        """Whether the folder that keeps them is still the one of that name."""
        return self._folder.is_in_place

    def reopen_after_failure(self) -> None:
        """After a failed write, open the journal again and write everything that is known."""
        if not self.is_writable:
            self._journal.close()
            self._journal = self._opened()
            self._compact()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # ---- inside ---------------------------------------------------------------------------------

    def _opened(self) -> AppendFile:
        return AppendFile(self._folder, JOURNAL, "positions", fsync=self._fsync)

    def _set_ended(self, file: FilePosition) -> None:
        place, keys = file.settled, (bytes.fromhex(file.id), bytes.fromhex(file.stamp))
        self._ended[file.name] = _ENDED.pack(*keys, place.rows, place.offset, place.check)

    def _write(self, entries: list[dict[str, Any]]) -> int:
        self.reopen_after_failure()
        # Before the write: what it says is known to the caller only afterwards.
        if self._entries >= self._compact_at:
            self._compact()
        self._entries += len(entries)
        return self._journal.write([_packed(entries)])

    def _compact(self) -> None:
        entries: list[dict[str, Any]] = []
        for name in [*self._ended, *self._begun]:
            file = self._begun.get(name) or self._unpacked(name)
            entries += _all_of(file)
            if name in self._ended:
                entries.append(_entry(file, ended=True))
        self._journal.replace(_packed(entries))
        self._entries = len(entries)
        self._compact_at = 2 * self._entries + COMPACT_AFTER

    def _load(self) -> None:
        with open(self._folder.open_file(JOURNAL, os.O_RDONLY), "rb") as journal:
            for text in journal:
                self._entries += 1
                try:
                    self._apply(_DECODER.decode(text))
                except (msgspec.MsgspecError, ValueError, struct.error):
                    # A crash in the middle of a write leaves half a line. What it said is done
                    # again.
                    logger.warning("skipped a damaged entry in %s", self._journal.path)
        self._compact_at = max(self._compact_at, self._entries)

    def _apply(self, entry: _Entry) -> None:
        name = os.fsdecode(bytes.fromhex(entry.name)) if entry.name else entry.file
        known = self.of(name)
        if entry.id:
            if known is None or known.id != entry.id:
                known = FilePosition(name, entry.id, entry.stamp, TextPlace())
            known.stamp, known.head = entry.stamp, entry.head
            self._ended.pop(name, None)
            self._begun[name] = known
        elif known is None:
            raise ValueError("a file that was not begun")
        elif entry.row:
            known.remembered.add(entry.row)
        elif entry.rows is not None:
            known.settled = TextPlace(entry.rows, entry.offset, entry.check)
            known.cursor = known.settled
            known.remembered = {each for each in known.remembered if each > entry.rows}
        elif entry.ended:
            self._set_ended(known)
            self._begun.pop(name, None)


Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Check = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _Entry(msgspec.Struct):
    """One line of the journal, as it is read."""

    file: str = ""
    name: str = ""
    """The same in hexadecimal digits, where it is not UTF-8."""
    id: str = ""
    stamp: str = ""
    head: tuple[Count, Check] = (0, 0)
    rows: Count | None = None
    offset: Count = 0
    check: Check = 0
    row: Count = 0
    ended: bool = False


_DECODER = msgspec.json.Decoder(_Entry)


def _all_of(file: FilePosition) -> list[dict[str, Any]]:
    first = [_entry(file, id=file.id, stamp=file.stamp, head=file.head)]
    if file.settled.offset:
        first.append(_at(file, file.settled))
    return first + [_entry(file, row=each) for each in sorted({*file.ahead, *file.remembered})]


def _settled(file: FilePosition, row: FoundRow) -> dict[str, Any]:
    is_next = row.number == file.settled.rows + 1
    return _at(file, row.end) if is_next else _entry(file, row=row.number)


def _at(file: FilePosition, place: TextPlace) -> dict[str, Any]:
    return _entry(file, rows=place.rows, offset=place.offset, check=place.check)


def _entry(file: FilePosition, **values: Any) -> dict[str, Any]:
    try:
        file.name.encode("utf-8")
    except UnicodeEncodeError:  # JSON has no such text
        return {"name": os.fsencode(file.name).hex(), **values}
    return {"file": file.name, **values}


def _packed(entries: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + NEWLINE for entry in entries)
