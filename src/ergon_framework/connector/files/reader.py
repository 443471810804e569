"""Decides which rows are delivered next, and settles them."""

from __future__ import annotations

import contextlib
import heapq
import io
import itertools
import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ergon_framework.connector.files.errors import (
    FileChangedError,
    MalformedFileError,
    MalformedRowError,
)
from ergon_framework.connector.files.folder import FoundFile, digest
from ergon_framework.connector.files.formats import FileFormat, Formats
from ergon_framework.connector.files.letters import DeadLetters, letter
from ergon_framework.connector.files.parquet import open_parquet
from ergon_framework.connector.files.positions import FilePosition, Positions
from ergon_framework.connector.files.readiness import Readiness
from ergon_framework.connector.files.rows import FoundRow, TextPlace
from ergon_framework.connector.files.text import open_text
from ergon_framework.connector.jsonl.codec import shown
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ErgonError, StoreError

logger = logging.getLogger("ergon.connector.files")
_MAX_LETTERS = 256  # malformed rows set aside with one fsync
_HEAD = 4096
T = TypeVar("T")


class FilePlace(Protocol):
    """Where files are: a folder, or a bucket."""

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to the same place."""

    def names(self, takes: Callable[[str], bool]) -> tuple[list[str], set[str]]:
        """The names of the files to read, in order, and the names of all files."""

    def look(self, name: str) -> FoundFile | None:
        """The present state of a file. None when it is gone, or may not be read."""

    def open(self, found: FoundFile) -> tuple[io.BufferedReader, FoundFile] | None:
        """The file and its state when it is opened. None when it is gone."""

    def shown(self, name: str) -> str:
        """The name of a file in errors and logs."""

    def close(self) -> None:
        """Close it."""


class RowSource(Protocol):
    """The rows of one open file."""

    @property
    def place(self) -> TextPlace:
        """The place after the row that was read last."""

    def next(self) -> FoundRow | None:
        """The next row. None at the end of the file."""

    def payload(self, row: FoundRow) -> Any:
        """The payload of a row. Raises :class:`MalformedRowError` if it has none."""

    def text(self, row: FoundRow) -> dict[str, Any]:
        """The text of a row in a dead letter."""

    def close(self) -> None:
        """Close the file."""


@dataclass(slots=True, eq=False)
class HeldRow:
    """A row that was read and is not settled."""

    reader: FilesReader
    file: FilePosition
    row: FoundRow
    source: RowSource

    @property
    def place(self) -> dict[str, Any]:
        """The place of the row."""
        return {"file": shown(self.file.name), "row": self.row.number}


@dataclass(slots=True)
class _OpenFile:
    file: FilePosition
    source: RowSource


class FilesReader:
    """The rows of the files of one place, each delivered until it is settled."""

    def __init__(
        self,
        place: FilePlace,
        formats: Formats,
        readiness: Readiness,
        positions: Positions,
        letters: DeadLetters,
        opened: contextlib.ExitStack,
    ) -> None:
        self._place = place
        self._formats = formats
        self._readiness = readiness
        self._positions = positions
        self.letters = letters
        self._opened = opened
        self._lock = threading.RLock()
        self._names: deque[str] = deque()  # files still to be looked into in this round
        self._open: _OpenFile | None = None
        self._released: list[tuple[str, int, int, HeldRow]] = []
        self._tie = itertools.count()
        self._unreadable: dict[str, str] = {}
        self._bad: list[tuple[HeldRow, str]] = []  # malformed rows, to be set aside together
        self._bad_files: list[tuple[FilePosition, str]] = []
        self.malformed = 0
        self._told = 0  # how many of them the log has told
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks in a forked child. What is in the files is the parent's to record."""
        self._lock = threading.RLock()

    @property
    def is_writable(self) -> bool:
        """Whether settlements can be recorded."""
        return self._positions.is_writable and self.letters.is_writable

    @property
    def unreadable(self) -> list[str]:
        """Files that could not be opened in the last round."""
        return sorted(self._unreadable)

    def reopen_after_failure(self) -> bool:
        """Write again what a full disk did not take. False when the folder was replaced."""
        if not (self._place.is_in_place and self._positions.is_in_place):
            return False
        with self._lock:
            self._positions.reopen_after_failure()
            self.letters.reopen_after_failure()
        return True

    # ---- delivering -----------------------------------------------------------------------------

    def take(
        self, count: int, has_room: Callable[[], bool], make: Callable[[HeldRow, Any], T]
    ) -> list[T]:
        """Up to ``count`` rows: first those that were given back, then in the order of files and
        rows.

        ``make`` turns a row and its payload into what is delivered, or raises
        :class:`MalformedRowError`.
        """
        found: list[T] = []
        with self._lock:
            self._positions.reopen_after_failure()
            try:
                while self._released and len(found) < count and has_room():
                    held = heapq.heappop(self._released)[3]
                    found.append(make(held, held.source.payload(held.row)))
                self._take_new(found, make, lambda: len(found) < count and has_room())
            except (OSError, ErgonError):
                if not found:  # otherwise the next fetch meets it again
                    raise
        return found

    def _take_new(
        self, found: list[T], make: Callable[[HeldRow, Any], T], wants: Callable[[], bool]
    ) -> None:
        self._set_aside_bad()
        self._look_again()
        is_new_round = False
        try:
            while wants():
                if self._open is not None:
                    held = self._next_row(self._open)
                    if held is None:
                        self._leave()
                    elif held.file.has(held.row.number):
                        held.file.settle(held.row)
                    else:
                        self._make(held, found, make)
                elif self._names:
                    self._begin(self._names.popleft())
                elif is_new_round:
                    # One round over all files per fetch: an empty folder is not read in a circle.
                    break
                else:
                    is_new_round = True
                    self._names.extend(self._listed())
        finally:
            self._set_aside_bad()

    def _make(self, held: HeldRow, found: list[T], make: Callable[[HeldRow, Any], T]) -> None:
        try:
            found.append(make(held, held.source.payload(held.row)))
        except MalformedRowError as error:
            self._bad.append((held, error.message))
            if len(self._bad) >= _MAX_LETTERS:
                self._set_aside_bad()

    def _next_row(self, open_file: _OpenFile) -> HeldRow | None:
        """The next row. None when there is none now and the file is to be closed."""
        file, source = open_file.file, open_file.source
        try:
            row = source.next()
        except MalformedFileError as error:
            if file.end is None:
                self._bad_files.append((file, error.message))
            row = None
        except FileChangedError:
            self._reopen_later()
            return None
        except (OSError, StoreError):
            self._reopen_later()
            raise
        if row is None:
            file.end = source.place
            return None
        if not row.is_terminated and not self._is_whole(file):
            return None  # its writer has not finished it
        file.cursor = source.place
        return HeldRow(self, file, row, source)

    def _reopen_later(self) -> None:
        """Close a file whose reading failed. It is opened again after its cursor."""
        if self._open is not None:
            self._open.source.close()
            self._names.appendleft(self._open.file.name)
            self._open = None

    def _is_whole(self, file: FilePosition) -> bool:
        """Whether a last row without a line end is complete."""
        found = self._place.look(file.name)
        return (
            found is not None
            and found.stamp == file.stamp
            and self._readiness.is_steady(found, self._place)
        )

    # ---- files ----------------------------------------------------------------------------------

    def _listed(self) -> list[str]:
        """The files, in order. Others are forgotten."""
        names, every = self._place.names(self._formats.takes)
        self._positions.forget_missing(every)
        for name in self._unreadable.keys() - every:
            del self._unreadable[name]
        self._readiness.forget_missing(every)
        return names

    def _look_again(self) -> None:
        """Check whether the open file is still the one of that name."""
        if self._open is None:
            return
        file = self._open.file
        found = self._place.look(file.name)
        if found is None:
            self._tell_that_it_went(file)
        if found is None or found.stamp != file.stamp:
            self._leave()
            self._names.appendleft(file.name)

    def _leave(self) -> None:
        """Close the open file. Record that it has ended if all of it is settled."""
        if self._open is None:
            return
        self._set_aside_bad()
        file = self._open.file
        self._open.source.close()
        self._open = None
        ticket = self._finish(file)
        if ticket is not None:
            self._positions.sync(ticket)

    def _finish(self, file: FilePosition) -> int | None:
        if file.end is None or not file.is_settled or not self._positions.is_current(file):
            return None
        return self._positions.end(file, file.end)

    def _begin(self, name: str) -> None:
        """Open a file where it was left, if it is ready and has something new."""
        found = self._place.look(name)
        if found is None or self._positions.has_ended(found):
            return
        known = self._positions.of(name)
        if known is not None and known.end is not None and known.stamp == found.stamp:
            return  # all of it was read, and some is still in hand
        is_known = known is not None and known.stamp == found.stamp
        if not is_known and not self._may_begin(found):
            return
        try:
            self._open_file(known, found)
        except PermissionError as error:
            self._cannot_read(name, error)
            return
        self._unreadable.pop(name, None)

    def _open_file(self, known: FilePosition | None, found: FoundFile) -> None:
        opened = self._place.open(found)
        if opened is None:
            if known is not None:
                self._tell_that_it_went(known)
            return
        with contextlib.ExitStack() as closing:
            closing.callback(opened[0].close)
            if self._open_rows(known, *opened):
                closing.pop_all()

    def _may_begin(self, found: FoundFile) -> bool:
        """Whether the rows of a file may be read although more may be added."""
        has_end = self._formats.has_end(found.name)
        return self._readiness.may_begin(found, self._place, has_end=has_end)

    def _open_rows(
        self, known: FilePosition | None, stream: io.BufferedReader, found: FoundFile
    ) -> bool:
        """Whether there are rows to be read; a file whose beginning is malformed is set aside."""
        head = stream.peek(1)[:_HEAD]
        new = _new(found, head)
        file = known or new
        try:
            try:
                source = self._source(file, stream, found, head)
            except FileChangedError:
                self._tell_of_change(file)
                stream.seek(0)
                file = new
                source = self._source(file, stream, found, head)
        except MalformedFileError as error:
            self._bad_files.append((file, error.message))
            file.end = file.cursor
            self._note_begun(file, found)
            self._set_aside_bad()
            self._finish(file)
            return False
        if source is None:
            return False
        file.end = None
        self._note_begun(file, found)
        self._open = _OpenFile(file, source)
        return True

    def _source(
        self, file: FilePosition, stream: io.BufferedReader, found: FoundFile, head: bytes
    ) -> RowSource | None:
        if not file.begins_with(head):
            raise FileChangedError("the file begins with something else")
        if self._formats.of_name(found.name) is FileFormat.PARQUET:
            return open_parquet(stream, file.cursor, self._formats.limit)
        follow = self._readiness.follow
        has_grown = follow and file.node == found.node != "" and found.size >= file.cursor.offset
        return open_text(
            self._formats,
            found.name,
            stream,
            file.cursor,
            is_sure=has_grown or file.stamp == found.stamp,
            may_grow=follow,
        )

    def _note_begun(self, file: FilePosition, found: FoundFile) -> None:
        """Its id is on disk before a row with it is delivered."""
        is_noted = self._positions.is_current(file) and file.stamp == found.stamp
        file.stamp, file.node = found.stamp, found.node
        if not is_noted:
            self._positions.sync(self._positions.begin(file))

    def _tell_that_it_went(self, known: FilePosition) -> None:
        text = "%s went away after row %d had been read"
        logger.warning(text, self._place.shown(known.name), known.cursor.rows)

    def _tell_of_change(self, known: FilePosition) -> None:
        logger.warning(
            "%s changed where it had been read, after row %d; it counts as a new file",
            self._place.shown(known.name),
            known.cursor.rows,
        )

    def _cannot_read(self, name: str, error: OSError) -> None:
        text = error.strerror or type(error).__name__
        if self._unreadable.get(name) != text:
            self._unreadable[name] = text
            logger.warning("cannot read %s, and try again: %s", self._place.shown(name), text)

    # ---- settling -------------------------------------------------------------------------------

    def settle(self, held: HeldRow) -> None:
        """Settle a row. The record is on disk when this returns."""
        with self._lock:
            # Recorded under the lock, synced outside of it: several settlements share one sync.
            ticket = self._positions.record([(held.file, held.row)])
            is_read = self._open is None or self._open.file is not held.file
            if is_read and not self._has_bad_rows(held.file):
                ticket = self._finish(held.file) or ticket
        self._positions.sync(ticket)

    def set_aside(self, held: HeldRow, transaction_id: str, reason: str) -> None:
        """Write a dead letter, then settle: dying in between repeats it, but never loses it."""
        place = held.place | {"transaction_id": transaction_id}
        with self._lock:
            self.letters.append([letter(reason, place, held.source.text(held.row))])
        self.settle(held)

    def give_back(self, held: HeldRow) -> None:
        """Deliver the row again, before all later rows."""
        with self._lock:
            # The counter decides between equal places: rows themselves cannot be compared.
            entry = (held.file.name, held.row.number, next(self._tie), held)
            heapq.heappush(self._released, entry)

    def count(self) -> int:
        """How many rows wait, counted by reading the rest of every file that is ready."""
        with self._lock:
            return len(self._released) + sum(self._unread(name) for name in self._listed())

    def close(self) -> None:
        """Close everything. Unsettled deliveries go to the next reader."""
        with self._lock:
            self._tell_sum()
            if self._open is not None:
                self._open.source.close()
                self._open = None
            self._opened.close()

    def _unread(self, name: str) -> int:
        found = self._place.look(name)
        if found is None or self._positions.has_ended(found):
            return 0
        known = self._positions.of(name)
        if known is None and not self._may_begin(found):
            return 0
        try:
            opened = self._place.open(found)
            if opened is None:
                return 0
            with opened[0] as stream:
                head = stream.peek(1)[:_HEAD]
                source = self._source(known or _new(found, head), stream, found, head)
                rows = iter(source.next, None) if source is not None else ()
                return sum(1 for row in rows if known is None or not known.has(row.number))
        except (FileChangedError, MalformedFileError, PermissionError):
            return 0

    # ---- what is malformed ----------------------------------------------------------------------

    def _has_bad_rows(self, file: FilePosition) -> bool:
        return any(held.file is file for held, _ in self._bad)

    def _set_aside_bad(self) -> None:
        """Letters first, then the journal: dying in between repeats a letter, and loses none."""
        if not self._bad and not self._bad_files:
            return
        letters = [letter(why, held.place, held.source.text(held.row)) for held, why in self._bad]
        letters += [
            letter(why, {"file": shown(file.name), "row": None}, {"offset": file.cursor.offset})
            for file, why in self._bad_files
        ]
        self.letters.append(letters)
        rows = [(held.file, held.row) for held, _ in self._bad]
        self._positions.sync(self._positions.record(rows))
        first = letters[0]
        self.malformed += len(letters)
        self._bad.clear()
        self._bad_files.clear()
        if not self._told:
            logger.warning(
                "set aside what cannot be read, kept in %s: %s, row %s: %s",
                *(self.letters.path, first["file"], first["row"], first["reason"]),
            )
            self._told = 1
        elif self.malformed >= 2 * self._told:  # at 2, 4, 8 …: a bad file must not fill the log
            self._tell_sum()

    def _tell_sum(self) -> None:
        if self.malformed > self._told:
            self._told = self.malformed
            logger.warning("set aside %d malformed rows, kept in %s", self._told, self.letters.path)


def _new(found: FoundFile, head: bytes) -> FilePosition:
    version = found.identity or f"{found.size}\0{found.modified!r}\0{head.hex()}"
    known = f"{found.name}\0{version}"
    file = FilePosition(found.name, digest(known, 6), found.stamp, TextPlace())
    file.node, file.head = found.node, (len(head), zlib.crc32(head))
    return file
