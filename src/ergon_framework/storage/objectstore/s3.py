"""Blobs in a bucket, with uploads staged in a folder until their digest is known."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.ports.objectstore import Blob
from ergon_framework.storage.conflicts import retry_conflicts
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.objectstore.blob_io import Dated, blob_problem, checked, copy_blobs
from ergon_framework.storage.objectstore.disk import make_folder, told
from ergon_framework.storage.objectstore.filesystem import (
    FilesystemObjectStore,
    FileUpload,
    UploadFolder,
    prepare_folders,
)
from ergon_framework.storage.objectstore.s3_client import BucketClient, S3Download

logger = logging.getLogger("ergon_framework.boundary")

_MAX_ATTEMPTS = 4  # to begin an upload in a folder that goes away while it is used


class StagingArea:
    """The folder where uploads are gathered until their digest is known; then they are sent.

    It lies among the temporary files, and the system may remove files and folders there that have
    not been used for days: so the folder is made again when it is gone.
    """

    def __init__(
        self,
        folder: Path,
        send: Callable[[Path, bytes], None],
        clock: Callable[[], float],
        *,
        is_temporary: bool = False,
    ) -> None:
        make_own(folder)
        self.folder = folder.absolute()
        self._send = send
        self._is_temporary = is_temporary
        self._uploads = UploadFolder(self.folder, self._place, clock)
        self._prepare()

    def upload(self) -> FileUpload:
        """Begin an upload."""
        return self._begun(self._uploads.upload)

    def partial(self, digest: bytes) -> FileUpload:
        """Begin or resume an upload whose digest is known."""
        return self._begun(partial(self._uploads.partial, digest))

    def sweep(self, older_than: float) -> int:
        """Remove leftovers of uploads untouched for ``older_than`` seconds; returns how many."""
        self._renew()
        return self._uploads.sweep(older_than)

    def close(self) -> None:
        """Close the staging area. A temporary folder is removed, unless an upload is in it."""
        self._uploads.close()
        if self._is_temporary:
            with contextlib.suppress(OSError):
                for folder in (self._uploads.path, self.folder):
                    folder.rmdir()

    def _place(self, path: Path, digest: bytes) -> None:
        """Send a finished file; it is of no more use here."""
        self._send(path, digest)
        # After it is in the bucket: until then it is the only copy.
        path.unlink()

    def _begun(self, begin: Callable[[], FileUpload]) -> FileUpload:
        """Begin an upload, again if a process that ends has just removed the folder."""

        def attempt() -> FileUpload:
            self._renew()
            return begin()

        def has_folder_gone(error: Exception) -> bool:
            return isinstance(error, StoreUnavailableError) and not self._uploads.path.is_dir()

        return retry_conflicts(attempt, max_attempts=_MAX_ATTEMPTS, is_conflict=has_folder_gone)

    def _renew(self) -> None:
        if not _is_own(self.folder) or not self._uploads.path.is_dir():
            make_own(self.folder)
            self._prepare()

    def _prepare(self) -> None:
        with told(self.folder):
            prepare_folders(self.folder, self._uploads.path)


def own_folder(place: str) -> Path:
    """The folder of a bucket's uploads among the temporary files."""
    mark = hashlib.sha256(place.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"ergon-uploads-{os.geteuid()}-{mark}"


def make_own(folder: Path) -> None:
    """Make a folder unless it is there, and refuse one that others may enter."""
    with told(folder):
        make_folder(folder)
        is_own = _is_own(folder)
    if not is_own:
        raise ConfigurationError(
            f"{folder} is not a folder that only this user may enter",
            remedy="remove it, or let TMPDIR name another folder for temporary files",
        )


def _is_own(folder: Path) -> bool:
    try:
        # ``lstat``: a link would lead to a folder of somebody's choice.
        found = folder.lstat()
    except FileNotFoundError:
        return False
    is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and is_private


CLAIM_INTERVAL = 60.0
"""Seconds for which a zone trusts that its place in a bucket is still its own."""
_ROOT, _ASIDE, _EPOCHS = "sha256", "removed", "epochs"
_NAME = re.compile(rf"(?:{_ROOT}/../..|{_ASIDE})/([0-9a-f]{{64}})")

declare(
    "boundary.bucket_put.before",
    "boundary.bucket_put.after",
    "boundary.bucket_delete.before",
    "boundary.bucket_delete.aside",
    "boundary.bucket_delete.after",
)


class S3ObjectStore:
    """A bucket of blobs. Any number of threads, processes and machines may use it together."""

    acknowledgement = (
        "A finished upload is whole in the bucket before the answer: it survives the end of the"
        " process and of its machine, and whatever the bucket's server survives."
    )

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        folder: str | os.PathLike[str] | None = None,
        zone: str | None = None,
        read_only: bool = False,
        may_be_away: bool = False,
        client: BucketClient | None = None,
    ) -> None:
        """Open the place in a bucket that a URL names.

        ``folder`` is for uploads under way, otherwise one among the temporary files. With ``zone``
        the place belongs to that zone alone, and that of another is refused; with ``read_only``
        one that is nobody's stays so. With ``may_be_away`` a server that does not answer now is
        asked again when the store is used. ``client`` is one for that URL with other limits.
        """
        self._client = client or BucketClient(url)
        self._clock = clock
        self._is_closed = False
        self.place = self._client.bucket.place
        self._zone = None if read_only else zone
        self._claimed_at = float("-inf")
        try:
            # Asked when it is opened: a wrong bucket or key is told at the start, not with the
            # first object.
            self._client.check(is_opening=True)
            if zone is not None:
                self._client.claim(zone, is_written=not read_only)
                self._claimed_at = clock()
        except StoreUnavailableError as error:
            if not may_be_away or self._zone is None:
                raise
            logger.warning("zone %s starts without its objects: %s", zone, error)
        where = own_folder(self.place) if folder is None else Path(folder)
        self.staging = StagingArea(where, self._send, clock, is_temporary=folder is None)

    # ---- in -------------------------------------------------------------------------------------

    def upload(self) -> FileUpload:
        """Begin an upload."""
        return self.staging.upload()

    def partial(self, digest: bytes) -> FileUpload:
        """Begin, or go on with, an upload whose digest is known.

        It goes on with what this machine has; another machine begins at nothing.
        """
        return self.staging.partial(digest)

    def _send(self, path: Path, digest: bytes) -> None:
        """Upload a file with this digest to the bucket."""
        size, key = path.stat().st_size, key_of(digest)
        self._refuse_other_owner()
        failpoint("boundary.bucket_put.before")
        is_new = self._client.create(key, path, size)
        # Something is there under the digest; if it is damaged, the good bytes take its place.
        if not is_new and self.verify(digest, size) is not None:
            self._client.replace(key, path, size)
        failpoint("boundary.bucket_put.after")

    # ---- out ------------------------------------------------------------------------------------

    def open(self, digest: bytes) -> S3Download | None:
        """Begin a download; None if there is no such object."""
        blob, key = self.stat(digest), key_of(digest)

        def fetch(start: int, end: int) -> bytes:
            self._check_open()
            return self._client.read(key, start, end)

        return None if blob is None else S3Download(blob.size, fetch)

    def stat(self, digest: bytes) -> Blob | None:
        """The size of an object; None if it is not there."""
        self._check_open()
        size = self._client.size(key_of(digest))
        return None if size is None else Blob(digest, size)

    def verify(self, digest: bytes, size: int) -> str | None:
        """Read them all and compare; what is wrong with them, or None."""
        return blob_problem(self, digest, size)

    def digests(self) -> Iterator[bytes]:
        """Everything that is there, in no order."""
        return (each.digest for each in self._listed(_ROOT))

    def copy_to(self, folder: str, digests: Iterable[bytes]) -> int:
        """Copy blobs into a folder, in the layout of the store on disk; how many bytes."""
        self._check_open()
        with contextlib.closing(FilesystemObjectStore(folder, clock=self._clock)) as target:
            return copy_blobs(self, target, digests)

    # ---- upkeep ---------------------------------------------------------------------------------

    def delete(self, digest: bytes) -> bool:
        """Remove them; whether they were there. For a while they can be brought back."""
        blob = self.stat(digest)
        if blob is None:
            return False
        key = key_of(digest)
        self._refuse_other_owner()
        failpoint("boundary.bucket_delete.before")
        # The copy comes first: a process that dies in between leaves the blob in both places,
        # never in none.
        self._client.copy(key, _aside(digest), blob.size)
        failpoint("boundary.bucket_delete.aside")
        self._client.delete(key)
        failpoint("boundary.bucket_delete.after")
        return True

    def own(self, epoch: str) -> float:
        """Since when the log of that epoch has this place, by the server's clock: from now on, if
        it was another one.
        """
        self._check_open()
        self._refuse_other_owner()
        key = f"{_EPOCHS}/{hashlib.sha256(epoch.encode()).hexdigest()}"
        self._client.put_new(key, epoch.encode())
        return self._client.put_at(key).timestamp()

    def put_before(self, instant: float, *, since: float = 0.0) -> Iterator[bytes]:
        """The digests of blobs stored before an instant, but not before ``since``."""
        return (each.digest for each in self._listed(_ROOT) if since <= each.at < instant)

    def removed(self) -> Iterator[Dated]:
        """What was removed and can still be brought back, and when it was."""
        return self._listed(_ASIDE)

    def restore(self, digest: bytes) -> bool:
        """Bring back what was removed; whether there was anything to bring back."""
        self._check_open()
        size = self._client.size(_aside(digest))
        if size is None:
            return False
        # Not copied over what has come back meanwhile.
        if self._client.size(key_of(digest)) != size:
            self._client.copy(_aside(digest), key_of(digest), size)
        self._client.delete(_aside(digest))
        return True

    def forget(self, digest: bytes) -> None:
        """Drop what is kept in memory of a deleted object."""
        self._check_open()
        self._client.delete(_aside(digest))

    def sweep(self, older_than: float) -> int:
        """Remove leftovers of uploads on this machine untouched for ``older_than`` seconds; returns
        how many.
        """
        return self.staging.sweep(older_than)

    def close(self) -> None:
        """Close the store. Uploads and downloads that are open belong to their callers."""
        self._is_closed = True
        self.staging.close()

    def _listed(self, folder: str) -> Iterator[Dated]:
        self._check_open()
        for key, at in self._client.listed(folder):
            if found := _NAME.fullmatch(key):
                yield Dated(bytes.fromhex(found[1]), at.timestamp())

    def _refuse_other_owner(self) -> None:
        """Write the zone's name again if it is gone, and refuse a place that is another's by now.

        Whoever empties a bucket takes the name away, too, and the next zone that comes may have the
        place: each would remove the other's bytes.
        """
        now = self._clock()
        # ``0 <=``: a clock that was set back would trust the last look for too long.
        if self._zone is None or 0 <= now - self._claimed_at < CLAIM_INTERVAL:
            return
        try:
            self._client.claim(self._zone)
        except ConfigurationError as error:
            raise StoreUnavailableError(error.message, remedy=error.remedy) from error
        self._claimed_at = now

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(
                f"the object store {self.place} is closed", remedy="open it again"
            )


def key_of(digest: bytes) -> str:
    """Where a blob is below the prefix."""
    name = checked(digest).hex()
    return f"{_ROOT}/{name[:2]}/{name[2:4]}/{name}"


def _aside(digest: bytes) -> str:
    return f"{_ASIDE}/{checked(digest).hex()}"
