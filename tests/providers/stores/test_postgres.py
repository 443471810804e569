"""What is special about a server: connections that die, and that there are only so many."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import ClaimState, RecordBatch
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.stores.sql.keys_and_dead_letters import KeyTable
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from ergon_framework.storage.deadlines import PROVIDER_BUDGET, SocketWatchdog
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt
from tests.servers.postgres import PostgresServer

TIMEOUT = 20.0
"""Seconds that a test waits for what must come."""

pytestmark = [pytest.mark.slow, pytest.mark.req("PROVIDERS:storage")]


@pytest.fixture
def ticks() -> HandClock:
    """What the store takes for the time that passes."""
    return HandClock(100.0)


class Leap:
    """The watchdog's time: armed, it leaps ahead once the test waits, which then waits in vain.

    Waits that begin after the leap have all the time that they are given, as a busy machine needs.
    """

    def __init__(self) -> None:
        self.is_armed = False
        self._ahead = 0.0
        self._is_awaited = False

    def __call__(self) -> float:
        if not self.is_armed:
            return time.monotonic()
        if threading.current_thread() is threading.main_thread():
            self._is_awaited = True
        elif self._is_awaited:
            self._ahead = 3600.0
        return time.monotonic() + self._ahead


@pytest.fixture
def leap() -> Leap:
    """The time of the watchdog over the store's connections."""
    return Leap()


@pytest.fixture
def server_store(
    postgres_server: PostgresServer,
    postgres_template: str,
    clock: HandClock,
    ticks: HandClock,
    leap: Leap,
) -> Iterator[SqlProviderStore]:
    """A store on a server."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    url = postgres_server.new_database(postgres_template)
    database = PostgresProviderDatabase(
        database_of(url), clock, ticks, watchdog=SocketWatchdog(leap)
    )
    store = SqlProviderStore(database)
    yield store
    store.close()
    postgres_server.drop_database(url)


@pytest.fixture
def cut(postgres_server: PostgresServer) -> Callable[[], None]:
    """Ends every connection to the databases of tests."""
    import psycopg

    def act() -> None:
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname LIKE 'test_%'"
            )

    return act


def test_a_connection_that_died_at_rest_is_replaced(
    server_store: SqlProviderStore, ticks: HandClock, cut: Callable[[], None]
) -> None:
    """It is asked before it is used: the write that comes next does not notice."""
    server_store.extend_cooldown(LANE, START + 1)
    cut()
    ticks.at += 60
    assert server_store.extend_cooldown(LANE, START + 2) == START + 2


def test_a_connection_that_dies_in_use_is_doubted(
    server_store: SqlProviderStore, cut: Callable[[], None]
) -> None:
    """Whether the write was made nobody knows: it is not made again, and the next one works."""
    server_store.extend_cooldown(LANE, START + 1)
    cut()
    with pytest.raises(StoreUnavailableError):
        server_store.extend_cooldown(LANE, START + 2)
    assert server_store.extend_cooldown(LANE, START + 3) == START + 3


def test_a_look_is_taken_again(server_store: SqlProviderStore, cut: Callable[[], None]) -> None:
    """Reading twice does no harm, so that nobody hears of a connection that was lost."""
    server_store.extend_cooldown(LANE, START + 1)
    cut()
    assert server_store.lane_state(LANE).cooldown_until == START + 1


def test_connections_are_bounded(postgres_url: str, clock: HandClock) -> None:
    """A caller that finds no free connection in time is told so."""
    from ergon_framework.providers.stores.postgres import PostgresLimits, PostgresProviderDatabase

    limits = PostgresLimits(pool_size=1, pool_overflow=0, checkout_timeout=0.05)
    database = PostgresProviderDatabase(database_of(postgres_url), clock, limits=limits)
    store = SqlProviderStore(database)
    with pytest.raises(StoreUnavailableError, match="all 1 connections"):
        store.database.read(lambda cursor: store.lane_state(LANE))
    assert store.extend_cooldown(LANE, START) == START
    store.close()


def test_an_interrupted_transaction_leaves_nothing(server_store: SqlProviderStore) -> None:
    """Whatever stops the work, its connection is not given to anybody else."""

    def work(cursor: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server_store.database.write("cool", work)
    server_store.record(RecordBatch([attempt()]))
    assert len(server_store.health(LANE.tenant_id)) == 1


def test_a_key_that_somebody_takes_at_the_same_time(server_store: SqlProviderStore) -> None:
    """Found missing and then there: it is looked at again."""

    class Late:
        """A cursor whose first look finds nothing."""

        def __init__(self, cursor: object) -> None:
            self._cursor = cursor
            self.looks = 0

        def fetch(self, sql: str, values: object) -> list[object]:
            self.looks += 1
            found: list[object] = self._cursor.fetch(sql, values)  # type: ignore[attr-defined]
            return [] if self.looks == 1 else found

        def execute(self, sql: str, values: object) -> int:
            count: int = self._cursor.execute(sql, values)  # type: ignore[attr-defined]
            return count

    class LateDatabase:
        """The database, with such cursors."""

        now, to_db_time = server_store.database.now, server_store.database.to_db_time

        def write(self, call: str, work: Callable[[Any], Any], **options: bool) -> Any:
            return server_store.database.write(call, lambda cursor: work(Late(cursor)), **options)

    server_store.claim("tenant", "key", "print", "one", 10, 100)
    late: Any = LateDatabase()
    found = KeyTable(late).claim("tenant", "key", "print", "two", 10, 100)
    assert found.state is ClaimState.RUNNING


def test_a_server_that_freezes_is_not_waited_for(
    server_store: SqlProviderStore, leap: Leap
) -> None:
    """It keeps its side of the connection open and says nothing: the call ends all the same."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    database = server_store.database
    assert isinstance(database, PostgresProviderDatabase)
    [[pid]] = database.read(lambda cursor: cursor.fetch("SELECT pg_backend_pid()", {}))
    leap.is_armed = True
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match="did not answer within 4 seconds"):
            server_store.extend_cooldown(LANE, START + 1)
        with pytest.raises(StoreUnavailableError, match="a moment ago"):
            server_store.lane_state(LANE)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_call_in_a_hurry_waits_no_longer_than_it_can(server_store: SqlProviderStore) -> None:
    """That says nothing about the server: those with more time ask it all the same."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    database = server_store.database
    assert isinstance(database, PostgresProviderDatabase)
    [[pid]] = database.read(lambda cursor: cursor.fetch("SELECT pg_backend_pid()", {}))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.5 seconds"):
            PROVIDER_BUDGET.run_within(0.0, lambda: server_store.extend_cooldown(LANE, START + 1))
        assert server_store.extend_cooldown(LANE, START + 1) == START + 1
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_connection_that_does_not_come_in_time_is_closed_when_it_does() -> None:
    """Whoever wanted it is told to go on without; one that comes at once is handed over."""
    from ergon_framework.storage.postgres.pool import connect_within

    goes_on, is_closed = threading.Event(), threading.Event()

    class Connection:
        def close(self) -> None:
            is_closed.set()

    def slow() -> Connection:
        assert goes_on.wait(TIMEOUT)
        return Connection()

    with pytest.raises(psycopg.OperationalError, match="no connection within"):
        connect_within(slow, 0.0)
    goes_on.set()
    assert is_closed.wait(TIMEOUT)
    assert isinstance(connect_within(Connection, TIMEOUT), Connection)

    def refuse() -> Connection:
        raise psycopg.OperationalError("no")

    with pytest.raises(psycopg.OperationalError, match=r"^no$"):
        connect_within(refuse, TIMEOUT)


def test_a_connection_that_froze_at_rest_is_replaced(
    server_store: SqlProviderStore, ticks: HandClock, leap: Leap
) -> None:
    """Asking it whether it lives takes no longer than that."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    database = server_store.database
    assert isinstance(database, PostgresProviderDatabase)
    [[pid]] = database.read(lambda cursor: cursor.fetch("SELECT pg_backend_pid()", {}))
    leap.is_armed = True
    ticks.at += 60
    os.kill(pid, signal.SIGSTOP)
    try:
        assert server_store.extend_cooldown(LANE, START + 1) == START + 1
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_network_is_watched_unless_the_url_says_otherwise(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is told how soon to notice that a cable was cut."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    seen: list[dict[str, Any]] = []
    connect = psycopg.connect

    def watched(*given: Any, **options: Any) -> Any:
        seen.append(options)
        return connect(*given, **options)

    monkeypatch.setattr(psycopg, "connect", watched)
    PostgresProviderDatabase(database_of(f"{postgres_url}&connect_timeout=9")).close()
    assert {int(each["connect_timeout"]) for each in seen} == {9}
    assert all({"tcp_user_timeout", "keepalives", "keepalives_idle"} <= set(each) for each in seen)


@pytest.mark.parametrize(
    ("options", "lock", "statement"),
    [("", "1s", "10s"), ("&options=-c%20lock_timeout%3D40s", "40s", "10s")],
)
def test_timeouts_of_a_session_unless_the_url_says_otherwise(
    postgres_url: str, options: str, lock: str, statement: str
) -> None:
    """A row that is locked is not waited for by default; ``options`` in the URL go before that."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    with closing(PostgresProviderDatabase(database_of(postgres_url + options))) as database:
        found = database.read(
            lambda cursor: [
                cursor.fetch(f"SHOW {each}_timeout", {}) for each in ("lock", "statement")
            ]
        )
        assert found == [[(lock,)], [(statement,)]]
