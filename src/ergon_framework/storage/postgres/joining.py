"""Working in a transaction that belongs to the caller, on the caller's own connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg

from ergon_framework.errors import StoreError, StoreSchemaError
from ergon_framework.storage.postgres.connections import Connection
from ergon_framework.storage.postgres.faults import MISSING, first_line, translate

Joinable: TypeAlias = Any
"""A connection of psycopg, or of SQLAlchemy with psycopg under it."""


@contextmanager
def joined(connection: Joinable, name: str) -> Iterator[Connection]:
    """The driver's connection; an error undoes what was done on it here, and only that."""
    driver = driver_of(connection)
    if driver.closed:
        raise StoreError("the connection is closed", remedy="connect again, and begin anew")
    if driver.info.encoding != "utf-8":
        raise StoreError(
            f"the connection speaks {driver.info.encoding}, in which not every text can be sent",
            remedy="connect with client_encoding=UTF8",
        )
    status = driver.info.transaction_status
    if driver.autocommit and status is psycopg.pq.TransactionStatus.IDLE:
        raise StoreError(
            "the connection has no transaction open, and begins none by itself",
            remedy="begin one first, say with connection.transaction()",
        )
    _begin(connection)
    try:
        _bare(driver, b"SAVEPOINT ergon_joined")
        try:
            yield driver
        except BaseException:
            if not driver.closed:
                _bare(driver, b"ROLLBACK TO SAVEPOINT ergon_joined")
            raise
        finally:
            if not driver.closed:
                _bare(driver, b"RELEASE SAVEPOINT ergon_joined")
    except psycopg.Error as error:
        if error.sqlstate in MISSING:
            raise StoreSchemaError(
                f"the database of the connection lacks a table of {name}: {first_line(error)}",
                remedy="connect to the database of the store; if it is that one, run"
                " `ergon db upgrade`",
            ) from error
        raise translate(error, name) from error


def _begin(connection: Joinable) -> None:
    """Let SQLAlchemy know of the transaction: it commits only what it has begun itself."""
    is_begun = getattr(connection, "in_transaction", None)
    if is_begun is not None and not is_begun():
        connection.begin()


def driver_of(connection: Joinable) -> Connection:
    """What psycopg has under a connection of SQLAlchemy, or what was given."""
    if isinstance(connection, psycopg.Connection):
        return connection
    found = getattr(getattr(connection, "connection", None), "driver_connection", None)
    if isinstance(found, psycopg.Connection):
        return found
    raise StoreError(
        f"{type(connection).__qualname__} is no connection of psycopg, nor of SQLAlchemy with"
        " psycopg under it",
        remedy="connect with psycopg.connect(…) or create_engine('postgresql+psycopg://…')",
    )


def _bare(driver: Connection, statement: bytes) -> None:
    """Execute without whatever the caller wants done with rows."""
    psycopg.Cursor(driver).execute(statement, prepare=False)
