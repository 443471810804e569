"""Working in a transaction that belongs to the caller, on the caller's own connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.storage.external_transactions import Borrowed, borrow, kind_of, no_transaction
from ergon_framework.storage.sqlite.connections import connect, same_file
from ergon_framework.storage.sqlite.errors import is_busy, translate

SqliteJoinable: TypeAlias = Any
"""A connection of sqlite3; one of SQLAlchemy or Django, or a session, with sqlite3 under it."""
_MOMENT = 0.1
"""Seconds after which a lock is no longer one that another writer holds for a commit."""


@contextmanager
def joined(given: SqliteJoinable, path: Path, lock: str) -> Iterator[sqlite3.Cursor]:
    """A cursor in the caller's transaction; an error undoes what was done with it, and only that.

    ``lock`` is a statement that changes nothing and takes the write lock.
    """
    borrowed = borrow(given)
    connection = _of_sqlite(borrowed, path)
    _refuse_half_begun(borrowed, connection)
    is_begun_here = borrowed.begin()
    # A cursor of ours and plain text: what the caller makes of rows and of text is not asked.
    text, connection.text_factory = connection.text_factory, str
    try:
        with closing(sqlite3.Cursor(connection)) as cursor:
            try:
                # Takes the write lock before anything is read: a transaction that has read and then
                # wants to write fails if others wrote in between.
                _begin(borrowed, cursor, path, lock)
            except StoreError:
                if is_begun_here:
                    # The caller has not begun it, and would not end it.
                    borrowed.alchemy.rollback()
                raise
            cursor.execute("SAVEPOINT ergon_joined")
            try:
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK TO ergon_joined")
                raise
            finally:
                cursor.execute("RELEASE ergon_joined")
    finally:
        connection.text_factory = text


def is_locked_by(given: SqliteJoinable, path: Path, lock: str) -> bool:
    """Whether the transaction that is open on this connection keeps all other writers waiting.

    A thread that has such a transaction open and waits for the file waits for itself.
    """
    connection = getattr(given, "connection", given)  # that under a connection of Django
    if not isinstance(connection, sqlite3.Connection) or not connection.in_transaction:
        return False
    if not same_file(connection, path):
        return False
    with closing(connect(f"{path.as_uri()}?mode=rw", _MOMENT)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return is_busy(error) and _may_write(connection, lock)
        other.execute("ROLLBACK")
    return False


def _may_write(connection: sqlite3.Connection, lock: str) -> bool:
    """Whether a connection writes without waiting while another one had to: it has the lock."""
    with closing(sqlite3.Cursor(connection)) as cursor:
        [timeout] = cursor.execute("PRAGMA busy_timeout").fetchone()
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            cursor.execute(lock)
        except sqlite3.OperationalError:
            return False
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {int(timeout)}")
    return True


def _of_sqlite(borrowed: Borrowed, path: Path) -> sqlite3.Connection:
    connection = borrowed.driver
    if not isinstance(connection, sqlite3.Connection):
        raise StoreError(
            f"{kind_of(connection)} is no connection of sqlite3, nor one of SQLAlchemy or"
            " Django, or a session, with sqlite3 under it",
            remedy=f"connect to {path} with sqlite3.connect(…), or with create_engine('sqlite:///…')"
            " and engine.begin(); or leave the connection out",
        )
    try:
        is_ours = same_file(connection, path)
    except sqlite3.ProgrammingError as error:  # it is closed, or belongs to another thread
        raise StoreError(
            f"the connection cannot be used here: {error}",
            remedy="give one that is open, and that this thread may use",
        ) from error
    if not is_ours:
        raise StoreError(
            f"the connection does not have {path} as its main database",
            remedy="connect to that very file, or leave the connection out",
        )
    return connection


def _refuse_half_begun(borrowed: Borrowed, connection: sqlite3.Connection) -> None:
    """Refuse a nested transaction of SQLAlchemy without an outer one in the driver: its end would
    commit.
    """
    if borrowed.alchemy is None or not borrowed.alchemy.in_nested_transaction():
        return
    if connection.isolation_level is not None and getattr(connection, "autocommit", -1) == -1:
        raise StoreError(
            "a nested transaction on SQLite may stay although the outer one is rolled back: the"
            " driver begins none before the first change",
            remedy="enqueue outside of begin_nested(), or let SQLAlchemy begin by itself"
            " (isolation_level = None, and BEGIN in an event 'begin' of the engine)",
        )


def _begin(borrowed: Borrowed, cursor: sqlite3.Cursor, path: Path, lock: str) -> None:
    connection = cursor.connection
    # Newer Pythons have a second way to leave transactions to the caller.
    is_bare = connection.isolation_level is None or getattr(connection, "autocommit", 0) is True
    if not connection.in_transaction and is_bare:
        raise no_transaction(borrowed.remedy or "execute BEGIN IMMEDIATE first")
    try:
        if not connection.in_transaction:
            cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(lock)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
            raise StoreUnavailableError(
                f"{path} was written by others since this transaction began to read",
                remedy="roll back, and begin again with BEGIN IMMEDIATE",
            ) from error
        raise translate(error, path) or error from error
