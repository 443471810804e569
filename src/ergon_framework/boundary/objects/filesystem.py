"""Blobs as files in a folder, each under its digest.

::

    FOLDER/sha256/ab/cd/abcd…   whole, synced, never changed
    FOLDER/uploads/             on the way in; nothing in it counts
    FOLDER/owner.json           whose all of it is

A file gets its name by a rename, after its bytes are synced, and the answer follows the sync of the
folders above it. So a crash leaves the whole blob or none, whatever moment it chooses. The rename
also replaces a blob of the same digest: if that one was damaged, it is whole again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ergon_framework.boundary.objects import disk, owner
from ergon_framework.boundary.objects.digest import Crew, checked
from ergon_framework.boundary.objects.direct import DirectWriter
from ergon_framework.boundary.objects.filesystem_upload import FileDownload, FileUpload
from ergon_framework.boundary.objects.reading import copy_blobs, flaw
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.secure_files import open_file

_NAME = re.compile(r"[0-9a-f]{64}")
_UPLOAD_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND

declare(
    "boundary.object.rename.after",
    "boundary.object.folder.after",
    "boundary.object.delete.before",
    "boundary.object.delete.after",
)


class FilesystemObjectStore:
    """A folder of blobs. Any number of threads and processes may use it at the same time."""

    acknowledgement = (
        "A finished upload survives the end of the process and a power cut: its bytes, its name "
        "and the folders above it are synced before the answer."
    )

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        zone: str | None = None,
    ) -> None:
        """Open a folder; with ``zone`` it belongs to that zone alone, and another's is refused."""
        self.folder = Path(folder).absolute()
        self.crew = Crew()
        self.direct = DirectWriter()
        self._clock = clock
        self._root = self.folder / "sha256"
        self._uploads = self.folder / "uploads"
        self._settled: set[bytes] = set()  # first bytes of digests whose folders are synced
        self._broken: StoreError | None = None
        self._is_closed = False
        with disk.told(self.folder):
            self._prepare()
        if zone is not None:
            self.claim(zone)

    # ---- in -------------------------------------------------------------------------------------

    def upload(self) -> FileUpload:
        """Begin to take bytes in."""
        self.check()
        with disk.told(self.folder):
            path, fd = self._private()
        return FileUpload(self, path, fd)

    def partial(self, digest: bytes) -> FileUpload:
        """Begin, or go on with, an upload whose digest is known.

        While somebody else is at it, a second upload of the same bytes begins at nothing.
        """
        self.check()
        path = self._uploads / f"{checked(digest).hex()}.part"
        with disk.told(self.folder):
            fd = _taken(path)
            if fd is None:
                path, fd = self._private()
                return FileUpload(self, path, fd, digest)
            upload = FileUpload(self, path, fd, digest, is_kept=True)
            upload.resume()
        return upload

    def check(self) -> None:
        """Raise when nothing may be written: after the end, and after a failed sync."""
        self._check_open()
        if self._broken is not None:
            raise self._broken

    def unsynced(self, error: OSError) -> StoreError:
        """The error of a sync that failed, which may end all writing.

        After such a failure the system takes the bytes for written, so asking again is no use.
        """
        if error.errno in disk.HARMLESS:
            return disk.translate(error, self.folder)
        self._broken = self._broken or disk.broken(error, self.folder)
        return self._broken

    def place(self, path: Path, digest: bytes) -> None:
        """Give a synced file the name of its digest, for good."""
        target = self._path(digest)
        try:
            path.rename(target)
        except FileNotFoundError:
            disk.make_folder(target.parent.parent)
            disk.make_folder(target.parent)
            path.rename(target)
        failpoint("boundary.object.rename.after")
        self._settle(digest)
        failpoint("boundary.object.folder.after")

    # ---- out ------------------------------------------------------------------------------------

    def open(self, digest: bytes) -> FileDownload | None:
        """Begin to give bytes out; None when they are not there."""
        self._check_open()
        with disk.told(self.folder):
            try:
                fd = open_file(self._path(digest), os.O_RDONLY, may_be_linked=True)
            except FileNotFoundError:
                self._check_folder()
                return None
            return FileDownload(self.folder, fd)

    def stat(self, digest: bytes) -> Blob | None:
        """Whether they are there, and how many.

        Who gave the file its name may have died before that was synced; so it is done here again.
        """
        self.check()
        with disk.told(self.folder):
            try:
                found = self._path(digest).stat()
            except FileNotFoundError:
                self._check_folder()
                return None
            if not stat.S_ISREG(found.st_mode):
                return None
            self._settle(digest)
        return Blob(digest, found.st_size)

    def verify(self, digest: bytes, size: int) -> str | None:
        """Read them all and compare; what is wrong with them, or None."""
        return flaw(self, digest, size)

    def digests(self) -> Iterator[bytes]:
        """Everything that is there, in no order."""
        return (bytes.fromhex(path.name) for path in self._blobs())

    def claim(self, zone: str) -> None:
        """Make a folder that is nobody's the zone's own; refuse that of another zone."""
        with disk.told(self.folder):
            owner.claim(self.folder, zone)

    def own(self, epoch: str) -> int:
        """Since when the log of that epoch has this folder: from now on, if it was another one."""
        self._check_open()
        with disk.told(self.folder):
            return owner.owned_since(self.folder, epoch)

    def put_since(self, nanoseconds: int) -> Iterator[bytes]:
        """Everything that came later than that, by the clock of the files."""
        for path in self._blobs():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime_ns > nanoseconds:
                    yield bytes.fromhex(path.name)

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        """Copy blobs into another folder of the same layout; how many bytes."""
        self._check_open()
        with contextlib.closing(FilesystemObjectStore(folder, clock=self._clock)) as target:
            return copy_blobs(self, target, digests)

    # ---- upkeep ---------------------------------------------------------------------------------

    def delete(self, digest: bytes) -> bool:
        """Remove them; whether they were there. After a power cut they may be there again."""
        self._check_open()
        with disk.told(self.folder):
            failpoint("boundary.object.delete.before")
            was_there = disk.remove(self._path(digest))
            failpoint("boundary.object.delete.after")
            if not was_there:
                self._check_folder()
            return was_there

    def sweep(self, older_than: float) -> int:
        """Remove what uploads left behind and nobody has touched for so long; how many."""
        self._check_open()
        latest = self._clock() - older_than
        with disk.told(self.folder):
            return sum(_is_swept(each, latest) for each in _entries(self._uploads))

    def close(self) -> None:
        """Take and give no more. Uploads and downloads that are open belong to their callers."""
        self._is_closed = True
        self.crew.close()
        self.direct.close()

    # ---- folders --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        for path in (self.folder, self._root, self._uploads):
            disk.make_folder(path)
        for path in (self.folder, self.folder.parent):
            with contextlib.suppress(
                PermissionError
            ):  # a folder of others need not be ours to read
                disk.sync_folder(path)

    def _blobs(self) -> Iterator[Path]:
        self._check_open()
        with disk.told(self.folder):
            for above in _entries(self._root):
                for below in _entries(above):
                    for blob in _entries(below):
                        if _NAME.fullmatch(blob.name):
                            yield blob

    def _path(self, digest: bytes) -> Path:
        name = checked(digest).hex()
        return self._root / name[:2] / name[2:4] / name

    def _private(self) -> tuple[Path, int]:
        """A file of nobody else's, locked."""
        while True:
            path = self._uploads / f"{secrets.token_hex(16)}.new"
            fd = _taken(path)
            if fd is not None:
                return path, fd

    def _settle(self, digest: bytes) -> None:
        """Sync the folders above a blob: that of the blob always, the others once."""
        folder = self._path(digest).parent
        try:
            disk.sync_folder(folder)
            if digest[:2] not in self._settled:
                disk.sync_folder(folder.parent)
            if digest[:1] not in self._settled:
                disk.sync_folder(self._root)
        except OSError as error:
            raise self.unsynced(error) from error
        self._settled.update((digest[:1], digest[:2]))

    def _check_folder(self) -> None:
        """Tell a blob that is missing from a disk that is not mounted."""
        if not self._root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder is missing", str(self._root))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(
                f"the object store {self.folder} is closed", remedy="open it again"
            )


def _taken(path: Path) -> int | None:
    """The file, opened and locked for this upload alone; None when another one has it."""
    while True:
        fd = open_file(path, _UPLOAD_FLAGS)
        try:
            is_locked = disk.is_locked(fd)
            if not is_locked and disk.is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if is_locked:
            return None
        # It was finished or removed between opening and locking, and the name is free again.


def _is_swept(path: Path, latest: float) -> bool:
    """Remove a file that nobody writes to and nobody has touched since; whether it was removed."""
    try:
        fd = open_file(path, os.O_RDWR)
    except (FileNotFoundError, IsADirectoryError):
        return False
    try:
        if os.fstat(fd).st_mtime > latest or disk.is_locked(fd) or not disk.is_at(path, fd):
            return False
        return disk.remove(path)
    finally:
        os.close(fd)


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing in what is none."""
    try:
        return list(folder.iterdir())
    except NotADirectoryError:
        return []
