"""Locked, full, read-only, damaged, moved away and broken stores: each says what it is."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.storage.sqlite import connections
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database
from tests.storage.conftest import SAMPLE, Script, add, items, seen_by_others, until

Open = Callable[..., Database]
WATCHFUL = SqliteLimits(watch_interval=0.0)
"""The path is looked at for each call."""
UNWATCHED = SqliteLimits(watch_interval=float("inf"))
"""It is looked at when the file is opened, and not again."""

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection of this process has a transaction open."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.req("JOBS:badinput")
def test_locked_by_this_process(open_database: Open, path: Path) -> None:
    """The error names the file and, where the system tells, who holds the lock."""
    database = open_database(busy_timeout=0.0)
    database.write(add("a"))
    with locked(path), pytest.raises(StoreUnavailableError) as caught:
        database.write(add("b"))
    assert str(path) in caught.value.message
    if Path("/proc/locks").exists():
        assert "another connection of this process" in caught.value.message
    assert "busy_timeout" in caught.value.remedy
    assert database.write(add("c")) == "c"
    assert items(database).keys() == {"a", "c"}


@pytest.mark.req("JOBS:badinput")
def test_a_lost_table_is_named(open_database: Open, path: Path) -> None:
    """A table of ours that somebody dropped, with what to do about it; other tables are theirs."""
    database = open_database()
    database.write(add("a"))
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE ergon_item")
    for use in (database.read, database.write):
        with pytest.raises(StoreSchemaError, match="has lost the table ergon_item") as caught:
            use(lambda connection: connection.execute("SELECT * FROM ergon_item").fetchall())
        assert "backup" in caught.value.remedy
        with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
            use(lambda connection: connection.execute("SELECT * FROM nowhere").fetchall())


@pytest.mark.slow
@pytest.mark.req("JOBS:badinput")
def test_locked_by_another_process(open_database: Open, path: Path) -> None:
    """Its number and name are told where the system tells them."""
    database = open_database(busy_timeout=0.0)
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreUnavailableError, match="is locked") as caught:
            database.write(add("a"))
        holder.communicate()
    if Path("/proc/locks").exists():
        assert re.search(rf"process {holder.pid} \(\w+", caught.value.message)
    assert database.write(add("b")) == "b"


def test_a_lock_that_ends_in_time_is_waited_for(
    open_database: Open, path: Path, script: Script
) -> None:
    """The caller's patience decides, and nothing fails meanwhile."""
    database = open_database(busy_timeout=20.0, connect=script.connect)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tries = iter([None, None, other])

    def plan() -> None:
        script.before("BEGIN IMMEDIATE", plan)
        if (holder := next(tries, None)) is not None:
            holder.execute("ROLLBACK")

    plan()
    assert database.write(add("a")) == "a"
    assert script.executed.count("BEGIN IMMEDIATE") >= 3
    other.close()


def test_locked_while_opening(database: Database, path: Path) -> None:
    """A store that cannot be checked because of a lock is not opened."""
    database.close()
    with locked(path), pytest.raises(StoreUnavailableError, match="is locked"):
        Database(path, schema=SAMPLE, busy_timeout=0.0)


def test_locked_while_the_log_is_introduced(path: Path) -> None:
    """A file of somebody else who is just writing is waited for, then reported."""
    with locked(path), pytest.raises(StoreUnavailableError, match="is locked"):
        Database(path, schema=SAMPLE, busy_timeout=0.02)
    with Database(path, schema=SAMPLE) as database:
        assert database.write(add("a")) == "a"


@pytest.mark.req("JOBS:badinput")
def test_a_full_disk(open_database: Open) -> None:
    """The work that did not fit is undone, and smaller work still succeeds."""
    database = open_database()

    def limit(connection: sqlite3.Connection) -> None:
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO ergon_log VALUES (?)", ("x" * 100_000,))

    database.write(limit)
    with pytest.raises(StoreFullError, match="no room left") as caught:
        database.write(fill)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert database.write(add("a")) == "a"


def test_a_full_disk_in_another_guise(
    open_database: Open, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite may report a file it cannot extend as an I/O error; the room left tells."""
    database = open_database(connect=script.connect)
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    script.fail("COMMIT", sqlite3.SQLITE_IOERR_WRITE)
    with pytest.raises(StoreFullError):
        database.write(add("a"))
    assert database.write(add("a")) == "a"


@pytest.mark.req("JOBS:badinput")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file(database: Database, path: Path) -> None:
    """It is refused when it is opened for writing."""
    database.close()
    path.chmod(0o444)
    with pytest.raises(StoreReadOnlyError, match="may only be read"):
        Database(path, schema=SAMPLE)


def test_a_read_only_file_system(database: Database, path: Path) -> None:
    """SQLite opens what it cannot write for reading; that is found out at once."""
    database.close()

    def connect(uri: str, timeout: float) -> sqlite3.Connection:
        return connections.connect(uri.replace("mode=rwc", "mode=ro"), timeout)

    with pytest.raises(StoreReadOnlyError, match="may only be read"):
        Database(path, schema=SAMPLE, connect=connect)


@pytest.mark.req("JOBS:badinput")
def test_a_file_that_became_read_only(open_database: Open, script: Script) -> None:
    """The error says so, and the file is used again once it can be written."""
    database = open_database(connect=script.connect)
    script.fail("BEGIN IMMEDIATE", sqlite3.SQLITE_READONLY)
    with pytest.raises(StoreReadOnlyError, match="may only be read"):
        database.write(add("a"))
    assert database.write(add("a")) == "a"


@pytest.mark.req("JOBS:badinput")
def test_no_such_folder(tmp_path: Path) -> None:
    """The error names the folder; nothing is created."""
    with pytest.raises(StoreUnavailableError, match=r"there is no folder .*absent"):
        Database(tmp_path / "absent" / "store.db", schema=SAMPLE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_a_folder_that_is_on_no_disk() -> None:
    """Nothing can be created there, and there is no disk that could be full."""
    with pytest.raises(StoreReadOnlyError, match=r"store.db cannot be created: /proc "):
        Database(Path("/proc/store.db"), schema=SAMPLE)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    """It is not a store, and its disk is not to blame when it is opened for reading."""
    for reads in (False, True):
        with pytest.raises(StoreUnavailableError, match="is a folder"):
            Database(tmp_path, schema=SAMPLE, read_only=reads)


def test_a_place_that_takes_no_log(path: Path) -> None:
    """Where SQLite cannot have a write-ahead log, as on some network disks, it is no store."""

    def connect(uri: str, timeout: float) -> sqlite3.Connection:
        return connections.connect("file::memory:", timeout)

    with pytest.raises(StoreUnavailableError, match=r"write-ahead log.*local disk"):
        Database(path, schema=SAMPLE, connect=connect)


def test_a_moved_file_that_sqlite_noticed_itself(open_database: Open, script: Script) -> None:
    """It calls that read-only, but the file is somewhere else."""
    database = open_database(connect=script.connect)
    script.fail("COMMIT", sqlite3.SQLITE_READONLY_DBMOVED)
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        database.write(add("a"))


@pytest.mark.req("JOBS:badinput")
def test_not_a_database(path: Path) -> None:
    """Somebody's other file is left as it is."""
    text = "Dear diary, " * 1000
    path.write_text(text)
    with pytest.raises(StoreSchemaError, match="is not an SQLite database"):
        Database(path, schema=SAMPLE)
    assert path.read_text() == text


def test_a_damaged_database(open_database: Open, path: Path) -> None:
    """The error says that it is damaged and how to save what is left."""
    database = open_database()
    for n in range(300):
        database.write(add(f"{n:0100}"))
    database.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreSchemaError, match=r"is damaged.*\.recover"):
        Database(path, schema=SAMPLE).write(add("a"))


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC])
def test_a_failed_fsync_ends_all_writing(open_database: Open, script: Script, code: int) -> None:
    """Nobody knows what is on disk: no caller of this process writes to the file again."""
    database = open_database(connect=script.connect)
    database.write(add("a"))
    script.fail("COMMIT", code)
    with pytest.raises(StoreBrokenError, match="did not confirm"):
        database.write(add("b"))
    for _ in range(2):
        with pytest.raises(StoreBrokenError, match="takes no more writes"):
            database.write(add("c"))
    with pytest.raises(StoreBrokenError):
        open_database()
    assert items(database) == {"a": 0}
    assert items(open_database(read_only=True)) == {"a": 0}


def test_a_failed_fsync_of_a_checkpoint_ends_all_writing(
    open_database: Open, script: Script
) -> None:
    """The commit before it stands, and the next one is refused."""
    always = SqliteLimits(checkpoint_bytes=32)  # no more than its header
    database = open_database(connect=script.connect, limits=always)
    script.fail("PRAGMA wal_checkpoint(TRUNCATE)", sqlite3.SQLITE_IOERR_FSYNC)
    assert database.write(add("a")) == "a"
    until(lambda: not script.is_waiting)
    with pytest.raises(StoreBrokenError):
        database.write(add("b"))
    assert items(database) == {"a": 0}


def test_an_io_error_costs_the_connection(open_database: Open, script: Script) -> None:
    """The next call opens another one and works."""
    database = open_database(connect=script.connect)
    opened = len(script.opened)
    script.fail("COMMIT", sqlite3.SQLITE_IOERR_WRITE)
    with pytest.raises(StoreUnavailableError, match="cannot be used for now"):
        database.write(add("a"))
    assert database.write(add("a")) == "a"
    assert len(script.opened) == opened + 1
    assert items(database) == {"a": 0}


def test_an_io_error_of_a_read_costs_the_connection(open_database: Open, script: Script) -> None:
    """So it is with reads and with the version."""
    database = open_database(connect=script.connect)
    script.fail("BEGIN", sqlite3.SQLITE_IOERR_READ)
    with pytest.raises(StoreUnavailableError):
        items(database)
    assert items(database) == {}
    script.fail("PRAGMA data_version", sqlite3.SQLITE_IOERR_READ)
    first = None
    with pytest.raises(StoreUnavailableError):
        first = database.data_version()
    assert database.data_version() != first


def test_a_commit_that_fails_for_any_reason_is_a_store_error(
    open_database: Open, script: Script
) -> None:
    """Callers need to know one family of errors only."""
    database = open_database(connect=script.connect)
    script.fail("COMMIT", sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY)
    with pytest.raises(StoreError, match="refused a transaction"):
        database.write(add("a"))
    assert items(database) == {}


@pytest.mark.req("JOBS:orchestrator")
def test_a_store_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Calls fail while its folder is away; nothing is written elsewhere and nothing is created."""
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    path = home / "store.db"
    with Database(path, schema=SAMPLE, limits=WATCHFUL) as database:
        database.write(add("a"))
        database.data_version()
        home.rename(away)
        with pytest.raises(StoreUnavailableError, match="there is no folder"):
            database.write(add("b"))
        with pytest.raises(StoreUnavailableError, match="there is no folder"):
            items(database)
        home.mkdir()
        with pytest.raises(StoreUnavailableError, match="is not there"):
            database.write(add("b"))
        with pytest.raises(StoreUnavailableError, match="is not there"):
            database.data_version()
        assert list(home.iterdir()) == []
        home.rmdir()
        away.rename(home)
        assert database.write(add("c")) == "c"
        assert items(database) == {"a": 0, "c": 0}
        assert database.data_version()
    assert seen_by_others(path) == {"a", "c"}


def test_a_file_put_in_its_place(open_database: Open, path: Path, tmp_path: Path) -> None:
    """A restored copy is written from then on, not the file that was thrown away."""
    database = open_database(limits=WATCHFUL)
    database.write(add("a"))
    for leftover in tmp_path.iterdir():
        leftover.rename(tmp_path / f"old-{leftover.name}")
    copy = tmp_path / "copy.db"
    with Database(copy, schema=SAMPLE) as fresh:
        fresh.write(add("copied"))
    copy.rename(path)
    assert database.write(add("b")) == "b"
    assert items(database).keys() == {"copied", "b"}


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_no_commit_into_a_lost_file_is_acknowledged(
    is_replaced: bool, open_database: Open, path: Path, tmp_path: Path
) -> None:
    """Also right after a look at the path: SQLite itself goes on in a file without a name."""
    database = open_database(limits=UNWATCHED)
    database.write(add("a"))
    for leftover in tmp_path.iterdir():
        leftover.unlink()
    if is_replaced:
        with Database(tmp_path / "copy.db", schema=SAMPLE) as copy:
            copy.write(add("copied"))
        (tmp_path / "copy.db").rename(path)
    with pytest.raises(StoreUnavailableError, match="removed or replaced"):
        database.write(add("b"))
    if is_replaced:
        assert database.write(add("c")) == "c"
        assert seen_by_others(path) == {"copied", "c"}
    else:
        with pytest.raises(StoreUnavailableError, match="is not there"):
            database.write(add("c"))
        with pytest.raises(StoreUnavailableError, match="is not there"):
            items(database)


def test_a_look_of_somebody_else_hides_nothing(
    open_database: Open, path: Path, tmp_path: Path
) -> None:
    """A reader that has seen the new file meanwhile says nothing about where the writer writes."""
    database = open_database(limits=WATCHFUL)
    database.write(add("a"))
    items(database)

    def work(connection: sqlite3.Connection) -> None:
        add("b")(connection)
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        with Database(tmp_path / "copy.db", schema=SAMPLE) as copy:
            copy.write(add("copied"))
        (tmp_path / "copy.db").rename(path)
        assert items(database).keys() == {"copied"}

    with pytest.raises(StoreUnavailableError, match="removed or replaced"):
        database.write(work)
    assert seen_by_others(path) == {"copied"}


def test_a_file_that_was_moved_and_came_back(open_database: Open, path: Path) -> None:
    """What was written meanwhile is in it: nobody may say that it is not."""
    database = open_database(limits=UNWATCHED)
    database.write(add("a"))
    path.rename(path.with_name("moved.db"))
    with pytest.raises(StoreUnavailableError, match="is kept is not known") as told:
        database.write(add("b"))
    assert "see whether it is there" in told.value.remedy
    path.with_name("moved.db").rename(path)
    assert items(database).keys() == {"a", "b"}


def test_a_folder_that_cannot_be_looked_into_is_no_loss(
    open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a path that leads elsewhere, or nowhere, says that the file is another one."""
    database = open_database(limits=UNWATCHED)
    database.write(add("a"))

    def deny(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", deny)
        assert database.write(add("b")) == "b"
    assert items(database).keys() == {"a", "b"}


def test_everyone_in_a_group_hears_of_a_lost_file(open_database: Open, path: Path) -> None:
    """A commit that many share is acknowledged to nobody."""
    database = open_database(limits=UNWATCHED)
    database.write(add("a"))
    path.unlink()
    with ThreadPoolExecutor(8) as threads:
        told = [threads.submit(database.write, add(f"b{n}")) for n in range(8)]
    assert {type(each.exception()) for each in told} == {StoreUnavailableError}


def test_the_file_is_looked_at_only_now_and_then(open_database: Open, path: Path) -> None:
    """Looking costs time, so work begins on what the last look found."""
    database = open_database(limits=UNWATCHED)
    database.write(add("a"))
    assert items(database) == {"a": 0}
    path.rename(path.with_name("moved.db"))
    assert items(database) == {"a": 0}
    begun: list[str] = []
    with pytest.raises(StoreUnavailableError, match="moved, removed or replaced"):
        database.write(lambda _: begun.append("b"))
    assert begun == ["b"]


def test_an_interrupt_between_begin_and_work_heals(database: Database) -> None:
    """A transaction that nobody owns is thrown away by the next caller."""
    writer: list[sqlite3.Connection] = []
    database.write(writer.append)
    for statement in ("BEGIN IMMEDIATE", "INSERT INTO ergon_item (name) VALUES ('x')"):
        writer[0].execute(statement).close()
    assert database.write(add("a")) == "a"
    assert items(database) == {"a": 0}


def test_waiting_for_a_lock_sleeps(database: Database) -> None:
    """SQLite waits inside each try, so that waiting does not burn a core."""
    [timeout] = database.write(lambda found: found.execute("PRAGMA busy_timeout").fetchone())
    assert 1 <= timeout <= 10
