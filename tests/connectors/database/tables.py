"""A table of somebody else, and what its owner does with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from ergon_framework.connector.database import DatabaseConnector
from ergon_framework.ports.transaction import Transaction

METADATA = sa.MetaData()
ORDERS = sa.Table(
    "orders",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("tid", sa.String(300)),
    sa.Column("data", sa.Text),
    sa.Column("status", sa.String(20), server_default="new"),
    sa.Column("error", sa.Text),
)
EFFECTS = sa.Table("effects", METADATA, sa.Column("order_id", sa.Integer))


def engine_of(url: str) -> sa.Engine:
    """An engine whose database has the two tables."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    METADATA.create_all(engine)
    return engine


def insert(connection: sa.Connection, *ids: int) -> None:
    """Orders with these numbers."""
    for each in ids:
        connection.execute(ORDERS.insert().values(id=each, tid=f"o{each}", data=str(each)))


class Addressed(DatabaseConnector):
    """One that knows where its table is."""

    address: str


def seed(connector: Addressed, transactions: Iterable[Transaction]) -> None:
    """Transactions as rows, with the payload as JSON."""
    engine = engine_of(connector.address)
    with engine.begin() as connection:
        for each in transactions:
            row = {"tid": each.transaction_id, "data": each.payload}
            connection.execute(ORDERS.insert().values(row))
    engine.dispose()


def effects(engine: sa.Engine) -> list[Any]:
    """What handlers have done."""
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(EFFECTS.c.order_id)).scalars())
