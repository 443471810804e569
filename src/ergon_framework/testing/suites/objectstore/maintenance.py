"""Checks of deleting, listing, sweeping, copying, closing and surviving."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from ergon_framework.errors import DataLossError, StoreError
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.objectstore.under_test import (
    HOUR,
    MIB,
    ObjectStoreSubject,
    digest_of,
    noise,
    same,
)

CHECKS: list[Check[ObjectStoreSubject]] = []
check = register(CHECKS)

BLOBS = [noise(size, size) for size in (0, 10, 100_000, 2 * MIB)]


def put_all(s: ObjectStoreSubject) -> set[bytes]:
    """Put them; their digests."""
    return {s.put(data).digest for data in BLOBS}


@check()
def deleted_blob_is_gone(s: ObjectStoreSubject) -> None:
    """A deleted blob is there no more, and deleting tells whether there was one."""
    data = noise(1000)
    digest = s.put(data).digest
    same([s.store.delete(digest), s.store.delete(digest)], [True, False], "whether it was there")
    s.must_lack(digest)


@check()
def deleting_leaves_the_others(s: ObjectStoreSubject) -> None:
    """Deleting one blob touches no other."""
    put_all(s)
    s.store.delete(digest_of(BLOBS[1]))
    for data in (*BLOBS[:1], *BLOBS[2:]):
        s.must_have(data)


@check()
def deleted_blob_can_come_back(s: ObjectStoreSubject) -> None:
    """Bytes that were deleted can be put again."""
    data = noise(1000)
    s.store.delete(s.put(data).digest)
    s.put(data)
    s.must_have(data)


@check()
def every_blob_is_listed_once(s: ObjectStoreSubject) -> None:
    """The list has every blob, each once, and nothing else."""
    same(list(s.store.digests()), [], "what an empty store lists")
    digests = put_all(s)
    s.put(BLOBS[1])
    s.cut(noise(2 * MIB, 5), digest=digest_of(b"unfinished"))
    same(sorted(s.store.digests()), sorted(digests), "what is listed")


# ---- sweeping -----------------------------------------------------------------------------------


@check()
def sweep_removes_what_was_left_behind(s: ObjectStoreSubject) -> None:
    """What a cut upload left is removed when it is old enough, and it is counted."""
    data = noise(3 * MIB)
    s.cut(data[: 2 * MIB], digest=digest_of(data))
    s.clock.forward(2 * HOUR)
    same([s.store.sweep(HOUR), s.store.sweep(HOUR)], [1, 0], "how many were removed")
    upload = s.store.partial(digest_of(data))
    same(upload.size, 0, "what is left of it")
    upload.abort()


@check()
def sweep_leaves_the_young(s: ObjectStoreSubject) -> None:
    """What a cut upload left a short while ago may still be gone on with."""
    data = noise(3 * MIB)
    s.cut(data[: 2 * MIB], digest=digest_of(data))
    s.clock.forward(0.5 * HOUR)
    same(s.store.sweep(HOUR), 0, "how many were removed")
    upload = s.store.partial(digest_of(data))
    expect(upload.size > 0, "it cannot be gone on with")
    upload.abort()


@check()
def sweep_leaves_uploads_that_live(s: ObjectStoreSubject) -> None:
    """An upload that somebody still writes to is not swept away, however long it takes."""
    data = noise(4 * MIB)
    upload, known = s.store.upload(), s.store.partial(digest_of(data))
    upload.write(data[: 2 * MIB])
    known.write(data[: 3 * MIB])
    s.clock.forward(100 * HOUR)
    same(s.store.sweep(HOUR), 0, "how many were removed")
    upload.write(data[2 * MIB :])
    upload.finish()
    known.write(data[3 * MIB :])
    known.finish()
    s.must_have(data)


@check()
def sweep_leaves_blobs(s: ObjectStoreSubject) -> None:
    """A sweep touches no blob, however old."""
    put_all(s)
    s.clock.forward(1000 * HOUR)
    same(s.store.sweep(0.0), 0, "how many were removed")
    for data in BLOBS:
        s.must_have(data)


# ---- copying ------------------------------------------------------------------------------------


def copied(folder: str) -> set[bytes]:
    """The digests of all files in a folder."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {hashlib.sha256(path.read_bytes()).digest() for path in files}


@check()
def copies_what_is_asked_for(s: ObjectStoreSubject) -> None:
    """A copy has the blobs that were named, and tells how many bytes they are."""
    put_all(s)
    wanted = BLOBS[1:3]
    with tempfile.TemporaryDirectory() as folder:
        size = s.store.copy_to(folder, iter([digest_of(data) for data in wanted]))
        same(size, sum(len(data) for data in wanted), "how many bytes")
        same(copied(folder), {digest_of(data) for data in wanted}, "what was copied")
    for data in BLOBS:
        s.must_have(data)


@check(required=False)
def copies_only_what_is_new(s: ObjectStoreSubject) -> None:
    """A second copy into the same folder carries only what was not there."""
    digests = put_all(s)
    with tempfile.TemporaryDirectory() as folder:
        s.store.copy_to(folder, iter(digests))
        more = s.put(noise(77)).digest
        same(s.store.copy_to(folder, iter([*digests, more])), 77, "how many bytes")
        same(copied(folder), {*digests, more}, "what was copied")


@check()
def copy_tells_what_is_missing(s: ObjectStoreSubject) -> None:
    """A copy that lacks a blob is an error which names it; the others are copied."""
    digests, missing = put_all(s), digest_of(b"never put")
    with tempfile.TemporaryDirectory() as folder:
        error = s.refusal(lambda: s.store.copy_to(folder, iter([missing, *digests])))
        expect(isinstance(error, DataLossError), f"there was {error!r:.200}")
        expect(missing.hex() in str(error), f"it is not named: {error}")
        same(copied(folder), digests, "what was copied")


@check("damage")
def damage_is_not_copied(s: ObjectStoreSubject) -> None:
    """A blob that is not what it was is not passed on as if it were; the error names it."""
    data = noise(1000)
    digest = s.put(data).digest
    s.damage(digest, b"\0" * 1000)
    with tempfile.TemporaryDirectory() as folder:
        error = s.refusal(lambda: s.store.copy_to(folder, iter([digest])))
        expect(isinstance(error, DataLossError), f"there was {error!r:.200}")
        expect(digest.hex() in str(error), f"it is not named: {error}")
        same(copied(folder), set(), "what was copied")


# ---- ends ---------------------------------------------------------------------------------------


@check()
def says_what_an_upload_survives(s: ObjectStoreSubject) -> None:
    """The store says in a sentence what a finished upload survives."""
    expect(s.store.acknowledgement.strip().endswith("."), repr(s.store.acknowledgement))


@check()
def closes_twice(s: ObjectStoreSubject) -> None:
    """Closing again does nothing."""
    s.store.close()
    s.store.close()


@check()
def closed_store_refuses(s: ObjectStoreSubject) -> None:
    """A closed store says so, whatever it is asked."""
    digest = s.put(b"abc").digest
    store, upload = s.store, s.store.upload()
    store.close()
    for call in (
        store.upload,
        lambda: store.partial(digest),
        lambda: store.open(digest),
        lambda: store.stat(digest),
        lambda: store.delete(digest),
        lambda: list(store.digests()),
        lambda: store.sweep(0.0),
        lambda: upload.write(b"late"),
        upload.finish,
    ):
        error = s.refusal(call)
        expect(isinstance(error, StoreError), f"there was {error!r:.200}")
    upload.abort()


@check("reopen")
def blobs_survive(s: ObjectStoreSubject) -> None:
    """What was acknowledged is there when the store is opened anew."""
    put_all(s)
    s.reopen()
    for data in BLOBS:
        s.must_have(data)


@check("reopen")
def deletions_survive(s: ObjectStoreSubject) -> None:
    """What was deleted does not come back."""
    put_all(s)
    s.store.delete(digest_of(BLOBS[2]))
    s.reopen()
    s.must_lack(digest_of(BLOBS[2]))
    s.must_have(BLOBS[3])
