"""Which ids a producer has already taken, in about 16 bytes each.

A set of strings costs a hundred bytes per id, and a producer of ten million would grow by a
gigabyte. Here each id is a 16-byte digest, packed with others that begin alike.
"""

from __future__ import annotations

import hashlib

_SIZE = 16


class SeenIds:
    """A set of ids that only grows."""

    def __init__(self) -> None:
        self._packs: dict[int, bytearray] = {}

    def add(self, key: str) -> bool:
        """Remember an id; False when it was there already."""
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
