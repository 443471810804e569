"""Bytes that come piece by piece: kept as they came, and the same as in one piece."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.storage.objectstore.blob_io import (
    MIN_KEPT_PIECE,
    ByteQueue,
    after,
    before,
    fill,
)
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore

pytestmark = pytest.mark.req("BOUNDARY:objects")

DATA = hashlib.shake_128(b"pieces").digest(4 << 20)
SIZES = st.lists(
    st.sampled_from(
        [0, 1, 7, 4096, MIN_KEPT_PIECE - 1, MIN_KEPT_PIECE, MIN_KEPT_PIECE + 1, 5 * MIN_KEPT_PIECE]
    )
)


def cut(sizes: list[int]) -> list[bytes]:
    """Pieces of these sizes."""
    made, at = [], 0
    for size in sizes:
        made.append(DATA[at : at + size])
        at += size
    return made


@given(SIZES, st.data())
@settings(max_examples=200, deadline=None)
def test_what_comes_out_is_what_went_in(sizes: list[int], data: st.DataObject) -> None:
    """In the same order, however it was cut and however it is taken."""
    pieces, out = ByteQueue(), b""
    for piece in cut(sizes):
        pieces.add(piece if data.draw(st.booleans()) else memoryview(bytearray(piece)))
        if data.draw(st.booleans()):
            out += b"".join(pieces.take(data.draw(st.integers(0, pieces.size))))
    out += b"".join(pieces.take(pieces.size))
    assert pieces.size == 0
    assert out == DATA[: sum(sizes)]


@given(SIZES, st.data())
@settings(max_examples=200, deadline=None)
def test_parts_of_pieces(sizes: list[int], data: st.DataObject) -> None:
    """Before a place, after it, and copied from there."""
    views = [memoryview(piece) for piece in cut(sizes)]
    whole = DATA[: sum(sizes)]
    at = data.draw(st.integers(0, len(whole)))
    assert b"".join(before(views, at)) == whole[:at]
    assert b"".join(after(views, at)) == whole[at:]
    buffer = bytearray(data.draw(st.integers(0, len(whole) - at)))
    fill(memoryview(buffer), views, at)
    assert buffer == whole[at : at + len(buffer)]


def test_what_may_change_is_copied_and_what_cannot_is_not() -> None:
    """Whoever writes from a buffer may use it again; bytes are kept as they are."""
    buffer, fixed = bytearray(DATA[:MIN_KEPT_PIECE]), DATA[MIN_KEPT_PIECE : 3 * MIN_KEPT_PIECE]
    pieces = ByteQueue()
    pieces.add(memoryview(buffer))
    pieces.add(fixed)
    buffer[:] = bytes(MIN_KEPT_PIECE)
    first, second = pieces.take(pieces.size)
    assert first == DATA[:MIN_KEPT_PIECE]
    assert second.obj is fixed


@given(SIZES)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_an_upload_in_pieces_is_the_same_blob(tmp_path: Path, sizes: list[int]) -> None:
    """Its digest and its bytes on disk do not depend on how it came."""
    whole = DATA[: sum(sizes)]
    with closing(FilesystemObjectStore(tmp_path / "objects")) as store:
        upload = store.upload()
        for piece in cut(sizes):
            upload.write(piece)
        blob = upload.finish(hashlib.sha256(whole).digest())
        assert blob.size == len(whole)
        assert store.verify(blob.digest, blob.size) is None
