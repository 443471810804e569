"""A PostgreSQL table as a connector, on a real server."""

# ruff: noqa: S608 - tables are named by the test itself

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from ergon_framework.connector.broker.registry import from_url
from ergon_framework.connector.postgres import ConflictingRowError, PostgresConnector
from ergon_framework.errors import ConfigurationError, ErgonError, PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import exercise_connector
from tests.campaign.parameter_sample import sampled
from tests.connectors.postgres.tables import (
    LEASED,
    LEASED_COLUMNS,
    NUMBERED,
    NUMBERED_COLUMNS,
    OUTBOX,
    SuiteTables,
    execute,
    new_table,
)
from tests.connectors.recorded_results import check_recorded
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer, name_of
from tests.waiting import until

JOBS = "id text PRIMARY KEY, payload jsonb, status text, error text"


@pytest.mark.slow
@pytest.mark.parametrize("colour", sampled(["sync", "async"], ["sync"]))
def test_the_suite_is_passed_with_leases(
    postgres_server: PostgresServer, postgres_url: str, colour: Any
) -> None:
    """Everything a connector promises, on a table that keeps what is done."""
    subject = SuiteTables(
        postgres_server, postgres_url, LEASED, columns=LEASED_COLUMNS, keep=True, lease=1.0
    )
    report = exercise_connector(
        subject.make,
        colour=colour,
        dead_letters=subject.dead,
        ids="unique",
        order="strict",
        faults=subject.faults,
        patience=20.0,
    )
    report.raise_for_failures(recommended=True)
    check_recorded("postgres", report)


@pytest.mark.slow
@pytest.mark.campaign
def test_the_suite_is_passed_with_other_columns(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """The same on a table with columns of its own names, whose ids the server makes up."""
    subject = SuiteTables(
        postgres_server, postgres_url, NUMBERED, columns=NUMBERED_COLUMNS, lease=1.0
    )
    report = exercise_connector(
        subject.make,
        colour="sync",
        dead_letters=subject.dead,
        order="strict",
        faults=subject.faults,
    )
    report.raise_for_failures(recommended=True)


@pytest.mark.slow
@pytest.mark.parametrize("colour", sampled(["sync", "async"], ["async"]))
def test_the_suite_is_passed_by_one_reader(
    postgres_server: PostgresServer, postgres_url: str, colour: Any
) -> None:
    """The same on an outbox without leases, which one reader has."""
    subject = SuiteTables(postgres_server, postgres_url, OUTBOX, columns="headers")
    report = exercise_connector(
        subject.make,
        colour=colour,
        dead_letters=subject.dead,
        order="strict",
        faults=subject.faults,
        patience=20.0,
    )
    report.raise_for_failures(recommended=True)
    check_recorded("postgres without leases", report)


@pytest.mark.slow
def test_a_pooler_in_transaction_mode_will_do(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A fetch waits, what is inserted comes, and leases are renewed and settled."""
    pooler = Pooler(postgres_server.folder, is_session=False, is_fair=True)
    url = f"postgresql://ergon@127.0.0.1:{pooler.port}/{name_of(postgres_url)}?pooler=transaction"
    table = new_table(postgres_url, LEASED)
    try:
        with (
            PostgresConnector(url, table=table, columns=LEASED_COLUMNS, lease=0.6) as connector,
            ThreadPoolExecutor(1) as pool,
        ):
            fetching = pool.submit(connector.fetch_transactions, 5, wait=60.0)
            connector.dispatch_transactions([Transaction("t1", 1), Transaction("t2", 2)])
            first, *others = fetching.result(30)
            assert not threading.Event().wait(1.0)  # longer than the lease
            connector.ack(first)
            for each in others:
                connector.release(each)
    finally:
        pooler.close()
    assert execute(postgres_url, f"SELECT id FROM {table}") == [("t2",)]


@pytest.mark.slow
@pytest.mark.campaign
def test_the_suite_is_passed_behind_a_pooler(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """With leases no session is needed: a pooler may give each transaction another connection."""
    pooler = Pooler(postgres_server.folder, is_session=False, is_fair=True)
    url = f"postgresql://ergon@127.0.0.1:{pooler.port}/{name_of(postgres_url)}"

    def make() -> PostgresConnector:
        table = new_table(postgres_url, NUMBERED, dead=True)
        return PostgresConnector(
            url,
            table=table,
            columns=NUMBERED_COLUMNS,
            dead_letters=f"{table}_dead",
            pooler="transaction",
        )

    try:
        report = exercise_connector(make, colour="sync", order="strict")
    finally:
        pooler.close()
    report.raise_for_failures(recommended=True)


# ---- what the table must have -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match", "remedy"),
    [
        ({"columns": "stauts"}, "no role 'stauts'", "did you mean status"),
        ({"columns": "lease"}, "names one of them", "ADD COLUMN lease text"),
        ({"columns": "attempts"}, "names no lease", "name lease and visible_at"),
        ({"columns": "status="}, "no column for 'status'", "headers"),
        ({"keep": True}, "no column says that they are", 'columns="status"'),
        ({"statuses": "a, b"}, "statuses is", "pending, done, dead"),
        ({"lease": 0.0}, "lease must be above 0, not 0", "more than 0"),
        ({"table": ""}, "needs a table", "shop.orders"),
        ({"pooler": "transaction"}, "has no leases", "lease, visible_at"),
        ({"format": "xml"}, "format is json, text or bytes", "json"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: dict[str, Any], match: str, remedy: str
) -> None:
    """Without a connection, and with what to write instead."""
    with pytest.raises(ConfigurationError, match=match) as caught:
        PostgresConnector("postgresql://ergon:hunter2@h/d", **{"table": "orders", **options})
    assert remedy in (caught.value.remedy or "")
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "roles", "match", "remedy"),
    [
        ("id text, payload jsonb, status text", "status", "no unique", "CREATE UNIQUE INDEX"),
        ("id text PRIMARY KEY, status text", "status", "no column 'payload'", "ADD COLUMN"),
        ("id text PRIMARY KEY, payload int", "", "is integer, which no payload", "jsonb, json"),
        (
            "id text PRIMARY KEY, payload jsonb, lease text NOT NULL, visible_at timestamptz",
            "lease, visible_at",
            "NOT NULL",
            "DROP NOT NULL",
        ),
        (JOBS.replace("status text,", ""), "error", "nowhere to go", "dead_letters="),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    postgres_url: str, columns: str, roles: str, match: str, remedy: str
) -> None:
    """The first use says which column is wrong, with the statement that repairs it."""
    table = new_table(postgres_url, columns)
    with (
        PostgresConnector(postgres_url, table=table, columns=roles) as connector,
        pytest.raises(ConfigurationError, match=match) as caught,
    ):
        connector.fetch_transactions(1)
    assert remedy in (caught.value.remedy or "")


@pytest.mark.slow
def test_a_missing_table_is_told_with_the_statement_that_makes_it(postgres_url: str) -> None:
    """The statement works when it is pasted."""
    connector = PostgresConnector(postgres_url, table="new_orders", columns=LEASED_COLUMNS)
    with pytest.raises(ConfigurationError, match="no table 'new_orders'") as caught:
        connector.fetch_transactions(1)
    execute(postgres_url, (caught.value.remedy or "").partition(": ")[2])
    with connector:
        connector.dispatch_transactions([Transaction("t1", {"n": 1})])
        assert [each.transaction_id for each in connector.fetch_transactions(5)] == ["t1"]


@pytest.mark.slow
def test_rows_of_other_programs_are_work(postgres_url: str) -> None:
    """A whole row is the payload, its key the id; a schema and odd names are quoted."""
    execute(postgres_url, 'CREATE SCHEMA "My Shop"')
    execute(
        postgres_url,
        'CREATE TABLE "My Shop"."Order %" ("No." int PRIMARY KEY, sku text, "st""ate" text)',
    )
    execute(postgres_url, """INSERT INTO "My Shop"."Order %" VALUES (7, 'a-1', 'new')""")
    with PostgresConnector(
        postgres_url,
        table="My Shop.Order %",
        columns='id=No., payload=*, status=st"ate',
        statuses="new, shipped, failed",
        keep=True,
    ) as connector:
        assert connector.get_transactions_count() == 1
        (found,) = connector.fetch_transactions(5)
        assert (found.transaction_id, found.payload) == ("7", {"No.": 7, "sku": "a-1"})
        connector.ack(found)
        with pytest.raises(ConfigurationError, match="a whole row"):
            connector.dispatch_transactions([Transaction("t1", 1)])
    [(state,)] = execute(postgres_url, 'SELECT "st""ate" FROM "My Shop"."Order %"')
    assert state == "shipped"


@pytest.mark.slow
def test_a_url_makes_a_connector(postgres_server: PostgresServer, postgres_url: str) -> None:
    """The options stand in the URL, those of the driver beside those of the connector."""
    table = new_table(postgres_url, JOBS)
    where = f"postgresql://ergon@/{name_of(postgres_url)}?host={postgres_server.folder}"
    with from_url(f"{where}&table={table}&columns=status,error&keep=yes") as connector:
        connector.dispatch_transactions([Transaction("t1", {"n": 1})])
        (found,) = connector.fetch_transactions(5)
        connector.ack(found)
    assert execute(postgres_url, f"SELECT id, status FROM {table}") == [("t1", "done")]


# ---- producing ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dispatch_in_the_callers_transaction(postgres_url: str) -> None:
    """The row is there when the caller commits, and is gone when the caller rolls back."""
    table = new_table(postgres_url, JOBS)
    with (
        PostgresConnector(postgres_url, table=table, columns="status, error") as connector,
        psycopg.connect(postgres_url) as mine,
    ):
        connector.dispatch_transactions([Transaction("lost", 1)], connection=mine)
        mine.rollback()
        connector.dispatch_transactions([Transaction("kept", 2)], connection=mine)
        assert connector.get_transactions_count() == 0
        mine.commit()
        asyncio.run(_dispatch(connector, Transaction("async", 3), mine))
        mine.commit()
        assert connector.get_transactions_count() == 2
        mine.execute("SELECT 1")
        with pytest.raises(ConflictingRowError, match="'kept'"):
            connector.dispatch_transactions([Transaction("kept", 4)], connection=mine)
        mine.execute("SELECT 1")  # what was refused did not spoil the caller's transaction
        mine.commit()
        fetched = connector.fetch_transactions(5)
    assert [each.transaction_id for each in fetched] == ["async", "kept"]


async def _dispatch(connector: Any, transaction: Transaction, connection: Any) -> None:
    await connector.dispatch_transactions_async([transaction], connection=connection)


@pytest.mark.slow
def test_what_jsonb_cannot_keep_is_refused(postgres_url: str) -> None:
    """A NUL character is refused before anything is stored, with the id of its transaction."""
    table = new_table(postgres_url, JOBS)
    with PostgresConnector(postgres_url, table=table, columns="status") as connector:
        with pytest.raises(PayloadError, match="'bad' has a NUL"):
            connector.dispatch_transactions([Transaction("good", 1), Transaction("bad", "a\0b")])
        connector.dispatch_transactions([Transaction("fine", r"\u0000")])
        assert [each.payload for each in connector.fetch_transactions(5)] == [r"\u0000"]


# ---- consuming ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fetch_is_woken_and_does_not_poll(postgres_url: str) -> None:
    """While it waits, the server hears nothing of it; an insert by anybody wakes it."""
    table = new_table(postgres_url, LEASED)
    busy = (
        "SELECT max(query_start) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    with (
        PostgresConnector(postgres_url, table=table, columns=LEASED_COLUMNS) as connector,
        ThreadPoolExecutor(1) as pool,
    ):
        fetching = pool.submit(connector.fetch_transactions, 5, wait=60.0)
        seen: list[Any] = [None]

        def is_silent() -> bool:
            seen.append(execute(postgres_url, busy)[0][0])
            is_connected = seen[-1] is not None
            return is_connected and seen[-1] == seen[-2] and not threading.Event().wait(0.5)

        until(is_silent, "a second without a statement")
        assert execute(postgres_url, busy)[0][0] == seen[-1]
        execute(
            postgres_url, f"INSERT INTO {table} (id, payload) VALUES ('t1', '1'); NOTIFY {table}"
        )
        assert [each.transaction_id for each in fetching.result(4)] == ["t1"]
        stopped = pool.submit(connector.fetch_transactions, 5, wait=60.0)

        def is_stopped() -> bool:
            connector.stop_waiting()
            return stopped.done()

        until(is_stopped, "the stop")
        assert stopped.result() == []


@pytest.mark.slow
def test_what_is_in_flight_is_bounded(postgres_url: str) -> None:
    """A fetch claims no more rows than there is room for, in number and bytes."""
    table = new_table(postgres_url, LEASED)
    given: dict[str, Any] = {"table": table, "columns": LEASED_COLUMNS}
    with PostgresConnector(postgres_url, **given, max_in_flight_bytes=3000) as connector:
        sizes = [1000] * 6 + [10_000]
        rows = [Transaction(f"t{n}", "x" * size) for n, size in enumerate(sizes)]
        connector.dispatch_transactions(rows)
        assert len(connector.fetch_transactions(10)) == 3
    with PostgresConnector(postgres_url, **given, max_in_flight=2) as connector:
        first = connector.fetch_transactions(10)
        assert len(first) == 2
        with ThreadPoolExecutor(1) as pool:
            fetching = pool.submit(connector.fetch_transactions, 10)
            assert not threading.Event().wait(0.2)
            assert not fetching.done()
            connector.ack(first[0])
            assert len(fetching.result(30)) == 1


@pytest.mark.slow
def test_what_kills_its_consumer_is_set_aside(postgres_url: str) -> None:
    """Claimed more often than max_deliveries without an outcome; a release does not count."""
    table = new_table(postgres_url, LEASED)
    given: dict[str, Any] = {"table": table, "columns": LEASED_COLUMNS, "max_deliveries": 2}
    with PostgresConnector(postgres_url, **given) as connector:
        connector.dispatch_transactions([Transaction("poison", 1)])
        for _ in range(5):
            (found,) = connector.fetch_transactions(1)
            connector.release(found)
        for _ in range(2):
            assert len(connector.fetch_transactions(1)) == 1
            execute(postgres_url, f"UPDATE {table} SET visible_at = now()")  # its consumer died
        assert connector.fetch_transactions(1) == []
    assert execute(postgres_url, f"SELECT status, error FROM {table}") == [
        ("dead", "delivered 2 times without an outcome")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("headers", ["not json", "[" * 50_000, "[1]"])
def test_headers_that_are_no_object_stop_no_row(postgres_url: str, headers: str) -> None:
    """Another program wrote them into a column of text: its row is delivered without them."""
    table = new_table(postgres_url, LEASED.replace("headers json", "headers text"))
    insert = f"INSERT INTO {table} (id, payload, headers) VALUES (%s, '1', %s)"
    execute(postgres_url, insert, ("odd", headers))
    execute(postgres_url, insert, ("plain", '{"x-shop": "berlin"}'))
    with PostgresConnector(postgres_url, table=table, columns=LEASED_COLUMNS) as connector:
        found = connector.fetch_transactions(5)
        assert [each.transaction_id for each in found] == ["odd", "plain"]
        assert [dict(each.metadata) for each in found] == [{}, {"headers": {"x-shop": "berlin"}}]


@pytest.mark.slow
def test_attempts_that_were_never_written_count_from_nothing(postgres_url: str) -> None:
    """Another program inserted NULL: the row is delivered, and its deliveries are counted."""
    table = new_table(postgres_url, LEASED)
    execute(postgres_url, f"INSERT INTO {table} (id, payload, attempts) VALUES ('t1', '1', NULL)")
    given: dict[str, Any] = {"table": table, "columns": LEASED_COLUMNS, "max_deliveries": 2}
    with PostgresConnector(postgres_url, **given) as connector:
        for _ in range(2):
            assert len(connector.fetch_transactions(1)) == 1
            execute(postgres_url, f"UPDATE {table} SET visible_at = now()")  # its consumer died
        assert connector.fetch_transactions(1) == []
    assert execute(postgres_url, f"SELECT status FROM {table}") == [("dead",)]


@pytest.mark.slow
def test_an_empty_fetch_looks_when_the_next_row_is_due(postgres_url: str) -> None:
    """A parked row wakes nobody: the fetch that waits comes back for it."""
    table = new_table(postgres_url, LEASED)
    with PostgresConnector(postgres_url, table=table, columns=LEASED_COLUMNS) as connector:
        connector.dispatch_transactions([Transaction("t1", 1)])
        (found,) = connector.fetch_transactions(1)
        connector.release_after(found, 0.3)
        assert connector.fetch_transactions(1, wait=0.0) == []
        assert [each.transaction_id for each in connector.fetch_transactions(1, wait=60.0)] == [
            "t1"
        ]


@pytest.mark.slow
def test_rows_come_back_when_one_of_them_cannot_be_set_aside(postgres_url: str) -> None:
    """A fetch that fails between two rows keeps none of them from the next one."""
    table = new_table(postgres_url, OUTBOX, dead=True)
    execute(postgres_url, f"ALTER TABLE {table}_dead RENAME error TO reason")
    given: dict[str, Any] = {"columns": "headers", "dead_letters": f"{table}_dead"}
    execute(postgres_url, f"INSERT INTO {table} (payload) VALUES ('1'), ('{{'), ('3')")
    with PostgresConnector(postgres_url, table=table, **given) as connector:
        with pytest.raises(ErgonError, match="error"):
            connector.fetch_transactions(5)
        execute(postgres_url, f"ALTER TABLE {table}_dead RENAME reason TO error")
        came = [each.payload for each in connector.fetch_transactions(5)]
        assert came == [1, 3]
        assert connector.malformed == 1


@pytest.mark.slow
def test_doctor_sees_the_table(postgres_url: str) -> None:
    """Its roles, and that rows which fail have nowhere to go."""
    table = new_table(postgres_url, LEASED)
    with PostgresConnector(postgres_url, table=table, columns=LEASED_COLUMNS) as connector:
        told = {each.what: each for each in connector.observe()}
    assert "shared by leases" in told["table"].found
    with (
        PostgresConnector(postgres_url, table=table) as connector,
        pytest.raises(ConfigurationError, match="nowhere to go"),
    ):
        list(connector.observe())


def test_a_server_that_is_away_shows_no_password() -> None:
    """Neither the error of a dispatch nor the connector shows what the URL holds."""
    url = "postgresql://ergon:hunter2@127.0.0.1:1/shop"
    with PostgresConnector(url, table="orders") as connector:
        with pytest.raises(ErgonError, match="cannot be reached") as caught:
            connector.dispatch_transactions([Transaction("t1", 1)])
        assert not connector.health()
        assert "hunter2" not in f"{caught.value!r}{caught.value}{connector!r}"
