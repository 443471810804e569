"""Rows of a table: none is passed over, none is done twice, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ergon_framework.connector.database import DatabaseConnector
from ergon_framework.errors import ConfigurationError, ConnectorError
from ergon_framework.ports.transaction import Transaction
from tests.connectors.database.tables import EFFECTS, ORDERS, effects, engine_of, insert

Make = Callable[..., DatabaseConnector]


class Store:
    """A database with a table, and a clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = engine_of(url)
        self.time = 1000.0

    def connector(self, **options: Any) -> DatabaseConnector:
        """One that reads the table, with this clock."""
        given = {"table": "orders", "late": 100.0, "now": lambda: self.time, **options}
        return DatabaseConnector(self.url, **given)

    def insert(self, *ids: int) -> None:
        """Orders that are committed at once."""
        with self.engine.begin() as connection:
            insert(connection, *ids)

    def marks(self) -> Any:
        """How many rows are remembered one by one."""
        with self.engine.connect() as connection:
            return connection.execute(sa.text("select count(*) from ergon_row_marks")).scalar_one()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty table on each of them."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/shop.db" if is_file else request.getfixturevalue("postgres_url")
    found = Store(url)
    yield found
    found.engine.dispose()


def drained(connector: DatabaseConnector) -> list[int]:
    """The numbers of all rows that are due, which are done now."""
    found = []
    while batch := connector.fetch_transactions(3):
        for each in batch:
            found.append(each.payload["id"])
            connector.ack(each)
    return found


def test_rows_are_read_in_order_and_once(store: Store) -> None:
    """What is done stays done after a restart; what was in hand comes again."""
    store.insert(*range(1, 8))
    with store.connector() as connector:
        first, second = connector.fetch_transactions(2)
        assert (first.transaction_id, first.source) == ("orders:1", "orders")
        assert first.payload == {"id": 1, "tid": "o1", "data": "1", "status": "new", "error": None}
        connector.ack(second)
        assert connector.get_transactions_count() == 6
    with store.connector() as connector:
        assert drained(connector) == [1, 3, 4, 5, 6, 7]
        assert connector.fetch_transactions(5) == []
    with store.connector(consumer="other") as connector:
        assert drained(connector) == [*range(1, 8)]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_row_that_is_committed_late_is_not_passed_over(store: Store) -> None:
    """Its number is lower than that of rows which are done long since: it is delivered."""
    with store.connector() as connector, store.engine.connect() as slow:
        slow_work = slow.begin()
        insert(slow, 2)
        store.insert(1, 3, 4)
        assert drained(connector) == [1, 3, 4]
        for _ in range(5):  # far later than ``late``: the transaction is still under way
            store.time += 1000
            assert drained(connector) == []
        assert store.marks() == 3
        slow_work.commit()
        assert drained(connector) == [2]
        store.time += 1000
        assert drained(connector) == []
        assert store.marks() == 1  # of the highest, where others might follow


def test_marks_are_deleted_when_nothing_can_come_below_them(store: Store) -> None:
    """Rows in hand and rows that are done lately keep the marks above them."""
    store.insert(*range(1, 7))
    with store.connector() as connector:
        first, *others = connector.fetch_transactions(6)
        for each in others:
            connector.ack(each)
        store.time += 1000
        assert connector.fetch_transactions(5) == []
        assert store.marks() == 5  # the first is still in hand
        connector.ack(first)
        store.time += 50
        connector.fetch_transactions(5)
        assert store.marks() == 2  # the first was done lately; one of the floor
        store.insert(7)
        assert drained(connector) == [7]
    with store.connector() as connector:
        assert drained(connector) == []


def test_an_id_below_within_the_window_is_found(store: Store) -> None:
    """A program that takes numbers ahead of time may insert them later."""
    store.insert(10, 11)
    with store.connector() as connector:
        assert drained(connector) == [10, 11]
        store.time += 90
        store.insert(5)
        assert drained(connector) == [5]


def fail_in(connector: DatabaseConnector, order: Transaction) -> None:
    """A handler that raises after it has written."""
    with connector.transaction(order) as connection:
        connection.execute(EFFECTS.insert().values(order_id=1))
        raise ZeroDivisionError


def test_the_effect_and_the_end_are_one_commit(store: Store) -> None:
    """What fails leaves neither; what is committed has both, and ack has nothing left to do."""
    store.insert(1)
    with store.connector() as connector:
        (order,) = connector.fetch_transactions(1)
        with pytest.raises(ZeroDivisionError):
            fail_in(connector, order)
        assert effects(store.engine) == []
        with connector.transaction(order) as connection:
            connection.execute(EFFECTS.insert().values(order_id=1))
            connection.execute(ORDERS.update().values(status="paid"))
        connector.ack(order)
        assert effects(store.engine) == [1]
        with pytest.raises(ConnectorError, match="done already"), connector.transaction(order):
            raise AssertionError
    with store.connector() as connector:
        assert drained(connector) == []


def test_what_failed_for_good_is_kept_with_its_reason(store: Store) -> None:
    """It is not delivered again, also when marks are deleted."""
    store.insert(1, 2)
    with store.connector() as connector:
        bad, good = connector.fetch_transactions(2)
        connector.nack(bad, ValueError("x" * 5000))
        connector.ack(good)
        store.time += 1000
        assert connector.fetch_transactions(1) == []
        ((key, at, reason),) = connector.dead_letters()
        assert (key, at) == ("1", 1000.0)
        assert reason.startswith("ValueError: xxx")
        assert len(reason) == 1000


def test_only_rows_of_a_condition(store: Store) -> None:
    """A filter in SQL, and a column that is the payload."""
    store.insert(1, 2, 3)
    with store.connector(where="data <> '2'", payload="data", ids="tid") as connector:
        batch = connector.fetch_transactions(9)
        assert [(each.transaction_id, each.payload) for each in batch] == [("o1", "1"), ("o3", "3")]
        found = connector.fetch_transaction_by_id("o2")
        assert found is not None
        assert found.payload == "2"


def test_instants_that_are_equal(store: Store) -> None:
    """A position need not be unique: the key tells rows apart."""
    with store.engine.begin() as connection:
        kind = "timestamp" if store.engine.dialect.name == "postgresql" else "datetime"
        connection.execute(sa.text(f"create table logs (code varchar(9), at {kind})"))
        for code, at in (("b", "2026-01-01"), ("a", "2026-01-01"), ("c", "2025-01-01")):
            row = {"code": code, "at": f"{at} 00:00:00.000000"}
            connection.execute(sa.text("insert into logs values (:code, :at)"), row)
        connection.execute(sa.text("insert into logs values ('never', null)"))
    with store.connector(table="logs", key="code", position="at") as connector:
        codes = [each.payload["code"] for each in connector.fetch_transactions(9)]
        assert codes == ["c", "a", "b"]
    with store.connector(table="logs", key="code", position="at") as connector:
        for each in connector.fetch_transactions(2):
            connector.ack(each)
        store.time += 1000
        (last,) = connector.fetch_transactions(9)
        assert last.payload["code"] == "b"


def test_a_huge_row_and_an_empty_table(store: Store) -> None:
    """There is nothing, and then there is much."""
    with store.connector() as connector:
        assert connector.fetch_transactions(5) == []
        assert connector.get_transactions_count() == 0
        with store.engine.begin() as connection:
            connection.execute(ORDERS.insert().values(id=1, data="x" * 5_000_000))
        (found,) = connector.fetch_transactions(5)
        assert len(found.payload["data"]) == 5_000_000
        connector.ack(found)


def test_in_an_event_loop(store: Store) -> None:
    """The twins do the same; what a cancelled fetch brought comes again."""
    store.insert(*range(1, 5))

    async def go() -> list[int]:
        connector = store.connector()
        found = []
        while batch := await connector.fetch_transactions_async(2):
            for each in batch:
                found.append(each.payload["id"])
                await connector.ack_async(each)
        await connector.aclose()
        return found

    assert asyncio.run(go()) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"table": "order"}, "no table 'order'"),
        ({"key": "number"}, "no column 'number'"),
        ({"position": "at"}, "no column 'at'"),
        ({"payload": "body"}, "no column 'body'"),
        ({"where": "colour = 1"}, "refused to read orders"),
    ],
)
def test_mistakes_are_told_and_not_waited_for(
    store: Store, options: dict[str, Any], problem: str
) -> None:
    """What waiting does not repair is an error at once, with the name of the option."""
    store.insert(1)
    with (
        store.connector(**options) as connector,
        pytest.raises(ConfigurationError, match=problem),
    ):
        connector.fetch_transactions(1)


def test_a_position_of_text_is_refused(store: Store) -> None:
    """Texts sort in one way in a database and in another one elsewhere."""
    store.insert(1)
    with (
        store.connector(position="tid") as connector,
        pytest.raises(ConfigurationError, match="has one of type str"),
    ):
        connector.fetch_transactions(1)


def test_no_credentials_are_told(postgres_url: str) -> None:
    """A wrong password is an error at once, without the password or the user."""
    url = sa.make_url(postgres_url).set(username="somebody", password="hunter2", database="gone")  # noqa: S106
    shown = url.render_as_string(hide_password=False)
    with DatabaseConnector(shown, table="orders") as connector:
        with pytest.raises(ConfigurationError, match="does not let this user in") as caught:
            connector.fetch_transactions(1)
        assert "hunter2" not in f"{caught.value}{connector!r}"


def test_no_url(tmp_path: Path) -> None:
    """Nonsense is refused when the connector is made."""
    with pytest.raises(ConfigurationError, match="no URL"):
        DatabaseConnector("orders", table="orders")
    with pytest.raises(ConfigurationError, match="late"):
        DatabaseConnector(f"sqlite:///{tmp_path}/x.db", table="orders", late=-1)
