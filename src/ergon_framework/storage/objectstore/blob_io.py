"""Moving a blob's bytes: hashing, queueing, writing past the cache, verifying, copying.

A blob is hashed in another thread while its next bytes arrive. Also here: what a store of objects
has besides the port when several zones share it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol, runtime_checkable

from ergon_framework.errors import DataLossError, FactInvalidError, StoreError, describe
from ergon_framework.ports.objectstore import Download, ObjectStore

SIZE = 32  # bytes of a SHA-256
_MIN_THREAD_BYTES = 1 << 16  # below it, asking another thread costs more than it saves


class HashPool:
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
        """Let the threads end after their work."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=False)


class Digester:
    """The digest of bytes that come piece by piece; one piece is on its way at a time."""

    def __init__(self, hash_pool: HashPool) -> None:
        self._hash_pool = hash_pool
        self._hash = hashlib.sha256()
        self._piece: Future[None] | None = None

    def add(self, views: Sequence[bytes | memoryview]) -> None:
        """Add the next bytes to hash in another thread. They must not change meanwhile."""
        # In order: a digest depends on it, so only one piece is on its way.
        self._settle()
        if sum(map(len, views)) < _MIN_THREAD_BYTES:
            self._update(views)
        else:
            self._piece = self._hash_pool.pool().submit(self._update, views)

    def digest(self) -> bytes:
        """The digest of all bytes so far."""
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
    """A digest as text: ``sha256:`` and hexadecimal digits."""
    return f"sha256:{digest.hex()}"


def checked(digest: bytes) -> bytes:
    """The digest; raises if it has not the length of one."""
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


MIN_KEPT_PIECE = 1 << 14
"""Pieces of this size or more are kept as they come; smaller ones are copied into one buffer."""


class ByteQueue:
    """Takes bytes in at one end and gives them out at the other."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes | bytearray] = []

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes. Buffers other than ``bytes`` are copied, because they may change later."""
        self.size += len(data)
        if isinstance(data, bytes) and len(data) >= MIN_KEPT_PIECE:
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
    """The bytes up to a position."""
    for view in views:
        if end <= 0:
            return
        yield view[:end]
        end -= len(view)


def after(views: Sequence[memoryview], start: int) -> Iterator[memoryview]:
    """The bytes from a position on."""
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


PAGE = 4096  # bytes; a write past the cache begins and ends at such a bound
_BUFFER_SIZE = 1 << 20
_MIN_DIRECT = 1 << 18  # bytes; below it, the cache is as fast
O_DIRECT: int | None = getattr(os, "O_DIRECT", None)
"""The flag with which a file is written past the cache; None where the system has none."""


class DirectWriter:
    """Writes large pieces past the cache of the system, from buffers that it keeps.

    There are as many buffers as there are threads writing.
    """

    def __init__(self, flag: int | None = O_DIRECT) -> None:
        self._flag = flag
        self._spare: list[mmap.mmap] = []

    def write(self, fd: int, views: Sequence[memoryview]) -> int:
        """Write the whole pages these begin with; how many bytes, 0 where that cannot be done.

        The position of the file must be at a page. Whatever is left is for an ordinary write.
        """
        whole = sum(map(len, views)) // PAGE * PAGE
        if self._flag is None or whole < _MIN_DIRECT:
            return 0
        buffer = self._take()
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        done = 0
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | self._flag)
            # A short write ends between two pages: the rest goes the ordinary way.
            while done < whole and done % PAGE == 0:
                size = min(_BUFFER_SIZE, whole - done)
                with memoryview(buffer)[:size] as piece:
                    fill(piece, views, done)
                    done += os.write(fd, piece)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it means that this file system has no such way
                raise
        finally:
            # The rest of the file is written without the flag, which would refuse a part of a page.
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            self._spare.append(buffer)
        return done

    def close(self) -> None:
        """Release the buffers."""
        self._spare.clear()

    def _take(self) -> mmap.mmap:
        try:
            return self._spare.pop()
        except IndexError:
            # Private: a forked process must not write into this one's buffers.
            return mmap.mmap(-1, _BUFFER_SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


BLOCK = 1 << 20  # bytes that are read at once
_MAX_NAMED = 10  # damaged blobs that an error names


def blob_problem(store: ObjectStore, digest: bytes, size: int) -> str | None:
    """What is wrong with a blob, or None. Only a closed store is an error."""
    download = store.open(digest)
    if download is None:
        return f"{named(digest)} is not there"
    try:
        if download.size != size:
            return f"{named(digest)} has {download.size} bytes and should have {size}"
        found = _digest(download)
    except StoreError as error:
        return f"{named(digest)} cannot be read: {describe(error)}"
    finally:
        download.close()
    if found != digest:
        return f"{named(digest)} is damaged: its bytes have the digest {named(found)}"
    return None


def copy_blobs(source: ObjectStore, target: ObjectStore, digests: Iterable[bytes]) -> int:
    """Copy what is not there yet; how many bytes. Damaged blobs are named when all is done."""
    copied = 0
    damaged: list[str] = []
    for digest in digests:
        download = source.open(digest)
        if download is None:
            damaged.append(f"{named(digest)} is not there")
            continue
        try:
            there = target.stat(digest)
            # A size that differs is a copy that was cut off: it is made again.
            if there is None or there.size != download.size:
                copied += _copy(download, target, digest)
        except FactInvalidError:
            damaged.append(f"{named(digest)} is damaged")
        finally:
            download.close()
    if damaged:
        raise DataLossError(
            f"{len(damaged)} blobs could not be copied: {'; '.join(damaged[:_MAX_NAMED])}",
            reason="object_damaged",
            remedy="put these objects again, or take them from an earlier backup",
        )
    return copied


def _digest(download: Download) -> bytes:
    found = hashlib.sha256()
    while data := download.read(BLOCK):
        found.update(data)
    return found.digest()


def _copy(download: Download, target: ObjectStore, digest: bytes) -> int:
    upload = target.upload()
    try:
        while data := download.read(BLOCK):
            upload.write(data)
        return upload.finish(digest).size
    finally:
        # Does nothing after ``finish``.
        upload.abort()


class Dated(NamedTuple):
    """Some bytes, and when they came to where they are."""

    digest: bytes
    at: float


@runtime_checkable
class SharedObjectStore(Protocol):
    """What such a store offers beside the port."""

    def own(self, epoch: str) -> float:
        """Since when the log of that epoch has this place, by the server's clock: from now on, if
        it was another one.
        """

    def put_before(self, instant: float, *, since: float = 0.0) -> Iterator[bytes]:
        """The digests of blobs stored before an instant, but not before ``since``."""

    def removed(self) -> Iterator[Dated]:
        """What was removed and can still be brought back, and when it was."""

    def restore(self, digest: bytes) -> bool:
        """Bring back what was removed; whether there was anything to bring back."""

    def forget(self, digest: bytes) -> None:
        """Drop what is kept in memory of a deleted object."""
