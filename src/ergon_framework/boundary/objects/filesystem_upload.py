"""One file on its way into the folder of blobs, and one on its way out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ergon_framework.boundary.objects import digest as digests
from ergon_framework.boundary.objects import disk
from ergon_framework.boundary.objects.direct import PAGE, DirectWriter
from ergon_framework.boundary.objects.pieces import Pieces, after
from ergon_framework.errors import FactInvalidError, StoreError
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.failpoints import declare, failpoint

BLOCK = 1 << 20
"""Bytes gathered before they are hashed and written: small pieces would keep both waiting."""

declare(
    "boundary.object.write.before",
    "boundary.object.write.after",
    "boundary.object.sync.before",
    "boundary.object.sync.after",
)


class Shelf(Protocol):
    """What an upload needs of its store."""

    folder: Path
    crew: digests.Crew
    direct: DirectWriter

    def check(self) -> None:
        """Raise when nothing may be written."""

    def unsynced(self, error: OSError) -> StoreError:
        """Take note that the disk did not confirm a write."""

    def place(self, path: Path, digest: bytes) -> None:
        """Give a finished file its name, for good."""


class FileUpload:
    """Bytes that go to a temporary file and, at the end, to the place of their digest.

    The file is locked as long as the upload lives, so that nobody else writes to it or takes it for
    a remnant. One that ``is_kept`` leaves its file behind when it breaks; another goes on with it.
    """

    def __init__(
        self,
        shelf: Shelf,
        path: Path,
        fd: int,
        digest: bytes | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        self.size = 0
        self._shelf = shelf
        self._path = path
        self._fd = fd
        self._known = digest
        self._is_kept = is_kept
        self._digester = digests.Digester(shelf.crew)
        self._pending = Pieces()
        self._written = 0

    def resume(self) -> None:
        """Hash what an earlier upload left in the file, and go on behind it."""
        while piece := os.read(self._fd, BLOCK):
            self._digester.add([piece])
            self._written += len(piece)
        self.size = self._written

    def write(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._check()
        self._pending.add(data)
        self.size = self._written + self._pending.size
        if self._pending.size >= BLOCK:
            with self._ended_by_errors():
                self._flush(is_last=False)

    def finish(self, expected: bytes | None = None) -> Blob:
        """Put the bytes on disk under their digest, and answer when they are there."""
        self._check()
        with self._ended_by_errors():
            self._flush(is_last=True)
            self._sync()
            digest = self._digester.digest()
            digests.compare(digest, expected, self._known, size=self.size)
            self._shelf.place(self._path, digest)
        self._let_go()
        return Blob(digest, self.size)

    def abort(self) -> None:
        """Throw the bytes away."""
        self._let_go(remove=True)

    def pause(self) -> None:
        """Let go, and keep the bytes for whoever goes on with ``partial``."""
        if self._fd >= 0 and self._is_kept:
            with self._ended_by_errors():
                self._flush(is_last=True)
        self._let_go(remove=not self._is_kept)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.pause()

    def _check(self) -> None:
        if self._fd < 0:
            raise StoreError("this upload has ended", remedy="begin another one")
        self._shelf.check()

    def _flush(self, *, is_last: bool) -> None:
        """Hash and write what was gathered: before the end whole pages only, which go faster."""
        size = self._pending.size
        if not size:
            return  # so that the last block is still hashed while it is synced
        if not is_last:
            size = size // PAGE * PAGE
        block = self._pending.take(size)
        self._digester.add(block)
        failpoint("boundary.object.write.before")
        is_at_page = self._written % PAGE == 0
        done = self._shelf.direct.write(self._fd, block) if is_at_page else 0
        disk.write_all(self._fd, after(block, done))
        failpoint("boundary.object.write.after")
        self._written += size

    def _sync(self) -> None:
        try:
            failpoint("boundary.object.sync.before")
            disk.sync_file(self._fd)
        except OSError as error:
            self.abort()  # what an unconfirmed file holds is nobody's guess
            raise self._shelf.unsynced(error) from error
        failpoint("boundary.object.sync.after")

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Nothing may follow an error: the file could lack bytes that are in the digest."""
        try:
            with disk.told(self._shelf.folder):
                yield
        except FactInvalidError:
            self._let_go(remove=True)
            raise
        except BaseException:
            self._let_go(remove=not self._is_kept)
            raise

    def _let_go(self, *, remove: bool = False) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        self._pending = Pieces()
        try:
            if remove:  # while it is locked, so that it is still this upload's
                with contextlib.suppress(OSError):  # a sweep tries again
                    disk.remove(self._path)
        finally:
            os.close(fd)


class FileDownload:
    """The bytes of one blob, from its file."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        self._folder = folder
        self._fd = fd
        self._at = 0

    def read(self, most: int) -> bytes:
        """The next bytes; none at the end."""
        if self._fd < 0:
            raise StoreError("this download has ended", remedy="begin another one")
        with disk.told(self._folder):
            data = os.pread(self._fd, most, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int) -> None:
        """Go on from there."""
        if offset < 0:
            raise ValueError(f"there is no byte {offset}")
        self._at = offset

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
