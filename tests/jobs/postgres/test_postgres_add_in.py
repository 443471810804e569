"""Enqueueing inside the caller's own transaction, with psycopg and with SQLAlchemy."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.errors import (
    DuplicateJobError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Search, Topic
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    SUCCEEDED,
    JobStoreSubject,
    ask,
    hold,
    new,
)
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.req("SCALE:transaction", "SCALE:jobs-postgres")
PATIENCE = 15.0


@pytest.fixture
def store(jobs_url: str) -> Iterator[PostgresJobStore]:
    """An empty store."""
    store = PostgresJobStore(jobs_url)
    yield store
    store.close()


@pytest.fixture
def mine(jobs_url: str) -> Iterator[psycopg.Connection]:
    """The caller's own connection to the same database, with a table of its own."""
    with psycopg.connect(jobs_url, autocommit=True) as first:
        first.execute("DROP SCHEMA IF EXISTS shop CASCADE")
        first.execute("CREATE SCHEMA shop")
        first.execute("CREATE TABLE shop.orders (name text PRIMARY KEY)")
    with psycopg.connect(jobs_url) as connection:
        yield connection
        connection.rollback()


def ids(store: PostgresJobStore) -> list[str]:
    """The ids of all jobs, the newest first."""
    return [job.id for job in store.search(Search())]


def orders(connection: psycopg.Connection) -> list[str]:
    """What the caller has stored."""
    return [row[0] for row in connection.execute("SELECT name FROM shop.orders").fetchall()]


def test_jobs_come_with_the_callers_commit(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """Until the caller commits there is nothing to be claimed; its commit wakes the workers."""
    mine.execute("INSERT INTO shop.orders VALUES ('pie')")
    subscription = store.subscribe(Topic.WORK)
    assert [added.id for added in store.add_in(mine, [new("a"), new("b")])] == ["a", "b"]
    assert ids(store) == []
    mine.commit()
    assert subscription.wait(PATIENCE)
    subscription.close()
    assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["a", "b"]
    assert orders(mine) == ["pie"]


def test_jobs_go_with_the_callers_rollback(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """What is rolled back was never there, keys included."""
    mine.execute("INSERT INTO shop.orders VALUES ('pie')")
    store.add_in(mine, [new("a", unique_key="k"), new("b")])
    mine.rollback()
    assert (ids(store), orders(mine)) == ([], [])
    assert store.add([new("a", unique_key="k")])[0].is_new


def test_a_refused_job_leaves_the_transaction_as_it_was(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """A duplicate undoes what was added with it, and nothing of the caller's own."""
    store.add([new("there", unique_key="k")])
    mine.execute("INSERT INTO shop.orders VALUES ('pie')")
    for jobs in ([new("x"), new("there")], [new("x"), new("y", unique_key="k")], [new("x")] * 2):
        with pytest.raises(DuplicateJobError):
            store.add_in(mine, jobs)
    store.add_in(mine, [new("fine")])
    mine.commit()
    assert (ids(store), orders(mine)) == (["fine", "there"], ["pie"])


def test_a_job_is_replaced_when_the_caller_commits(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """The holder of a unique key is cancelled with the caller's commit, and not before."""
    store.add([new("old", unique_key="k")])
    [added] = store.add_in(mine, [new("new", unique_key="k", on_duplicate=OnDuplicate.REPLACE)])
    assert added.replaced == "old"
    mine.commit()
    old = store.find("old")
    assert old is not None
    assert old.status is JobStatus.CANCELLED
    assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["new"]


def test_two_transactions_with_one_key(
    store: PostgresJobStore, mine: psycopg.Connection, jobs_url: str
) -> None:
    """Whoever commits second is refused, with the error for a duplicate."""
    store.add_in(mine, [new("a", unique_key="k")])
    with psycopg.connect(jobs_url) as other:
        other.execute("SET lock_timeout = '100ms'")
        with pytest.raises(StoreError):
            store.add_in(other, [new("b", unique_key="k")])
        mine.commit()
        with pytest.raises(DuplicateJobError):
            store.add_in(other, [new("b", unique_key="k")])
    assert ids(store) == ["a"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_key_that_was_taken_since_the_transaction_began(
    store: PostgresJobStore, mine: psycopg.Connection, level: str
) -> None:
    """The job that is there is answered, also when the transaction cannot see it."""
    mine.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    assert orders(mine) == []  # from here on it sees what there was
    store.add([new("there", unique_key="k")])
    existing = new("x", unique_key="k", on_duplicate=OnDuplicate.EXISTING)
    added = store.add_in(mine, [new("y"), existing])
    assert [(each.id, each.is_new) for each in added] == [("y", True), ("there", False)]
    with pytest.raises(DuplicateJobError, match="holds the unique key 'k'") as refused:
        store.add_in(mine, [new("z", unique_key="k", on_duplicate=OnDuplicate.REJECT)])
    assert refused.value.details["id"] == "there"
    mine.commit()
    assert ids(store) == ["y", "there"]


def test_a_job_that_cannot_be_seen_cannot_be_replaced(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """The error says which transaction is older than it, and what to do."""
    mine.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert orders(mine) == []
    store.add([new("there", unique_key="k")])
    with pytest.raises(DuplicateJobError, match=r"cannot see.*REPEATABLE READ.*begin again"):
        store.add_in(mine, [new("z", unique_key="k", on_duplicate=OnDuplicate.REPLACE)])
    mine.commit()
    assert ids(store) == ["there"]


def test_the_callers_habits_do_not_matter(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """Rows as dicts and another search path are the caller's own, before and after."""
    mine.row_factory = dict_row  # type: ignore[assignment]
    pie: list[object] = [{"name": "pie"}]
    mine.execute("SET search_path = shop")
    mine.execute("INSERT INTO orders VALUES ('pie')")
    store.add_in(mine, [new("a", unique_key="k")])
    with pytest.raises(DuplicateJobError):
        store.add_in(mine, [new("a")])
    assert [*mine.execute("SELECT name FROM orders")] == pie
    mine.commit()
    assert ids(store) == ["a"]


def test_a_connection_without_a_transaction_is_refused(
    store: PostgresJobStore, jobs_url: str
) -> None:
    """A connection that commits by itself needs a transaction, and can have one."""
    with psycopg.connect(jobs_url, autocommit=True) as mine:
        with pytest.raises(StoreError, match="no transaction open") as caught:
            store.add_in(mine, [new("a")])
        assert "begin one first" in caught.value.remedy
        with mine.transaction():
            store.add_in(mine, [new("a")])
    assert ids(store) == ["a"]


def test_another_database_is_refused(
    store: PostgresJobStore, postgres_server: PostgresServer
) -> None:
    """Jobs do not end up where no worker of this store would find them."""
    url = postgres_server.new_database()
    PostgresJobStore(url).close()
    with psycopg.connect(url) as other:
        with pytest.raises(StoreError, match="not one to postgresql"):
            store.add_in(other, [new("a")])
        assert other.execute("SELECT count(*) FROM ergon_jobs").fetchall() == [(0,)]
    postgres_server.drop_database(url)


def test_what_is_no_connection_is_refused(store: PostgresJobStore) -> None:
    """The error says what can be given."""
    with pytest.raises(StoreError, match="no connection of psycopg"):
        store.add_in(object(), [new("a")])
    foreign = type("Connection", (), {"__module__": "asyncpg.connection"})()
    with pytest.raises(StoreError, match=r"^asyncpg\.connection\.Connection is no connection of"):
        store.add_in(foreign, [new("a")])


def test_sqlalchemy_connections_and_sessions(store: PostgresJobStore, jobs_url: str) -> None:
    """A connection of SQLAlchemy, and that of a session, are joined like psycopg's own."""
    engine = sqlalchemy.create_engine(jobs_url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.begin() as connection:
            store.add_in(connection, [new("a")])
            assert ids(store) == []
        with Session(engine) as session:
            store.add_in(session.connection(), [new("b")])
            session.rollback()
            store.add_in(session.connection(), [new("c")])
            session.commit()
            store.add_in(session, [new("d")])
            session.rollback()
            store.add_in(session, [new("e")])
            session.commit()
        sessions = scoped_session(sessionmaker(engine))
        store.add_in(sessions, [new("f")])
        sessions.commit()
        sessions.remove()
    finally:
        engine.dispose()
    assert ids(store) == ["f", "e", "c", "a"]


def test_what_sqlalchemy_cannot_lend_says_why(store: PostgresJobStore, jobs_url: str) -> None:
    """Each in words of ours, with what to do."""
    engine = sqlalchemy.create_engine(jobs_url.replace("postgresql:", "postgresql+psycopg:"))
    closed = engine.connect()
    closed.close()
    bare = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with Session(engine, twophase=True) as phased, bare:
        for given, why, remedy in (
            (engine, "Engine is no connection", "engine.begin()"),
            (closed, "This Connection is closed", "one that is open"),
            (Session(), "not bound to a single Engine", "session.connection(…)"),
            (phased, "in two phases", "without twophase=True"),
            (bare, "no transaction open", "not AUTOCOMMIT"),
        ):
            with pytest.raises(StoreError, match=why) as caught:
                store.add_in(given, [new("a")])
            assert remedy in caught.value.remedy
    engine.dispose()
    assert ids(store) == []


def test_a_transaction_in_two_phases_is_refused(store: PostgresJobStore, jobs_url: str) -> None:
    """It could not be prepared; what the caller did in it is left as it was."""
    engine = sqlalchemy.create_engine(jobs_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        with pytest.raises(StoreError, match="in two phases") as caught:
            store.add_in(connection, [new("a")])
        assert "begin_twophase()" in caught.value.remedy
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
        transaction.rollback()
        store.add_in(connection, [new("b")])
        connection.commit()
    engine.dispose()
    assert ids(store) == ["b"]


def test_two_phases_of_the_driver_itself_are_refused(
    store: PostgresJobStore, jobs_url: str
) -> None:
    """Before anything is done that the server would refuse to prepare."""
    with psycopg.connect(jobs_url) as connection:
        connection.tpc_begin("mine")
        with pytest.raises(StoreError, match="in two phases") as caught:
            store.add_in(connection, [new("a")])
        assert "tpc_begin()" in caught.value.remedy
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.tpc_rollback()
        store.add_in(connection, [new("b")])
    assert ids(store) == ["b"]


def test_the_middle_of_a_pipeline_is_refused(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """There a key that somebody else has would be told after the job was said to be stored."""
    mine.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert orders(mine) == []
    store.add([new("there", unique_key="k")])
    key = new("x", unique_key="k", on_duplicate=OnDuplicate.EXISTING)
    with mine.pipeline():
        mine.execute("INSERT INTO shop.orders VALUES ('pie')")
        with pytest.raises(StoreError, match="middle of a pipeline") as caught:
            store.add_in(mine, [key])
        assert "leave connection.pipeline()" in caught.value.remedy
    assert store.add_in(mine, [key])[0].id == "there"
    mine.commit()
    assert orders(mine) == ["pie"]


def test_a_transaction_that_has_failed_is_refused(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """With what helps; after that it can be joined."""
    with pytest.raises(psycopg.errors.DivisionByZero):
        mine.execute("SELECT 1 / 0")
    with pytest.raises(StoreError, match="has failed before") as caught:
        store.add_in(mine, [new("a")])
    assert "roll it back" in caught.value.remedy
    mine.rollback()
    store.add_in(mine, [new("b")])
    mine.commit()
    assert ids(store) == ["b"]


def test_a_session_whose_server_is_away(store: PostgresJobStore) -> None:
    """It is the store that cannot be reached, and the same call may succeed later."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and kept, or another process might listen there
        port = silent.getsockname()[1]
        engine = sqlalchemy.create_engine(f"postgresql+psycopg://ergon@127.0.0.1:{port}/work")
        with (
            Session(engine) as session,
            pytest.raises(StoreUnavailableError, match="Session of SQLAlchemy") as caught,
        ):
            store.add_in(session, [new("a")])
    assert "can be reached" in caught.value.remedy


def test_a_session_whose_connection_is_lost(
    store: PostgresJobStore, mine: psycopg.Connection, jobs_url: str
) -> None:
    """It is told so: what its block raises is our error, and after that it connects anew."""
    engine = sqlalchemy.create_engine(jobs_url.replace("postgresql:", "postgresql+psycopg:"))
    asked = sqlalchemy.text("SELECT pg_backend_pid()")

    def cut_off(session: Session) -> None:
        with session.begin():
            process = session.execute(asked).scalar_one()
            mine.execute("SELECT pg_terminate_backend(%s, 10000)", (process,))
            store.add_in(session, [new("a")])

    with Session(engine) as session:
        with pytest.raises(StoreUnavailableError):
            cut_off(session)
        with session.begin():
            store.add_in(session, [new("b")])
    engine.dispose()
    assert ids(store) == ["b"]


def test_an_asynchronous_connection_is_refused(store: PostgresJobStore, jobs_url: str) -> None:
    """It would have to be awaited."""

    async def lend() -> None:
        async with await psycopg.AsyncConnection.connect(jobs_url) as connection:
            store.add_in(connection, [new("a")])

    with pytest.raises(StoreError, match="AsyncConnection is no connection") as caught:
        asyncio.run(lend())
    assert "not asynchronous" in caught.value.remedy


def test_the_first_thing_on_a_connection_of_sqlalchemy(
    store: PostgresJobStore, jobs_url: str
) -> None:
    """SQLAlchemy commits what it has begun: it hears of a transaction that begins with a job."""
    engine = sqlalchemy.create_engine(jobs_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        store.add_in(connection, [new("first")])
        connection.commit()
        store.add_in(connection, [new("undone")])
        connection.rollback()
        store.add_in(connection, [new("unsaid")])
    engine.dispose()
    assert ids(store) == ["first"]


def test_a_user_with_just_the_rights_it_needs(store: PostgresJobStore, jobs_url: str) -> None:
    """Those that the page on transactions names; a job can be replaced with them, too."""
    with psycopg.connect(jobs_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS shop")
        owner.execute("CREATE ROLE shop LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA public TO shop")
        asked = "SELECT tablename FROM pg_tables WHERE tablename ~ '^ergon_(jobs|job_|queues)'"
        for (name,) in owner.execute(asked).fetchall():
            owner.execute(f"GRANT SELECT, INSERT, UPDATE ON {name} TO shop".encode())
        try:
            with psycopg.connect(jobs_url.replace("ergon@", "shop@")) as connection:
                store.add_in(connection, [new("a", unique_key="u")])
                replacing = new("b", unique_key="u", on_duplicate=OnDuplicate.REPLACE)
                store.add_in(connection, [replacing])
        finally:
            owner.execute("DROP OWNED BY shop")
            owner.execute("DROP ROLE shop")
    assert ids(store) == ["b", "a"]


def test_a_connection_with_other_letters_is_refused(store: PostgresJobStore, jobs_url: str) -> None:
    """Texts would be stored as something else."""
    with (
        psycopg.connect(jobs_url, client_encoding="LATIN1") as connection,
        pytest.raises(StoreError, match="not every text") as told,
    ):
        store.add_in(connection, [new("größe")])
    assert "client_encoding=UTF8" in told.value.remedy
    assert ids(store) == []


def test_a_client_joins_a_transaction(store: PostgresJobStore, mine: psycopg.Connection) -> None:
    """The client's ``connection`` is the caller's, whichever store it has."""
    client = JobClient(store=store)
    job = client.enqueue("work", [1], connection=mine)
    client.enqueue_many(["work", "work"], connection=mine)
    assert ids(store) == []
    mine.commit()
    assert len(ids(store)) == 3
    assert client.status(job) is JobStatus.PENDING


def test_a_long_transaction_keeps_no_job_from_ending(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """A caller that met the holder of a unique key does not hold it up."""
    store.add([new("old", unique_key="k")])
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    [added] = store.add_in(mine, [new("new", unique_key="k", on_duplicate=OnDuplicate.EXISTING)])
    assert added.id == "old"
    told = JobStoreSubject(store, HandClock(), None, PATIENCE).told(job, SUCCEEDED)
    assert store.settle_and_claim([told], None)[0] == [True]
    mine.commit()


def test_a_waiting_job_that_stands_for_the_callers_does_not_begin_before_the_commit(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """It would read the caller's tables as they were, and nobody else would come for the rest."""
    store.add([new("old", unique_key="k", unique=UniqueRule())])
    job = new("new", unique_key="k", unique=UniqueRule(), on_duplicate=OnDuplicate.EXISTING)
    [added] = store.add_in(mine, [job])
    assert added.id == "old"
    assert store.settle_and_claim([], ask(1))[1].jobs == []
    mine.commit()
    assert [job.id for job in store.settle_and_claim([], ask(1))[1].jobs] == ["old"]


@pytest.mark.parametrize("period", [None, 60.0])
def test_a_long_transaction_with_a_rule_keeps_no_job_from_ending(
    store: PostgresJobStore, mine: psycopg.Connection, period: float | None
) -> None:
    """A job that runs is not held up, whether it holds its key or not."""
    states = ("pending",) if period is None else ("pending", "active", "completed")
    rule = UniqueRule(states, period)
    store.add([new("old", unique_key="k", unique=rule)])
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    again = new("new", unique_key="k", unique=rule, on_duplicate=OnDuplicate.EXISTING)
    [added] = store.add_in(mine, [again])
    assert added.is_new == (period is None)
    told = JobStoreSubject(store, HandClock(), None, PATIENCE).told(job, SUCCEEDED)
    assert store.settle_and_claim([told], None)[0] == [True]
    mine.commit()


def test_a_key_of_a_transaction_that_is_rolled_back_is_free(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """Neither the job nor its key stays, and what was extended is as it was."""
    store.add([new("waits", unique_key="w", args=b"[1]", delay=60.0)])
    before = store.find("waits")
    store.add_in(mine, [new("a", unique_key="k", unique=UniqueRule())])
    extending = new("b", unique_key="w", on_duplicate=OnDuplicate.EXTEND, delay=900.0)
    assert [each.id for each in store.add_in(mine, [extending])] == ["waits"]
    mine.rollback()
    assert store.find("waits") == before
    assert store.add([new("c", unique_key="k", unique=UniqueRule())])[0].is_new


@pytest.mark.parametrize("word", [OnDuplicate.EXISTING, OnDuplicate.EXTEND])
def test_a_rule_in_a_transaction_that_sees_the_past(
    store: PostgresJobStore, mine: psycopg.Connection, word: OnDuplicate
) -> None:
    """REPEATABLE READ does not see a holder that came later: it is answered with it, or refused."""
    mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    mine.execute("SELECT count(*) FROM ergon_jobs")
    store.add([new("later", unique_key="k", unique=UniqueRule())])
    job = new("mine", unique_key="k", unique=UniqueRule(), on_duplicate=word)
    if word is OnDuplicate.EXISTING:
        assert store.add_in(mine, [job])[0].id == "later"
    else:
        with pytest.raises(DuplicateJobError, match="cannot see"):
            store.add_in(mine, [job])
    mine.commit()
    assert ids(store) == ["later"]


@pytest.mark.req("SCALE:fleet-clocks")
def test_the_servers_clock_decides(
    store: PostgresJobStore, mine: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose own clock is five minutes off adds, claims and renews in the server's time."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 300.0)
    clock = "SELECT extract(epoch FROM clock_timestamp())::float8"
    [[before]] = mine.execute(clock).fetchall()
    store.add([new("a"), new("later", delay=100.0)])
    store.add_in(mine, [new("b")])
    mine.commit()
    jobs = store.settle_and_claim([], ask(5))[1].jobs
    assert store.renew([hold(job) for job in jobs], 30.0) == [True, True]
    [[after]] = mine.execute(clock).fetchall()
    assert {job.id for job in jobs} == {"a", "b"}
    found = {job.id: job for job in store.search(Search())}
    assert all(before <= job.created_at <= after for job in found.values())
    assert all(before <= job.claimed_at <= after for job in jobs)
    assert before + 30.0 <= (found["a"].lease_expires_at or 0.0) <= after + 30.0
    assert before + 100.0 <= found["later"].run_at <= after + 100.0
    assert store.expired_leases(5) == []


def test_an_open_transaction_holds_no_limit_key(
    store: PostgresJobStore, mine: psycopg.Connection
) -> None:
    """A job with a limit key is replaced, and claims of that key do not wait for the caller."""
    fields = {"unique_key": "u", "limit_key": "k", "limit": 5}
    store.add([new("old", **fields), new("other", limit_key="k", limit=5)])
    store.add_in(mine, [new("new", **fields, on_duplicate=OnDuplicate.REPLACE)])
    [[held]] = mine.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchall()
    assert held == 0
    assert [job.id for job in store.settle_and_claim([], ask(1))[1].jobs] == ["other"]
    mine.commit()
    assert [job.id for job in store.settle_and_claim([], ask(5))[1].jobs] == ["new"]


def test_a_store_that_was_opened_to_be_read_writes_nothing(
    store: PostgresJobStore, mine: psycopg.Connection, jobs_url: str
) -> None:
    """However it is asked to, and it goes on reading."""
    store.add([new("there")])
    with closing(PostgresJobStore(jobs_url, read_only=True)) as reader:
        calls: list[Callable[[], object]] = [
            lambda: reader.add([new("a")]),
            lambda: reader.add_in(mine, [new("a")]),
            lambda: reader.settle_and_claim([], ask(1)),
            lambda: reader.prune(1),
            lambda: reader.set_queue("q", is_paused=True),
        ]
        for call in calls:
            with pytest.raises(StoreReadOnlyError, match="opened to be read"):
                call()
        assert reader.queues()[0].counts == {"pending": 1}
    assert ids(store) == ["there"]
