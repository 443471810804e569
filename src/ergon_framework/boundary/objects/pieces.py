"""Bytes that come piece by piece, kept as they came: copying them together would cost time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LARGE = 1 << 14
"""A piece as long as that is worth keeping as it is; smaller ones are gathered in one buffer."""


class Pieces:
    """Takes bytes in at one end and gives them out at the other."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes | bytearray] = []

    def add(self, data: bytes | memoryview) -> None:
        """Take more. What may change later, because it is no ``bytes``, is copied."""
        self.size += len(data)
        if isinstance(data, bytes) and len(data) >= LARGE:
            self._parts.append(data)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data
        else:
            self._parts.append(bytearray(data))

    def take(self, size: int) -> list[memoryview]:
        """The first so many of them, which are there and will not change; the others stay."""
        views = [memoryview(part) for part in self._parts]
        rest = list(after(views, size))
        self.size -= size
        # A copy of what stays: it is less than a page where that matters.
        self._parts = [bytearray().join(rest)] if rest else []
        return list(before(views, size))


def before(views: Sequence[memoryview], end: int) -> Iterator[memoryview]:
    """The same bytes up to a place."""
    for view in views:
        if end <= 0:
            return
        yield view[:end]
        end -= len(view)


def after(views: Sequence[memoryview], start: int) -> Iterator[memoryview]:
    """The same bytes from a place on."""
    for view in views:
        if start < len(view):
            yield view[max(0, start) :]
        start -= len(view)


def fill(buffer: memoryview, views: Sequence[memoryview], start: int) -> None:
    """Copy bytes from a place on into a buffer, which is not longer than they are."""
    done = 0
    for view in before(list(after(views, start)), len(buffer)):
        buffer[done : done + len(view)] = view
        done += len(view)
