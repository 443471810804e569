"""Reads and writes payloads of jobs in an object store.

``PayloadObjects`` is made from ``objects`` of ``[jobs.codec]``. The row of a job names its object
by digest and size. The object begins with a line that names the job and its store, so that a sweep
that finds an object can ask whether its job still needs it. Each object has a random word in that
line. So two payloads never share an object, even if they are equal, and the object of a deleted job
can be removed without affecting other jobs.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple

import msgspec

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    PayloadObjectError,
    StoreError,
    UnreadableJobError,
)
from ergon_framework.ports.objectstore import ObjectStore

OWNER = "payloads of jobs"
"""The owner recorded in the folder or bucket. No zone can have this name, so no zone takes these
objects for its orphans; and a place that belongs to a zone is refused here.
"""
MAX_HEADER = 4096
"""How many bytes the first line may have."""
_BLOCK = 1 << 20


class ObjectName(NamedTuple):
    """What the row of a job says about its object."""

    digest: bytes
    size: int

    @property
    def text(self) -> str:
        """The digest as it is written in rows."""
        return f"sha256:{self.digest.hex()}"

    @classmethod
    def of(cls, text: str, size: int) -> ObjectName:
        """The name that such a text stands for. Raises ValueError."""
        kind, _, digits = text.partition(":")
        digest = bytes.fromhex(digits)
        if kind != "sha256" or len(digest) != 32 or size < 0:
            raise ValueError("it names no object")
        return cls(digest, size)


class ObjectHeader(msgspec.Struct, frozen=True):
    """The first line of an object."""

    version: int = msgspec.field(name="ergon.payload")
    store: str  # the store of the job, as a digest of the store's id
    job: str
    part: str
    nonce: str


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(ObjectHeader).decode


def store_tag(store: object) -> str:
    """The tag that names a store in its objects: the same for all its users, empty if
    it has no id.
    """
    # Imported late: most programs keep no object, and this import takes a while.
    from ergon_framework.ports.transfer import store_id_of

    found = store_id_of(store)
    return hashlib.sha256(found.encode()).hexdigest()[:32] if found else ""


class PayloadObjects:
    """The payload objects in one place: a folder, ``s3://bucket/prefix``, or memory.

    ``above`` is the number of bytes that a payload in the row would have. ``tag`` names the store
    of the jobs.
    """

    def __init__(self, place: str, above: int, tag: Callable[[], str] = str) -> None:
        self.place = place
        self.above = above
        self._tag = tag
        self._found_tag = ""

    def of_store(self, store: object) -> PayloadObjects:
        """The same place, for jobs of the given store."""
        return PayloadObjects(self.place, self.above, lambda: store_tag(store))

    @property
    def tag(self) -> str:
        """The tag of the store that the jobs belong to; empty if the store cannot be told from
        others.
        """
        self._found_tag = self._found_tag or self._tag()
        return self._found_tag

    def put(self, job_id: str, part: str, data: bytes) -> ObjectName:
        """Write a payload. It is durable when this returns. Raises StoreError."""
        header = ObjectHeader(1, self.tag, job_id, part, secrets.token_hex(8))
        try:
            return self.write(_encode(header) + b"\n" + data)
        except (StoreError, ConfigurationError) as error:
            raise _refused(error, f"a large payload cannot be kept in {self.place}") from error

    def write(self, content: bytes) -> ObjectName:
        """Write an object as it is. It may exist already."""
        upload = _opened(self.place).upload()
        try:
            upload.write(content)
            blob = upload.finish()
        finally:
            upload.abort()  # Does nothing after ``finish``.
        return ObjectName(blob.digest, blob.size)

    def get(self, name: ObjectName) -> bytes:
        """The payload of an object.

        Raises PayloadObjectError when it cannot be read now, UnreadableJobError when it is damaged.
        """
        content = self.read(name)
        end = content.find(b"\n", 0, MAX_HEADER)
        if end < 0:
            raise _damaged(name, self.place)
        return content[end + 1 :]

    def read(self, name: ObjectName) -> bytes:
        """The whole object with its first line. Raises the same errors as :meth:`get`."""
        try:
            download = _opened(self.place).open(name.digest)
            if download is None:
                raise PayloadObjectError(
                    f"the object {name.text} of a payload is not in {self.place}",
                    remedy="bring it back from a backup of that place, or correct objects in"
                    " [jobs.codec]; otherwise enqueue the work again",
                    details={"object": name.text, "is_missing": True},
                )
            with closing(download):
                if download.size != name.size:
                    raise _damaged(name, self.place)
                parts = list(iter(lambda: download.read(_BLOCK), b""))
        except UnreadableJobError:
            raise
        except (StoreError, ConfigurationError) as error:
            raise PayloadObjectError(
                f"the object of a payload cannot be read from {self.place}: {error}",
                remedy=error.remedy,
                details={"object": name.text},
            ) from error
        content = b"".join(parts)
        if hashlib.sha256(content).digest() != name.digest:
            raise _damaged(name, self.place)
        return content

    def is_there(self, name: ObjectName) -> bool:
        """Whether the object is there."""
        return _opened(self.place).stat(name.digest) is not None

    def remove(self, digest: bytes) -> bool:
        """Delete an object for good. Returns whether it existed. No row may name it."""
        store: Any = _opened(self.place)
        was_there = bool(store.delete(digest))
        if hasattr(store, "forget"):
            store.forget(digest)  # A bucket with versioning keeps what was deleted for a while.
        return was_there

    def written_before(self, instant: float) -> Iterator[bytes]:
        """The digests of all objects that existed before an instant."""
        store: Any = _opened(self.place)
        found: Iterator[bytes] = store.put_before(instant)
        return found

    def sweep_uploads(self, older_than: float) -> int:
        """Remove the remains of uploads that were cut off so many seconds ago."""
        return _opened(self.place).sweep(older_than)

    def header_of(self, digest: bytes) -> ObjectHeader | None:
        """The first line of an object. None if the object is gone or is not a payload."""
        download = _opened(self.place).open(digest)
        if download is None:
            return None
        with closing(download):
            line, mark, _ = download.read(MAX_HEADER).partition(b"\n")
        try:
            return _header(line) if mark else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _refused(error: ErgonError, what: str) -> ErgonError:
    """The same error with the object in front of its message."""
    return type(error)(f"{what}: {error.message}", remedy=error.remedy, details=error.details)


def _damaged(name: ObjectName, place: str) -> UnreadableJobError:
    return UnreadableJobError(
        f"the object {name.text} of a payload in {place} is damaged: its bytes are not those that"
        " were written",
        remedy="bring it back from a backup of that place and requeue the job, or enqueue the work"
        " again",
        details={"object": name.text},
    )


# ---- places that are open in this process -------------------------------------------------------


class _OpenPlaces:
    """One open store for each place, shared by the clients, workers and settings of one process."""

    def __init__(self) -> None:
        self.stores: dict[str, ObjectStore] = {}
        self.lock = threading.Lock()

    def after_fork(self) -> None:
        """Forget the open stores in a forked child, which has neither their threads nor their
        connections.
        """
        self.lock = threading.Lock()
        is_kept = "memory:".__eq__
        self.stores = {k: v for k, v in self.stores.items() if is_kept(k[:7])}

    def close(self) -> None:
        """Close the open stores."""
        stores, self.stores = self.stores, {}
        for each in stores.values():
            with suppress(Exception):  # The process is ending.
                each.close()


_PLACES = _OpenPlaces()
os.register_at_fork(after_in_child=_PLACES.after_fork)
atexit.register(_PLACES.close)


def _opened(place: str) -> ObjectStore:
    """The store at a place. Opened at its first use; after a failure the next use tries again."""
    found = _PLACES.stores.get(place)
    if found is not None:
        return found
    # Late: most programs keep nothing there, and it takes a while to import.
    from ergon_framework.storage.objectstore.urls import open_object_store

    with _PLACES.lock:
        if place not in _PLACES.stores:
            _PLACES.stores[place] = open_object_store(place, zone=OWNER)
        return _PLACES.stores[place]


def checked_place(place: str) -> str:
    """Check a place that the settings name. Raises ConfigurationError."""
    from ergon_framework.storage.objectstore.urls import check_object_form

    check_object_form(place)
    return place
