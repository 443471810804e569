"""Blobs as files of one folder: uploads that can be resumed, downloads, and the folder's owner.

A blob's name is its digest. An upload appends to a file of its own, which is renamed when its
digest is right, so a blob is either whole or not there. ``owner.json`` says which zone and
generation the folder belongs to, because two zones that collect each other's orphans lose data.
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

import msgspec

from ergon_framework.errors import (
    ConfigurationError,
    FactInvalidError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.objectstore import blob_io, disk
from ergon_framework.storage.objectstore.blob_io import (
    PAGE,
    ByteQueue,
    DirectWriter,
    HashPool,
    after,
    blob_problem,
    checked,
    copy_blobs,
)
from ergon_framework.storage.objectstore.disk import sync_file, sync_folder
from ergon_framework.storage.secure_files import open_file

FILE, LOCK = "owner.json", "owner.lock"
MTIME_RESOLUTION_NS = 10_000_000
"""Nanoseconds by which the instants of files may be behind."""


class Owner(msgspec.Struct, frozen=True):
    """What the file says; it was written when the log came to have the folder."""

    zone: str = ""
    epoch: str = ""


def claim(folder: Path, zone: str) -> None:
    """Make a folder that is nobody's the zone's own; refuse one of another zone."""
    # Read first: of a folder that is already the zone's, nothing may need to be written.
    if _read(folder).zone == zone:
        return
    with _exclusively(folder):
        found = _read(folder)
        if found.zone == zone:
            return
        if found.zone:
            raise ConfigurationError(
                f"{folder} holds the objects of zone {found.zone!r}, and this is {zone!r}",
                remedy="give each zone a folder of its own",
            )
        _write(folder, Owner(zone))


def owned_since(folder: Path, epoch: str) -> int:
    """Since when a log of that epoch has the folder, in nanoseconds by the clock of its files."""
    if _read(folder).epoch != epoch:
        with _exclusively(folder):
            found = _read(folder)
            if found.epoch != epoch:
                # Written when it changes: its instant is since when orphans may be collected.
                _write(folder, msgspec.structs.replace(found, epoch=epoch))
    return (folder / FILE).stat().st_mtime_ns - MTIME_RESOLUTION_NS


@contextlib.contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """Let one process at a time read and replace ``owner.json``.

    Otherwise two zones that find the folder without an owner would both take it. The lock is a
    file of its own, because ``owner.json`` is replaced.
    """
    fd = open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        disk.lock(fd)
        yield
    finally:
        os.close(fd)


def _read(folder: Path) -> Owner:
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Owner)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return Owner()  # nobody has said so yet, or it was torn: then nothing older is removed


def _write(folder: Path, owner: Owner) -> None:
    draft = folder / f"{FILE}.new"
    # Of a process that died while it wrote.
    draft.unlink(missing_ok=True)
    with open(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(msgspec.json.encode(owner))
        file.flush()
        sync_file(file.fileno())
    # Replaced as a whole: a torn file would make the folder nobody's.
    draft.replace(folder / FILE)
    sync_folder(folder)


BLOCK = 1 << 20
"""Bytes gathered before they are hashed and written: small pieces would keep both waiting."""

declare(
    "boundary.object.write.before",
    "boundary.object.write.after",
    "boundary.object.sync.before",
    "boundary.object.sync.after",
)


class FileUpload:
    """An upload: bytes go to a temporary file, which is renamed to their digest at the end.

    The file is locked as long as the upload lives, so that no other process writes to it or sweeps
    it away. If ``is_kept``, an upload that breaks off leaves its file for another to continue.
    """

    def __init__(
        self,
        uploads: UploadFolder,
        path: Path,
        fd: int,
        digest: bytes | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        self.size = 0
        self._uploads = uploads
        self._path = path
        self._fd = fd
        self._known = digest
        self._is_kept = is_kept
        self._digester = blob_io.Digester(uploads.hash_pool)
        self._pending = ByteQueue()
        self._written = 0

    def resume(self) -> None:
        """Hash what an earlier upload left in the file, and go on behind it."""
        while piece := os.read(self._fd, BLOCK):
            self._digester.add([piece])
            self._written += len(piece)
        self.size = self._written

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes."""
        self._check()
        self._pending.add(data)
        self.size = self._written + self._pending.size
        if self._pending.size >= BLOCK:
            with self._ended_by_errors():
                self._flush(is_last=False)

    def finish(self, expected: bytes | None = None) -> Blob:
        """Sync the bytes to disk and rename the file to their digest."""
        self._check()
        with self._ended_by_errors():
            self._flush(is_last=True)
            # The bytes are synced before the file gets its name: after a power cut a file with the
            # name of a digest must hold the bytes of that digest.
            self._sync()
            digest = self._digester.digest()
            blob_io.compare(digest, expected, self._known, size=self.size)
            self._uploads.place(self._path, digest)
        self._let_go()
        return Blob(digest, self.size)

    def abort(self) -> None:
        """Throw the bytes away."""
        self._let_go(remove=True)

    def pause(self) -> None:
        """Close the upload, and keep the bytes; ``partial`` continues it."""
        if self._fd >= 0 and self._is_kept:
            with self._ended_by_errors():
                self._flush(is_last=True)
        self._let_go(remove=not self._is_kept)

    def __del__(self) -> None:
        # Called by the collector, perhaps while the interpreter ends.
        with contextlib.suppress(Exception):
            self.pause()

    def _check(self) -> None:
        if self._fd < 0:
            raise StoreError("this upload has ended", remedy="begin another one")
        self._uploads.check()

    def _flush(self, *, is_last: bool) -> None:
        """Hash and write what was gathered: before the end whole pages only, which go faster."""
        size = self._pending.size
        if not size:
            return  # the last block was flushed already, and is hashed while the file is synced
        if not is_last:
            size = size // PAGE * PAGE
        block = self._pending.take(size)
        self._digester.add(block)
        failpoint("boundary.object.write.before")
        # An upload that goes on may begin in the middle of a page.
        is_at_page = self._written % PAGE == 0
        done = self._uploads.direct.write(self._fd, block) if is_at_page else 0
        disk.write_all(self._fd, after(block, done))
        failpoint("boundary.object.write.after")
        self._written += size

    def _sync(self) -> None:
        try:
            failpoint("boundary.object.sync.before")
            disk.sync_file(self._fd)
        except OSError as error:
            self.abort()  # what a file holds that was not synced is not known
            raise self._uploads.unsynced(error) from error
        failpoint("boundary.object.sync.after")

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Refuse all writes after an error: the file could lack bytes that the digest includes."""
        try:
            with disk.told(self._uploads.folder):
                yield
        except FactInvalidError:
            # Its bytes are wrong: kept, they would be hashed and refused again.
            self._let_go(remove=True)
            raise
        except BaseException:
            self._let_go(remove=not self._is_kept)
            raise

    def _let_go(self, *, remove: bool = False) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        self._pending = ByteQueue()
        try:
            if remove:  # before the lock ends: afterwards another upload may use the file
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
        """Read on from an offset."""
        if offset < 0:
            raise ValueError(f"there is no byte {offset}")
        self._at = offset

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # What is raised here nobody can catch: Python would only print it.
        with contextlib.suppress(Exception):
            self.close()


_NAME = re.compile(r"[0-9a-f]{64}")
_UPLOAD_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND

declare(
    "boundary.object.rename.after",
    "boundary.object.folder.after",
    "boundary.object.delete.before",
    "boundary.object.delete.after",
)


class UploadFolder:
    """The temporary files of uploads under way, and what becomes of a finished one."""

    def __init__(
        self, folder: Path, place: Callable[[Path, bytes], None], clock: Callable[[], float]
    ) -> None:
        """``place`` gives a synced file of that digest its name, for good."""
        self.folder = folder
        self.path = folder / "uploads"
        self.hash_pool = HashPool()
        self.direct = DirectWriter()
        self.place = place
        self._clock = clock
        self._broken: StoreError | None = None
        self._is_closed = False

    def upload(self) -> FileUpload:
        """Begin an upload."""
        self.check()
        with disk.told(self.folder):
            path, fd = self._private()
        return FileUpload(self, path, fd)

    def partial(self, digest: bytes) -> FileUpload:
        """Begin, or go on with, an upload whose digest is known.

        While somebody else is at it, a second upload of the same bytes begins at nothing.
        """
        self.check()
        path = self.path / f"{checked(digest).hex()}.part"
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
        self.check_open()
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

    def sweep(self, older_than: float) -> int:
        """Remove leftovers of uploads untouched for ``older_than`` seconds; returns how many."""
        self.check_open()
        latest = self._clock() - older_than
        with disk.told(self.folder):
            return sum(_is_swept(each, latest) for each in _entries(self.path))

    def check_open(self) -> None:
        """Raise if the store is closed."""
        if self._is_closed:
            raise StoreUnavailableError(
                f"the object store {self.folder} is closed", remedy="open it again"
            )

    def close(self) -> None:
        """Close the store. Uploads that are open belong to their callers."""
        self._is_closed = True
        self.hash_pool.close()
        self.direct.close()

    def _private(self) -> tuple[Path, int]:
        """A new file that no other upload uses, locked."""
        while True:
            path = self.path / f"{secrets.token_hex(16)}.new"
            fd = _taken(path)
            if fd is not None:
                return path, fd


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
        self._clock = clock
        self._root = self.folder / "sha256"
        self._uploads = UploadFolder(self.folder, self._place, clock)
        self._settled: set[bytes] = set()  # first bytes of digests whose folders are synced
        with disk.told(self.folder):
            prepare_folders(self.folder, self._root, self._uploads.path)
        if zone is not None:
            self.claim(zone)

    # ---- in -------------------------------------------------------------------------------------

    def upload(self) -> FileUpload:
        """Begin an upload."""
        return self._uploads.upload()

    def partial(self, digest: bytes) -> FileUpload:
        """Begin, or go on with, an upload whose digest is known.

        While somebody else is at it, a second upload of the same bytes begins at nothing.
        """
        return self._uploads.partial(digest)

    def _place(self, path: Path, digest: bytes) -> None:
        """Give a synced file the name of its digest, for good."""
        target = self.path_of(digest)
        try:
            # The folder is there in nearly all cases; asking first would cost a call each time.
            path.rename(target)
        except FileNotFoundError:
            disk.make_folder(target.parent.parent)
            disk.make_folder(target.parent)
            path.rename(target)
        failpoint("boundary.object.rename.after")
        # Without a sync of the folders a power cut could undo the rename after the answer.
        self._settle(digest)
        failpoint("boundary.object.folder.after")

    # ---- out ------------------------------------------------------------------------------------

    def open(self, digest: bytes) -> FileDownload | None:
        """Begin a download; None if there is no such object."""
        self._uploads.check_open()
        with disk.told(self.folder):
            try:
                # Hard links are fine here: the digest proves the content.
                fd = open_file(self.path_of(digest), os.O_RDONLY, may_be_linked=True)
            except FileNotFoundError:
                self._check_folder()
                return None
            return FileDownload(self.folder, fd)

    def stat(self, digest: bytes) -> Blob | None:
        """Whether they are there, and how many.

        The process that renamed the file may have died before the sync, so it is done here again.
        """
        # Not only ``check_open``: after a failed sync no caller may hear that its bytes are safe.
        self._uploads.check()
        with disk.told(self.folder):
            try:
                found = self.path_of(digest).stat()
            except FileNotFoundError:
                self._check_folder()
                return None
            if not stat.S_ISREG(found.st_mode):
                return None
            self._settle(digest)
        return Blob(digest, found.st_size)

    def verify(self, digest: bytes, size: int) -> str | None:
        """Read them all and compare; what is wrong with them, or None."""
        return blob_problem(self, digest, size)

    def digests(self) -> Iterator[bytes]:
        """Everything that is there, in no order."""
        return (bytes.fromhex(path.name) for path in self._blobs())

    def claim(self, zone: str) -> None:
        """Make a folder that is nobody's the zone's own; refuse that of another zone."""
        with disk.told(self.folder):
            claim(self.folder, zone)

    def own(self, epoch: str) -> int:
        """Since when the log of that epoch has this folder: from now on, if it was another one."""
        self._uploads.check_open()
        with disk.told(self.folder):
            return owned_since(self.folder, epoch)

    def put_since(self, nanoseconds: int) -> Iterator[bytes]:
        """Everything that came later than that, by the clock of the files."""
        for path in self._blobs():
            # Removed by another process while the folder is read.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime_ns > nanoseconds:
                    yield bytes.fromhex(path.name)

    def put_before(self, instant: float) -> Iterator[bytes]:
        """Everything that came before an instant, by the clock of the files."""
        for path in self._blobs():
            # Removed by another process while the folder is read.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < instant:
                    yield bytes.fromhex(path.name)

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        """Copy blobs into another folder of the same layout; how many bytes."""
        self._uploads.check_open()
        with contextlib.closing(FilesystemObjectStore(folder, clock=self._clock)) as target:
            return copy_blobs(self, target, digests)

    # ---- upkeep ---------------------------------------------------------------------------------

    def delete(self, digest: bytes) -> bool:
        """Remove them; whether they were there. After a power cut they may be there again."""
        self._uploads.check_open()
        with disk.told(self.folder):
            failpoint("boundary.object.delete.before")
            was_there = disk.remove(self.path_of(digest))
            failpoint("boundary.object.delete.after")
            if not was_there:
                self._check_folder()
            return was_there

    def sweep(self, older_than: float) -> int:
        """Remove leftovers of uploads untouched for ``older_than`` seconds; returns how many."""
        return self._uploads.sweep(older_than)

    def close(self) -> None:
        """Close the store. Uploads and downloads that are open belong to their callers."""
        self._uploads.close()

    # ---- folders --------------------------------------------------------------------------------

    def _blobs(self) -> Iterator[Path]:
        self._uploads.check_open()
        with disk.told(self.folder):
            for above in _entries(self._root):
                for below in _entries(above):
                    for blob in _entries(below):
                        if _NAME.fullmatch(blob.name):
                            yield blob

    def path_of(self, digest: bytes) -> Path:
        """Where the file of a blob is, or would be."""
        name = checked(digest).hex()
        return self._root / name[:2] / name[2:4] / name

    def _settle(self, digest: bytes) -> None:
        """Sync the folders above a blob: that of the blob always, the others once."""
        folder = self.path_of(digest).parent
        try:
            # Each time: a folder that was synced before says nothing about a name that came since.
            disk.sync_folder(folder)
            if digest[:2] not in self._settled:
                disk.sync_folder(folder.parent)
            if digest[:1] not in self._settled:
                disk.sync_folder(self._root)
        except OSError as error:
            raise self._uploads.unsynced(error) from error
        self._settled.update((digest[:1], digest[:2]))

    def _check_folder(self) -> None:
        """Raise if the folder is missing: its disk may not be mounted."""
        if not self._root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder is missing", str(self._root))


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
        # Between opening and locking, the file was renamed or removed by the upload that had it:
        # the descriptor leads to a file without this name. Open the name again.


def _is_swept(path: Path, latest: float) -> bool:
    """Remove a file that is not locked and was not written since; whether it was removed."""
    try:
        fd = open_file(path, os.O_RDWR)
    except (FileNotFoundError, IsADirectoryError):
        return False
    try:
        # An upload that goes on has the lock; one that has ended has renamed the file.
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


def prepare_folders(folder: Path, *below: Path) -> None:
    """Make a store's folder and those in it, and sync that they are there."""
    for path in (folder, *below):
        disk.make_folder(path)
    for path in (folder, folder.parent):
        with contextlib.suppress(PermissionError):  # a folder of others need not be ours to read
            disk.sync_folder(path)
