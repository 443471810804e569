"""Looking at the tables of one part, or bringing them up to date, without opening its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ergon_framework.storage.patience import Patience
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.connections import Connection, Connections
from ergon_framework.storage.postgres.faults import translate
from ergon_framework.storage.postgres.schema import PostgresSchema


def version_of(url: str, schema: PostgresSchema, namespace: str | None = None) -> int | None:
    """The version of the tables; None when there are none."""
    with connected(url) as (connection, _):
        found = schema.found(connection, namespace)
    return None if found is None else found[0]


def has_table(url: str, table: str) -> bool:
    """Whether a database has a table of that name, where this user looks for it."""
    with connected(url) as (connection, _):
        found = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    return found is not None and found[0] is not None


def upgrade(url: str, schema: PostgresSchema, namespace: str | None = None) -> int:
    """Make the tables or bring them up to date; the version they had, 0 when there were none."""
    with connected(url) as (connection, name):
        return schema.upgrade(connection, name, namespace)


@contextmanager
def connected(url: str) -> Iterator[tuple[Connection, str]]:
    """One connection of the caller's own, and what to call the database."""
    address = address_of(url)
    connections = Connections(address, 1, Patience())
    try:
        with connections.borrow() as connection:
            yield connection, address.name
    except psycopg.Error as error:
        raise translate(error, address.name) from error
    finally:
        connections.close()
