"""Blobs: what can be uploaded to a node, and verified downloads from it.

A source of an upload can be read repeatedly, since a retry sends it again. A download is compared
with its digest before the caller sees a byte of it.
"""

from __future__ import annotations

import hashlib
import io
import mimetypes
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TypeAlias

from ergon_framework.boundary.client.effects import (
    ClientEffects,
    Dice,
    Do,
    Get,
    Now,
    Read,
    Shut,
    wait_to_retry,
)
from ergon_framework.boundary.client.transport import BlobSource
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.facts.validation import references
from ergon_framework.core.retry import RetriedCall, RetryRule
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    DataLossError,
    FactInvalidError,
)
from ergon_framework.ports.factstore import Reference
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.fsync import sync_file

CHUNK = 1 << 20
MAX_IN_MEMORY = 8 << 20
"""Bytes of a stream that are kept in memory; more go into a temporary file."""

FileContent: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO
"""Bytes, the path of a file, or a file opened for reading bytes."""

# Only the table of Python itself, not that of the system: a fact must not depend on the machine
# that publishes it.
_TYPES = mimetypes.MimeTypes()


class MemorySource:
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        # Copied: the caller may change a bytearray between the digest and the sending.
        self._data = memoryview(bytes(data))
        self.size = len(self._data)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self.size, CHUNK):
            yield bytes(self._data[start : start + CHUNK])

    def close(self) -> None:
        """Nothing to close."""


class PathSource:
    """A file, opened whenever it is read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            found = self._path.stat()
        except OSError as error:
            raise ConfigurationError(
                f"cannot read {self._path}: {error.strerror}", remedy="check the path"
            ) from error
        if stat.S_ISDIR(found.st_mode):
            raise ConfigurationError(f"{self._path} is a folder", remedy="name a file")
        if not stat.S_ISREG(found.st_mode):
            what = "a named pipe" if stat.S_ISFIFO(found.st_mode) else "no file"
            raise ConfigurationError(
                f"{self._path} is {what}: it may never end, and cannot be read again",
                remedy="give a file or bytes, or an open file, which is read to its end first; a"
                f" command takes - for its standard input: … - < {shlex.quote(str(self._path))}",
            )
        self.size = found.st_size

    def __iter__(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            yield from _pieces(file)

    def close(self) -> None:
        """Nothing to close: the file is closed after each reading."""


class FileSource:
    """An open file, from where it stands; one that cannot go back is copied first."""

    def __init__(self, file: BinaryIO) -> None:
        self._copy: tempfile.SpooledTemporaryFile[bytes] | None = None
        if _gives_text(file):
            raise _no_bytes(file)
        # The bytes are read at least twice, for the digest and for sending, and again at each
        # retry.
        if not file.seekable():
            self._copy = _copied(file)
        self._file = self._copy or file
        self._start = self._file.tell()
        self.size = self._file.seek(0, os.SEEK_END) - self._start
        self._file.seek(self._start)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(self._start)
        yield from _pieces(self._file)

    def close(self) -> None:
        """Delete the temporary copy. The file itself belongs to the caller."""
        if self._copy is not None:
            self._copy.close()


def _copied(file: _Reads) -> tempfile.SpooledTemporaryFile[bytes]:
    copy = tempfile.SpooledTemporaryFile[bytes](MAX_IN_MEMORY)
    try:
        for piece in _pieces(file):
            copy.write(piece)
    except BaseException:
        copy.close()
        raise
    copy.seek(0)
    return copy


class _Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _pieces(file: _Reads) -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        if _is_no_bytes(piece):
            raise _no_bytes(file)
        yield piece


def _is_no_bytes(piece: object) -> bool:
    return not isinstance(piece, bytes | bytearray | memoryview)


def _gives_text(file: object) -> bool:
    return isinstance(file, io.TextIOBase)


def _no_bytes(file: object) -> ConfigurationError:
    return ConfigurationError(
        f"{type(file).__name__} does not give bytes",
        remedy="open the file for reading bytes: open(path, 'rb')",
    )


def source_of(blob: FileContent, *, takes_pipes: bool = False) -> BlobSource:
    """Something to read the bytes from, as often as it takes.

    With ``takes_pipes`` a path may name a pipe that this process has open, as a shell's ``<(…)``
    does. One in a folder is refused all the same: there may never be a writer.
    """
    if isinstance(blob, bytes | bytearray | memoryview):
        return MemorySource(blob)
    if isinstance(blob, str | os.PathLike):
        is_pipe = takes_pipes and Path(blob).is_fifo() and _is_open_already(blob)
        return _piped(blob) if is_pipe else PathSource(blob)
    if hasattr(blob, "read") and hasattr(blob, "seekable"):
        return FileSource(blob)
    raise ConfigurationError(
        f"{type(blob).__name__} is no blob",
        remedy="give bytes, a path, or a file opened for reading bytes",
    )


def _is_open_already(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a descriptor of this process: then the process that handed it over
    writes into it.
    """
    return re.fullmatch(r"/dev/fd/\d+|/proc/(self|\d+)/fd/\d+", os.fspath(path)) is not None


def _piped(path: str | os.PathLike[str]) -> FileSource:
    """What comes through a pipe with a name: it comes once, so it is copied."""
    try:
        with open(path, "rb") as pipe:
            return FileSource(pipe)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}", remedy="check the path"
        ) from error


def digest_of(source: Iterable[bytes]) -> str:
    """The digest as it travels: ``sha256:<hex>``."""
    hashed = hashlib.sha256()
    for piece in source:
        hashed.update(piece)
    return f"sha256:{hashed.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file to be published, and how the fact will refer to it.

    What is left out is derived: the bucket from the subject, the key from digest and name, the
    media type from the name.
    """

    path: FileContent
    bucket: str | None = None
    key: str | None = None
    media_type: str | None = None
    file_name: str | None = None

    @property
    def name(self) -> str:
        """The file's name without its folder; empty for bytes without one."""
        if self.file_name is not None:
            return self.file_name
        given = self.path if isinstance(self.path, str | os.PathLike) else self._named()
        return Path(given).name

    def _named(self) -> str:
        name = getattr(self.path, "name", "")
        return name if isinstance(name, str) else ""

    @property
    def kind(self) -> str:
        """The media type."""
        if self.media_type is not None:
            return self.media_type
        guessed, packing = _TYPES.guess_type(self.name)
        return guessed if guessed and packing is None else "application/octet-stream"


declare("boundary.saving.before", "boundary.saving.after")


def reference_of(value: Reference | Mapping[str, Any]) -> Reference:
    """The one artifact that a value refers to."""
    if isinstance(value, Reference):
        return value
    found = references(dict(value), "reference")
    if len(found) != 1:
        raise FactInvalidError(
            f"this refers to {len(found)} artifacts",
            reason="range",
            remedy="give one object with bucket, key, digest and size",
            details={"field": "reference"},
        )
    return found[0]


@dataclass(slots=True)
class Receiving:
    """Receives one artifact into a file."""

    reference: Reference
    file: IO[bytes]
    received: int = 0
    hashed: Any = field(default_factory=hashlib.sha256)

    def script(self, rule: RetryRule, dice: Dice) -> ClientEffects[None]:
        """Receive and verify it; a transfer that is cut goes on where it stopped."""
        call = RetriedCall(rule, (yield Now()))
        while True:
            before = self.received
            try:
                yield from self._stream()
                break
            except BoundaryError as error:
                # A large artifact over a bad link may be cut more often than there are attempts;
                # only standing still uses them up.
                if self.received > before:  # progress was made: count attempts anew
                    call = RetriedCall(rule, (yield Now()))
                yield from wait_to_retry(error, call, dice)
        digest = self.hashed.digest()
        if (self.received, digest) != (self.reference.size, self.reference.digest):
            raise _damaged(self.reference, self.received, digest)

    def _stream(self) -> ClientEffects[None]:
        wanted = self.reference
        # With the digest: if the name stands for other bytes by now, the node refuses, instead of
        # sending the end of another file.
        stream: Any = yield Get(wanted.bucket, wanted.key, self.received, wanted.digest)
        try:
            # One piece too many shows that the object is larger than promised; more than that is
            # not read.
            while self.received <= wanted.size and (data := (yield Read(stream))):
                self.received += len(data)
                self.hashed.update(data)
                yield Do(partial(self.file.write, data))
        finally:
            yield Shut(stream)


def saving(
    reference: Reference, path: str | os.PathLike[str], rule: RetryRule, dice: Dice
) -> ClientEffects[Path]:
    """Save an artifact under a path, complete and verified, or not at all."""
    target = Path(path)
    file: IO[bytes] = yield Do(partial(_beside, target))
    try:
        yield from Receiving(reference, file).script(rule, dice)
        yield Do(partial(_settle, file, target))
    except BaseException:
        file.close()
        with suppress(OSError):
            Path(file.name).unlink()
        raise
    return target


def opening(reference: Reference, rule: RetryRule, dice: Dice) -> ClientEffects[IO[bytes]]:
    """An artifact as a file, verified, at its start; the caller closes it."""
    file: IO[bytes] = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115 - the caller's
    try:
        yield from Receiving(reference, file).script(rule, dice)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def getting(reference: Reference, rule: RetryRule, dice: Dice) -> ClientEffects[bytes]:
    """An artifact as bytes, verified."""
    file = io.BytesIO()
    yield from Receiving(reference, file).script(rule, dice)
    return file.getvalue()


def _beside(target: Path) -> IO[bytes]:
    """A file in the same folder: only there can it take the target's place in one step."""
    try:
        return tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", delete=False
        )
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {target}: {error.strerror}", remedy="check the folder"
        ) from error


def _settle(file: IO[bytes], target: Path) -> None:
    file.flush()
    sync_file(file.fileno())
    file.close()
    failpoint("boundary.saving.before")
    Path(file.name).replace(target)
    failpoint("boundary.saving.after")


def _damaged(reference: Reference, received: int, digest: bytes) -> DataLossError:
    return DataLossError(
        f"{reference.bucket}/{reference.key} is not the artifact that the fact refers to",
        reason="artifact_mismatch",
        remedy="do not use it; let the node verify its objects",
        details={
            "bucket": reference.bucket,
            "key": reference.key,
            "digest": digest_text(reference.digest),
            "size": reference.size,
            "found_digest": digest_text(digest),
            "found_size": received,
        },
    )
