"""Lines of a file: cut at newline bytes, bounded in length, known by their place and checksum."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import TYPE_CHECKING

from ergon_framework.connector.jsonl.codec import NEWLINE, is_complete

if TYPE_CHECKING:
    from ergon_framework.connector.jsonl.drop_folder import DropFolder
    from ergon_framework.connector.jsonl.progress import FileProgress

_WINDOW = 4096
_PIECE = 3 << 16  # a multiple of three: see codec.long_letter
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(slots=True, eq=False)
class Line:
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
        """Whether its writer is done with it."""
        return self.is_terminated or (self.data is not None and is_complete(self.data))


def scan(file: BufferedReader, known: FileProgress, limit: int) -> Iterator[Line]:
    """The lines after the cursor of ``known``, which is left where it is."""
    number, start, whole = known.next_line, known.next_offset, known.whole or 0
    file.seek(start)
    while piece := file.readline(limit + 1):
        end, whole = start + len(piece), zlib.crc32(piece, whole)
        data: bytes | None = piece.removesuffix(NEWLINE)
        if len(piece) > limit and piece[-1:] != NEWLINE:
            data = None
            while piece[-1:] != NEWLINE and (more := file.readline(_PIECE)):
                piece = more
                end, whole = end + len(more), zlib.crc32(more, whole)
        elif start == 0:
            data = piece.removesuffix(NEWLINE).removeprefix(_BYTE_ORDER_MARK)
        yield Line(known, number, start, end, data, piece[-1:] == NEWLINE, whole)
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
    return found if done == offset else -1


def fingerprint(file: BufferedReader, offset: int) -> int:
    """A checksum of both ends of what comes before ``offset``; 0 for nothing."""
    size = min(offset, _WINDOW)
    head = os.pread(file.fileno(), size, 0)
    tail = os.pread(file.fileno(), size, offset - size)
    if len(tail) < size:
        return -1  # the file is shorter than that
    return zlib.crc32(tail, zlib.crc32(head))
