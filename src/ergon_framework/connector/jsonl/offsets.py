"""The lines of a file, and which of them are settled, kept in an append-only journal.

Two kinds of entries, one JSON object per line::

    {"file": "a.jsonl", "line": 7, "check": 123}                    line 7 is settled
    {"file": "a.jsonl", "below": 8, "offset": 431, "check": 456,    so is all before line 8
     "whole": 789, "inode": 12, "changed": 1700000000000000000}

``check`` is a checksum of the settled content: of the line, or of both ends of the settled part of
the file; ``whole`` is one of all of it, which entries of earlier versions do not have. An entry
counts only while the content is still the same, so a new file under an old name is never mistaken
for work already done. ``inode`` and ``changed`` say when that was compared: a file with the same
ones need not be read again. What the journal does not say is delivered again.

A name that is not UTF-8 stands in hexadecimal digits under ``name`` instead of ``file``.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, NamedTuple

import msgspec

from ergon_framework.connector.jsonl.append_file import (
    AppendFile,
    DirectoryLock,
    taken,
    warn_of_lost,
)
from ergon_framework.connector.jsonl.codec import (
    NEWLINE,
    MalformedLineError,
    decode,
    is_complete,
    shown,
)
from ergon_framework.connector.jsonl.drop_folder import DropFolder
from ergon_framework.storage.secure_files import Folder

_WINDOW = 4096  # bytes at each end of a file that are compared
_PIECE = 3 << 16  # a multiple of three: see codec.long_letter
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(slots=True, eq=False)
class InboxLine:
    """One line that was read, and where it stands. ``data`` is None when it is too long to hold."""

    file: FileProgress
    number: int
    start: int
    end: int
    data: bytes | None
    is_terminated: bool
    whole: int  # a checksum of the file up to the end of this line

    @property
    def check(self) -> int:
        """A checksum of its content."""
        return self.end - self.start if self.data is None else zlib.crc32(self.data)

    @property
    def is_blank(self) -> bool:
        """Whether it holds nothing but white space."""
        return self.data is not None and not self.data.strip()

    @property
    def is_ready(self) -> bool:
        """Whether its writer has finished it."""
        return self.is_terminated or (self.data is not None and is_complete(self.data))


def scan(file: BufferedReader, known: FileProgress, limit: int) -> Iterator[InboxLine]:
    """The lines after the cursor of ``known``, which is left where it is."""
    number, start, whole = known.next_line, known.next_offset, known.whole or 0
    file.seek(start)
    # One byte more than the limit, to tell a line of exactly that length from a longer one without
    # reading it whole.
    while piece := file.readline(limit + 1):
        end, whole = start + len(piece), zlib.crc32(piece, whole)
        data: bytes | None = piece.removesuffix(NEWLINE)
        if len(piece) > limit and piece[-1:] != NEWLINE:
            data = None
            while piece[-1:] != NEWLINE and (more := file.readline(_PIECE)):
                piece = more
                end, whole = end + len(more), zlib.crc32(more, whole)
        # Editors on Windows put a byte order mark at the beginning of a file; JSON knows none.
        elif start == 0:
            data = piece.removesuffix(NEWLINE).removeprefix(_BYTE_ORDER_MARK)
        yield InboxLine(known, number, start, end, data, piece[-1:] == NEWLINE, whole)
        number, start = number + 1, end


def pieces(drop: DropFolder, name: str, start: int, end: int) -> Iterator[bytes]:
    """The bytes from ``start`` to ``end``, a few at a time."""
    with drop.open(name) as file:
        file.seek(start)
        while start < end and (piece := file.read(min(_PIECE, end - start))):
            start += len(piece)
            yield piece


def is_short(offset: int) -> bool:
    """Whether :func:`fingerprint` covers all that comes before ``offset``."""
    return offset <= 2 * _WINDOW


def checksum(file: BufferedReader, offset: int) -> int:
    """A checksum of all that comes before ``offset``; it goes on with :func:`zlib.crc32`."""
    done = found = 0
    while done < offset and (piece := os.pread(file.fileno(), min(_PIECE, offset - done), done)):
        done, found = done + len(piece), zlib.crc32(piece, found)
    # A file that is shorter than what was read from it has been replaced; -1 is no checksum.
    return found if done == offset else -1


def fingerprint(file: BufferedReader, offset: int) -> int:
    """A checksum of both ends of what comes before ``offset``; 0 for nothing, and -1 if the file is
    shorter.
    """
    size = min(offset, _WINDOW)
    head = os.pread(file.fileno(), size, 0)
    # ``pread`` leaves the position alone, which belongs to the reader.
    tail = os.pread(file.fileno(), size, offset - size)
    if len(tail) < size:
        return -1  # the file is shorter than that
    return zlib.crc32(tail, zlib.crc32(head))


_log = logging.getLogger("ergon_framework.connector.jsonl.progress")
_READ_AT_GROWTH = 1 << 20
"""Bytes that are compared as a whole each time that a file has grown; of more, both ends are."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """When the journal of an inbox is compacted, and when a file is trusted to stay as it is."""

    compact_after: int = 1000
    """Entries the journal may hold beyond twice what the last compaction left."""
    steady_after: float = 1.0
    """Seconds after its last change until a file's next change is sure to have another instant.

    File systems count time in ticks: two changes within one tick have the same instant.
    """


_LIMITS = JournalLimits()


class Stamp(NamedTuple):
    """The system's record of a file, which changes when the file does."""

    inode: int
    changed: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp of a file whose status was just read."""
        return cls(found.st_ino, found.st_ctime_ns, found.st_size)

    def is_steady(self, steady_after: float) -> bool:
        """Whether a change from now on is sure to give the file another one."""
        # Two writes within one tick of the file system's clock have the same stamp, so a file that
        # has just changed may change again unseen.
        return self.changed + steady_after * 1e9 < time.time_ns()


class FileProgress:
    """One inbox file: all before its frontier is settled, all before its cursor was read."""

    __slots__ = (
        "ahead",
        "check",
        "is_at_end",
        "is_stalled",
        "is_stamp_kept",
        "is_sure",
        "line",
        "name",
        "next_line",
        "next_offset",
        "offset",
        "remembered",
        "settled_whole",
        "stamp",
        "steady_after",
        "unfolded",
        "whole",
    )

    def __init__(
        self,
        name: str,
        line: int = 1,
        offset: int = 0,
        check: int = 0,
        *,
        steady_after: float = _LIMITS.steady_after,
    ) -> None:
        self.name = name
        self.steady_after = steady_after
        self.line = self.next_line = line
        self.offset = self.next_offset = offset
        self.check = check  # of both ends of the content before the cursor
        self.whole: int | None = None if offset else 0  # of all of it, where that is known
        self.settled_whole = self.whole  # the same before the frontier
        self.stamp: Stamp | None = None  # of the last look; None: nobody has looked since the start
        self.is_sure = False  # all that was read is what the file holds for as long as it has it
        self.is_stamp_kept = False  # the journal has it
        # Settled beyond the frontier: where the line ends, its checksum, the file's up to there.
        self.ahead: dict[int, tuple[int, int, int]] = {}
        self.remembered: dict[int, int] = {}  # the same from the journal, not read again yet
        self.is_at_end = False
        self.is_stalled = False  # the last line was unfinished at the last look
        self.unfolded = 0  # line entries that one frontier entry could replace

    @property
    def is_settled(self) -> bool:
        """Whether every line up to the end of the file is settled."""
        return self.is_at_end and self.line == self.next_line

    def is_done_with(self, stamp: Stamp) -> bool:
        """Whether the file has nothing new since it was last read."""
        is_read = self.is_stalled or stamp.size == self.next_offset
        return is_read and self.is_sure and stamp == self.stamp

    def holds(self, file: BufferedReader, stamp: Stamp) -> bool:
        """Whether the file still holds everything that was read from it."""
        # Both ends first: that is cheap and finds nearly every replacement.
        if self.check != fingerprint(file, self.next_offset):
            return False
        is_compared = is_short(self.next_offset)
        if self.whole is None:  # of an entry of an earlier version
            self.whole, is_compared = checksum(file, self.next_offset), True
        elif not is_compared and self._must_be_read(stamp):
            is_compared = True
            if self.whole != checksum(file, self.next_offset):
                return False
        self.looked(stamp, is_compared=is_compared)
        return True

    def _must_be_read(self, stamp: Stamp) -> bool:
        """Whether more than both ends has to be compared.

        A file that grows has been written to at its end, which is compared in any case.
        """
        before = self.stamp
        if before is None or before.inode != stamp.inode:
            return True
        is_long = self.next_offset > _READ_AT_GROWTH
        if before.changed != stamp.changed:
            # A file that changed without growing was written to somewhere in the middle, or
            # replaced.
            return stamp.size <= before.size or not is_long
        return not self.is_sure and stamp.is_steady(self.steady_after) and not is_long

    def looked(self, stamp: Stamp, *, is_compared: bool) -> None:
        """Record the stamp of the content that is about to be read."""
        if stamp != self.stamp:
            self.is_sure = self.is_stamp_kept = False
        is_trusted = is_compared and stamp.is_steady(self.steady_after)
        self.is_sure = self.is_sure or is_trusted
        self.stamp = stamp

    def came_to(self, size: int, check: int) -> None:
        """Record the end of a round; ``size`` is the file's, ``check`` that of what was
        read of it.
        """
        self.check = check
        self.is_at_end = self.next_offset == size
        if self.is_settled and self.is_sure and not self.is_stamp_kept:
            self.unfolded += 1  # for the next process, which need not compare it again

    def resume(self, file: BufferedReader) -> None:
        """Step over the newline of a last line that was read before its newline came."""
        if self.next_offset:
            around = os.pread(file.fileno(), 2, self.next_offset - 1)
            if len(around) == 2 and around[:1] != NEWLINE and around[1:] == NEWLINE:
                self.next_offset += 1
                self.check = fingerprint(file, self.next_offset)
                self.whole = zlib.crc32(NEWLINE, self.whole or 0)
        self._meet()

    def read(self, line: InboxLine) -> None:
        """Move the cursor behind ``line``."""
        self.next_line = line.number + 1
        self.next_offset = line.end
        self.whole = line.whole
        self.remembered.pop(line.number, None)

    def settle(self, line: InboxLine) -> None:
        """Mark ``line`` as settled and move the frontier as far as it goes."""
        self.unfolded += 1
        self.ahead[line.number] = (line.end, line.check, line.whole)
        while self.line in self.ahead:
            # Lines may be settled in any order. The frontier moves only over an unbroken run of
            # them, so that a crash repeats lines and never skips one.
            self.offset, _, self.settled_whole = self.ahead.pop(self.line)
            self.line += 1
        self._meet()

    def _meet(self) -> None:
        """Make frontier and cursor the same place when everything that was read is settled."""
        if self.line == self.next_line:
            self.offset, self.settled_whole = self.next_offset, self.whole


class CommittedOffsets:
    """The journal and its content. The caller holds a lock around every method but ``sync``."""

    def __init__(
        self,
        inbox: DropFolder,
        folder: Folder,
        name: str,
        *,
        fsync: bool,
        lock: DirectoryLock | None = None,
        limits: JournalLimits = _LIMITS,
    ) -> None:
        self._limits = limits
        self._inbox = inbox
        self._files: dict[str, FileProgress] = {}
        self._folder = folder
        self._journal = AppendFile(folder, name, "progress", fsync=fsync)
        if lock is not None:
            warn_of_lost(self._journal, lock)
        self._entries = 0
        self._compact_at = limits.compact_after
        self._load()
        self._compact()

    @property
    def is_writable(self) -> bool:
        """Whether further settlements can be recorded."""
        return self._journal.is_writable and self._journal.is_in_place

    def of(self, name: str) -> FileProgress:
        """What is known about the file ``name``; a fresh start when nothing is."""
        known = self._files.get(name)
        if known is None:
            known = self._files[name] = self._fresh(name)
        return known

    def _fresh(self, name: str, *place: int) -> FileProgress:
        return FileProgress(name, *place, steady_after=self._limits.steady_after)

    def verified(self, name: str, file: BufferedReader) -> FileProgress:
        """The progress of a file, checked against the content that the file has now."""
        known = self.of(name)
        stamp = Stamp.of(os.fstat(file.fileno()))
        if known.holds(file, stamp):
            known.resume(file)
            return known
        _log.warning("%s changed where it had been read; it counts as a new file", shown(name))
        fresh = self._files[name] = self._fresh(name)
        # Lines that the journal remembers as settled are recognized by number and checksum, where
        # they stand as before.
        fresh.remembered = known.remembered
        fresh.looked(stamp, is_compared=True)
        return fresh

    def forget_missing(self, names: set[str]) -> None:
        """Forget files that are gone."""
        for name in self._files.keys() - names:
            del self._files[name]

    def record(self, lines: list[InboxLine]) -> int:
        """Record that ``lines`` are settled. Returns the ticket for :meth:`sync`."""
        entries = []
        for line in lines:
            file = line.file
            # By identity: the same name may stand for another content since this line was read.
            if self._files.get(file.name) is not file:
                continue  # the file was replaced or removed: its new content is other work
            file.settle(line)
            # One entry for a whole file instead of one per line, as soon as that is possible.
            entries.append(self._folded(file) if file.is_settled else _settled(line))
        return self._write(entries)

    def fold(self, file: FileProgress) -> None:
        """Replace the line entries of a wholly settled file by one entry."""
        if file.is_settled and file.unfolded:
            self._write([self._folded(file)])

    def _folded(self, file: FileProgress) -> dict[str, Any]:
        file.unfolded = 0
        file.is_stamp_kept = file.is_sure
        return _frontier(file, file.check)

    def sync(self, ticket: int) -> None:
        """Wait until the entries with this ticket are on disk."""
        self._journal.sync(ticket)
        if not self._journal.is_in_place:
            raise taken(self._journal.path)

    def check(self) -> None:
        """Raise an error if nothing more can be recorded."""
        self._journal.check()
        if not self._journal.is_in_place:
            raise taken(self._journal.path)

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
                except (MalformedLineError, KeyError, TypeError, ValueError):
                    # A crash in the middle of a write leaves half a line. What it said is done
                    # again.
                    _log.warning("skipped a damaged entry in %s", self._journal.path)
        self.forget_missing(set(self._inbox.all_names()))

    def _apply(self, entry: dict[str, Any]) -> None:
        name = os.fsdecode(bytes.fromhex(entry["name"])) if "name" in entry else entry["file"]
        if "below" not in entry:
            self.of(name).remembered[entry["line"]] = entry["check"]
            return
        before = self.of(name).remembered
        file = self._fresh(name, entry["below"], entry["offset"], entry["check"])
        file.whole = file.settled_whole = entry.get("whole", file.whole)
        if "changed" in entry:
            file.stamp = Stamp(entry["inode"], entry["changed"], file.offset)
            file.is_sure = file.is_stamp_kept = True
        file.remembered = {line: check for line, check in before.items() if line >= file.line}
        self._files[name] = file

    def _compact(self) -> None:
        if self._entries < self._compact_at:
            return
        entries = [entry for file in self._files.values() for entry in self._entries_of(file)]
        self._journal.replace(_packed(entries))
        self._entries = len(entries)
        # Twice what is left, so that the cost of compacting stays in proportion to what was
        # written.
        self._compact_at = 2 * self._entries + self._limits.compact_after

    def _entries_of(self, file: FileProgress) -> list[dict[str, Any]]:
        entries = []
        check = self._check_at_frontier(file)
        if file.offset and check is not None:
            entries.append(_frontier(file, check))
        settled = file.remembered | {line: check for line, (_, check, _) in file.ahead.items()}
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


def _settled(line: InboxLine) -> dict[str, Any]:
    return _entry(line.file.name, line=line.number, check=line.check)


def _frontier(file: FileProgress, check: int) -> dict[str, Any]:
    values = {"below": file.line, "offset": file.offset, "check": check}
    if file.settled_whole is not None:
        values["whole"] = file.settled_whole
    stamp = file.stamp
    if file.is_sure and stamp is not None and stamp.size == file.offset:
        values.update(inode=stamp.inode, changed=stamp.changed)
    return _entry(file.name, **values)


def _entry(name: str, **values: int) -> dict[str, Any]:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # JSON has no such text
        return {"name": os.fsencode(name).hex(), **values}
    return {"file": name, **values}


def _packed(entries: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + NEWLINE for entry in entries)
