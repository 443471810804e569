"""Where files are, as a URL says it: a folder of this machine, or a bucket.

``folder`` reads the files of a folder. Those of a bucket are read here: objects under a prefix, a
window at a time, while they are the same.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

from ergon_framework.connector.files.errors import FileChangedError
from ergon_framework.connector.files.folder import FoundFile, LocalFolder, digest
from ergon_framework.connector.files.reader import FilePlace
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.storage.objectstore.s3_client import (
    Bucket,
    S3Download,
    bucket_of,
    check_extra,
    connect,
    our_errors,
)
from ergon_framework.storage.secure_files import Folder
from ergon_framework.storage.server import Observation

FORMS = "write files:///folder, files://./folder for one beside, or s3://bucket/prefix"
STATE = ".ergon"


@dataclass(frozen=True, slots=True)
class FolderAddress:
    """A folder; where it stopped is kept in it by default."""

    path: Path
    settle = 5.0
    """How many seconds after its last change a file counts as complete."""

    @property
    def title(self) -> str:
        """The name in errors, logs and health."""
        return f"files://{self.path}"

    def open(self) -> FilePlace:
        """Open it."""
        try:
            return LocalFolder(self.path)
        except NotADirectoryError:
            raise ConfigurationError(
                f"{self.path} is no folder", remedy="name a folder with files in it"
            ) from None

    def state(self, consumer: str) -> Path:
        """Where positions are kept by default."""
        return self.path / STATE / f"files-{consumer}"

    def state_folder(self, consumer: str) -> Folder:
        """The same folder, made if it is missing, for its owner only."""
        with Folder.ensure_private(self.path / STATE):
            return Folder.ensure_private(self.state(consumer))

    def unreadable(self, names: list[str]) -> str | None:
        """Why the place or a file cannot be read by this user."""
        return next((each for each in names if not os.access(self.path / each, os.R_OK)), None)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A bucket. What is in it was complete when it came there."""

    bucket: Bucket
    settle = 0.0

    @property
    def title(self) -> str:
        """The name in errors, logs and health."""
        return self.bucket.place

    def open(self) -> FilePlace:
        """Open it."""
        return BucketFiles(self.bucket)

    def unreadable(self, names: list[str]) -> str | None:
        """None: a bucket may be read as a whole."""


Address = FolderAddress | BucketAddress


def address_of(url: object, endpoint: str | None, region: str | None) -> Address:
    """The place that a URL or a path names."""
    wrong = ConfigurationError("the URL of the files cannot be read", remedy=FORMS)
    if not isinstance(url, str) or not url:
        raise wrong
    scheme, mark, rest = url.partition("://")
    if "?" in rest:
        raise ConfigurationError(
            "FilesConnector takes its options as arguments",
            remedy="write from ergon_framework.connector import from_url, and from_url(URL)",
        )
    if scheme.lower() == "s3" and mark:
        check_extra()
        given = {"endpoint": endpoint, "region": region}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        return BucketAddress(bucket_of(f"{url}?{query}" if query else url))
    if endpoint is not None or region is not None:
        raise ConfigurationError("endpoint and region are for buckets", remedy=FORMS)
    if not mark:
        return FolderAddress(Path(url).absolute())
    is_path = rest.startswith("/") or rest.split("/")[0] in (".", "..")
    if scheme.lower() != "files" or not is_path or "#" in rest or "\0" in unquote(rest):
        raise wrong
    return FolderAddress(Path(unquote(rest)).absolute())


def observed(address: Address, takes: Callable[[str], bool], state: Path) -> Iterator[Observation]:
    """What ``ergon doctor`` reports: which files there are, and whether positions can be kept."""
    try:
        with contextlib.closing(address.open()) as place:
            names, _ = place.names(takes)
    except OSError as error:
        found = f"{error.filename or address.title}: {error.strerror}"
        remedy = "make the folder, and let this user read it"
        yield Observation("files", found, remedy, is_grave=True)
        return
    except ErgonError as error:
        yield Observation("files", error.message, error.remedy or FORMS, is_grave=True)
        return
    yield Observation("files", f"{address.title} has {len(names)} files to read")
    unreadable = address.unreadable(names)
    if unreadable is not None:
        found = f"{unreadable!a} cannot be read"
        yield Observation("file", found, "let this user read it", is_grave=True)
    parent = next(each for each in (state, *state.parents) if each.exists())
    letters = state / "dead_letters.jsonl"
    if not os.access(parent, os.W_OK):
        found = f"where it stopped cannot be kept in {state}"
        remedy = "let this user write there, or name another folder with state="
        yield Observation("state", found, remedy, is_grave=True)
    elif letters.exists() and letters.stat().st_size:
        remedy = "read it, and put what you fix into a new file"
        yield Observation("dead letters", f"some are in {letters}", remedy)


_BUFFER = 1 << 18
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")


class BucketFiles:
    """The objects of one place in a bucket.

    Their state is that of the last listing. An object is identified by its ETag: each read asks for
    the object that was opened.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._place = bucket.place
        self._client = connect(bucket)
        self._our_errors = partial(our_errors, bucket.place)
        self._found: dict[str, FoundFile] = {}
        self._check(is_opening=True)

    @property
    def is_in_place(self) -> bool:
        """It is, if it answers."""
        self._check()
        return True

    def names(self, takes: Callable[[str], bool]) -> tuple[list[str], set[str]]:
        """The names of the objects to read, in order, and the names of all objects."""
        with self._our_errors():
            pages = self._client.list()
            found = {each["path"]: _found(each) for page in pages for each in page}
        self._found = found
        return sorted(name for name in found if takes(name)), set(found)

    def look(self, name: str) -> FoundFile | None:
        """An object as it was when they were listed; None when it was not there."""
        return self._found.get(name)

    def open(self, found: FoundFile) -> tuple[io.BufferedReader, FoundFile] | None:
        """The object, and its present state. None when it is gone."""
        with self._our_errors():
            try:
                with _denied(found.name):
                    seen = self._client.head(found.name)
            except FileNotFoundError:
                self._check()  # a bucket that is gone looks the same
                return None
        fetch = partial(self._fetch, found.name, seen["e_tag"])
        raw = _ObjectReader(S3Download(seen["size"], fetch))
        return io.BufferedReader(raw, _BUFFER), _found(seen)

    def shown(self, name: str) -> str:
        """The name of an object in errors and logs."""
        return f"{self._place}/{name}"

    def close(self) -> None:
        """Does nothing."""

    def _check(self, *, is_opening: bool = False) -> None:
        with self._our_errors(is_opening=is_opening):
            for _ in self._client.list(chunk_size=1):
                return

    def _fetch(self, name: str, etag: str | None, start: int, end: int) -> bytes:
        from obstore.exceptions import PreconditionError

        options: dict[str, Any] = {"range": (start, end)}
        if etag is not None:
            options["if_match"] = etag
        with self._our_errors():
            try:
                with _denied(name):
                    return bytes(self._client.get(name, options=options).bytes())  # type: ignore[arg-type]
            except (PreconditionError, FileNotFoundError) as error:
                raise FileChangedError(f"{name} is another object now, or gone") from error


@contextlib.contextmanager
def _denied(name: str) -> Iterator[None]:
    """The error for an object that may not be read. It does not hold up the others."""
    from obstore.exceptions import PermissionDeniedError

    try:
        yield
    except PermissionDeniedError as error:
        code = _CODE.search(str(error))
        said = "access is denied" if code is None else f"the server answers {code[1]}"
        raise PermissionError(errno.EACCES, said, name) from error


class _ObjectReader(io.RawIOBase):
    """An object as a file that can be read from any place on."""

    def __init__(self, download: S3Download) -> None:
        super().__init__()
        self._download = download
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue reading at another position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._download.size}
        self._at = base[whence] + offset
        self._download.seek(self._at)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes."""
        data = self._download.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _found(seen: Any) -> FoundFile:
    modified = seen["last_modified"].timestamp()
    version = seen["e_tag"] or f"{seen['size']}-{modified!r}"
    return FoundFile(seen["path"], digest(version, 8), seen["size"], modified, identity=version)
