"""Object stores with one realistic bug each, planted in the memory store."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ergon_framework.errors import FactInvalidError, ObjectConflictError, StoreUnavailableError
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.objectstore.blob_io import checked, named
from ergon_framework.storage.objectstore.memory import (
    MemoryDownload,
    MemoryObjectStore,
    MemoryUpload,
)


class Honest(MemoryObjectStore):
    """The memory store, with its inner parts open to replacement."""

    Up: type[MemoryUpload] = MemoryUpload
    Down: type[MemoryDownload] = MemoryDownload

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)

    def upload(self) -> MemoryUpload:
        self.check()
        return self.Up(self)

    def partial(self, digest: bytes) -> MemoryUpload:
        self.check()
        return self.Up(self, digest, self.take_part(digest))

    def open(self, digest: bytes) -> MemoryDownload | None:
        self.check()
        data = self.blobs.get(checked(digest))
        return None if data is None else self.Down(data)


def damage(store: Any, digest: bytes, data: bytes) -> None:
    """Let other bytes lie where a blob lies."""
    store.blobs[digest] = data


# ---- uploads ------------------------------------------------------------------------------------


class ShowsBytesEarly(Honest):
    """Writes straight to the place where everybody looks."""

    class Up(MemoryUpload):
        def write(self, data: bytes | memoryview) -> None:
            super().write(data)
            so_far = bytes(self._open())
            self._store.keep(hashlib.sha256(so_far).digest(), so_far)


class KeepsTheCallersBuffer(Honest):
    """Gathers the pieces as they are, and looks at them at the end."""

    class Up(MemoryUpload):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._pieces: list[bytes | memoryview] = []

        def write(self, data: bytes | memoryview) -> None:
            self._open()
            self._pieces.append(data)
            self.size += len(data)

        def finish(self, expected: bytes | None = None) -> Blob:
            for piece in self._pieces:
                super().write(piece)
            return super().finish(expected)


class BelievesEverything(Honest):
    """Does not compare digests."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            return super().finish(None)


class KeepsTheRefused(Honest):
    """Complains about a digest when the bytes are stored already."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            data = bytes(self._open())
            self._store.keep(hashlib.sha256(data).digest(), data)
            return super().finish(expected)


class FilesUnderTheExpected(Honest):
    """Files the bytes under what they were said to be, and then compares."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            if expected is not None:
                self._store.keep(expected, bytes(self._open()))
            return super().finish(expected)


class RefusesTheSecond(Honest):
    """Takes bytes once, and a retry for a conflict."""

    def keep(self, digest: bytes, data: bytes) -> None:
        if digest in self.blobs:
            raise ObjectConflictError("it is there")
        super().keep(digest, data)


class RefusesEmpty(Honest):
    """Takes no bytes for a mistake."""

    def keep(self, digest: bytes, data: bytes) -> None:
        if not data:
            raise FactInvalidError("it is empty")
        super().keep(digest, data)


class AbortDeletes(Honest):
    """Tidies up so well that nothing is left."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            blob = super().finish(expected)
            self._made = blob.digest
            return blob

        def abort(self) -> None:
            super().abort()
            self._store.blobs.pop(getattr(self, "_made", b""), None)


class AbortsOnce(Honest):
    """Cannot be aborted when there is nothing to abort."""

    class Up(MemoryUpload):
        def abort(self) -> None:
            self._open()
            super().abort()


class NeverEnds(Honest):
    """Takes bytes after the end, and ends again."""

    class Up(MemoryUpload):
        def _open(self) -> bytearray:
            self._data = self._data or bytearray()
            return self._data


class OneBufferForAll(Honest):
    """Has one temporary file for all uploads."""

    def upload(self) -> MemoryUpload:
        if not hasattr(self, "_buffer"):
            self._buffer = bytearray()
        return MemoryUpload(self, None, self._buffer)


class CountsCalls(Honest):
    """Tells how often it was written to."""

    class Up(MemoryUpload):
        def write(self, data: bytes | memoryview) -> None:
            before = self.size
            super().write(data)
            self.size = before + 1


class DropsTheTail(Honest):
    """Flushes whole blocks, and forgets what is left over."""

    def keep(self, digest: bytes, data: bytes) -> None:
        super().keep(digest, data[: len(data) // 4096 * 4096] or data)


# ---- downloads ----------------------------------------------------------------------------------


class GivesTooMuch(Honest):
    """Reads whole blocks."""

    class Down(MemoryDownload):
        def read(self, most: int) -> bytes:
            return super().read(max(most, 4096))


class SeeksForwards(Honest):
    """Skips by reading, so it cannot go back."""

    class Down(MemoryDownload):
        def seek(self, offset: int) -> None:
            self._at = max(self._at, offset)


class WrapsAround(Honest):
    """Takes a place behind the end for one near the beginning."""

    class Down(MemoryDownload):
        def seek(self, offset: int) -> None:
            self._at = offset % self.size


class OnePlaceForAll(Honest):
    """Keeps one open file per blob."""

    def open(self, digest: bytes) -> MemoryDownload | None:
        self.check()
        files: dict[bytes, MemoryDownload] = self.__dict__.setdefault("_files", {})
        if digest not in files:
            found = super().open(digest)
            if found is None:
                return None
            files[digest] = found
        return files[digest]


class TellsWhatIsLeft(Honest):
    """Tells the size of what has not been read."""

    class Down(MemoryDownload):
        def read(self, most: int) -> bytes:
            data = super().read(most)
            self.size -= len(data)
            return data


class FindsByPrefix(Honest):
    """Looks for a digest that begins like this."""

    def stat(self, digest: bytes) -> Blob | None:
        self.check()
        return next((Blob(k, len(v)) for k, v in self.blobs.items() if k.startswith(digest)), None)


# ---- verifying ----------------------------------------------------------------------------------


class VerifiesTheSize(Honest):
    """Takes a blob of the right size for the right blob."""

    def verify(self, digest: bytes, size: int) -> str | None:
        found = self.stat(digest)
        return None if found and found.size == size else f"{named(digest)} has another size"


class VerifiesNoSize(Honest):
    """Compares the digest alone."""

    def verify(self, digest: bytes, size: int) -> str | None:
        found = self.stat(digest)
        return super().verify(digest, found.size if found else size)


class NamesNoBlob(Honest):
    """Finds flaws, and does not say where."""

    def verify(self, digest: bytes, size: int) -> str | None:
        found = super().verify(digest, size)
        return found and re.sub(r"sha256:\w+", "the blob", found)


class TrustsWhatIsThere(Honest):
    """Does not look at a blob that has the right name."""

    def keep(self, digest: bytes, data: bytes) -> None:
        self.blobs.setdefault(digest, data)


class RemembersTheSize(Honest):
    """Answers from its notes instead of the disk."""

    def keep(self, digest: bytes, data: bytes) -> None:
        super().keep(digest, data)
        self.__dict__.setdefault("_sizes", {})[digest] = len(data)

    def stat(self, digest: bytes) -> Blob | None:
        found = super().stat(digest)
        return found and Blob(digest, self.__dict__["_sizes"][digest])


# ---- parts --------------------------------------------------------------------------------------


class NeverGoesOn(Honest):
    """Begins every upload at nothing."""

    def keep_part(self, digest: bytes, data: bytearray) -> None:
        pass


class KeepsWrongParts(Honest):
    """Keeps what was refused, to go on with it for ever."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            data = bytearray(self._open())
            try:
                return super().finish(expected)
            except FactInvalidError:
                if self._known is not None:
                    self._store.keep_part(self._known, data)
                raise


class ForgetsWhatItIsFor(Honest):
    """Takes whatever a partial upload brings."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            self._known = None
            return super().finish(expected)


class AbortKeepsTheRest(Honest):
    """Cannot tell an abort from a cut."""

    class Up(MemoryUpload):
        def abort(self) -> None:
            self.pause()


class TwoShareAFile(Honest):
    """Lets two uploads for one digest append to one file."""

    def partial(self, digest: bytes) -> MemoryUpload:
        shared: dict[bytes, bytearray] = self.__dict__.setdefault("_shared", {})
        return MemoryUpload(self, digest, shared.setdefault(digest, bytearray()))


class OnePartForAll(Honest):
    """Remembers the last cut upload, whatever it was."""

    def keep_part(self, digest: bytes, data: bytearray) -> None:
        super().keep_part(b"last", data)

    def partial(self, digest: bytes) -> MemoryUpload:
        part = self._parts.pop(b"last", None)
        return MemoryUpload(self, digest, part.data if part else None)


class LeavesARest(Honest):
    """Forgets to remove what a finished upload had gathered before it was cut."""

    class Up(MemoryUpload):
        def finish(self, expected: bytes | None = None) -> Blob:
            data = bytearray(self._open())
            blob = super().finish(expected)
            self._store.keep_part(self._known or blob.digest, data)
            return blob


# ---- upkeep -------------------------------------------------------------------------------------


class DeletesBlindly(Honest):
    """Says yes without looking."""

    def delete(self, digest: bytes) -> bool:
        super().delete(digest)
        return True


class DeletesNeighbours(Honest):
    """Removes the folder with the blob."""

    def delete(self, digest: bytes) -> bool:
        was_there = super().delete(digest)
        self.blobs.clear()
        return was_there


class ListsParts(Honest):
    """Lists what is on its way too."""

    def digests(self) -> Iterator[bytes]:
        return iter([*super().digests(), *self._parts])


class SweepsTheYoung(Honest):
    """Sweeps without looking at the age."""

    def sweep(self, older_than: float) -> int:
        return super().sweep(-1e9)


class SweepsNothing(Honest):
    """Leaves it to the operator."""

    def sweep(self, older_than: float) -> int:
        self.check()
        return 0


class SweepsTheLiving(Honest):
    """Sweeps uploads by age, also those that somebody writes to."""

    def upload(self) -> MemoryUpload:
        upload = super().upload()
        self.__dict__.setdefault("_live", []).append(upload)
        return upload

    def sweep(self, older_than: float) -> int:
        for upload in self.__dict__.get("_live", []):
            upload.abort()
        return super().sweep(older_than)


class SweepsBlobs(Honest):
    """Takes old blobs for remnants."""

    def sweep(self, older_than: float) -> int:
        self.blobs.clear()
        return super().sweep(older_than)


class CopiesEverything(Honest):
    """Copies all there is, whatever was asked for."""

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        return super().copy_to(folder, self.digests())


class CopiesWhatItFinds(Honest):
    """Says nothing of blobs that are missing."""

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        return super().copy_to(folder, [each for each in digests if each in self.blobs])


class CopiesDamage(Honest):
    """Copies bytes without looking at them."""

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        for digest in digests:
            Path(folder, digest.hex()).write_bytes(self.blobs[digest])
        return 0


class CopiesAndCleans(Honest):
    """Moves blobs instead of copying them."""

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        wanted = list(digests)
        size = super().copy_to(folder, wanted)
        shutil.rmtree(Path(folder, "uploads"))
        for digest in wanted:
            self.delete(digest)
        return size


class ServesWhenClosed(Honest):
    """Does not notice that it was closed."""

    def check(self) -> None:
        pass


class ClosesOnce(Honest):
    """Cannot be closed again."""

    def close(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError("it is closed")
        super().close()
