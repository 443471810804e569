"""Enqueueing inside the caller's own transaction, and which store a URL names."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import (
    ConfigurationError,
    DuplicateJobError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import OnDuplicate, Search, Topic
from ergon_framework.storage.sqlite.database import same_file
from ergon_framework.testing.suites.jobstore.under_test import ask, new


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteJobStore]:
    """A fresh store."""
    store = SqliteJobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def mine(store: SqliteJobStore) -> Iterator[sqlite3.Connection]:
    """The caller's own connection to the same file, with a table of its own."""
    with closing(sqlite3.connect(store.path, timeout=0.0)) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
        yield connection


def ids(store: SqliteJobStore) -> list[str]:
    """The ids of all jobs, the newest first."""
    return [job.id for job in store.search(Search())]


@pytest.mark.req("JOBS:client")
def test_jobs_come_with_the_callers_commit(store: SqliteJobStore, mine: sqlite3.Connection) -> None:
    """Until the caller commits there is nothing to be claimed; then both are there."""
    mine.execute("INSERT INTO orders VALUES ('pie')")
    assert [added.id for added in store.add_in(mine, [new("a"), new("b")])] == ["a", "b"]
    assert mine.in_transaction
    assert ids(store) == []
    subscription = store.subscribe(Topic.WORK)
    mine.commit()
    store.announce()
    assert subscription.wait(0)
    subscription.close()
    assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["a", "b"]


@pytest.mark.req("JOBS:client")
def test_jobs_go_with_the_callers_rollback(store: SqliteJobStore, mine: sqlite3.Connection) -> None:
    """What the caller takes back was never there, and its number may be used."""
    store.add_in(mine, [new("a")])
    mine.rollback()
    assert ids(store) == []
    store.add([new("a")])
    assert ids(store) == ["a"]


@pytest.mark.req("JOBS:client")
def test_a_refused_job_leaves_the_transaction_alone(
    store: SqliteJobStore, mine: sqlite3.Connection
) -> None:
    """After a duplicate the caller's own rows are still in its transaction, and nothing of ours."""
    store.add([new("b")])
    mine.execute("INSERT INTO orders VALUES ('pie')")
    with pytest.raises(DuplicateJobError):
        store.add_in(mine, [new("a"), new("b"), new("c")])
    mine.commit()
    assert mine.execute("SELECT name FROM orders").fetchall() == [("pie",)]
    assert ids(store) == ["b"]


@pytest.mark.req("JOBS:client")
def test_unique_keys_hold_in_the_callers_transaction(
    store: SqliteJobStore, mine: sqlite3.Connection
) -> None:
    """What the caller makes of rows and text does not confuse the store, and stays as it was."""
    mine.row_factory = lambda _cursor, _row: {"a": "dict"}
    mine.text_factory = bytes
    assert same_file(mine, store.path)
    assert not same_file(mine, store.path.with_name("other.db"))
    store.add([new("a", unique_key="k")])
    again = new("b", unique_key="k", on_duplicate=OnDuplicate.EXISTING)
    [added] = store.add_in(mine, [again])
    assert (added.id, added.is_new) == ("a", False)
    instead = new("c", unique_key="k", on_duplicate=OnDuplicate.REPLACE)
    [added] = store.add_in(mine, [instead])
    assert (added.id, added.replaced) == ("c", "a")
    mine.commit()
    assert (mine.row_factory is not None, mine.text_factory) == (True, bytes)
    assert ids(store) == ["c", "a"]


@pytest.mark.req("JOBS:client")
@pytest.mark.req("JOBS:badinput")
def test_another_file_is_refused(store: SqliteJobStore, tmp_path: Path) -> None:
    """A job is never put into a database that no worker looks into."""
    for other in (tmp_path / "other.db", ":memory:"):
        with (
            closing(sqlite3.connect(other)) as connection,
            pytest.raises(StoreError, match=r"does not have .* as its main database"),
        ):
            store.add_in(connection, [new("a")])


@pytest.mark.req("JOBS:client")
def test_the_same_file_by_another_name(store: SqliteJobStore, tmp_path: Path) -> None:
    """What counts is the file, not how it is called."""
    (tmp_path / "link.db").symlink_to(store.path)
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        store.add_in(connection, [new("a")])
        connection.commit()
    assert ids(store) == ["a"]


@pytest.mark.req("JOBS:client")
@pytest.mark.req("JOBS:badinput")
def test_without_a_transaction_it_is_refused(store: SqliteJobStore) -> None:
    """A connection that commits each statement by itself must begin a transaction first."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        with pytest.raises(StoreError, match="no transaction open"):
            store.add_in(connection, [new("a")])
        connection.execute("BEGIN")
        store.add_in(connection, [new("a")])
        connection.execute("COMMIT")
    assert ids(store) == ["a"]


@pytest.mark.req("JOBS:client")
@pytest.mark.req("JOBS:badinput")
def test_a_transaction_that_read_too_early(store: SqliteJobStore, mine: sqlite3.Connection) -> None:
    """The error says to begin anew: SQLite cannot let it write on what it has read."""
    mine.isolation_level = None
    mine.execute("BEGIN")
    mine.execute("SELECT * FROM orders").fetchall()
    store.add([new("a")])
    with pytest.raises(StoreUnavailableError, match="since this transaction began") as caught:
        store.add_in(mine, [new("b")])
    assert "BEGIN IMMEDIATE" in caught.value.remedy
    mine.execute("ROLLBACK")
    assert ids(store) == ["a"]


@pytest.mark.req("JOBS:client")
@pytest.mark.req("JOBS:badinput")
def test_a_locked_file(store: SqliteJobStore, mine: sqlite3.Connection) -> None:
    """The store's error, not SQLite's, when somebody else is writing."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="is locked"):
            store.add_in(mine, [new("a")])


# ---- opening ------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:store")
def test_a_path_is_relative_with_three_slashes_and_absolute_with_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other programs read such URLs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for url, path in (
        ("sqlite:///work.db", tmp_path / "work.db"),
        ("SQLite:///sub/a b.db", tmp_path / "sub" / "a b.db"),
        (f"sqlite:///{tmp_path}/abs.db", tmp_path / "abs.db"),
    ):
        store = open_store(url)
        assert isinstance(store, SqliteJobStore)
        assert store.path == path
        store.add([new("a")])
        store.close()
        assert path.exists()


def test_what_is_no_connection_of_sqlite_is_refused(tmp_path: Path) -> None:
    """One to another kind of database, say."""
    store = SqliteJobStore(tmp_path / "work.db")
    with pytest.raises(StoreError, match="object is no connection of sqlite3"):
        store.add_in(object(), [new("a")])
    store.close()


def test_a_store_in_memory() -> None:
    """``memory://`` needs no file, and takes the clock it is given."""
    store = open_store("memory://", clock=lambda: 7.0)
    assert isinstance(store, MemoryJobStore)
    assert store.now() == 7.0
    store.close()


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://:memory:", "memory://"),
        ("sqlite://work.db", "three slashes"),
        ("sqlite://me:hunter2@host/work.db", "three slashes"),
        ("sqlite:work.db", "lacks ://"),
        ("sqlite:///work.db?mode=hunter2", "no options"),
        ("sqlite:///a\0b", "NUL"),
        ("memory://name", "no name"),
        ("work.db", "sqlite:///work.db"),
        ("", "sqlite:///work.db"),
        ("postgresql:/me:hunter2@host/db", "lacks ://"),
        ("postgresql+asyncpg://me:hunter2@host/db", "no other driver"),
        ("postgresql://me:hunter2@host:port:9/db", "cannot be read"),
        ("redis:hunter2@host", "lacks ://"),
        ("nats://hunter2@host", "NATS JetStream does not keep jobs"),
        ("sqllite:///work.db", "did you mean sqlite://"),
        ("mysql://me:hunter2@host/db", "no store of the kind 'mysql'"),
        ("hunter2", "must say of which kind"),
    ],
)
def test_urls_that_name_no_store(url: str, text: str) -> None:
    """Each is refused with what to write instead, and no password is shown."""
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert text in str(caught.value)
    assert "hunter2" not in str(caught.value)
