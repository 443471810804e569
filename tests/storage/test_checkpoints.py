"""Checkpoints: made by one process at a time, often enough that the log does not grow for ever."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ergon_framework.errors import StoreFullError
from ergon_framework.storage.sqlite.checkpoints import is_long
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database
from tests.storage.conftest import WAIT, Script, add, checkpointed, items, until

Open = Callable[..., Database]
BOUND = 1 << 18


SMALL = SqliteLimits(checkpoint_bytes=BOUND, checkpoint_interval=4)
"""A log of 256 KiB is long, and is looked at after every fourth commit."""


@pytest.fixture
def database(open_database: Open) -> Database:
    """A database with a short log."""
    return open_database(limits=SMALL)


@pytest.fixture
def log(path: Path) -> Path:
    """The write-ahead log."""
    return path.with_name("store.db-wal")


def fill(database: Database, commits: int, size: int = 5000) -> None:
    """Make so many commits."""
    for _ in range(commits):
        database.write(
            lambda found: found.execute("INSERT INTO ergon_log VALUES (?)", ("x" * size,))
        )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else has the maintenance lock."""
    with open(f"{path}-maintenance.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Somebody reads and does not end the transaction."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM ergon_log").fetchall()
        yield


@pytest.mark.req("JOBS:store")
def test_the_log_does_not_grow_for_ever(database: Database, log: Path) -> None:
    """It is begun anew after a checkpoint, and keeps about the length of its bound."""
    for _ in range(15):
        fill(database, 20)
        checkpointed()
    assert log.stat().st_size < 2 * BOUND
    assert not is_long(log, BOUND) or database.maintain()
    assert database.read(
        lambda found: found.execute("SELECT count(*) FROM ergon_log").fetchone()
    ) == (300,)


def test_the_log_is_given_its_length_before_it_is_needed(database: Database, log: Path) -> None:
    """Not for the first few commits, and nothing of it is seen in the database."""
    fill(database, 4)
    checkpointed()
    assert log.stat().st_size < BOUND
    fill(database, 2)
    checkpointed()
    assert BOUND <= log.stat().st_size < 2 * BOUND
    assert not is_long(log, BOUND)
    fill(database, 1)
    assert database.read(_counted) == 7


def test_a_log_that_was_made_long_is_read_after_a_crash(
    database: Database, path: Path, log: Path
) -> None:
    """Another process, which recovers the log, finds the commits before and after it was."""
    fill(database, 6)
    checkpointed()
    assert log.stat().st_size >= BOUND
    fill(database, 3)
    copy = path.with_name("copy.db")  # of both files, without the index in memory: as after a crash
    copy.write_bytes(path.read_bytes())
    copy.with_name("copy.db-wal").write_bytes(log.read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as found:
        assert _counted(found) == 9
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_full_disk_gives_no_length(database: Database, log: Path) -> None:
    """It is tried once, and writing goes on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BOUND * 3 // 4, before[1]))
    try:
        fill(database, 6, size=100)
        checkpointed()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    fill(database, 8, size=100)
    checkpointed()
    assert log.stat().st_size < BOUND
    assert database.write(add("a")) == "a"


@pytest.mark.parametrize("others", [0, 2])
def test_a_full_disk_begins_the_log_anew(
    open_database: Open, script: Script, log: Path, others: int
) -> None:
    """Its pages are moved to the database, so that the next commit finds room in the log."""
    seldom = SqliteLimits(checkpoint_bytes=BOUND, checkpoint_interval=1_000)
    database = open_database(connect=script.connect, limits=seldom)
    fill(database, 100)
    with ThreadPoolExecutor() as pool:

        def work(connection: sqlite3.Connection) -> None:
            group = [pool.submit(database.write, add(str(n))) for n in range(others)]
            until(lambda: database.pending_writes == others)
            full.extend(group)
            script.fail("COMMIT", sqlite3.SQLITE_FULL)
            if others:  # they share the next commit, and this one is made
                script.before("COMMIT", lambda: None)
                script.after("COMMIT", lambda: script.fail("COMMIT", sqlite3.SQLITE_FULL))

        full: list[Future[str]] = []
        with contextlib.ExitStack() as refused:
            if not others:
                refused.enter_context(pytest.raises(StoreFullError))
            database.write(work)
        for each in full:
            with pytest.raises(StoreFullError):
                each.result(WAIT)
    checkpointed()
    assert database.write(add("a")) == "a"
    assert not is_long(log, BOUND)


def test_a_commit_waits_for_no_checkpoint(open_database: Open, script: Script, log: Path) -> None:
    """It is acknowledged, and so is the next one, while pages are being moved."""
    database = open_database(connect=script.connect, limits=SMALL)
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert over.wait(20.0)

    with locked(database.path):
        fill(database, 100)
    script.before("PRAGMA wal_checkpoint(PASSIVE)", hold)
    try:
        fill(database, 4)
        assert begun.wait(20.0)
        assert database.write(add("a")) == "a"
        assert is_long(log, BOUND)
    finally:
        over.set()
    checkpointed()
    fill(database, 1)
    assert not is_long(log, BOUND)


def test_a_file_can_be_closed_while_a_checkpoint_is_due(open_database: Open, path: Path) -> None:
    """The checkpoint ends first, or does not begin: nothing is left open."""
    for _ in range(8):
        database = open_database(limits=SMALL)
        with locked(path):
            fill(database, 3)
        fill(database, 1)
        database.close()
    checkpointed()
    assert not path.with_name("store.db-wal").exists()  # removed by who closed it last


def test_an_outgrown_log_is_cut(database: Database, path: Path, log: Path) -> None:
    """One transaction can make it huge; the next checkpoint gives the space back."""
    with locked(path):
        fill(database, 1, size=5 * BOUND)
        checkpointed()
    assert log.stat().st_size > 5 * BOUND
    assert database.maintain() is True
    assert log.stat().st_size == 0
    assert database.maintain() is False


def test_only_the_holder_of_the_lock_checkpoints(
    open_database: Open, script: Script, path: Path, log: Path
) -> None:
    """Others leave the log as it is and go on writing."""
    database = open_database(connect=script.connect, limits=SMALL)
    with locked(path):
        fill(database, 100)
        assert database.maintain() is False
    assert not [each for each in script.executed if "checkpoint(" in each]
    assert is_long(log, BOUND)
    assert database.maintain() is True


def test_a_reader_that_never_ends_is_named(
    database: Database, path: Path, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log cannot be begun anew while it reads; the reason is logged once."""
    fill(database, 1)
    with caplog.at_level(logging.WARNING, "ergon.storage"), reading(path):
        fill(database, 200)
        checkpointed()
        assert database.maintain() is False
    assert log.stat().st_size > 4 * BOUND
    assert len(caplog.records) == 1
    assert "without ever ending its transaction" in caplog.text
    assert database.maintain() is True
    assert log.stat().st_size == 0


def test_a_writer_is_not_named_as_a_reader(
    database: Database, path: Path, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process that writes at that moment keeps nothing from being moved."""
    with locked(path):
        fill(database, 1, size=5 * BOUND)
        checkpointed()
    assert log.stat().st_size > 4 * BOUND
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert database.maintain() is False
    assert database.maintain() is True
    assert "without ever ending its transaction" not in caplog.text


def test_a_checkpoint_that_fails_does_not_fail_the_commit(
    open_database: Open, script: Script, path: Path
) -> None:
    """What was committed is on disk, and the next call works on."""
    database = open_database(connect=script.connect, limits=SMALL)
    with locked(path):
        fill(database, 100)
    script.fail("PRAGMA wal_checkpoint(RESTART)", sqlite3.SQLITE_IOERR_WRITE)
    script.fail("PRAGMA wal_checkpoint(TRUNCATE)", sqlite3.SQLITE_IOERR_WRITE)
    fill(database, 4)
    checkpointed()
    assert database.write(add("a")) == "a"
    assert items(database) == {"a": 0}


def test_a_folder_that_takes_no_lock_file(database: Database, path: Path) -> None:
    """Then nobody checkpoints, and writing goes on."""
    path.with_name("store.db-maintenance.lock").mkdir()
    fill(database, 100)
    assert database.maintain() is False


AT_THE_END = """
import sys
from pathlib import Path
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database
from tests.storage.conftest import SAMPLE

class Last:
    def __del__(self):
        for _ in range(4):
            database.write(lambda found: found.execute(
                "INSERT INTO ergon_log (text) VALUES (?)", ("x",)).close())
        database.close()

always = SqliteLimits(checkpoint_bytes=32, checkpoint_interval=1)
database = Database(Path(sys.argv[1]), schema=SAMPLE, limits=always)
last = Last()
last.itself = last  # removed when the interpreter has ended all threads
sys.modules["last"] = last
"""


@pytest.mark.slow
def test_an_interpreter_that_ends_waits_for_no_checkpoint(path: Path) -> None:
    """Objects that are removed last may write and close, though no thread can be started."""
    subprocess.run(  # noqa: S603 - the program is above
        [sys.executable, "-c", AT_THE_END, str(path)],
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    with contextlib.closing(sqlite3.connect(path)) as found:
        assert _counted(found) == 4


def _counted(found: sqlite3.Connection) -> int:
    [number] = found.execute("SELECT count(*) FROM ergon_log").fetchone()
    return int(number)


def test_short_and_missing_logs_are_not_long(tmp_path: Path) -> None:
    """Nor is one that is not a log."""
    assert not is_long(tmp_path / "absent", BOUND)
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(b"x" * (BOUND + 1))
    assert not is_long(rubbish, BOUND)


def test_a_log_written_anew_is_not_long_though_the_file_is(database: Database, log: Path) -> None:
    """Length alone would call for a checkpoint after each one."""
    with locked(database.path):
        fill(database, 60)
    assert is_long(log, BOUND)
    assert database.maintain() is True
    fill(database, 1)
    assert log.stat().st_size > BOUND
    assert not is_long(log, BOUND)
