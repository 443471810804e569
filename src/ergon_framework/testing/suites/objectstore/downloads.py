"""Checks of giving bytes out, of verifying them, and of what happens when they are damaged."""

from __future__ import annotations

from ergon_framework.errors import ErgonError
from ergon_framework.ports.objectstore import Blob, Download
from ergon_framework.testing.suites.framework import Check, expect, fail, register
from ergon_framework.testing.suites.objectstore.under_test import (
    MIB,
    ObjectStoreSubject,
    digest_of,
    noise,
    same,
)

CHECKS: list[Check[ObjectStoreSubject]] = []
check = register(CHECKS)


def opened(s: ObjectStoreSubject, data: bytes) -> Download:
    """A download of bytes that are there."""
    download = s.store.open(digest_of(data))
    return fail("what was put cannot be opened") if download is None else download


@check()
def absent_blob_is_not_there(s: ObjectStoreSubject) -> None:
    """What was never put is not there, also when other blobs are."""
    s.must_lack(digest_of(b"never put"))
    s.put(noise(10))
    s.must_lack(digest_of(b"never put"))


@check()
def digest_is_no_path(s: ObjectStoreSubject) -> None:
    """Something else than 32 bytes is refused, or leads nowhere."""
    s.put(noise(10))
    for wrong in (b"", b"..", b"../../uploads", digest_of(noise(10))[:31], b"\0" * 33):
        for call in (s.store.open, s.store.stat):
            found: list[object] = []
            error = s.refusal(lambda c=call, w=wrong, f=found: f.append(c(w)))  # type: ignore[misc]
            is_refused = isinstance(error, ErgonError | ValueError)
            expect(is_refused or found == [None], f"{wrong!r} leads to {found or error!r}")


@check()
def read_gives_no_more_than_asked(s: ObjectStoreSubject) -> None:
    """A blob can be read in pieces of any size, in order and to its end."""
    data = noise(10_007)
    s.put(data)
    for most in (1000, 4096, 10_007, 1 << 24):
        same(s.get(digest_of(data), most=most), data, f"read by {most} bytes")


@check()
def end_stays_the_end(s: ObjectStoreSubject) -> None:
    """After the last byte there are none, however often one asks."""
    data = noise(100)
    s.put(data)
    download = opened(s, data)
    while download.read(64):
        pass
    same([download.read(64), download.read(1)], [b"", b""], "what follows the end")
    download.close()


@check()
def download_goes_on_from_anywhere(s: ObjectStoreSubject) -> None:
    """A download can be moved forwards and backwards, to any byte."""
    data = noise(2 * MIB)
    s.put(data)
    download = opened(s, data)
    for at in (MIB + 5, 0, 2 * MIB - 3, 17):
        download.seek(at)
        same(download.read(10), data[at : at + 10], f"what is read from byte {at}")
    same(download.read(10), data[27:37], "what follows")
    download.close()


@check()
def nothing_lies_behind_the_end(s: ObjectStoreSubject) -> None:
    """A download that is moved to the end or past it gives no bytes."""
    data = noise(100)
    s.put(data)
    download = opened(s, data)
    for at in (100, 101, 1 << 40):
        download.seek(at)
        same(download.read(10), b"", f"what is read from byte {at} of 100")
    download.close()


@check()
def download_knows_its_size(s: ObjectStoreSubject) -> None:
    """A download tells the size of the whole blob, wherever it stands."""
    data = noise(1234)
    s.put(data)
    download = opened(s, data)
    sizes = [download.size]
    download.seek(1000)
    download.read(100)
    sizes.append(download.size)
    download.close()
    same(sizes, [1234, 1234], "the sizes")


@check()
def downloads_are_independent(s: ObjectStoreSubject) -> None:
    """Two downloads of one blob do not move each other."""
    data = noise(1000)
    s.put(data)
    first, second = opened(s, data), opened(s, data)
    same(first.read(10), data[:10], "the first")
    second.seek(500)
    same(second.read(10), data[500:510], "the second")
    same(first.read(10), data[10:20], "the first, further on")
    first.close()
    same(second.read(10), data[510:520], "the second, after the first was closed")
    second.close()


@check()
def download_closes_twice(s: ObjectStoreSubject) -> None:
    """Closing a download again does nothing."""
    s.put(b"abc")
    download = opened(s, b"abc")
    download.close()
    download.close()


@check(required=False)
def open_download_outlives_its_blob(s: ObjectStoreSubject) -> None:
    """Who reads a blob while it is deleted reads it to its end."""
    data = noise(3 * MIB)
    s.put(data)
    download = opened(s, data)
    download.read(10)
    s.store.delete(digest_of(data))
    download.seek(MIB)
    same(download.read(2 * MIB) + download.read(2 * MIB), data[MIB:], "the rest")
    download.close()


# ---- verifying ----------------------------------------------------------------------------------


@check()
def sound_blob_has_no_problem(s: ObjectStoreSubject) -> None:
    """Verifying finds nothing wrong with a blob that is as it was put."""
    for data in (b"", noise(100), noise(3 * MIB + 1)):
        s.put(data)
        same(s.store.verify(digest_of(data), len(data)), None, f"the flaw of {len(data)} bytes")


def must_name(s: ObjectStoreSubject, digest: bytes, size: int) -> None:
    """Verifying finds a flaw, and names the blob that has it."""
    problem = s.store.verify(digest, size)
    expect(problem, "nothing was found")
    expect(digest.hex() in str(problem), f"the flaw does not name the blob: {problem}")


@check()
def missing_blob_is_a_problem(s: ObjectStoreSubject) -> None:
    """Verifying names a blob that is not there."""
    must_name(s, digest_of(b"never put"), 9)


@check()
def other_size_is_a_problem(s: ObjectStoreSubject) -> None:
    """Verifying names a blob that is shorter or longer than it should be."""
    s.put(noise(100))
    must_name(s, digest_of(noise(100)), 99)
    must_name(s, digest_of(noise(100)), 101)


@check("damage")
def changed_byte_is_found(s: ObjectStoreSubject) -> None:
    """Verifying names a blob of which a single byte has changed."""
    data = noise(3 * MIB)
    digest = s.put(data).digest
    s.damage(digest, data[:-1] + bytes([data[-1] ^ 1]))
    must_name(s, digest, len(data))


@check("damage")
def truncated_blob_is_found(s: ObjectStoreSubject) -> None:
    """A blob that has become shorter is named, and its size tells."""
    data = noise(3 * MIB)
    digest = s.put(data).digest
    s.damage(digest, data[: 2 * MIB])
    must_name(s, digest, len(data))
    must_name(s, digest, 2 * MIB)
    same(s.store.stat(digest), Blob(digest, 2 * MIB), "stat of the truncated blob")


@check("damage")
def putting_again_repairs(s: ObjectStoreSubject) -> None:
    """A damaged blob is whole again when its bytes are put once more."""
    data = noise(MIB)
    digest = s.put(data).digest
    for wrong in (data[:100], b"", b"\0" * MIB, data + b"x"):
        s.damage(digest, wrong)
        s.put(data)
        s.must_have(data)
        same(s.store.verify(digest, MIB), None, "the flaw of the repaired blob")
