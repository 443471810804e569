"""Lines out of bytes: cut at 0x0A and nowhere else, bounded in length.

U+2028 and its like are ordinary characters of JSON text, so no reader of text lines would do.
"""

from __future__ import annotations

from collections.abc import Iterable

from ergon_framework.core.wire_frames import Discreet

MAX_LINE = 16 * 1024 * 1024
"""The longest line that is read, in bytes without its newline."""

HEAD = 4096
"""How much of a line that is not kept is looked at for a job id."""


class TooLong(Discreet, frozen=True):
    """A line over the limit, given up after ``seen`` bytes; ``head`` is how it began."""

    _shown = ("seen",)

    seen: int
    head: bytes = b""


class LineSplitter:
    """Bytes in, whole lines out; holds at most ``limit`` bytes of a line that has not ended."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._is_skipping = False  # the rest of a line that was too long

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that these bytes end, without their newline and one carriage return."""
        pieces = data.split(b"\n")
        rest = pieces.pop()
        lines: list[bytes | TooLong] = []
        if pieces and (self._begun or self._is_skipping):
            lines += self._finish(pieces.pop(0))
        if b"\r" in data or len(data) > self._limit:
            lines += map(self._line, pieces)
        else:
            lines += pieces
        if rest:
            lines += self._hold(rest)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """The last line, if the input ended without a newline."""
        return list(self._finish(b""))

    def _finish(self, piece: bytes) -> Iterable[bytes | TooLong]:
        """The line that was begun, now that its last piece is there."""
        line, self._begun = bytes(self._begun) + piece, bytearray()
        was_skipping, self._is_skipping = self._is_skipping, False
        return () if was_skipping or not line else (self._line(line),)

    def _hold(self, piece: bytes) -> Iterable[bytes | TooLong]:
        """Keep the piece of a line that goes on, or give the line up."""
        if self._is_skipping:
            return ()
        self._begun += piece
        if len(self._begun) <= self._limit:
            return ()
        line, self._begun = bytes(self._begun), bytearray()
        self._is_skipping = True
        return (self._line(line),)

    def _line(self, line: bytes) -> bytes | TooLong:
        if len(line) > self._limit:  # its carriage return counts: it came before the newline did
            return TooLong(self._limit + 1, line[: min(HEAD, self._limit)])
        return line[:-1] if line[-1:] == b"\r" else line
