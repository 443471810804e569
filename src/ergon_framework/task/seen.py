"""Which ids a producer has already taken, in about 16 bytes each, all told.

A set of strings costs a hundred bytes per id, and a producer of ten million would grow by a
gigabyte. So only the first few are kept as they are; after that each id is a digest, packed with
others that begin alike. At 96 bits, two of ten million ids are alike with odds of one in 10**15.
"""

from __future__ import annotations

import hashlib

FEW = 10_000
"""Ids that are kept in a plain set, which is several times as fast."""
_SIZE = 12


class SeenIds:
    """A set of ids that only grows."""

    def __init__(self, few: int = FEW) -> None:
        self._room = few
        self._first: set[str] = set()
        self._packs: dict[int, bytearray] = {}

    def add(self, key: str) -> bool:
        """Remember an id; False when it was there already."""
        first = self._first
        if self._room:
            if key in first:
                return False
            first.add(key)
            self._room -= 1
            return True
        if first:
            for each in first:
                self._pack(each)
            first.clear()
        return self._pack(key)

    def _pack(self, key: str) -> bool:
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()
        number = digest[0] << 6 | digest[1] >> 2
        pack = self._packs.get(number)
        if pack is None:
            self._packs[number] = bytearray(digest)
            return True
        if _holds(pack, digest):
            return False
        pack += digest
        return True


def _holds(pack: bytearray, digest: bytes) -> bool:
    at = pack.find(digest)
    while at >= 0:
        if at % _SIZE == 0:
            return True
        at = pack.find(digest, at + 1)  # the end of one and the beginning of the next: no match
    return False
