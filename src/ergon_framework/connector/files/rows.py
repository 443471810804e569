"""Where the rows of a text begin and end. No row is held that is longer than the limit.

Each row knows the place where it ends and a checksum of all that comes before that place. So a
reader may go on there later, and tell whether the file is still the same.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

NEWLINE = b"\n"
QUOTE = b'"'
_PIECE = 1 << 18
_SHOWN = 1000
"""Bytes of a row that is too long, which are kept to recognise it by."""


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A place in a text: so many rows and bytes before it, and a checksum of those bytes."""

    rows: int = 0
    offset: int = 0
    check: int = 0


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row of a file, undecoded. ``problem`` says why it is not a row."""

    number: int
    start: int
    end: TextPlace
    data: Any
    problem: str = ""
    is_terminated: bool = True
    weight: int = 0
    """How many bytes it has in memory, if the places do not show that."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.weight or self.end.offset - self.start


class LineReader:
    """Lines of a binary stream, at most so many bytes at a time; what was read may be put back."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._back: BytesIO | None = None

    def readline(self, most: int) -> bytes:
        """Up to ``most`` bytes, to the end of the line if that comes first."""
        if self._back is None:
            return self._stream.readline(most)
        piece = self._back.readline(most)
        if piece[-1:] == NEWLINE or len(piece) == most:
            return piece
        self._back = None
        return piece + self._stream.readline(most - len(piece))

    def put_back(self, data: bytes) -> None:
        """Let these bytes be read again first."""
        if data:
            rest = b"" if self._back is None else self._back.read()
            self._back = BytesIO(data + rest)


class LineRows:
    """Rows that are lines. Blank lines are skipped."""

    def __init__(self, stream: BinaryIO, place: TextPlace, limit: int) -> None:
        self.place = place
        """The place after what was read last."""
        self._lines = LineReader(stream)
        self._limit = limit

    def next(self) -> FoundRow | None:
        """The next row. None at the end of the stream."""
        while (line := self._lines.readline(self._limit + 1)) != b"":
            if len(line) > self._limit and line[-1:] != NEWLINE:
                return self._too_long(line)
            if line.strip():
                return self._row(line)
            self._pass(line)
        return None

    def _row(self, data: bytes, problem: str = "") -> FoundRow:
        start = self.place.offset
        self._pass(data, rows=1)
        is_whole = data[-1:] == NEWLINE
        return FoundRow(self.place.rows, start, self.place, data, problem, is_whole)

    def _pass(self, data: bytes, rows: int = 0) -> None:
        at = self.place
        self.place = TextPlace(at.rows + rows, at.offset + len(data), zlib.crc32(data, at.check))

    def _too_long(self, begun: bytes) -> FoundRow:
        """Skip a line that is too long to keep."""
        start = self.place.offset
        self._pass(begun, rows=1)
        piece = begun
        while piece[-1:] != NEWLINE and (piece := self._lines.readline(_PIECE)):
            self._pass(piece)
        size = self.place.offset - start
        problem = f"it is {size} bytes long; at most {self._limit} are allowed"
        return FoundRow(self.place.rows, start, self.place, begun[:_SHOWN], problem)


class QuotedRows(LineRows):
    """Rows that may have quoted line breaks, as CSV has.

    A quote that is never closed would swallow what comes after it. So when none is found within the
    limit, only the line with the quote is set aside, and reading goes on behind it.
    """

    def __init__(self, stream: BinaryIO, place: TextPlace, limit: int, delimiter: bytes) -> None:
        super().__init__(stream, place, limit)
        self._delimiter = delimiter

    def next(self) -> FoundRow | None:
        """The next row. None at the end of the stream."""
        while (line := self._lines.readline(self._limit + 1)) != b"":
            if len(line) > self._limit and line[-1:] != NEWLINE:
                return self._too_long(line)
            if QUOTE in line and is_open_after(line, self._delimiter, is_open=False):
                return self._continued(line)
            if line.strip():
                return self._row(line)
            self._pass(line)
        return None

    def _continued(self, first: bytes) -> FoundRow:
        data, is_open = bytearray(first), True
        while is_open and len(data) <= self._limit:
            line = self._lines.readline(self._limit + 1 - len(data))
            if not line:
                break
            data += line
            # A piece that ends within a line may end between two quotes: then its end is not known.
            is_open = line[-1:] != NEWLINE or is_open_after(line, self._delimiter, is_open=True)
            if is_open and line[-1:] != NEWLINE and len(data) <= self._limit:
                is_open = is_open_after(line, self._delimiter, is_open=True)  # the end of the file
                break
        if not is_open:
            return self._row(bytes(data))
        self._lines.put_back(bytes(data[len(first) :]))
        row = self._row(first, "a quote is never closed")
        # Whether more may come is for the end of what was looked at to say.
        at_end = len(data) <= self._limit
        return FoundRow(row.number, row.start, row.end, first, row.problem, not at_end)


def is_open_after(line: bytes, delimiter: bytes, *, is_open: bool) -> bool:
    """Whether a quoted field continues after a line, given whether one was open before it."""
    at = 0
    while True:
        if not is_open:
            if not line.startswith(QUOTE, at):
                at = line.find(delimiter, at)
                if at < 0:
                    return False
                at += len(delimiter)
                continue
            at, is_open = at + 1, True
        at = line.find(QUOTE, at)
        if at < 0:
            return True
        if line.startswith(QUOTE, at + 1):
            at += 2
            continue
        is_open = False
        at = line.find(delimiter, at + 1)
        if at < 0:
            return False
        at += len(delimiter)


def fields_of(text: str, delimiter: str) -> list[str]:
    """The fields of one row. Two quotes within a quoted field mean one."""
    if '"' not in text:
        return text.split(delimiter)
    fields: list[str] = []
    at = 0
    while True:
        if text.startswith('"', at):
            field, at = _quoted(text, at + 1)
        else:
            field = ""
        end = text.find(delimiter, at)
        # What follows a closing quote belongs to the field, as other programs read it.
        fields.append(field + (text[at:] if end < 0 else text[at:end]))
        if end < 0:
            return fields
        at = end + len(delimiter)


def _quoted(text: str, at: int) -> tuple[str, int]:
    """A quoted field, and the position after its closing quote."""
    parts: list[str] = []
    while True:
        end = text.find('"', at)
        if end < 0:
            return "".join([*parts, text[at:]]), len(text)
        parts.append(text[at:end])
        if not text.startswith('"', end + 1):
            return "".join(parts), end + 1
        parts.append('"')
        at = end + 2
