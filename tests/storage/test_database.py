"""Writing, reading, and what callers of a database may and may not do."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.errors import (
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.storage.sqlite.connections import SqliteLimits
from ergon_framework.storage.sqlite.database import Database, same_file
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from tests.storage.conftest import SAMPLE, WAIT, Script, add, items, seen_by_others

Open = Callable[..., Database]


@pytest.mark.req("JOBS:store")
def test_what_write_returned_for_is_committed(database: Database, path: Path) -> None:
    """A plain connection sees it at once, and the caller gets what its work returned."""
    assert database.write(add("a")) == "a"
    assert seen_by_others(path) == {"a"}


def test_the_connection_waits_for_the_disk(database: Database) -> None:
    """Write-ahead log, synchronous=FULL, no checkpoints by SQLite itself, foreign keys enforced."""
    pragmas = ("journal_mode", "synchronous", "wal_autocheckpoint", "foreign_keys")

    def ask(connection: sqlite3.Connection) -> list[object]:
        return [connection.execute(f"PRAGMA {each}").fetchone()[0] for each in pragmas]

    assert database.write(ask) == ["wal", 2, 0, 1]
    assert database.read(ask)[:3:2] == ["wal", 0]


def test_work_that_raises_leaves_nothing(database: Database) -> None:
    """Its changes are undone and its own exception comes out."""

    def work(connection: sqlite3.Connection) -> None:
        add("a")(connection)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        database.write(work)
    assert items(database) == {}
    database.write(add("b"))
    assert items(database) == {"b": 0}


def test_errors_of_a_statement_are_the_callers_own(database: Database) -> None:
    """A constraint or a typing error is not dressed up as a failure of the store."""
    database.write(add("a"))
    with pytest.raises(sqlite3.IntegrityError):
        database.write(add("a"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        database.write(lambda connection: connection.execute("SELECT * FROM nowhere"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        database.read(lambda connection: connection.execute("SELECT * FROM nowhere"))
    assert items(database) == {"a": 0}


def test_work_that_commits_by_itself_is_told_off(database: Database) -> None:
    """Transactions belong to the store; afterwards everything works as before."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")

    with pytest.raises(StoreError, match="ended the transaction"):
        database.write(work)
    assert database.write(add("a")) == "a"


def test_writing_inside_work_is_refused(database: Database) -> None:
    """It would wait for itself for ever."""
    with pytest.raises(StoreError, match="tried to write again"):
        database.write(lambda _: database.write(add("inner")))
    assert items(database) == {}
    assert database.write(add("a")) == "a"


def test_maintaining_inside_work_is_refused_too(database: Database) -> None:
    """It needs the turn that this thread already has."""
    with pytest.raises(StoreError, match="tried to write again"):
        database.write(lambda _: database.maintain())


def test_reading_inside_work_sees_the_last_commit(database: Database) -> None:
    """A read has its own connection and does not wait for the writer."""

    def work(connection: sqlite3.Connection) -> dict[str, int]:
        add("a")(connection)
        return items(database)

    assert database.write(work) == {}
    assert items(database) == {"a": 0}


def test_a_read_sees_one_state_throughout(database: Database) -> None:
    """A commit between two statements of a read stays unseen until the next read."""

    def count(connection: sqlite3.Connection) -> int:
        found: int = connection.execute("SELECT count(*) FROM ergon_item").fetchone()[0]
        return found

    def work(connection: sqlite3.Connection) -> tuple[int, int]:
        before = count(connection)
        database.write(add("a"))
        return before, count(connection)

    assert database.read(work) == (0, 0)
    assert database.read(count) == 1


def test_reads_cannot_write(database: Database) -> None:
    """A read connection refuses changes."""
    with pytest.raises(StoreReadOnlyError):
        database.read(add("a"))
    assert items(database) == {}


def test_read_connections_are_bounded(open_database: Open, script: Script) -> None:
    """One more read than there are connections waits, and is then told why."""
    limits = SqliteLimits(max_readers=2)
    database = open_database(connect=script.connect, busy_timeout=0.05, limits=limits)

    def nested(connection: sqlite3.Connection) -> None:
        database.read(lambda _: database.read(lambda _: None))

    with pytest.raises(StoreUnavailableError, match="all 2 read connections"):
        database.read(nested)
    assert items(database) == {}
    assert sum("mode=ro" in uri for uri in script.opened) == 2


def test_a_waiting_read_gets_the_next_free_connection(open_database: Open) -> None:
    """It is woken by the read that ends, not by its own patience."""
    database = open_database(limits=SqliteLimits(max_readers=1))
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        inside.set()
        assert go_on.wait(WAIT)

    first = threading.Thread(target=database.read, args=(hold,))
    first.start()
    assert inside.wait(WAIT)
    second = threading.Thread(target=database.read, args=(lambda _: None,))
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(WAIT)
        assert not thread.is_alive()


def test_data_version_changes_with_every_commit(database: Database, path: Path) -> None:
    """Ours or somebody else's; a read or an empty transaction changes nothing."""
    first = database.data_version()
    database.read(lambda _: None)
    database.write(lambda _: None)
    assert database.data_version() == first
    database.write(add("a"))
    second = database.data_version()
    assert second != first
    other = sqlite3.connect(path)
    other.execute("INSERT INTO ergon_item (name) VALUES ('b')")
    assert database.data_version() == second
    other.commit()
    other.close()
    assert database.data_version() != second


def test_parts_share_one_writing_connection(open_database: Open, script: Script) -> None:
    """Two databases on one file never wait for each other's lock."""
    first = open_database(connect=script.connect)
    second = open_database(connect=script.connect)
    first.write(add("a"))
    second.write(add("b"))
    first.close()
    second.write(add("c"))
    assert items(second) == {"a": 0, "b": 0, "c": 0}
    assert sum("mode=rw" in uri for uri in script.opened) == 1


def test_two_parts_have_their_tables_in_one_file(open_database: Open) -> None:
    """Each part has its own version; the second one migrates a file that is open already."""
    first = open_database()
    second = open_database(SqliteSchema("other", "tests.storage.other"))
    second.write(lambda found: found.execute("INSERT INTO ergon_other VALUES (1)"))
    first.write(add("a"))
    versions = first.read(
        lambda found: dict(found.execute("SELECT part, version FROM ergon_schema"))
    )
    assert versions == {"sample": 2, "other": 1}


def test_a_closed_database_says_so(database: Database) -> None:
    """Closing twice is fine; using it afterwards is not."""
    database.close()
    database.close()
    for use in (lambda: items(database), database.data_version, database.maintain):
        with pytest.raises(StoreUnavailableError, match="is closed"):
            use()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        database.write(add("a"))


def test_a_database_is_a_context_manager(path: Path) -> None:
    """It is closed at the end of its block, and leaves one plain file behind."""
    with Database(path, schema=SAMPLE) as database:
        database.write(add("a"))
    assert [each.name for each in path.parent.iterdir()] == ["store.db"]
    assert seen_by_others(path) == {"a"}


def test_opened_for_reading_only(database: Database, open_database: Open) -> None:
    """It reads what others write and writes nothing itself."""
    reader = open_database(read_only=True)
    database.write(add("a"))
    assert items(reader) == {"a": 0}
    with pytest.raises(StoreReadOnlyError, match="reading only"):
        reader.write(add("b"))
    assert reader.maintain() is False


def test_reading_only_creates_nothing(open_database: Open, path: Path) -> None:
    """A file that is not there is an error, and is still not there afterwards."""
    with pytest.raises(StoreUnavailableError, match="is not there"):
        open_database(read_only=True)
    assert not path.exists()


def test_reading_only_needs_tables_of_this_version(
    open_database: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without them is refused with what to do about it; on a full disk, with what can be."""
    sqlite3.connect(path).execute("CREATE TABLE mine (id)").connection.close()
    with pytest.raises(StoreSchemaError, match=r"version 0.*open it once for writing"):
        open_database(read_only=True)
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StoreSchemaError, match=r"version 0.*free some disk space"):
        open_database(read_only=True)


def test_same_file_knows_a_callers_connection(database: Database, path: Path) -> None:
    """By the file itself, not by how its path is written."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    other = path.with_name("other.db")
    cases = {str(path): True, str(link): True, str(other): False, ":memory:": False}
    for name, expected in cases.items():
        connection = sqlite3.connect(name)
        connection.execute("CREATE TABLE IF NOT EXISTS touched (id)")
        assert same_file(connection, path) is expected, name
        connection.close()
    connection = sqlite3.connect(other)
    other.unlink()
    assert same_file(connection, path) is False
    connection.close()


def test_strange_characters_in_a_path(tmp_path: Path) -> None:
    """A path is a path, whatever SQLite would read into it as a URI."""
    path = tmp_path / "50% of #1? ünï.db"
    with Database(path, schema=SAMPLE) as database:
        database.write(add("a"))
        assert items(database) == {"a": 0}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
