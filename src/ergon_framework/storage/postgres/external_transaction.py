"""Working in a transaction that belongs to the caller, on the caller's own connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg

from ergon_framework.errors import StoreError, StoreSchemaError
from ergon_framework.storage.external_transactions import (
    IN_ALCHEMY,
    Borrowed,
    borrow,
    kind_of,
    no_transaction,
    two_phases,
)
from ergon_framework.storage.postgres.errors import MISSING, first_line, translate
from ergon_framework.storage.postgres.pool import Connection

PostgresJoinable: TypeAlias = Any
"""A connection of psycopg; one of SQLAlchemy or Django, or a session, with psycopg under it."""

_BEGIN = "begin one first, say with connection.transaction()"
_AWAITED = frozenset({"AsyncConnection", "AsyncSession", "async_scoped_session"})
"""The async connection and session classes of psycopg and SQLAlchemy."""


@contextmanager
def joined(connection: PostgresJoinable, name: str) -> Iterator[Connection]:
    """The driver's connection; an error undoes what was done on it here, and only that."""
    given = borrow(connection)
    driver = _of_psycopg(given)
    _refuse_unfit(given, driver)
    given.begin()
    try:
        # A statement that fails spoils a transaction on PostgreSQL: without a savepoint the caller
        # could only roll back all of its own work.
        _bare(driver, b"SAVEPOINT ergon_joined")
        try:
            yield driver
        except BaseException:
            # A lost connection has rolled it back already, and the first error is the one to raise.
            if not driver.closed:
                _bare(driver, b"ROLLBACK TO SAVEPOINT ergon_joined")
            raise
        finally:
            if not driver.closed:
                _bare(driver, b"RELEASE SAVEPOINT ergon_joined")
    except psycopg.Error as error:
        if driver.closed:
            given.give_up(error)
        # The caller's connection may lead to another database than the store's; its tables are
        # missing there, not here.
        if error.sqlstate in MISSING:
            raise StoreSchemaError(
                f"the database of the connection lacks a table of {name}: {first_line(error)}",
                remedy="connect to the database of the store; if it is that one, run"
                " `ergon db upgrade`",
            ) from error
        raise translate(error, name) from error


def _refuse_unfit(given: Borrowed, driver: Connection) -> None:
    if driver.closed:
        raise StoreError("the connection is closed", remedy="connect again, and begin anew")
    if driver.info.encoding != "utf-8":
        raise StoreError(
            f"the connection speaks {driver.info.encoding}, in which not every text can be sent",
            remedy="connect with client_encoding=UTF8",
        )
    if getattr(driver, "_tpc", None) is not None:  # nothing public tells of tpc_begin()
        raise two_phases()
    if driver.pgconn.pipeline_status:  # an error of the server would be raised too late
        raise StoreError(
            "the connection is in the middle of a pipeline",
            remedy="leave connection.pipeline() first: whether it was stored has to be heard",
        )
    status = driver.info.transaction_status
    if driver.autocommit and status is psycopg.pq.TransactionStatus.IDLE:
        raise no_transaction(given.remedy or (_BEGIN if given.alchemy is None else IN_ALCHEMY))
    if status is psycopg.pq.TransactionStatus.INERROR:
        raise StoreError(
            "the transaction of the connection has failed before: a statement in it was refused",
            remedy="roll it back, or back to a savepoint of your own, and do it again",
        )


def _of_psycopg(given: Borrowed) -> Connection:
    driver = given.driver
    if isinstance(driver, psycopg.Connection):
        return driver
    remedy = (
        "connect with psycopg.connect(…), or with create_engine('postgresql+psycopg://…') and"
        " engine.begin()"
    )
    if type(driver).__name__ in _AWAITED:
        remedy = "give one that is not asynchronous, or enqueue jobs on it with AsyncJobClient"
    raise StoreError(
        f"{kind_of(driver)} is no connection of psycopg, nor one of SQLAlchemy or Django,"
        " or a session, with psycopg under it",
        remedy=remedy,
    )


def _bare(driver: Connection, statement: bytes) -> None:
    """Execute without whatever the caller wants done with rows."""
    psycopg.Cursor(driver).execute(statement, prepare=False)
