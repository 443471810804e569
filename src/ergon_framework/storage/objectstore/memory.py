"""Blobs in memory: for tests, and for zones that need not outlive their process."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.objectstore.blob_io import blob_problem, checked, compare, copy_blobs
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore


@dataclass(slots=True)
class _Part:
    """The bytes received so far of a blob whose digest is known, and when the last of them came."""

    touched_at: float
    data: bytearray = field(default_factory=bytearray)


class MemoryObjectStore:
    """Blobs under their digest, gone with the process."""

    acknowledgement = "A finished upload is in the memory of this process, and ends with it."

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.blobs: dict[bytes, bytes] = {}
        """What is kept, by digest."""
        self._put_at: dict[bytes, float] = {}
        self._parts: dict[bytes, _Part] = {}
        self._is_closed = False

    def upload(self) -> MemoryUpload:
        """Begin an upload."""
        self.check()
        return MemoryUpload(self)

    def partial(self, digest: bytes) -> MemoryUpload:
        """Begin, or go on with, an upload whose digest is known.

        While somebody else is at it, a second upload of the same bytes begins at nothing.
        """
        self.check()
        return MemoryUpload(self, digest, self.take_part(digest))

    def open(self, digest: bytes) -> MemoryDownload | None:
        """Begin a download; None if there is no such object."""
        self.check()
        data = self.blobs.get(checked(digest))
        return None if data is None else MemoryDownload(data)

    def stat(self, digest: bytes) -> Blob | None:
        """The size of an object; None if it is not there."""
        self.check()
        data = self.blobs.get(checked(digest))
        return None if data is None else Blob(digest, len(data))

    def verify(self, digest: bytes, size: int) -> str | None:
        """Read them all and compare; what is wrong with them, or None."""
        return blob_problem(self, digest, size)

    def delete(self, digest: bytes) -> bool:
        """Remove them; whether they were there."""
        self.check()
        self._put_at.pop(digest, None)
        return self.blobs.pop(checked(digest), None) is not None

    def digests(self) -> Iterator[bytes]:
        """Everything that is there, in no order."""
        self.check()
        return iter(list(self.blobs))

    def put_before(self, instant: float) -> Iterator[bytes]:
        """Everything that came before an instant."""
        self.check()
        return iter([each for each in list(self.blobs) if self._put_at.get(each, 0.0) < instant])

    def sweep(self, older_than: float) -> int:
        """Remove leftovers of uploads untouched for ``older_than`` seconds; returns how many."""
        self.check()
        latest = self._clock() - older_than
        with self._lock:
            old = [each for each, part in self._parts.items() if part.touched_at <= latest]
            for digest in old:
                del self._parts[digest]
        return len(old)

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        """Copy blobs into a folder, in the layout of the store on disk; how many bytes."""
        self.check()
        with contextlib.closing(FilesystemObjectStore(folder, clock=self._clock)) as target:
            return copy_blobs(self, target, digests)

    def close(self) -> None:
        """Close the store."""
        self._is_closed = True

    def check(self) -> None:
        """Raise when the store is closed."""
        if self._is_closed:
            raise StoreUnavailableError("the memory store is closed", remedy="make another one")

    def take_part(self, digest: bytes) -> bytearray:
        """The beginning of a blob that was put aside; it belongs to the caller from now on."""
        with self._lock:
            part = self._parts.pop(checked(digest), None)
        return part.data if part else bytearray()

    def keep(self, digest: bytes, data: bytes) -> None:
        """Keep a whole blob."""
        self._put_at.setdefault(digest, self._clock())
        self.blobs[digest] = data

    def keep_part(self, digest: bytes, data: bytearray) -> None:
        """Keep the first part of a blob, unless a longer part is kept."""
        with self._lock:
            there = self._parts.get(digest)
            if there is None or len(there.data) <= len(data):
                self._parts[digest] = _Part(self._clock(), data)


class MemoryUpload:
    """Bytes that are gathered, and shown at the end."""

    def __init__(
        self, store: MemoryObjectStore, digest: bytes | None = None, data: bytearray | None = None
    ) -> None:
        self._store = store
        self._known = digest
        self._data: bytearray | None = bytearray() if data is None else data
        self.size = len(self._data)

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes."""
        taken = self._open()
        taken += data
        self.size = len(taken)

    def finish(self, expected: bytes | None = None) -> Blob:
        """Show the bytes to everybody under their digest."""
        data = bytes(self._open())
        self._data = None
        digest = hashlib.sha256(data).digest()
        compare(digest, expected, self._known, size=len(data))
        self._store.keep(digest, data)
        return Blob(digest, len(data))

    def abort(self) -> None:
        """Throw the bytes away."""
        self._data = None

    def pause(self) -> None:
        """Close the upload, and keep the bytes; ``partial`` continues it."""
        data, self._data = self._data, None
        if data and self._known is not None:
            self._store.keep_part(self._known, data)

    def __del__(self) -> None:
        # What is raised here nobody can catch: Python would only print it.
        with contextlib.suppress(Exception):
            self.pause()

    def _open(self) -> bytearray:
        self._store.check()
        if self._data is None:
            raise StoreError("this upload has ended", remedy="begin another one")
        return self._data


class MemoryDownload:
    """A download of one blob. Its bytes stay readable if the store deletes the blob meanwhile."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data: bytes | None = data
        self._at = 0

    def read(self, most: int) -> bytes:
        """The next bytes; none at the end."""
        if self._data is None:
            raise StoreError("this download has ended", remedy="begin another one")
        data = self._data[self._at : self._at + most]
        self._at += len(data)
        return data

    def seek(self, offset: int) -> None:
        """Read on from an offset."""
        if offset < 0:
            raise ValueError(f"there is no byte {offset}")
        self._at = offset

    def close(self) -> None:
        """Close the download."""
        self._data = None
