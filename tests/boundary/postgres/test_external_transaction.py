"""Appending in the caller's own transaction."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text

from ergon_framework.boundary.factstore.postgres import PostgresFactStore, database
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    ConflictingDuplicateError,
    FactInvalidError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    CapacityExceeded,
    Conflict,
    Corruption,
    Reference,
)
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing.suites.factstore.under_test import new, other
from tests.boundary.postgres.conftest import Open
from tests.servers.postgres import PostgresServer

WAIT = 30.0
WAITING = """
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
pytestmark = pytest.mark.req("SCALE:transaction")


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the caller's own, with habits of its own."""
    with psycopg.connect(url, row_factory=dict_row, options="-c search_path=pg_catalog") as one:
        yield one


def ids(store: PostgresFactStore) -> list[str]:
    """What the outbound log keeps."""
    return [each.message_id for each in store.page(OUTBOUND, 0, 1000, 1 << 20).facts]


def test_facts_come_with_the_commit(store: PostgresFactStore, connection: Any) -> None:
    """They are there when the caller commits, in order with others, and wake who waits."""
    woken = threading.Event()
    store.append(OUTBOUND, [new("a")])
    store.subscribe(woken.set)
    assert store.append_in(connection, OUTBOUND, [new("b"), new("a"), other("a")]) == [
        Appended(2),
        Appended(1, True, new("a").envelope),
        Conflict(1, new("a").digest),
    ]
    assert store.append_in(connection, OUTBOUND, [new("c", to_zone="y")]) == [Appended(3)]
    assert ids(store) == ["a"]
    connection.commit()
    assert ids(store) == ["a", "b", "c"]
    assert woken.wait(WAIT)
    assert store.append(OUTBOUND, [new("d")]) == [Appended(4)]
    assert not [each for each in store.verify(OUTBOUND) if isinstance(each, Corruption)]


def test_a_closed_store_appends_nothing(open_store: Open, connection: Any) -> None:
    """Not in a transaction of others either."""
    store = open_store()
    store.close()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        store.append_in(connection, OUTBOUND, [new("a")])
    connection.commit()
    assert ids(open_store()) == []


def test_a_rollback_leaves_nothing(store: PostgresFactStore, connection: Any) -> None:
    """No fact, no id and no hole in the offsets."""
    store.append_in(connection, OUTBOUND, [new("a")])
    connection.rollback()
    assert store.find("plant-a", "a") is None
    assert store.append(OUTBOUND, [new("b")]) == [Appended(1)]


def test_an_error_undoes_only_the_append(store: PostgresFactStore, connection: Any) -> None:
    """The caller's transaction is as good as before."""
    connection.execute("CREATE TEMPORARY TABLE orders (id integer)")
    connection.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(StoreError, match="index row"):
        store.append_in(connection, OUTBOUND, [new("a", to_zone=os.urandom(3000).hex())])
    assert store.append_in(connection, OUTBOUND, [new("b")]) == [Appended(1)]
    connection.commit()
    assert connection.execute("SELECT count(*) AS n FROM orders").fetchone() == {"n": 1}
    assert ids(store) == ["b"]


def test_capacity_and_references(store: PostgresFactStore, connection: Any) -> None:
    """Both are looked at as they are everywhere."""
    reference = Reference("files", "k", bytes(32), 3)
    store.bind("files", "k", bytes(32), 3)
    full, added = (
        store.append_in(connection, OUTBOUND, [new("a")], capacity=1),
        store.append_in(connection, OUTBOUND, [new("b", references=(reference,))]),
    )
    connection.commit()
    assert (full, added) == ([CapacityExceeded(0)], [Appended(1)])
    kept = store.object("files", "k")
    assert kept is not None
    assert kept.is_referenced


def test_sqlalchemy(store: PostgresFactStore, url: str) -> None:
    """A connection of SQLAlchemy does as well."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as link:
            link.execute(text("SELECT 1"))
            assert store.append_in(link, OUTBOUND, [new("a")]) == [Appended(1)]
        with engine.connect() as link:
            store.append_in(link, OUTBOUND, [new("b")])  # and no commit
    finally:
        engine.dispose()
    assert ids(store) == ["a"]


def test_the_middle_of_a_pipeline_is_refused(store: PostgresFactStore, connection: Any) -> None:
    """What the server says of a fact would come after it was said to be appended."""
    with connection.pipeline(), pytest.raises(StoreError, match="middle of a pipeline"):
        store.append_in(connection, OUTBOUND, [new("a")])
    assert store.append_in(connection, OUTBOUND, [new("b")]) == [Appended(1)]
    connection.commit()
    assert ids(store) == ["b"]


def test_two_phases_of_the_driver_are_refused(store: PostgresFactStore, connection: Any) -> None:
    """A transaction that wakes readers cannot be prepared; the caller's own work is left alone."""
    connection.tpc_begin("mine")
    with pytest.raises(StoreError, match="in two phases"):
        store.append_in(connection, OUTBOUND, [new("a")])
    assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    connection.tpc_rollback()
    assert store.append_in(connection, OUTBOUND, [new("b")]) == [Appended(1)]
    connection.commit()
    assert ids(store) == ["b"]


def test_connections_that_do_not_serve(
    store: PostgresFactStore, url: str, postgres_server: PostgresServer, zone: str
) -> None:
    """No transaction, another database, something else: each is refused with what to do."""
    with (
        psycopg.connect(url, autocommit=True) as bare,
        pytest.raises(StoreError, match="no transaction"),
    ):
        store.append_in(bare, OUTBOUND, [new("a")])
    with pytest.raises(StoreError, match="no connection of psycopg"):
        store.append_in(object(), OUTBOUND, [new("a")])
    elsewhere = postgres_server.new_database()
    with psycopg.connect(elsewhere) as other_one, pytest.raises(StoreError):
        store.append_in(other_one, OUTBOUND, [new("a")])
    PostgresFactStore(elsewhere, zone=zone).close()
    with (
        psycopg.connect(elsewhere) as other_one,
        pytest.raises(StoreError, match="another store"),
    ):
        store.append_in(other_one, OUTBOUND, [new("a")])
    postgres_server.drop_database(elsewhere)
    with psycopg.connect(url, autocommit=True) as bare, bare.transaction():
        assert store.append_in(bare, OUTBOUND, [new("a")]) == [Appended(1)]
    assert ids(store) == ["a"]


def test_what_the_caller_can_do_is_said(
    store: PostgresFactStore, url: str, postgres_server: PostgresServer
) -> None:
    """The connection is the caller's: how the server of the store is does not help."""
    store.append(OUTBOUND, [new("a")])
    with psycopg.connect(url) as gone:
        gone.close()
        with pytest.raises(StoreError, match="the connection is closed") as caught:
            store.append_in(gone, OUTBOUND, [new("b")])
        assert "connect again" in (caught.value.remedy or "")
    elsewhere = postgres_server.new_database()
    try:
        with psycopg.connect(elsewhere) as other_one:
            with pytest.raises(StoreError, match="database of the connection lacks") as caught:
                store.append_in(other_one, OUTBOUND, [new("b")])
            assert "connect to the database of the store" in (caught.value.remedy or "")
    finally:
        postgres_server.drop_database(elsewhere)
    with psycopg.connect(url) as late:
        late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        late.execute("SELECT 1")
        store.append(OUTBOUND, [new("c")])
        with pytest.raises(StoreError, match="could not serialize") as caught:
            store.append_in(late, OUTBOUND, [new("b")])
        assert "begin the transaction again" in (caught.value.remedy or "")
    assert ids(store) == ["a", "c"]


def test_others_wait_for_the_commit(open_store: Open, connection: Any, url: str) -> None:
    """Who appends meanwhile gets the offset behind it."""
    store = open_store()
    store.append(OUTBOUND, [new("a")])
    store.append_in(connection, OUTBOUND, [new("b")])
    answers: Queue[Any] = Queue()
    store.append_soon(OUTBOUND, [new("c")], answers.put)
    with psycopg.connect(url, autocommit=True) as watcher:
        while not watcher.execute(WAITING).fetchone():
            assert answers.empty()
    connection.commit()
    assert answers.get(timeout=WAIT) == [Appended(3)]


# ---- through a zone -----------------------------------------------------------------------------

ENVELOPE = {
    "message_id": "m-1",
    "from_zone": "plant-a",
    "to_zone": "plant-b",
    "produced_at_unix_ms": 1,
}
FACT = {"subject": "order:1", "predicate": "paid", "object_json": {"total": 5}}


@pytest.fixture
def zone_at(store: PostgresFactStore) -> LocalZone:
    """A zone on the store."""
    return LocalZone("plant-a", store, MemoryObjectStore())


def test_a_zone_checks_at_the_edge(zone_at: LocalZone, connection: Any) -> None:
    """A good fact has a receipt, the same again as well, and others are refused as everywhere."""
    first = zone_at.append_in(connection, ENVELOPE, FACT)
    again = zone_at.append_in(connection, ENVELOPE, FACT)
    assert (first.offset, first.duplicate, again.offset, again.duplicate) == (1, False, 1, True)
    with pytest.raises(ConflictingDuplicateError):
        zone_at.append_in(connection, ENVELOPE, FACT | {"predicate": "cancelled"})
    with pytest.raises(FactInvalidError):
        zone_at.append_in(connection, ENVELOPE, {"subject": "x"})
    with pytest.raises(StoreError, match="no connection of psycopg") as told:
        zone_at.append_in(object(), ENVELOPE | {"message_id": "m-2"}, FACT)
    assert type(told.value) is StoreError, "a mistake of the caller's is no outage"
    connection.commit()
    assert zone_at.lookup("plant-a", "m-1")["offset"] == 1


def test_a_zone_elsewhere_refuses(tmp_path: Path, connection: Any) -> None:
    """A store in a file takes part in nobody's transaction on a server."""
    with (
        LocalZone.open("plant-a", ZoneSettings(data=str(tmp_path))) as zone,
        pytest.raises(ConfigurationError, match="no transaction of others"),
    ):
        zone.append_in(connection, ENVELOPE, FACT)


@pytest.mark.req("BOUNDARY:store")
@pytest.mark.parametrize("first", ["fact", "name"])
def test_a_name_that_is_bound_while_its_fact_comes_in_is_kept(
    store: PostgresFactStore,
    open_store: Open,
    connection: Any,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
) -> None:
    """Neither transaction sees the other, and each commits: the artifact is referenced anyway."""
    refers = new("a", references=(Reference("files", "k", bytes(32), 3),), needs_artifacts=False)
    if first == "fact":
        store.append_in(connection, OUTBOUND, [refers])
        store.bind("files", "k", bytes(32), 3)
        connection.commit()
    else:
        rival = open_store()

        def meanwhile(name: str) -> None:
            if name == "boundary.bind.before":
                assert rival.append(OUTBOUND, [refers]) == [Appended(1)]

        monkeypatch.setattr(database, "failpoint", meanwhile)
        store.bind("files", "k", bytes(32), 3)
    kept = store.object("files", "k")
    assert kept is not None
    assert kept.is_referenced
    assert [each.is_referenced for each in store.objects("files")] == [True]
    assert store.orphans(float("inf")) == []
    with pytest.raises(BoundaryError, match="a fact refers to files/k"):
        store.unbind("files", "k")
