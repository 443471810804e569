"""Parts: about five hundred ids in the order of their keys, and a filter that excludes others.

Keys are hashes, so they are spread evenly over their space, and a generation is cut into parts by
the first bits of the key. An id is written as its key, half of its digest and its offset.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from typing import TypeAlias

Known: TypeAlias = tuple[bytes, int]
"""The first 16 bytes of the identity digest, and the offset."""

PART = 512
"""Ids of a part at most, on average."""
KEY, DIGEST, OFFSET = 16, 16, 5
ID = KEY + DIGEST + OFFSET
BLOOM = 1024
"""Bytes of a filter: of 200 keys that are not in a full part, one seems to be."""

_MASK = BLOOM * 8 - 1
_PROBES = struct.Struct(">8xHHHxx")
_ALL_PROBES = struct.Struct(f">8xHHHxx{ID - KEY}x")
_BIT = tuple(1 << n for n in range(8))
_ANY = b"\xff" * BLOOM


def packed(digest: bytes, offset: int) -> bytes:
    """What an id stands for, as it is written behind its key."""
    return digest[:DIGEST] + offset.to_bytes(OFFSET)


def unpacked(known: bytes) -> Known:
    """What an id stands for."""
    return known[:DIGEST], int.from_bytes(known[DIGEST:])


def bits_for(count: int) -> int:
    """Into how many parts so many ids are cut: the power of two."""
    return max(0, (count - 1) // PART).bit_length()


def part_of(key: bytes, bits: int) -> int:
    """The part that a key lies in."""
    return int.from_bytes(key[:4]) >> (32 - bits)


def lowest(part: int, bits: int) -> bytes:
    """What no key of a part is below, and none of the part before is above."""
    return (part << (32 - bits)).to_bytes(5)[1:] if part < 1 << bits else b"\xff" * (KEY + 1)


def split(ids: bytes) -> list[bytes]:
    """The single ids of a part."""
    return [ids[at : at + ID] for at in range(0, len(ids), ID)]


def find(ids: bytes, key: bytes) -> Known | None:
    """What a key stands for in a part."""
    count = len(ids) // ID
    at = bisect_left(range(count), key, key=lambda n: ids[n * ID : n * ID + KEY])
    found = ids[at * ID : (at + 1) * ID]
    return unpacked(found[KEY:]) if found[:KEY] == key else None


def bloom_of(ids: bytes) -> bytes:
    """The filter of a part."""
    bloom = bytearray(BLOOM)
    for one, two, three in _ALL_PROBES.iter_unpack(ids):
        bloom[(one & _MASK) >> 3] |= _BIT[one & 7]
        bloom[(two & _MASK) >> 3] |= _BIT[two & 7]
        bloom[(three & _MASK) >> 3] |= _BIT[three & 7]
    return bytes(bloom)


class Filter:
    """The filters of a generation, held in memory."""

    __slots__ = ("blooms", "shift")

    def __init__(self, bits: int, blooms: Iterable[tuple[int, bytes]] = ()) -> None:
        self.shift = 32 - bits
        self.blooms = [_ANY] * (1 << bits)  # a filter that is not there excludes nothing
        for part, bloom in blooms:
            self.blooms[part] = bloom


def candidates(filters: dict[int, Filter], key: bytes) -> list[int]:
    """The generations that may have a key."""
    prefix = int.from_bytes(key[:4])
    one, two, three = _PROBES.unpack(key)
    byte, bit = (one & _MASK) >> 3, _BIT[one & 7]
    found = []
    for generation, each in filters.items():
        bloom = each.blooms[prefix >> each.shift]
        if (
            bloom[byte] & bit
            and bloom[(two & _MASK) >> 3] & _BIT[two & 7]
            and bloom[(three & _MASK) >> 3] & _BIT[three & 7]
        ):
            found.append(generation)
    return found
