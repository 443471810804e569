"""Checks of taking bytes in."""

from __future__ import annotations

from functools import partial

from ergon_framework.errors import ErgonError
from ergon_framework.ports.objectstore import Blob
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.objectstore.under_test import (
    KIB,
    MIB,
    ObjectStoreSubject,
    digest_of,
    noise,
    same,
)

CHECKS: list[Check[ObjectStoreSubject]] = []
check = register(CHECKS)


@check()
def upload_answers_digest_and_size(s: ObjectStoreSubject) -> None:
    """A finished upload answers the SHA-256 of its bytes and how many they are."""
    data = noise(100)
    same(s.put(data), Blob(digest_of(data), 100), "the answer")


@check()
def what_was_put_is_there(s: ObjectStoreSubject) -> None:
    """The bytes that come out are those that went in, whatever they are."""
    for data in (b"x", bytes(range(256)) * 5, b"\0" * 4096, noise(70_001)):
        s.put(data)
        s.must_have(data)


@check()
def empty_blob_is_a_blob(s: ObjectStoreSubject) -> None:
    """No bytes at all have a digest too, and can be put and read."""
    same(s.put(b""), Blob(digest_of(b""), 0), "the answer")
    s.must_have(b"")


@check()
def large_blob_by_pieces(s: ObjectStoreSubject) -> None:
    """A blob of several megabytes arrives in odd pieces and is whole."""
    data = noise(5 * MIB + 3)
    s.put(data, piece=64 * KIB + 7)
    s.must_have(data)


@check()
def large_blob_at_once(s: ObjectStoreSubject) -> None:
    """A blob of several megabytes arrives in one piece and is whole."""
    data = noise(5 * MIB + 3)
    s.put(data, piece=len(data))
    s.must_have(data)


@check()
def pieces_of_all_sizes_keep_their_order(s: ObjectStoreSubject) -> None:
    """Empty, tiny and huge pieces in turn are put together in the order they came."""
    pieces = [noise(size, size) for size in (1, 0, 3 * MIB, 7, 70 * KIB, MIB, 1, 2 * MIB, 0)]
    upload = s.store.upload()
    for piece in pieces:
        upload.write(piece)
    whole = b"".join(pieces)
    same(upload.finish(), Blob(digest_of(whole), len(whole)), "the answer")
    s.must_have(whole)


@check()
def size_counts_what_was_taken(s: ObjectStoreSubject) -> None:
    """An upload knows how many bytes it has taken."""
    upload = s.store.upload()
    sizes = [upload.size]
    for size in (10, 0, 2 * MIB):
        upload.write(noise(size))
        sizes.append(upload.size)
    upload.abort()
    same(sizes, [0, 10, 10, 10 + 2 * MIB], "the sizes")


@check()
def buffer_may_be_used_again(s: ObjectStoreSubject) -> None:
    """Once a write has returned, its caller may fill the same buffer with other bytes."""
    data = noise(6 * MIB)
    buffer = bytearray(MIB)
    upload = s.store.upload()
    for at in range(0, len(data), MIB):
        buffer[:] = data[at : at + MIB]
        upload.write(memoryview(buffer))
    buffer[:] = b"\0" * MIB
    same(upload.finish(), Blob(digest_of(data), len(data)), "the answer")
    s.must_have(data)


@check()
def nothing_is_visible_before_the_end(s: ObjectStoreSubject) -> None:
    """Bytes that are on their way in are not to be seen, however many they are."""
    data = noise(4 * MIB)
    upload = s.store.upload()
    upload.write(data)
    s.must_lack(digest_of(data))
    same(list(s.store.digests()), [], "what is listed meanwhile")
    upload.finish()
    s.must_have(data)


# ---- digests ------------------------------------------------------------------------------------


@check()
def expected_digest_is_accepted(s: ObjectStoreSubject) -> None:
    """Bytes that are what they were said to be are taken."""
    data = noise(3 * MIB)
    s.put(data, expected=digest_of(data))
    s.must_have(data)


@check()
def other_digest_is_refused(s: ObjectStoreSubject) -> None:
    """Bytes that are not what they were said to be are refused, with the reason."""
    s.must_mismatch(lambda: s.put(noise(1000), expected=digest_of(b"something else")))


@check()
def nothing_of_a_refused_upload_is_kept(s: ObjectStoreSubject) -> None:
    """Refused bytes are there neither under their own digest nor under the expected one."""
    data, other = noise(2 * MIB), digest_of(b"something else")
    s.must_mismatch(lambda: s.put(data, expected=other))
    s.must_lack(digest_of(data))
    s.must_lack(other)
    same(list(s.store.digests()), [], "what is listed")


@check()
def refused_upload_harms_nothing(s: ObjectStoreSubject) -> None:
    """A blob is not touched by other bytes that claim its digest, nor by its own under another."""
    data = noise(1000)
    s.put(data)
    s.must_mismatch(lambda: s.put(noise(1000, 1), expected=digest_of(data)))
    s.must_mismatch(lambda: s.put(data, expected=digest_of(b"something else")))
    s.must_have(data)


@check()
def same_bytes_again_are_fine(s: ObjectStoreSubject) -> None:
    """Putting the same bytes again answers the same, and there is still one blob."""
    data = noise(2 * MIB)
    first = s.put(data)
    same(s.put(data, expected=digest_of(data)), first, "the second answer")
    s.must_have(data)
    same(list(s.store.digests()), [digest_of(data)], "what is listed")


# ---- giving up ----------------------------------------------------------------------------------


@check()
def aborted_upload_leaves_nothing(s: ObjectStoreSubject) -> None:
    """Bytes that were thrown away are not there."""
    data = noise(3 * MIB)
    upload = s.store.upload()
    upload.write(data)
    upload.abort()
    s.must_lack(digest_of(data))


@check()
def abort_is_always_fine(s: ObjectStoreSubject) -> None:
    """Aborting twice, after the end and after a refusal does nothing."""
    data = noise(1000)
    upload = s.store.upload()
    upload.abort()
    upload.abort()
    upload = s.store.upload()
    upload.write(data)
    upload.finish()
    upload.abort()
    upload = s.store.upload()
    s.must_mismatch(lambda: upload.finish(digest_of(data)))
    upload.abort()
    s.must_have(data)


@check()
def ended_upload_takes_nothing(s: ObjectStoreSubject) -> None:
    """After its end, of whatever kind, an upload refuses bytes and another end."""
    finished, aborted = s.store.upload(), s.store.upload()
    finished.finish()
    aborted.abort()
    for upload in (finished, aborted):
        for call in (partial(upload.write, b"late"), upload.finish):
            expect(isinstance(s.refusal(call), ErgonError), "it was not refused with an error")
    s.must_lack(digest_of(b"late"))


# ---- several at once ----------------------------------------------------------------------------


@check()
def uploads_do_not_mix(s: ObjectStoreSubject) -> None:
    """Uploads that take turns keep their bytes apart."""
    blobs = [noise(3 * MIB, seed) for seed in range(3)]
    uploads = [s.store.upload() for _ in blobs]
    for at in range(0, 3 * MIB, 300 * KIB):
        for upload, data in zip(uploads, blobs, strict=True):
            upload.write(data[at : at + 300 * KIB])
    for upload in uploads:
        upload.finish()
    for data in blobs:
        s.must_have(data)


@check()
def same_bytes_at_once(s: ObjectStoreSubject) -> None:
    """Many threads that put the same bytes at the same time all succeed."""
    data = noise(MIB + 1)
    answers = s.together([partial(s.put, data)] * 8)
    same(set(answers), {Blob(digest_of(data), len(data))}, "the answers")
    s.must_have(data)
    same(list(s.store.digests()), [digest_of(data)], "what is listed")


@check()
def different_bytes_at_once(s: ObjectStoreSubject) -> None:
    """Many threads that put different bytes at the same time do not disturb each other."""
    blobs = [noise(MIB + seed, seed) for seed in range(8)]
    s.together([partial(s.put, data, piece=100 * KIB) for data in blobs])
    for data in blobs:
        s.must_have(data)


@check()
def aborting_one_leaves_the_other(s: ObjectStoreSubject) -> None:
    """An aborted upload takes nothing away from another one of the same bytes."""
    data = noise(2 * MIB)
    kept, dropped, late = (s.store.upload() for _ in range(3))
    for upload in (kept, dropped, late):
        upload.write(data)
    dropped.abort()
    kept.finish()
    late.abort()
    s.must_have(data)
