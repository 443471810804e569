"""Copying the bytes that names stand for, each where it is not there yet."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass

from ergon_framework.app.moving.comparing import Sum, copies
from ergon_framework.app.moving.copying import Moved, Tell, Told
from ergon_framework.errors import DataLossError
from ergon_framework.ports.copies import NameCopy
from ergon_framework.ports.moving import Archive
from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.storage.failpoints import declare, failpoint

PART = "objects"
CHUNK = 1 << 20

declare("move.object.before", "move.object.after")


@dataclass(frozen=True)
class Bytes:
    """Two stores of objects, and the zone whose names say which objects there are."""

    names: Archive
    source: ObjectStore
    target: ObjectStore


def look(stores: Bytes, tell: Tell) -> list[Moved]:
    """Find out how many names stand for bytes that would be copied; nothing is written."""
    moved = Moved(PART, PART)
    for count, name in enumerate(copies(stores.names, NameCopy), 1):
        moved.copied += stores.target.stat(name.object.digest) is None
        tell(Told(PART, "comparing objects", count))
    return [moved]


def move(stores: Bytes, tell: Tell) -> list[Moved]:
    """Copy what is missing or damaged, and look for all of it after.

    Digests are worked out while bytes go in, and bytes that were there already are read.
    """
    moved = Moved(PART, PART)
    for count, name in enumerate(copies(stores.names, NameCopy), 1):
        if stores.target.verify(name.object.digest, name.object.size) is not None:
            failpoint("move.object.before")
            _copy(stores, name)
            failpoint("move.object.after")
            moved.copied += 1
        tell(Told(PART, "copying objects", count))
    moved.sum = _verified(stores, tell)
    return [moved]


def _copy(stores: Bytes, name: NameCopy) -> None:
    """Copy the bytes of one object; a transfer that was cut goes on where it stopped."""
    digest = name.object.digest
    download = stores.source.open(digest)
    if download is None:
        raise _missing(name, "where they are to come from")
    with closing(download):
        upload = stores.target.partial(digest)
        try:
            download.seek(upload.size)
            while data := download.read(CHUNK):
                upload.write(data)
            upload.finish(digest)
        except BaseException:
            upload.pause()
            raise


def _verified(stores: Bytes, tell: Tell) -> Sum:
    """Look for every object on the other side."""
    total, count = hashlib.sha256(), 0
    for name in copies(stores.names, NameCopy):
        found = stores.target.stat(name.object.digest)
        if found is None or found.size != name.object.size:
            raise _missing(name, "where they were copied to")
        total.update(found.digest + found.size.to_bytes(8))
        count += 1
        tell(Told(PART, "verifying objects", count))
    return Sum(count, total.hexdigest())


def _missing(name: NameCopy, where: str) -> DataLossError:
    kept = name.object
    return DataLossError(
        f"the bytes of {kept.bucket}/{kept.key} are not there, {where}",
        reason="artifact_missing",
        remedy="`ergon boundary verify` lists what is missing; restore it from a backup",
        details={"bucket": kept.bucket, "key": kept.key, "digest": f"sha256:{kept.digest.hex()}"},
    )
