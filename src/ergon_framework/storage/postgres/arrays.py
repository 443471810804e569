"""Arrays on their way to the server, in its own form.

The driver walks through a list value by value in Python, and writes bytes as text of twice their
size. Whole columns of a batch are put together here at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from psycopg import Cursor
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">5i")
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)


class Packed:
    """An array whose type is known to the server by the number ``array``."""

    __slots__ = ("data",)

    array = 0

    def __init__(self, element: int, count: int, data: bytes) -> None:
        # Dimensions, whether there are NULLs, the type, the size of the dimension, its first index.
        self.data = _HEAD.pack(1, 0, element, count, 1) + data


class Bytes(Packed):
    """``bytea[]``."""

    array = 1001

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(17, len(values), sized(values))


class Bigints(Packed):
    """``bigint[]``."""

    array = 1016

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(20, len(values), _fixed("iq", 8, values))


class Integers(Packed):
    """``integer[]``."""

    array = 1007

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(23, len(values), _fixed("ii", 4, values))


class Floats(Packed):
    """``double precision[]``."""

    array = 1022

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__(701, len(values), _fixed("id", 8, values))


def sized(values: Sequence[bytes | None]) -> bytes:
    """Values of any size, each with its size before it; NULL has none."""
    given = [each for each in values if each is not None]
    if len(given) < len(values):
        pairs = ((_NULL,) if each is None else (_LENGTH(len(each)), each) for each in values)
        return b"".join(chain.from_iterable(pairs))
    sizes = set(map(len, given))
    if len(sizes) == 1:  # as keys and digests are: much less has to be put together
        size = _LENGTH(*sizes)
        return size + size.join(given)
    parts = [b""] * (2 * len(given))
    parts[::2], parts[1::2] = map(_LENGTH, map(len, given)), given
    return b"".join(parts)


def _fixed(form: str, size: int, values: Sequence[float]) -> bytes:
    """Values of one size, each with the size before it."""
    pairs = zip(repeat(size), values, strict=False)
    return struct.pack(f">{form * len(values)}", *chain.from_iterable(pairs))


class _PackedDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type[Packed], _context: object = None) -> None:
        super().__init__(cls, None)
        self.oid = cls.array

    def dump(self, obj: Packed) -> Buffer:
        return obj.data


def taking_arrays(cursor: Cursor[Any]) -> Cursor[Any]:
    """The cursor, which takes packed arrays from now on."""
    cursor.adapters.register_dumper(Packed, _PackedDumper)
    return cursor
