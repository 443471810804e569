"""An object on its way into a file: whole and right, or not under its name at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ergon_framework.errors import ConfigurationError, DataLossError
from ergon_framework.storage.secure_files import Folder, UnsafeFileError

if TYPE_CHECKING:
    from ergon_framework.boundary.http.client import HttpTransport

PIECE = 1 << 20


class Download:
    """One object and the file it is to become."""

    def __init__(self, transport: HttpTransport, bucket: str, key: str, target: Path) -> None:
        if target.is_dir():
            raise ConfigurationError(f"{target} is a folder", remedy="name a file in it")
        self._transport = transport
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self.about = transport.head_object(bucket, key)

    def is_done(self, *, force: bool) -> bool:
        """Whether the file is there already; another file is not replaced unless forced."""
        if not self._target.exists():
            return False
        try:
            with open(self._target, "rb") as file:
                if _spelled(hashlib.file_digest(file, "sha256")) == self.about.digest:
                    return True
        except OSError as error:
            raise _unusable(self._target, error) from error
        if force:
            return False
        raise ConfigurationError(
            f"{self._target} is there already and is another file",
            remedy="name another one, or give --force",
        )

    def run(self, report: Callable[[int], None]) -> None:
        """Fetch what is missing; a part of something else is given up and fetched anew."""
        try:
            is_fresh = not self._part.exists()
            while not self._attempt(report):
                self._part.unlink()
                if is_fresh:
                    raise _spoilt(self.about.bucket, self.about.key)
                is_fresh = True
            self._part.replace(self._target)
            _sync_folder(self._target.absolute().parent)
        except DataLossError:
            self._part.unlink(missing_ok=True)  # nothing of a spoilt object is worth keeping
            raise
        except UnsafeFileError as error:
            raise ConfigurationError(
                f"{error.filename} is not used: {error.strerror}",
                remedy="see who made it; then remove it, or name a file in a folder of your own",
            ) from error
        except OSError as error:
            raise _unusable(self._target, error) from error

    def _attempt(self, report: Callable[[int], None]) -> bool:
        with open(self._opened(), "r+b") as file:
            hashed = hashlib.file_digest(file, "sha256")
            done = file.tell()
            if done < self.about.size:
                self._receive(file, hashed, done, report)
            file.flush()
            os.fsync(file.fileno())
        return _spelled(hashed) == self.about.digest

    def _opened(self) -> int:
        """The part. Nobody else may have made it: he could change it, or lead us elsewhere."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        with Folder.open(self._part.absolute().parent, follow=True) as folder:
            return folder.open_file(self._part.name, flags, is_public=True)

    def _receive(
        self, file: BinaryIO, hashed: Any, done: int, report: Callable[[int], None]
    ) -> None:
        about = self.about
        stream = self._transport.get_object(about.bucket, about.key, start=done)
        with closing(stream):
            while piece := stream.read(PIECE):
                file.write(piece)
                hashed.update(piece)
                done += len(piece)
                report(done)


def copied_out(transport: HttpTransport, bucket: str, key: str, out: BinaryIO) -> None:
    """Write an object's bytes to a stream; that they were wrong can only be told afterwards."""
    hashed = hashlib.sha256()
    with closing(transport.get_object(bucket, key)) as stream:
        while piece := stream.read(PIECE):
            hashed.update(piece)
            out.write(piece)
        out.flush()
        expected = stream.digest
    if _spelled(hashed) != expected:
        raise _spoilt(bucket, key)


def _spelled(hashed: Any) -> str:
    return f"sha256:{hashed.hexdigest()}"


def _spoilt(bucket: str, key: str) -> DataLossError:
    return DataLossError(
        f"the bytes of {bucket}/{key} that came are not those that the node promised",
        reason="digest_mismatch",
        remedy="try again; if that does not help, see what `ergon boundary verify` says there",
        details={"bucket": bucket, "key": key},
    )


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written: {error.strerror or error}",
        remedy="name a file in a folder that can be written and has room",
    )


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
