"""Enqueueing in a transaction of SQLAlchemy on the same file, as on PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import QueuePool

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.jobstore.under_test import new

pytestmark = pytest.mark.req("JOBS:client")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteJobStore]:
    """A fresh store."""
    store = SqliteJobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def engine(store: SqliteJobStore) -> Iterator[Engine]:
    """The caller's own way to the same file, with a table of its own."""
    engine = create_engine(f"sqlite:///{store.path}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (name TEXT)"))
    yield engine
    engine.dispose()


def ids(store: SqliteJobStore) -> list[str]:
    """The ids of all jobs, the newest first."""
    return [job.id for job in store.search(Search())]


def orders(engine: Engine) -> list[str]:
    """What the caller has stored."""
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM orders ORDER BY rowid")).scalars())


def test_jobs_and_rows_are_one_commit(store: SqliteJobStore, engine: Engine) -> None:
    """Both are there, or neither."""
    client = JobClient(store=store)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES ('pie')"))
        client.enqueue("ship", id="a", connection=connection)
        assert ids(store) == []
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO orders VALUES ('cake')"))
        client.enqueue("ship", id="b", connection=connection)
        connection.rollback()
    assert (ids(store), orders(engine)) == (["a"], ["pie"])


def test_the_first_thing_on_a_connection(store: SqliteJobStore, engine: Engine) -> None:
    """SQLAlchemy commits what it has begun: it hears of a transaction that begins with a job."""
    with engine.connect() as connection:
        store.add_in(connection, [new("first")])
        connection.commit()
        store.add_in(connection, [new("undone")])
        connection.rollback()
        store.add_in(connection, [new("unsaid")])
    assert ids(store) == ["first"]


def test_sessions(store: SqliteJobStore, engine: Engine) -> None:
    """A session is joined itself, also one that belongs to a thread or a request."""
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES ('pie')"))
        store.add_in(session, [new("a")])
        session.rollback()
        store.add_in(session, [new("b")])
        session.commit()
    sessions = scoped_session(sessionmaker(engine))
    store.add_in(sessions, [new("c")])
    sessions.commit()
    sessions.remove()
    assert (ids(store), orders(engine)) == (["c", "b"], [])


def test_an_engine_that_begins_by_itself(store: SqliteJobStore) -> None:
    """With the driver's own beginnings switched off, SQLAlchemy's is the one that counts."""
    engine = create_engine(f"sqlite:///{store.path}")
    event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    event.listen(engine, "begin", lambda line: line.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as connection:
        store.add_in(connection, [new("a")])
        connection.commit()
        store.add_in(connection, [new("b")])
        connection.rollback()
    engine.dispose()
    assert ids(store) == ["a"]


@pytest.mark.req("JOBS:badinput")
def test_a_nested_transaction_that_the_driver_did_not_begin(
    store: SqliteJobStore, engine: Engine
) -> None:
    """Its end would be a commit: a job in it would survive the rollback of all."""
    with Session(engine) as session, session.begin_nested():
        with pytest.raises(StoreError, match="nested transaction") as caught:
            store.add_in(session, [new("a")])
        assert "begin_nested" in caught.value.remedy
    event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    event.listen(engine, "begin", lambda line: line.exec_driver_sql("BEGIN"))
    engine.dispose()
    with Session(engine) as session:
        with session.begin_nested():
            store.add_in(session, [new("undone")])
        session.rollback()
        with session.begin_nested():
            store.add_in(session, [new("kept")])
        session.commit()
    assert ids(store) == ["kept"]


@pytest.mark.req("JOBS:badinput")
def test_a_refusal_leaves_the_connection_as_it_was(store: SqliteJobStore, engine: Engine) -> None:
    """No transaction is left that its owner did not begin."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as bare:
        with pytest.raises(StoreError, match="no transaction open"):
            store.add_in(bare, [new("a")])
        with bare.begin():
            bare.execute(text("INSERT INTO orders VALUES ('pie')"))
    assert orders(engine) == ["pie"]


@pytest.mark.req("JOBS:badinput")
def test_what_cannot_be_joined_says_why(
    store: SqliteJobStore, engine: Engine, tmp_path: Path
) -> None:
    """Each in words of ours, with what to do."""
    closed = engine.connect()
    closed.close()
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as bare,
        other.connect() as elsewhere,
    ):
        for given, why, remedy in (
            (engine, "Engine is no connection", "engine.begin()"),
            (closed, "This Connection is closed", "one that is open"),
            (Session(), "not bound to a single Engine", "session.connection(…)"),
            (Session(engine, twophase=True), "in two phases", "without twophase=True"),
            (scoped_session(sessionmaker(engine, twophase=True)), "in two phases", "twophase"),
            (bare, "no transaction open", "BEGIN IMMEDIATE"),
            (elsewhere, "as its main database", "that very file"),
        ):
            with pytest.raises(StoreError, match=why) as caught:
                store.add_in(given, [new("a")])
            assert remedy in caught.value.remedy
    other.dispose()
    assert ids(store) == []


@pytest.mark.req("JOBS:badinput")
def test_a_database_that_is_away_is_unavailable(store: SqliteJobStore, tmp_path: Path) -> None:
    """Whoever tries again later may: it has no file, no connection left, or another writer."""
    gone = create_engine(f"sqlite:///{tmp_path / 'gone' / 'jobs.db'}")
    spent = create_engine(
        f"sqlite:///{store.path}",
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.01,
    )
    hasty = create_engine(f"sqlite:///{store.path}", connect_args={"timeout": 0})
    event.listen(hasty, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    event.listen(hasty, "begin", lambda line: line.exec_driver_sql("BEGIN IMMEDIATE"))
    with (
        spent.connect() as last,
        hasty.connect() as bare,
        closing(sqlite3.connect(store.path)) as other,
    ):
        last.execute(text("SELECT 1"))
        other.execute("BEGIN IMMEDIATE")
        for given, why in (
            (Session(gone), "unable to open"),
            (Session(spent), "QueuePool limit"),
            (Session(hasty), "is locked"),
            (bare, "is locked"),
        ):
            with pytest.raises(StoreUnavailableError, match=why) as caught:
                store.add_in(given, [new("a")])
            assert "begin the transaction again" in caught.value.remedy
    for engine in (gone, spent, hasty):
        engine.dispose()
    assert ids(store) == []


@pytest.mark.req("JOBS:badinput")
def test_a_connection_of_another_thread_or_a_closed_one(store: SqliteJobStore) -> None:
    """The driver's own words come with a remedy, as an error of the store."""
    told: list[StoreError] = []

    def elsewhere() -> None:
        with pytest.raises(StoreError, match="created in a thread") as caught:
            store.add_in(mine, [new("a")])
        told.append(caught.value)

    with closing(sqlite3.connect(store.path)) as mine:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    with pytest.raises(StoreError, match="closed database") as caught:
        store.add_in(mine, [new("a")])
    assert {error.remedy for error in (*told, caught.value)} == {
        "give one that is open, and that this thread may use"
    }
