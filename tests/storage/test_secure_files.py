"""What an unprivileged local user can do to the files of a service: nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.cli import invoke
from ergon_framework.errors import StoreUnsafeError
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.storage.secure_files import Folder, UnsafeFileError, make_folder, open_file
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.sqlite.notifier import FifoNotifier
from tests.local_users import (
    GROUP,
    NOBODY,
    WEB,
    WORKER,
    acting_as,
    mode_of,
    needs_root,
    shared_folder,
)

SAMPLE = SqliteSchema("sample", "tests.storage.sample")
ALWAYS = SqliteLimits(checkpoint_bytes=32)
"""A log that has a header is long enough for a checkpoint."""
CREATE = os.O_RDWR | os.O_CREAT
WRITE = "INSERT INTO ergon_log (text) VALUES ('x')"


@pytest.fixture(params=[0o022, 0o000, 0o077], ids=["umask 022", "umask 000", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask that most systems have, none, and a strict one."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def put(database: Database) -> None:
    """Commit something, so that the files beside the database exist."""
    database.write(lambda found: found.execute(WRITE).close())


def checkpoint(database: Database) -> bool:
    """Checkpoint, for which the maintenance lock is taken; whether its file is there."""
    database.maintain()
    return database.path.with_name("work.db-maintenance.lock").exists()


def test_everything_beside_a_store_is_private_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    """The file, its logs, its lock and its pipes are for nobody but their owner."""
    path = tmp_path / "work.db"
    with Database(path, schema=SAMPLE, limits=ALWAYS) as database:
        put(database)
        assert checkpoint(database)
        subscription = FifoNotifier(path).subscribe("due")
        files = sorted(each.name for each in tmp_path.iterdir())
        assert files == [
            "work.db",
            "work.db-bells",
            "work.db-maintenance.lock",
            "work.db-shm",
            "work.db-wal",
        ]
        pipes = list((tmp_path / "work.db-bells").iterdir())
        assert {mode_of(each) for each in pipes} == {0o600}
        assert mode_of(tmp_path / "work.db-bells") == 0o700
        assert {mode_of(each) for each in tmp_path.glob("work.db*") if each.is_file()} == {0o600}
        subscription.close()


def test_a_journal_is_private(tmp_path: Path, umask: int) -> None:
    """It tells what happened to whom: nobody else reads it."""
    with SqliteJournal(tmp_path / "journal.db"):
        assert mode_of(tmp_path / "journal.db") == 0o600


def test_a_store_of_an_older_version_is_tightened_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files with mode 0644 become private when they are opened, with a warning; nothing fails."""
    path = tmp_path / "work.db"
    with Database(path, schema=SAMPLE) as database:
        put(database)
        for each in tmp_path.iterdir():
            each.chmod(0o644)
        with Database(path, schema=SqliteSchema("other", "tests.storage.other")):
            assert {mode_of(each) for each in tmp_path.iterdir()} == {0o600}
        put(database)  # SQLite's locks were not dropped by looking
    assert "was open to other users (mode 0644)" in caplog.text


@pytest.mark.parametrize("name", ["jobs", "providers"])
def test_a_file_that_is_no_store_keeps_its_mode(name: str, tmp_path: Path) -> None:
    """A mistyped path may lead to any file: it is refused, and others may read it as before."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n" * 100)
    path.chmod(0o644)
    url = f"sqlite:///{path}"
    command = ["jobs", "list"] if name == "jobs" else ["db", "upgrade"]
    assert invoke([*command, "--store", url]) != 0
    assert mode_of(path) == 0o644
    assert path.read_text() == "127.0.0.1 localhost\n" * 100


@needs_root
def test_a_folder_for_a_group_opens_a_store_to_that_group() -> None:
    """A worker and a web server that are different users of one group use the same store."""
    with shared_folder(0o2770, GROUP) as folder:
        path = folder / "work.db"
        with acting_as(WORKER, GROUP):
            worker = Database(path, schema=SAMPLE)
            put(worker)
            subscription = FifoNotifier(path).subscribe("due")
        with acting_as(WEB, GROUP):
            with Database(path, schema=SAMPLE) as web:
                put(web)
            FifoNotifier(path).notify("due")
        assert subscription.wait(0), "the web server woke the worker"
        with acting_as(NOBODY), pytest.raises(PermissionError):
            path.open("rb")
        assert {mode_of(each) for each in folder.iterdir() if each.is_file()} == {0o660}
        with acting_as(WORKER, GROUP):
            subscription.close()
            worker.close()


@needs_root
def test_a_store_that_root_looks_into_stays_its_owners() -> None:
    """An operator's command as root leaves no lock or pipe that the service cannot open."""
    with shared_folder(0o755) as folder:
        os.chown(folder, WORKER, GROUP)
        path = folder / "work.db"
        with acting_as(WORKER, GROUP):
            Database(path, schema=SAMPLE).close()
        with Database(path, schema=SAMPLE, limits=ALWAYS) as database:  # as root
            put(database)
            assert checkpoint(database)
            subscription = FifoNotifier(path).subscribe("due")
            assert {each.stat().st_uid for each in folder.iterdir()} == {WORKER}
            with acting_as(WORKER, GROUP):
                FifoNotifier(path).notify("due")
            assert subscription.wait(0)
            subscription.close()


@needs_root
def test_nobody_else_can_hold_the_locks() -> None:
    """Held by a stranger, the maintenance lock let the write-ahead log grow without bound."""
    with shared_folder(0o755) as folder:
        held = open_file(folder / "work.db-maintenance.lock", CREATE)
        with acting_as(NOBODY), pytest.raises(PermissionError):
            fcntl.flock(os.open(folder / "work.db-maintenance.lock", os.O_RDONLY), fcntl.LOCK_EX)
        os.close(held)


@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["sticky", "open"])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_store_that_a_stranger_prepared_is_refused(mode: int, suffix: str) -> None:
    """Where everybody may write, a database or a log of somebody else is not believed."""
    with shared_folder(mode) as folder:
        path = folder / "work.db"
        with acting_as(NOBODY):
            Path(f"{path}{suffix}").write_bytes(b"")
        with pytest.raises(StoreUnsafeError, match="belongs to user nobody"):
            Database(path, schema=SAMPLE)


@needs_root
def test_a_strangers_link_is_not_followed_and_the_operators_own_is() -> None:
    """A link that everybody could make leads nowhere; one that the operator made is a choice."""
    with shared_folder() as folder, shared_folder(0o700) as private:
        with acting_as(NOBODY):
            (folder / "work.db").symlink_to(private / "target.db")
        with pytest.raises(StoreUnsafeError, match="belongs to user nobody"):
            Database(folder / "work.db", schema=SAMPLE)
        assert list(private.iterdir()) == []
        (folder / "own.db").symlink_to(private / "target.db")
        Database(folder / "own.db", schema=SAMPLE).close()
        assert mode_of(private / "target.db") == 0o600


@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["sticky", "open"])
def test_notification_pipes_write_into_no_file(mode: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever makes the folder of pipes first gets no wake-up bytes into the files he links."""
    with shared_folder(mode) as folder, shared_folder(0o700) as private:
        victim = private / "victim"
        victim.write_text("precious")
        path = folder / "work.db"
        with acting_as(NOBODY):
            (folder / "work.db-bells").mkdir(0o777)
            (folder / "work.db-bells" / "due.1.planted").symlink_to(victim)
        fifos = FifoNotifier(path)
        subscription = fifos.subscribe("due")
        fifos.notify("due")
        assert subscription.wait(0), "inside this process it is heard all the same"
        subscription.close()
        assert victim.read_text() == "precious"
        assert "belongs to user nobody" in caplog.text


@pytest.mark.parametrize("kind", ["link", "file"])
def test_only_pipes_are_rung(tmp_path: Path, kind: str) -> None:
    """In a folder of our own, too, nothing but a pipe is written to."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    fifos = FifoNotifier(tmp_path / "work.db")
    subscription = fifos.subscribe("due")
    planted = tmp_path / "work.db-bells" / "due.1.planted"
    if kind == "link":
        planted.symlink_to(victim)
    else:
        victim = planted
        victim.write_text("precious")
    fifos.notify("due")
    assert subscription.wait(0)
    subscription.close()
    assert victim.read_text() == "precious"


@needs_root
def test_files_of_strangers_are_refused_where_everybody_may_write() -> None:
    """Links, pipes, folders, other people's files, and a second name of one of our own."""
    with shared_folder(0o777) as folder, shared_folder(0o700) as private:
        (private / "secret").write_text("precious")
        os.link(private / "secret", folder / "hard")
        with acting_as(NOBODY):
            (folder / "soft").symlink_to(private / "secret")
            os.mkfifo(folder / "pipe")
            (folder / "theirs").write_text("")
        wrong = {
            "soft": "symbolic link",
            "pipe": "named pipe",
            "theirs": "belongs to",
            "hard": "links",
        }
        for name, told in wrong.items():
            with pytest.raises(UnsafeFileError, match=told):
                open_file(folder / name, CREATE)
        assert (private / "secret").read_text() == "precious"


@needs_root
def test_a_folder_of_ours_that_a_stranger_made_is_refused() -> None:
    """A folder with our name in a public place may be full of his files."""
    with shared_folder() as folder:
        with acting_as(NOBODY):
            (folder / "spill").mkdir()
            (folder / "linked").symlink_to(folder / "spill")
        for name in ("spill", "linked"):
            with pytest.raises(UnsafeFileError):
                Folder.ensure(folder / name)


def test_folders_are_made_private_and_left_to_a_group(tmp_path: Path, umask: int) -> None:
    """All folders of a new path are private; inside one for a group they are for that group."""
    make_folder(tmp_path / "a" / "b", parents=True)
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700
    (tmp_path / "a").chmod(0o2770)
    make_folder(tmp_path / "a" / "c")
    assert mode_of(tmp_path / "a" / "c") == 0o770
    os.close(open_file(tmp_path / "a" / "c" / "file", CREATE))
    assert mode_of(tmp_path / "a" / "c" / "file") == 0o660
