"""Blobs on their way into a bucket: where they are gathered until they are whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ergon_framework.boundary.objects.disk import make_folder, told
from ergon_framework.boundary.objects.filesystem import FilesystemObjectStore
from ergon_framework.boundary.objects.filesystem_upload import FileUpload
from ergon_framework.errors import ConfigurationError, StoreUnavailableError

_TURNS = 3  # at a folder that goes away while it is used


class Spool(FilesystemObjectStore):
    """Where bytes on their way in are gathered; finished ones go on into the bucket.

    Temporary files that nobody has touched for days may be cleared away by the system, folders too.
    """

    def __init__(
        self,
        folder: Path,
        send: Callable[[Path, bytes], None],
        clock: Callable[[], float],
        *,
        is_temporary: bool = False,
    ) -> None:
        self._send = send
        self._is_temporary = is_temporary
        make_own(folder)
        super().__init__(folder, clock=clock)

    def upload(self) -> FileUpload:
        """Begin to take bytes in."""
        return self._begun(super().upload)

    def partial(self, digest: bytes) -> FileUpload:
        """Begin, or go on with, an upload whose digest is known."""
        return self._begun(partial(super().partial, digest))

    def sweep(self, older_than: float) -> int:
        """Remove what uploads left behind and nobody has touched for so long; how many."""
        self._renew()
        return super().sweep(older_than)

    def place(self, path: Path, digest: bytes) -> None:
        """Send a finished file; it is of no more use here."""
        self._send(path, digest)
        path.unlink()

    def close(self) -> None:
        """Take no more; a folder that was only made for this goes, unless an upload is in it."""
        super().close()
        if self._is_temporary:
            with contextlib.suppress(OSError):
                for folder in (self._uploads, self._root, self.folder):
                    folder.rmdir()

    def _begun(self, begin: Callable[[], FileUpload]) -> FileUpload:
        """Begin in a folder that another process, which ends, may be about to remove."""
        for _turn in range(_TURNS):
            self._renew()
            try:
                return begin()
            except StoreUnavailableError:
                if self._uploads.is_dir():
                    raise
        return begin()

    def _renew(self) -> None:
        if not _is_own(self.folder) or not self._uploads.is_dir():
            make_own(self.folder)
            with told(self.folder):
                self._prepare()


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
        found = folder.lstat()
    except FileNotFoundError:
        return False
    is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and is_private
