"""Rows whose status changes in the same transaction as the effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ergon_framework.connector import from_url
from ergon_framework.connector.database import DatabaseConnector, RowTakenError
from ergon_framework.errors import ConfigurationError, MissingExtraError
from tests.connectors.database.tables import EFFECTS, ORDERS, effects, engine_of, insert

WORDS = "new, working, done, failed"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """It, with three orders."""
    found = engine_of(url)
    with found.begin() as connection:
        insert(connection, 1, 2, 3)
    yield found
    found.dispose()


def statuses(engine: sa.Engine) -> dict[int, str]:
    """What the rows say."""
    with engine.connect() as connection:
        rows = connection.execute(sa.select(ORDERS.c.id, ORDERS.c.status))
        return {row[0]: row[1] for row in rows}


def reading(engine: sa.Engine, **options: Any) -> DatabaseConnector:
    """A connector to the orders."""
    return DatabaseConnector(engine, table="orders", status="status", error="error", **options)


def test_the_status_and_the_effect_are_one_commit(engine: sa.Engine) -> None:
    """Both are there, or none; the engine's ack then does nothing."""
    with reading(engine) as orders:
        first, second, third = orders.fetch_transactions(5)
        with orders.transaction(first) as connection:
            connection.execute(EFFECTS.insert().values(order_id=1))
        orders.ack(first)
        twice = [{"id": 4}, {"id": 1}]
        with pytest.raises(sa.exc.IntegrityError), orders.transaction(second) as connection:
            connection.execute(ORDERS.insert(), twice)
        orders.nack(third, ValueError("sold out"))
        assert effects(engine) == [1]
        assert statuses(engine) == {1: "done", 2: "new", 3: "failed"}
        assert orders.dead_letters() == [("3", 0.0, "ValueError: sold out")]
        assert orders.get_transactions_count() == 1
    tables = sa.inspect(engine).get_table_names()
    assert not any(each.startswith("ergon") for each in tables)


def test_a_row_says_that_it_is_in_hand(engine: sa.Engine) -> None:
    """With a word for it; released it waits again, and what a dead process had is due again."""
    with reading(engine, statuses=WORDS) as orders:
        first, second, _ = orders.fetch_transactions(5)
        assert set(statuses(engine).values()) == {"working"}
        orders.release(first)
        orders.ack(second)
        assert statuses(engine) == {1: "new", 2: "done", 3: "working"}
    with reading(engine, statuses=WORDS) as orders:
        assert [each.payload["id"] for each in orders.fetch_transactions(5)] == [1, 3]


@pytest.mark.parametrize("words", ["new, done, failed", WORDS])
def test_a_row_that_changed_meanwhile_has_no_effect(engine: sa.Engine, words: str) -> None:
    """Its owner withdrew it, or another process has done it: the transaction is rolled back."""
    with reading(engine, statuses=words) as one, reading(engine, statuses=words) as other:
        withdrawn, shared, _ = one.fetch_transactions(5)
        same = other.fetch_transactions(5)[1]
        with engine.begin() as connection:
            connection.execute(ORDERS.update().where(ORDERS.c.id == 1).values(status="withdrawn"))
        other.ack(same)
        for each in (withdrawn, shared):
            with pytest.raises(RowTakenError), one.transaction(each) as connection:
                connection.execute(EFFECTS.insert().values(order_id=each.payload["id"]))
    assert effects(engine) == []
    assert statuses(engine) == {1: "withdrawn", 2: "done", 3: statuses(engine)[3]}


def test_a_row_that_is_due_again_comes_again(engine: sa.Engine) -> None:
    """As its owner says, whatever its number."""
    with reading(engine) as orders:
        for each in orders.fetch_transactions(5):
            orders.ack(each)
        with engine.begin() as connection:
            connection.execute(ORDERS.update().where(ORDERS.c.id == 2).values(status="new"))
        assert [each.payload["id"] for each in orders.fetch_transactions(5)] == [2]


def test_a_url_names_the_table(url: str, engine: sa.Engine) -> None:
    """With the same options, and what the doctor says of it."""
    place = f"rows+{url}{'&' if '?' in url else '?'}"
    with from_url(f"{place}table=orders&status=status&where=id<3&payload=data") as orders:
        first, second = orders.fetch_transactions(5)
        orders.ack(first)
        orders.nack(second, ValueError("no"))
        told = [each.found for each in orders.observe()]
        assert told == ["orders has 0 rows due", "1 rows failed for good"]
    assert statuses(engine)[1] == "done"
    with from_url(f"{place}table=nothing") as orders:
        (seen,) = orders.observe()
        assert seen.is_grave
        assert "no table 'nothing'" in seen.found


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("sqlite:///a.db", "'table' is missing"),
        ("sqlite:///a.db?table=a&statuses=a,b,c", "status="),
        ("sqlite:///a.db?table=a&status=s&statuses=a,b", "three words"),
        ("sqlite:///a.db?table=a&sslmode=require", "sslmode"),
        ("sqlite://?table=a", "no database"),
        ("postgresql://app:hunter2@host:port/db?table=a", "cannot be read"),
        ("postgresql://app:hunter2@host?table=a", "no database"),
        ("mysql://host/db?table=a", "no connector"),
    ],
)
def test_a_mistake_in_the_url_is_told(rest: str, message: str) -> None:
    """What is wrong, and never the password."""
    with pytest.raises(ConfigurationError) as caught:
        from_url(f"rows+{rest}")
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[postgres\]"):
        from_url("rows+postgresql://host/db?table=a")
