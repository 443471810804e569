"""The disk that forgets, by itself: what it keeps and what it loses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.boundary.powercut.disk import Disk, Fate, Luck, everything, nothing
from tests.boundary.powercut.recorder import Event, Kind

pytestmark = pytest.mark.req("P11")

ROOT = Path("/disk")
FILE, FOLDER = 1, 2
"""Inodes."""

CREATE = Event(1, Kind.OPEN, inode=FILE, flags=os.O_CREAT, path="/disk/a")
OPEN_FOLDER = Event(2, Kind.OPEN, inode=FOLDER, path="/disk")


def write(at: int, data: bytes, offset: int = 0) -> Event:
    """Some bytes for the file."""
    return Event(at, Kind.WRITE, inode=FILE, offset=offset, data=data)


def sync(at: int, inode: int, thread: int = 1) -> tuple[Event, Event]:
    """A sync without anything in between."""
    begin = Event(at, Kind.SYNC_BEGIN, inode=inode, thread=thread)
    return begin, Event(at + 1, Kind.SYNC_END, inode=inode, thread=thread)


def left(target: Path, *events: Event, fate: Fate = nothing) -> dict[str, bytes]:
    """What is left after a power cut behind these events."""
    disk = Disk(ROOT)
    for event in (CREATE, OPEN_FOLDER, *events):
        disk.happen(event)
    disk.build(target / "left", fate)
    return {path.name: path.read_bytes() for path in (target / "left").iterdir()}


def test_only_synced_bytes_are_left(tmp_path: Path) -> None:
    """What was written after the sync is lost."""
    events = (write(3, b"safe"), *sync(4, FILE), *sync(6, FOLDER), write(8, b"lost", 4))
    assert left(tmp_path, *events) == {"a": b"safe"}


def test_a_file_whose_folder_was_not_synced_is_lost(tmp_path: Path) -> None:
    """Its bytes are on the disk, and no name leads to them."""
    assert left(tmp_path, write(3, b"safe"), *sync(4, FILE)) == {}


def test_a_write_during_a_sync_is_not_covered_by_it(tmp_path: Path) -> None:
    """Nor is one that came after the sync began, although it was done before the sync was."""
    begin, end = sync(6, FILE)
    events = (write(3, b"safe"), *sync(4, FOLDER), begin, write(7, b"lost", 4))
    assert left(tmp_path, *events, end) == {"a": b"safe"}


def test_a_sync_that_does_not_return_makes_nothing_safe(tmp_path: Path) -> None:
    """The recorder leaves out the end of a sync that failed."""
    begin, _end = sync(8, FILE)
    assert left(tmp_path, write(3, b"lost"), *sync(4, FOLDER), begin) == {"a": b""}


def test_a_rename_is_lost_or_made_as_a_whole(tmp_path: Path) -> None:
    """Whatever chance has in mind, there is one name for the file."""
    rename = Event(9, Kind.RENAME, path="/disk/a", other="/disk/b")
    kept = (write(3, b"safe"), *sync(4, FILE), *sync(6, FOLDER), rename)
    assert left(tmp_path, *kept) == {"a": b"safe"}
    for seed in range(20):
        target = tmp_path / str(seed)
        target.mkdir()
        assert left(target, *kept, fate=Luck(seed)) in ({"a": b"safe"}, {"b": b"safe"})


def test_with_the_power_on_all_of_it_is_left(tmp_path: Path) -> None:
    """Also a hole, which reads as zeros, and what is left of a file that was cut."""
    cut = Event(5, Kind.TRUNCATE, inode=FILE, offset=6)
    found = left(tmp_path, write(3, b"first"), write(4, b"second", 8), cut, fate=everything)
    assert found == {"a": b"first\0"}


def test_some_writes_are_left_in_part(tmp_path: Path) -> None:
    """A disk writes sectors: of a write across several, any number may be there."""
    sizes = set()
    for seed in range(60):
        target = tmp_path / str(seed)
        target.mkdir()
        events = (*sync(3, FOLDER), write(5, b"x" * 2000))
        sizes.add(len(left(target, *events, fate=Luck(seed))["a"]))
    assert {0, 512, 1024, 1536, 2000} >= sizes > {0, 2000}
