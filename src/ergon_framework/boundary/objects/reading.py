"""Reading blobs to the end: to compare them with their digest, and to copy them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ergon_framework.boundary.objects.digest import named
from ergon_framework.errors import DataLossError, FactInvalidError, StoreError, describe
from ergon_framework.ports.objectstore import Download, ObjectStore

BLOCK = 1 << 20
_SHOWN = 10  # damaged blobs that an error names


def flaw(store: ObjectStore, digest: bytes, size: int) -> str | None:
    """What is wrong with a blob, or None. Only a closed store is an error."""
    download = store.open(digest)
    if download is None:
        return f"{named(digest)} is not there"
    try:
        if download.size != size:
            return f"{named(digest)} has {download.size} bytes and should have {size}"
        found = _digest(download)
    except StoreError as error:
        return f"{named(digest)} cannot be read: {describe(error)}"
    finally:
        download.close()
    if found != digest:
        return f"{named(digest)} is damaged: its bytes have the digest {named(found)}"
    return None


def copy_blobs(source: ObjectStore, target: ObjectStore, digests: Iterable[bytes]) -> int:
    """Copy what is not there yet; how many bytes. Damaged blobs are named when all is done."""
    copied = 0
    damaged: list[str] = []
    for digest in digests:
        download = source.open(digest)
        if download is None:
            damaged.append(f"{named(digest)} is not there")
            continue
        try:
            there = target.stat(digest)
            if there is None or there.size != download.size:
                copied += _copy(download, target, digest)
        except FactInvalidError:
            damaged.append(f"{named(digest)} is damaged")
        finally:
            download.close()
    if damaged:
        raise DataLossError(
            f"{len(damaged)} blobs could not be copied: {'; '.join(damaged[:_SHOWN])}",
            reason="object_damaged",
            remedy="put these objects again, or take them from an earlier backup",
        )
    return copied


def _digest(download: Download) -> bytes:
    found = hashlib.sha256()
    while data := download.read(BLOCK):
        found.update(data)
    return found.digest()


def _copy(download: Download, target: ObjectStore, digest: bytes) -> int:
    upload = target.upload()
    try:
        while data := download.read(BLOCK):
            upload.write(data)
        return upload.finish(digest).size
    finally:
        upload.abort()
