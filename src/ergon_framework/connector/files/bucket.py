"""Files in a bucket: objects under a prefix, read a window at a time while they are the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

from ergon_framework.connector.files.errors import FileChangedError
from ergon_framework.connector.files.folder import FoundFile, digest
from ergon_framework.storage.objectstore.s3_client import (
    Bucket,
    S3Download,
    connect,
    our_errors,
)

_BUFFER = 1 << 18


class BucketFiles:
    """The objects of one place in a bucket. What a look says is from the last listing.

    An object is known by its ETag: each read asks for the one that was opened.
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
        """The names of objects that are read, in order, and all there are."""
        with self._our_errors():
            pages = self._client.list()
            found = {each["path"]: _found(each) for page in pages for each in page}
        self._found = found
        return sorted(name for name in found if takes(name)), set(found)

    def look(self, name: str) -> FoundFile | None:
        """An object as it was when they were listed; None when it was not there."""
        return self._found.get(name)

    def open(self, found: FoundFile) -> tuple[io.BufferedReader, FoundFile] | None:
        """The object, and what it is now; None when it is gone."""
        with self._our_errors():
            try:
                seen = self._client.head(found.name)
            except FileNotFoundError:
                self._check()  # a bucket that is gone looks the same
                return None
        fetch = partial(self._fetch, found.name, seen["e_tag"])
        raw = _ObjectReader(S3Download(seen["size"], fetch))
        return io.BufferedReader(raw, _BUFFER), _found(seen)

    def shown(self, name: str) -> str:
        """An object as errors and logs name it."""
        return f"{self._place}/{name}"

    def close(self) -> None:
        """There is nothing to let go of."""

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
                return bytes(self._client.get(name, options=options).bytes())  # type: ignore[arg-type]
            except (PreconditionError, FileNotFoundError) as error:
                raise FileChangedError(f"{name} is another object now, or gone") from error


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
        """The place that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on from another place."""
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
