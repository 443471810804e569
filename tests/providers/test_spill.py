"""The folder where records wait: what is kept comes back, whoever reads it, whatever happened."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.spill import (
    ReplayFile,
    Spill,
    default_spill,
    find_replayable,
    line_of,
    open_replay,
)
from tests.local_users import NOBODY, acting_as, needs_root, shared_folder
from tests.providers.recorder_fakes import FakeClock, letter, row

pytestmark = pytest.mark.req("PROVIDERS:storage")

A, B, C = (RecordBatch([row(name)]) for name in "abc")
BOTH = RecordBatch([row("last", outcome="dead_letter")], [letter("d1", {"q": 1})])


def read_back(spill: Spill, limit: int = 500) -> list[RecordBatch]:
    """Everything there is, to the end."""
    spill.scan()
    found: list[RecordBatch] = []
    while chunk := spill.chunk(limit):
        found += chunk
        spill.advance()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that is not there yet."""
    return tmp_path / "work.db-spill"


@pytest.mark.parametrize("limit", [1, 2, 500])
def test_what_was_kept_comes_back_in_order(folder: Path, limit: int) -> None:
    """By the same process, and the file is gone afterwards."""
    spill = Spill(folder)
    spill.keep([A, BOTH], is_synced=True)
    spill.keep([C], is_synced=False)
    before = spill.has_own
    assert read_back(spill, limit) == [A, BOTH, C]
    assert (before, spill.has_own) == (True, False)
    assert find_replayable(folder) == []


def test_a_chunk_is_the_same_until_it_is_written(folder: Path) -> None:
    """A store that fails in between is given the same batches again."""
    spill = Spill(folder)
    spill.keep([A, B, C], is_synced=True)
    assert spill.chunk(2) == spill.chunk(2) == [A, B]
    spill.advance()
    assert spill.chunk(2) == [C]
    spill.close()


def test_a_file_that_is_being_opened_is_still_to_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread opens it, and another one that waits until nothing is left asks meanwhile."""
    dead = Spill(folder)
    dead.keep([A], is_synced=True)
    dead.close()
    spill, asked = Spill(folder), []

    def watched(path: Path) -> ReplayFile | None:
        asked.append(spill.has_left)
        return open_replay(path)

    monkeypatch.setattr("ergon_framework.providers.spill.open_replay", watched)
    assert read_back(spill) == [A]
    assert asked == [True]
    assert not spill.has_left


def test_what_is_kept_meanwhile_goes_to_another_file(folder: Path) -> None:
    """Reading back and keeping do not get into each other's way."""
    spill = Spill(folder)
    spill.keep([A], is_synced=True)
    assert spill.chunk(9) == [A]
    spill.keep([B], is_synced=True)
    spill.advance()
    assert spill.chunk(9) == [B]
    spill.advance()
    assert spill.chunk(9) == []
    assert not spill.has_own


def test_a_file_belongs_to_its_owner_until_that_one_is_gone(folder: Path) -> None:
    """Neither what is being written nor what is being read back is given to somebody else."""
    owner, other = Spill(folder), Spill(folder)
    owner.keep([A], is_synced=True)
    assert read_back(other) == []
    assert owner.chunk(9) == [A]
    assert read_back(other) == []
    owner.close()
    assert read_back(other) == [A]
    assert not other.has_own


def test_nobody_else_may_read_it(folder: Path) -> None:
    """It holds payloads."""
    spill = Spill(folder)
    spill.keep([A], is_synced=True)
    [path] = find_replayable(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    spill.close()


def test_every_place_where_a_writer_may_have_died(folder: Path) -> None:
    """Whole lines come back, a torn last one is passed over, and the file goes."""
    folder.mkdir()
    lines = [line_of(each) for each in (A, BOTH, C)]
    ends = [len(b"".join(lines[:n])) for n in range(4)]
    data = b"".join(lines)
    for cut in range(len(data) + 1):
        (folder / "1-x.jsonl").write_bytes(data[:cut])
        spill = Spill(folder)
        whole = sum(
            cut >= end - 1 for end in ends[1:]
        )  # the end of the line may be what is missing
        assert read_back(spill) == [A, BOTH, C][:whole], cut
        assert spill.damaged_count == 0
        assert list(folder.iterdir()) == []


def test_a_line_that_was_changed_is_put_aside_with_its_file(folder: Path) -> None:
    """The others are not held up, and people can look at it."""
    folder.mkdir()
    broken = line_of(B).replace(b"rank", b"bank")
    (folder / "1-x.jsonl").write_bytes(line_of(A) + broken + b"\n\n" + line_of(C))
    spill = Spill(folder)
    assert read_back(spill) == [A, C]
    assert spill.damaged_count == 1
    assert [path.name for path in folder.iterdir()] == ["1-x.jsonl.bad"]
    assert read_back(spill) == []


def test_a_batch_that_no_store_takes_is_put_aside(folder: Path) -> None:
    """Its file stays under another name."""
    spill = Spill(folder)
    spill.keep([A], is_synced=True)
    spill.chunk(9)
    spill.advance(refused=1)
    assert spill.chunk(9) == []
    assert [path.suffix for path in folder.iterdir()] == [".bad"]


def test_an_empty_file_is_removed(folder: Path) -> None:
    """Its owner died before it wrote anything."""
    folder.mkdir()
    (folder / "1-x.jsonl").touch()
    assert read_back(Spill(folder)) == []
    assert list(folder.iterdir()) == []


def test_a_disk_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays for people to look at."""
    spill = Spill(folder)
    spill.keep([A], is_synced=True)

    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        assert read_back(spill) == []
    assert spill.damaged_count == 1
    assert [path.suffix for path in folder.iterdir()] == [".bad"]


def test_the_files_have_a_limit(folder: Path) -> None:
    """Its own error and its own count; what was kept before stays whole."""
    spill = Spill(folder, max_bytes=2 * len(line_of(A)))
    spill.keep([A, B], is_synced=True)
    with pytest.raises(StoreFullError, match="limit of"):
        spill.keep([C], is_synced=False)
    assert spill.full_count == 1
    assert not spill.is_usable
    assert read_back(spill) == [A, B]
    spill.keep([C], is_synced=True)
    assert read_back(spill) == [C]


def test_files_that_others_left_count_towards_the_limit(folder: Path) -> None:
    """A worker that is started again and again does not fill the disk."""
    limit = 2 * len(line_of(A))
    for _ in range(2):
        dead = Spill(folder, max_bytes=limit)
        dead.keep([A], is_synced=True)
        dead.close()
    with pytest.raises(StoreFullError):
        Spill(folder, max_bytes=limit).keep([A], is_synced=True)


class Disk:
    """Stands in for ``os.write``: takes so many bytes, then it is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._write = os.write

    def __call__(self, fd: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self._write(fd, data[: self.room])
        self.room -= done
        return done


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_full_disk_leaves_whole_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """Half a line is taken back or, where that fails too, cannot spoil the next one."""
    clock = FakeClock()
    spill = Spill(folder, clock=clock)
    spill.keep([A], is_synced=True)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Disk(len(line_of(B)) + 9))
        if not is_cut:
            patch.setattr(os, "ftruncate", fail)
        with pytest.raises(StoreFullError, match="No space"):
            spill.keep([C, C], is_synced=True)
    soon = spill.is_usable
    clock.now += 1.0
    assert (soon, spill.is_usable) == (False, True)
    spill.keep([B], is_synced=True)
    assert read_back(spill) == ([A, B] if is_cut else [A, C, B])
    assert spill.damaged_count == (0 if is_cut else 1)


def test_a_sync_that_fails_takes_the_lines_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was told that they are not safe does not find them written later."""
    spill = Spill(folder)
    spill.keep([A], is_synced=True)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as patch:
        patch.setattr("ergon_framework.providers.spill.sync_file", fail)
        with pytest.raises(StoreBrokenError):
            spill.keep([B], is_synced=True)
        spill.keep([C], is_synced=False)
        with pytest.raises(StoreBrokenError):
            spill.sync()
    spill.sync()
    spill.sync()
    assert read_back(spill) == [A, C]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    """The error says where and what to do; nothing else happens."""
    (tmp_path / "file").touch()
    spill = Spill(tmp_path / "file" / "spill")
    with pytest.raises(StoreError, match="file/spill") as caught:
        spill.keep([A], is_synced=True)
    assert caught.value.remedy
    assert not spill.has_own
    assert read_back(spill) == []


def test_a_file_system_that_may_only_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has an error of its own."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreReadOnlyError, match="Read-only"):
        Spill(folder).keep([A], is_synced=True)


@pytest.mark.parametrize("tries", [1, 99])
def test_a_new_file_that_somebody_takes_for_an_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """Another is made, a few times."""
    left = [tries]
    lock = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if left[0]:
            left[0] -= 1
            raise BlockingIOError
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    spill = Spill(folder)
    if tries == 99:
        with pytest.raises(StoreError, match="no file could be kept"):
            spill.keep([A], is_synced=True)
        return
    spill.keep([A], is_synced=True)
    assert read_back(spill) == [A]


def test_where_records_wait_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a file; for a server one folder per database, whoever logs in; nowhere for memory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert default_spill("sqlite:////data/work.db") == Path("/data/work.db-spill")
    assert default_spill("sqlite:///work.db?mode=rw") == tmp_path / "work.db-spill"
    assert default_spill("sqlite://") is default_spill("sqlite:///:memory:") is None
    assert default_spill("memory://") is None
    assert default_spill("postgresql:///work") is None  # which server is not certain
    server = default_spill("postgresql://me:secret@db:5432/work")
    assert server is not None
    assert server.parent == tmp_path / "ergon" / "spill"
    assert server == default_spill("postgresql+psycopg://you@db:5432/work")
    assert server != default_spill("postgresql://me:secret@db:5432/other")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = default_spill("postgresql:///work?host=/run/pg")
    assert home is not None
    assert home.parent == tmp_path / "home" / ".local" / "state" / "ergon" / "spill"
    assert home != default_spill("postgresql:///work?host=/run/other")
    assert home == default_spill("postgresql:///work?password=secret&host=/run/pg")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("db/?dbname=a", "db/?dbname=b"),
        ("db/work?port=5432", "db/work?port=5433"),
        ("db/work?options=-csearch_path%3Dshop", "db/work?options=-csearch_path%3Dbank"),
        ("/?service=shop", "/?service=bank"),
        ("me@db/", "you@db/"),
        ("/work?host=/run/a", "/work?host=/run/b"),
        ("/work?host=a&host=b", "/work?host=a&host=c"),
    ],
)
def test_two_databases_never_share_a_folder(one: str, other: str) -> None:
    """By the name that a store goes by, which shows no password."""
    urls = [f"postgresql://{each}" for each in (one, other)]
    folders = [default_spill(database_of(url).name) for url in urls]
    assert None not in folders
    assert folders[0] != folders[1]
    assert folders == [default_spill(url) for url in urls]


def test_a_name_shows_no_password() -> None:
    """Wherever the URL holds it; and one that changes moves no folder."""
    names = [
        database_of(f"postgresql://me:{secret}@/work?host=/run/pg&password={secret}").name
        for secret in ("s3cret", "other")
    ]
    assert not [name for name in names if "s3cret" in name or "other" in name]
    assert default_spill(names[0]) == default_spill(names[1]) is not None


@needs_root
@pytest.mark.parametrize("planted", ["folder", "file"])
def test_lines_of_a_stranger_are_not_believed(
    planted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A checksum is no signature: what another user may have written goes to no store."""
    with shared_folder(0o1777) as public:
        folder = public / "work.db-spill"
        if planted == "file":
            folder.mkdir()
            folder.chmod(0o777)
        with acting_as(NOBODY):
            folder.mkdir(exist_ok=True)
            (folder / "1-forged.jsonl").write_bytes(line_of(BOTH))
        spill = Spill(folder)
        assert read_back(spill) == []
        assert "is not read back: it belongs to user nobody" in caplog.text
        if planted == "file":  # the folder becomes private, and the lines stay unbelieved
            spill.keep([A], is_synced=False)
            assert read_back(Spill(folder)) == []
            spill.close()
