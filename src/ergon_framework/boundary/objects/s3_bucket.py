"""What the store asks of a bucket, in requests of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from ergon_framework.boundary.objects.s3_download import S3Download
from ergon_framework.boundary.objects.s3_faults import told
from ergon_framework.boundary.objects.s3_url import bucket_of, connect
from ergon_framework.errors import ConfigurationError, StoreUnavailableError

CHUNK = 8 << 20
"""Bytes sent in one request: more of them go as an upload of several parts."""
AT_ONCE = 4
"""Such requests of one upload under way together."""
MOST_COPIED = 5 << 30
"""Bytes of one object that a server copies at once."""
OWNER = "zone"
"""Where the name of the zone stands that has the place."""

_PARTS = 10_000  # an upload has no more


class BucketClient:
    """One place in one bucket. Any thread may use it."""

    def __init__(self, url: str) -> None:
        self.bucket = bucket_of(url)
        self._client = connect(self.bucket)
        self._told = partial(told, self.bucket.place)

    def check(self, *, is_opening: bool = False) -> None:
        """Raise when there is no bucket, or nobody who lets us in."""
        with self._told(is_opening=is_opening):
            for _ in self._client.list(OWNER, chunk_size=1):
                return

    def claim(self, zone: str, *, is_written: bool = True) -> None:
        """Write a zone's name into the place, unless there is one: that one must be the same.

        A zone removes bytes that it has no name for, so two of them cannot share a place.
        """
        is_free = self.put_new(OWNER, zone.encode()) if is_written else self.size(OWNER) is None
        if is_free:
            return
        with self._told():
            owner = bytes(self._client.get(OWNER).bytes()).decode(errors="replace")
        if owner != zone:
            raise ConfigurationError(
                f"{self.bucket.place} holds the objects of zone {owner!r}",
                remedy="give each zone a prefix or a bucket of its own",
            )

    def size(self, key: str) -> int | None:
        """Of an object that is there."""
        with self._told():
            try:
                return self._client.head(key)["size"]
            except FileNotFoundError:
                self.check()  # a bucket that is gone looks the same
                return None

    def put_at(self, key: str) -> datetime:
        """When an object that is there was put, by the server's clock."""
        with self._told():
            return self._client.head(key)["last_modified"]

    def read(self, key: str, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        with self._told():
            return bytes(self._client.get_range(key, start=start, end=end))

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """The keys that begin with a folder, and when each object was put."""
        with self._told():
            for page in self._client.list(folder):
                yield from ((each["path"], each["last_modified"]) for each in page)

    def create(self, key: str, path: Path, size: int) -> bool:
        """Put a file if nothing is there; whether that was so.

        An upload in parts cannot be made to depend on that. Two who send the same blob at once may
        both succeed then, and since both have its bytes it does not matter who was last.
        """
        if size <= CHUNK:
            return self.put_new(key, path.read_bytes())
        is_new = self.size(key) is None
        if is_new:
            self.replace(key, path, size)
        return is_new

    def put_new(self, key: str, data: bytes) -> bool:
        """Put a few bytes if nothing is there; whether that was so."""
        from obstore.exceptions import AlreadyExistsError

        with self._told():
            try:
                self._client.put(key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, key: str, path: Path, size: int) -> None:
        """Put a file, whatever is there."""
        chunk = _chunk(size)
        together = max(1, AT_ONCE * CHUNK // chunk)  # the memory it takes stays the same
        with self._told():
            self._client.put(
                key,
                path,
                use_multipart=size > CHUNK,
                chunk_size=chunk,
                max_concurrency=together,
            )
        self._check_size(key, size)

    def copy(self, source: str, target: str, size: int) -> None:
        """Copy an object; what the server does not copy at once goes through here."""
        with self._told():
            if size <= MOST_COPIED:
                self._client.copy(source, target)
            else:
                self._carry(source, target, size)
        self._check_size(target, size)

    def _carry(self, source: str, target: str, size: int) -> None:
        from obstore import open_writer

        chunk = _chunk(size)
        pieces = S3Download(size, partial(self.read, source), ahead=chunk)
        writer = open_writer(self._client, target, buffer_size=chunk, max_concurrency=1)
        while piece := pieces.read(chunk):
            writer.write(piece)
        writer.close()  # not after an error: that would show what has come so far

    def _check_size(self, key: str, size: int) -> None:
        there = self.size(key)
        if there != size:
            raise StoreUnavailableError(
                f"{self.bucket.place} has kept {there} of {size} bytes under {key}",
                remedy="try again; if it stays so, look after the server of the bucket",
            )

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is fine."""
        with self._told():
            self._client.delete(key)


def _chunk(size: int) -> int:
    """The bytes of one part of an upload: more for what would have too many parts."""
    return max(CHUNK, -(-size // _PARTS))
