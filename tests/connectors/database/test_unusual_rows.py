"""Rows and conditions that are not as they should be: what is delivered, set aside and refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ergon_framework.connector.database import DatabaseConnector
from ergon_framework.errors import ConfigurationError, ConnectorError


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file of SQLite."""
    return f"sqlite:///{tmp_path}/shop.db"


def run(url: str, *statements: str) -> None:
    """Do this in the database."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for each in statements:
            connection.exec_driver_sql(each)
    engine.dispose()


def done(connector: DatabaseConnector) -> list[str]:
    """The ids of all that is due, each of which is done now."""
    found = []
    while batch := connector.fetch_transactions(2):
        for each in batch:
            found.append(each.transaction_id)
            connector.ack(each)
        assert len(found) < 20
    return found


@pytest.mark.parametrize("options", [{}, {"status": "status"}])
def test_a_row_that_is_done_while_rows_are_read_is_not_delivered_again(
    url: str, options: dict[str, Any]
) -> None:
    """Its outcome is recorded after the question went out and before the answer is looked at."""
    # With a write-ahead log, a reader and a writer do not wait for each other.
    run(url, "pragma journal_mode=wal", "create table orders (id integer primary key, status text)")
    run(url, "insert into orders values (1, 'new'), (2, 'new')")
    with DatabaseConnector(url, table="orders", **options) as connector:
        waiting = connector.fetch_transactions(1)

        @sa.event.listens_for(sa.Engine, "after_cursor_execute")
        def settle(*about: Any) -> None:
            if "LIMIT" in about[2] and waiting:
                settling = threading.Thread(target=connector.ack, args=(waiting.pop(),))
                settling.start()
                settling.join()

        try:
            found = [each.transaction_id for each in connector.fetch_transactions(5)]
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", settle)
    assert not waiting
    assert found == ["orders:2"]


def test_a_row_that_is_released_while_rows_are_read_is_not_left_behind(url: str) -> None:
    """An empty answer would mean that nothing is due."""
    run(url, "create table orders (id integer primary key)", "insert into orders values (1)")
    with DatabaseConnector(url, table="orders") as connector:
        waiting = connector.fetch_transactions(1)

        @sa.event.listens_for(sa.Engine, "after_cursor_execute")
        def release(*about: Any) -> None:
            if "LIMIT" in about[2] and waiting:
                connector.release(waiting.pop())

        try:
            found = connector.fetch_transactions(5)
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", release)
        assert [each.transaction_id for each in found] == ["orders:1"]


@pytest.mark.parametrize("status", [None, "status"])
@pytest.mark.parametrize("where", ["j = 'a' or j = 'b'", "j <> 'x:y -- :z' -- as agreed"])
def test_a_condition_means_what_it_says(url: str, where: str, status: str | None) -> None:
    """Its words bind no weaker than ours, and a colon or a comment in it is no more than that."""
    run(url, "create table orders (id integer primary key, j text, status text default 'new')")
    run(url, "insert into orders (id, j) values (1, 'a'), (2, 'b')")
    with DatabaseConnector(url, table="orders", where=where, status=status) as connector:
        assert done(connector) == ["orders:1", "orders:2"]
        assert connector.get_transactions_count() == 0


def test_rows_without_a_key_are_left_out_and_counted(url: str) -> None:
    """What is done could not be kept of them: they would be delivered for ever."""
    run(url, "create table orders (code text unique, n integer)")
    run(url, "insert into orders values (null, 1), ('a', 2), ('b', null)")
    with DatabaseConnector(url, table="orders", key="code", position="n") as connector:
        assert done(connector) == ["orders:a"]
        told = {each.what: each.found for each in connector.observe()}
    assert told["rows left out"].startswith("2 rows")


@pytest.mark.parametrize("status", [None, "status"])
@pytest.mark.parametrize(
    ("kind", "bad"),
    [("text", "null"), ("text", "''"), ("datetime", "'soon'"), ("text", "cast(x'ff' as text)")],
    ids=["no id", "empty id", "no instant", "not UTF-8"],
)
def test_a_row_that_is_no_transaction_is_set_aside(
    url: str, kind: str, bad: str, status: str | None
) -> None:
    """It is kept with its reason, and holds up none of the others."""
    run(url, f"create table orders (id integer primary key, x {kind}, status text default 'new')")
    run(url, f"insert into orders (x) values ({bad}), ('2026-01-01 00:00:00'), ({bad})")  # noqa: S608
    with DatabaseConnector(url, table="orders", ids="x", status=status) as connector:
        assert done(connector) == ["2026-01-01 00:00:00"]
        assert connector.malformed == 2
        assert [key for key, _, _ in connector.dead_letters()] == ["1", "3"]
        if status is None:
            assert all("no transaction" in reason for _, _, reason in connector.dead_letters())


@pytest.mark.parametrize("value", ["'soon'", "x'00'"])
def test_a_position_whose_place_cannot_be_kept_is_refused_before_the_work(
    url: str, value: str
) -> None:
    """Otherwise its work would be done again and again, and its end never be recorded."""
    run(url, "create table orders (id integer primary key, n integer)")
    run(url, f"insert into orders values (1, {value})")  # noqa: S608
    with (
        DatabaseConnector(url, table="orders", position="n") as connector,
        pytest.raises(ConfigurationError, match=r"row '1' of orders has one of type (str|bytes)"),
    ):
        connector.fetch_transactions(1)


def test_a_key_that_is_not_unique_is_refused_before_the_work(url: str) -> None:
    """One mark would stand for two rows, and the second would be lost."""
    run(
        url,
        "create table orders (k integer, n integer)",
        "insert into orders values (1, 1), (1, 2)",
    )
    with (
        DatabaseConnector(url, table="orders", key="k", position="n") as connector,
        pytest.raises(ConfigurationError, match="several rows of orders have the same k"),
    ):
        connector.fetch_transactions(5)


@pytest.mark.slow
def test_long_keys_are_not_taken_for_each_other(postgres_url: str) -> None:
    """PostgreSQL cuts off a text that is cast to a shorter one, without a word."""
    run(postgres_url, "create table orders (k text primary key, status text default 'new', n int)")
    for n in (1, 2):
        row = f"repeat('x', 300) || {n}, 'new', {n}"
        run(postgres_url, f"insert into orders values ({row})")  # noqa: S608
    options: dict[str, Any] = {"table": "orders", "key": "k", "position": "n"}
    with DatabaseConnector(postgres_url, **options, status="status") as connector:
        assert len(done(connector)) == 2
    with (
        DatabaseConnector(postgres_url, **options) as connector,
        pytest.raises(ConfigurationError, match="more than 255 characters"),
    ):
        connector.fetch_transactions(1)


def test_columns_may_have_any_name(url: str) -> None:
    """Also those that rows of SQLAlchemy have names of their own for."""
    run(url, 'create table orders (id integer primary key, "t" integer)')
    run(url, "insert into orders values (1, 7)")
    with DatabaseConnector(url, table="orders", position="t") as connector:
        assert done(connector) == ["orders:1"]


@pytest.mark.parametrize("options", [{}, {"status": "status"}])
def test_an_outcome_that_the_database_refuses_is_told_and_may_be_tried_again(
    url: str, options: dict[str, Any]
) -> None:
    """The error says what the database said, and no statement; later it is settled once."""
    run(url, "create table orders (id integer primary key, status text)")
    run(url, "insert into orders values (1, 'new')")
    table = "orders" if options else "ergon_row_marks"
    with DatabaseConnector(url, table="orders", **options) as connector:
        (found,) = connector.fetch_transactions(1)
        run(url, f"alter table {table} rename to away")
        with pytest.raises(ConnectorError, match=f"not settled .*no such table: {table}") as caught:
            connector.ack(found)
        assert caught.value.failure_kind == "transient"
        run(url, f"alter table away rename to {table}")
        connector.ack(found)
        assert connector.fetch_transactions(1) == []


def test_a_table_that_went_away_is_named(url: str) -> None:
    """And not only that something was refused."""
    run(url, "create table orders (id integer primary key)")
    with DatabaseConnector(url, table="orders") as connector:
        assert connector.fetch_transactions(1) == []
        run(url, "drop table orders")
        with pytest.raises(ConfigurationError, match="no such table: orders"):
            connector.fetch_transactions(1)


def test_no_file_is_made_of_a_mistyped_name(tmp_path: Path) -> None:
    """SQLite would make an empty database, and the mistake be found later."""
    with (
        DatabaseConnector(f"sqlite:///{tmp_path}/ship.db", table="orders") as connector,
        pytest.raises(ConfigurationError, match="there is no file"),
    ):
        connector.fetch_transactions(1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://u:sek:r/it@h:abc/db", "no URL of a database"),
        ("mysql://u:sekrit@h/db", "neither PostgreSQL nor SQLite"),
        ("postgresql+asyncpg://u:sekrit@h/db", "cannot be used|driver for asyncio"),
    ],
)
def test_a_url_of_another_database_is_refused_without_its_password(url: str, problem: str) -> None:
    """What SQLAlchemy raises would name a module, or part of the password."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        DatabaseConnector(url, table="orders")
    assert "sek" not in f"{caught.value}{caught.value.__cause__}"


def test_a_cancelled_fetch_gives_back_its_rows_without_holding_up_the_loop(url: str) -> None:
    """Rows that say that they are in hand are written to: that is for another thread."""
    run(url, "create table orders (id integer primary key, status text)")
    run(url, "insert into orders values (1, 'new')")
    threads: list[str] = []
    cancels: list[Callable[[], object]] = []
    words: dict[str, Any] = {"status": "status", "statuses": "new, working, done, failed"}

    @sa.event.listens_for(sa.Engine, "after_cursor_execute")
    def note(*about: Any) -> None:
        if about[2].startswith("UPDATE"):
            threads.append(threading.current_thread().name)
            if cancels:
                cancels.pop()()

    async def go() -> None:
        loop = asyncio.get_running_loop()
        with DatabaseConnector(url, table="orders", **words) as connector:
            fetching = asyncio.ensure_future(connector.fetch_transactions_async(1))
            cancels.append(lambda: loop.call_soon_threadsafe(fetching.cancel))
            with pytest.raises(asyncio.CancelledError):
                await fetching
            assert len(threads) == 2
            assert "MainThread" not in threads
            assert len(await connector.fetch_transactions_async(1)) == 1

    try:
        asyncio.run(go())
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", note)
