"""SHA-256 that is computed while the same bytes are written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ergon_framework.errors import FactInvalidError

SIZE = 32
_SMALL = 1 << 16  # below it, asking another thread costs more than it saves


class Crew:
    """Threads that hash. A forked process gets some of its own."""

    def __init__(self) -> None:
        self._pid = -1
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        """Started when they are first needed."""
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "ergon-digest")
            self._pid = os.getpid()
        return self._pool

    def close(self) -> None:
        """Let them end after their work."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=False)


class Digester:
    """The digest of bytes that come piece by piece; one piece is on its way at a time."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._hash = hashlib.sha256()
        self._piece: Future[None] | None = None

    def add(self, views: Sequence[bytes | memoryview]) -> None:
        """Take the next bytes, which must not change, and let another thread see to them."""
        self._settle()
        if sum(map(len, views)) < _SMALL:
            self._update(views)
        else:
            self._piece = self._crew.pool().submit(self._update, views)

    def digest(self) -> bytes:
        """Of everything so far."""
        self._settle()
        return self._hash.digest()

    def _update(self, views: Sequence[bytes | memoryview]) -> None:
        for view in views:
            self._hash.update(view)

    def _settle(self) -> None:
        piece, self._piece = self._piece, None
        if piece is not None:
            piece.result()


def named(digest: bytes) -> str:
    """As digests are written outside."""
    return f"sha256:{digest.hex()}"


def checked(digest: bytes) -> bytes:
    """The same digest, if it can be one."""
    if len(digest) != SIZE:
        raise FactInvalidError(
            f"a digest has {SIZE} bytes, and this one {len(digest)}",
            reason="bad_digest",
            remedy="give the 32 bytes of SHA-256",
        )
    return digest


def compare(found: bytes, *expected: bytes | None, size: int) -> None:
    """Refuse bytes that are not those that were announced."""
    for each in expected:
        if each is not None and each != found:
            raise FactInvalidError(
                f"the {size} bytes have the digest {named(found)}, and {named(each)} was expected",
                reason="digest_mismatch",
                remedy="send the bytes again; if that does not help, compute the digest anew",
                details={"field": "digest", "expected": named(each), "found": named(found)},
            )
