"""Copying the bytes that names stand for, each where it is not there yet."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass

from ergon_framework.app.move.transfer import KindDigest, Moved, Tell, TransferProgress, all_records
from ergon_framework.errors import DataLossError, FactInvalidError
from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.ports.transfer import ObjectNameRecord, RecordReader
from ergon_framework.storage.failpoints import declare, failpoint

PART = "objects"
CHUNK = 1 << 20

declare("move.object.before", "move.object.after")


@dataclass(frozen=True)
class ObjectStorePair:
    """Two stores of objects, and the zone whose names say which objects there are."""

    names: RecordReader
    source: ObjectStore
    target: ObjectStore
    origin: str
    """Where the source is, in words for a reader of errors."""


def look(stores: ObjectStorePair, tell: Tell) -> Moved:
    """Find out how many names stand for bytes that would be copied; nothing is written."""
    moved = Moved(PART, PART)
    for count, name in enumerate(all_records(stores.names, ObjectNameRecord), 1):
        moved.copied += stores.target.stat(name.object.digest) is None
        tell(TransferProgress(PART, "comparing objects", count))
    return moved


def move(stores: ObjectStorePair, tell: Tell) -> Moved:
    """Copy what is missing or damaged; :func:`settle` comes after the names.

    Bytes that are there are read, those that were just copied as well: what a disk or a bucket
    gives back is what counts.
    """
    moved = Moved(PART, PART)
    for count, name in enumerate(all_records(stores.names, ObjectNameRecord), 1):
        if _problem(stores, name) is not None:
            _bring(stores, name)
            moved.copied += 1
        tell(TransferProgress(PART, "copying objects", count))
    return moved


def settle(stores: ObjectStorePair, moved: Moved, tell: Tell) -> None:
    """Check the bytes of every name again, and copy those of names added meanwhile."""
    total, count = hashlib.sha256(), 0
    for name in all_records(stores.names, ObjectNameRecord):
        kept = name.object
        # Its size will do: move() has read every byte of it, unless its name came later.
        found = stores.target.stat(kept.digest)
        if found is None or found.size != kept.size:
            _bring(stores, name)
            moved.copied += 1
        total.update(kept.digest + kept.size.to_bytes(8))
        count += 1
        tell(TransferProgress(PART, "verifying objects", count))
    moved.sum = KindDigest(count, total.hexdigest())


def _problem(stores: ObjectStorePair, name: ObjectNameRecord) -> str | None:
    return stores.target.verify(name.object.digest, name.object.size)


def _bring(stores: ObjectStorePair, name: ObjectNameRecord) -> None:
    """Copy the bytes of one object, and read them where they are now."""
    failpoint("move.object.before")
    _copy(stores, name)
    failpoint("move.object.after")
    problem = _problem(stores, name)
    if problem is not None:
        raise lost(name, f"are not what was written where they were copied to: {problem}")


def _copy(stores: ObjectStorePair, name: ObjectNameRecord) -> None:
    """Copy the bytes of one object; a transfer that was cut goes on where it stopped."""
    digest = name.object.digest
    download = stores.source.open(digest)
    if download is None:
        raise lost(name, "are not there, where they are to come from")
    with closing(download):
        upload = stores.target.partial(digest)
        try:
            download.seek(upload.size)
            while data := download.read(CHUNK):
                upload.write(data)
            upload.finish(digest)
        except FactInvalidError as error:
            upload.abort()  # what was taken in is of no use: nobody goes on with it
            problem = stores.source.verify(digest, name.object.size)
            if problem is None:
                raise
            raise lost(name, f"are damaged in {stores.origin}: {problem}") from error
        except BaseException:
            upload.pause()
            raise


def lost(name: ObjectNameRecord, what: str) -> DataLossError:
    """The error of bytes that are not there, or not what they were."""
    kept = name.object
    return DataLossError(
        f"the bytes of {kept.bucket}/{kept.key} {what}",
        reason="artifact_missing",
        remedy="`ergon boundary verify` lists what is missing; restore it from a backup",
        details={"bucket": kept.bucket, "key": kept.key, "digest": f"sha256:{kept.digest.hex()}"},
    )
