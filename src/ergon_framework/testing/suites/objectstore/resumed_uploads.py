"""Checks of uploads that go on where an earlier one was cut."""

from __future__ import annotations

from functools import partial

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

DATA = noise(5 * MIB + 1, 99)
DIGEST = digest_of(DATA)


def left(s: ObjectStoreSubject, digest: bytes = DIGEST) -> int:
    """How many bytes the next upload need not send."""
    upload = s.store.partial(digest)
    size = upload.size
    upload.abort()
    return size


@check()
def partial_begins_at_nothing(s: ObjectStoreSubject) -> None:
    """An upload whose digest is known begins empty, and ends like any other."""
    upload = s.store.partial(DIGEST)
    same(upload.size, 0, "what is there at first")
    upload.write(DATA)
    same(upload.finish(), Blob(DIGEST, len(DATA)), "the answer")
    s.must_have(DATA)


@check()
def partial_is_not_visible(s: ObjectStoreSubject) -> None:
    """A blob of which a part is there, is not there: neither under way nor after a cut."""
    upload = s.store.partial(DIGEST)
    upload.write(DATA[: 3 * MIB])
    s.must_lack(DIGEST)
    del upload
    s.must_lack(DIGEST)


@check()
def cut_upload_goes_on(s: ObjectStoreSubject) -> None:
    """What was sent before a cut need not be sent again, cut after cut."""
    sizes = [0]
    for _ in range(2):
        s.cut(DATA[sizes[-1] : sizes[-1] + 2 * MIB], digest=DIGEST)
        upload = s.store.partial(DIGEST)
        sizes.append(upload.size)
        del upload
    expect(0 < sizes[1] < sizes[2] <= 4 * MIB, f"2 and 4 MiB were sent, {sizes[1:]} bytes kept")
    same(s.go_on(DATA), Blob(DIGEST, len(DATA)), "the answer")
    s.must_have(DATA)


@check()
def finished_partial_leaves_no_rest(s: ObjectStoreSubject) -> None:
    """After the end, another upload of the same bytes begins at nothing, and does no harm."""
    s.cut(DATA[: 2 * MIB], digest=DIGEST)
    s.go_on(DATA)
    same(left(s), 0, "what is left for the next one")
    s.must_have(DATA)


@check()
def aborted_partial_is_thrown_away(s: ObjectStoreSubject) -> None:
    """What was aborted is not gone on with."""
    upload = s.store.partial(DIGEST)
    upload.write(DATA[: 2 * MIB])
    upload.abort()
    same(left(s), 0, "what is left")


@check()
def wrong_part_is_refused_and_forgotten(s: ObjectStoreSubject) -> None:
    """Bytes that do not make the digest are refused at the end, and the next one begins anew."""
    s.cut(b"\0" * (2 * MIB), digest=DIGEST)
    s.must_mismatch(lambda: s.go_on(DATA))
    s.must_lack(DIGEST)
    same(left(s), 0, "what is left of the wrong bytes")
    s.go_on(DATA)
    s.must_have(DATA)


@check()
def partial_holds_to_its_digest(s: ObjectStoreSubject) -> None:
    """An upload that was begun for a digest is refused under another, whatever its end says."""
    other = noise(1000)
    upload = s.store.partial(DIGEST)
    upload.write(other)
    s.must_mismatch(lambda: upload.finish(digest_of(other)))
    s.must_lack(digest_of(other))


@check()
def parts_do_not_mix(s: ObjectStoreSubject) -> None:
    """Uploads for different digests go on with their own bytes."""
    blobs = [noise(3 * MIB, seed) for seed in range(3)]
    for data in blobs:
        s.cut(data[: 2 * MIB], digest=digest_of(data))
    for data in reversed(blobs):
        s.go_on(data)
    for data in blobs:
        s.must_have(data)


@check()
def two_may_send_the_same(s: ObjectStoreSubject) -> None:
    """Two uploads for one digest at the same time do not spoil each other."""
    first, second = s.store.partial(DIGEST), s.store.partial(DIGEST)
    ends = {first: first.size, second: second.size}
    while min(ends.values()) < len(DATA):
        for upload, at in ends.items():
            upload.write(DATA[at : at + 700 * KIB])
            ends[upload] = at + 700 * KIB
    answers = [first.finish(), second.finish()]
    same(answers, [Blob(DIGEST, len(DATA))] * 2, "the answers")
    s.must_have(DATA)


@check()
def many_may_send_the_same(s: ObjectStoreSubject) -> None:
    """Many threads that go on with one upload at the same time all end well."""
    s.cut(DATA[: 2 * MIB], digest=DIGEST)
    answers = s.together([partial(s.go_on, DATA)] * 6)
    same(set(answers), {Blob(DIGEST, len(DATA))}, "the answers")
    s.must_have(DATA)


@check("reopen")
def cut_upload_goes_on_elsewhere(s: ObjectStoreSubject) -> None:
    """Another process goes on where this one was cut."""
    s.cut(DATA[: 3 * MIB], digest=DIGEST)
    s.reopen()
    upload = s.store.partial(DIGEST)
    expect(0 < upload.size <= 3 * MIB, f"3 MiB were sent, and {upload.size} bytes are there")
    del upload
    s.go_on(DATA)
    s.must_have(DATA)
