"""A database for the tests of one file, stores that are closed after the test, and their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from tests.servers.postgres import PostgresServer

Open = Callable[..., PostgresFactStore]
_zones = count(1)


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database that the tests of one file share; each has zones of its own."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def zone() -> str:
    """A zone that no other test has."""
    return f"plant-{next(_zones)}"


@pytest.fixture
def open_store(url: str, zone: str) -> Iterator[Open]:
    """Opens stores, and closes them after the test."""
    with contextlib.ExitStack() as opened:

        def open_one(**settings: Any) -> PostgresFactStore:
            store = PostgresFactStore(**{"url": url, "zone": zone, **settings})
            opened.callback(store.close)
            return store

        yield open_one


@pytest.fixture
def store(open_store: Open) -> PostgresFactStore:
    """A fresh store."""
    return open_store()


def change(url: str, store: PostgresFactStore, statement: str, *values: object) -> int:
    """Change a table of a store behind its back; how many rows."""
    whole = sql.SQL(statement).format(zone=sql.Identifier(store.namespace))
    with psycopg.connect(url) as connection:
        return connection.execute(whole, values).rowcount
