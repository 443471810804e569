"""Writing past the cache: the same bytes, whether the system can do it or not."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.storage.objectstore.blob_io import O_DIRECT, PAGE, DirectWriter
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore

pytestmark = pytest.mark.req("BOUNDARY:objects")

MIB = 1 << 20
DATA = hashlib.shake_128(b"direct").digest(3 * MIB + 77)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """An empty file."""
    made = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield made
    os.close(made)


def content(fd: int) -> bytes:
    """All that is in the file."""
    return os.pread(fd, 10 * MIB, 0)


def test_whole_pages_are_written(fd: int) -> None:
    """What is left over is for an ordinary write; so is everything where this cannot be done."""
    writer = DirectWriter()
    done = writer.write(fd, [memoryview(DATA)])
    assert done in {0, 3 * MIB}
    assert content(fd) == DATA[:done]
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & (O_DIRECT or 0) == 0
    writer.close()


def test_little_is_left_to_the_cache(fd: int) -> None:
    """A small piece is not worth it."""
    assert DirectWriter().write(fd, [memoryview(DATA[: 10 * PAGE])]) == 0


def test_a_system_without_it_is_fine(fd: int) -> None:
    """Nothing is written, and nothing is said."""
    assert DirectWriter(flag=None).write(fd, [memoryview(DATA)]) == 0


@pytest.mark.parametrize("nth", [1, 2])
def test_a_file_system_without_it_is_fine(
    fd: int, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """One that refuses at first, or later, gets the rest by an ordinary write."""
    write, calls = os.write, 0

    def refuse(fd: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls >= nth:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(fd, data)

    monkeypatch.setattr(os, "write", refuse)
    done = DirectWriter().write(fd, [memoryview(DATA)])
    assert done in {0, (nth - 1) * MIB}
    assert content(fd) == DATA[:done]


def test_other_trouble_is_told(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a full disk, and the file is as it was before."""

    def refuse(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    with pytest.raises(OSError, match="No space"):
        DirectWriter(flag=O_DIRECT or 0).write(fd, [memoryview(DATA)])
    assert fcntl.fcntl(fd, fcntl.F_GETFL) == flags


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 9000), st.integers(MIB - 9, 2 * MIB)), max_size=5),
    cuts=st.sets(st.integers(0, 4)),
)
def test_pieces_and_cuts_of_any_size(tmp_path: Path, sizes: list[int], cuts: set[int]) -> None:
    """Whatever the pieces, and wherever the transfer is cut, the same bytes come out."""
    data = hashlib.shake_128(repr(sizes).encode()).digest(sum(sizes))
    digest = hashlib.sha256(data).digest()
    with closing(FilesystemObjectStore(tmp_path / "objects")) as store:
        upload = store.partial(digest)
        for n, size in enumerate(sizes):
            upload.write(data[upload.size : upload.size + size])
            if n in cuts:
                upload.pause()
                upload = store.partial(digest)
        assert upload.size == len(data)
        assert upload.finish().digest == digest
        assert store.verify(digest, len(data)) is None
