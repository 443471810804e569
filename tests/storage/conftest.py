"""A sample schema, databases that are closed after the test, and connections that misbehave."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.storage.sqlite.checkpoints import CHECKPOINT_THREAD
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from tests import waiting

SAMPLE = SqliteSchema("sample", "tests.storage.sample")
NEWER = SqliteSchema("sample", "tests.storage.sample_newer")
WAIT = 20.0
"""Seconds that a test waits for something that is bound to happen."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database will be."""
    return tmp_path / "store.db"


@pytest.fixture
def open_database(path: Path) -> Iterator[Callable[..., Database]]:
    """Opens databases at ``path``; all are closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_one(schema: SqliteSchema = SAMPLE, **settings: Any) -> Database:
            database = Database(path, schema=schema, **settings)
            opened.callback(database.close)
            return database

        yield open_one


@pytest.fixture
def database(open_database: Callable[..., Database]) -> Database:
    """A database with the sample tables."""
    return open_database()


def add(name: str, value: int = 0) -> Callable[[sqlite3.Connection], str]:
    """Work that inserts an item and returns its name."""

    def work(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO ergon_item (name, value) VALUES (?, ?)", (name, value))
        return name

    return work


def items(database: Database) -> dict[str, int]:
    """What is in the database."""
    return database.read(
        lambda connection: dict(connection.execute("SELECT name, value FROM ergon_item"))
    )


def seen_by_others(path: Path) -> set[str]:
    """The names of the items as a plain connection sees them."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM ergon_item")}


def checkpointed() -> None:
    """Wait until no checkpoint is under way."""
    until(lambda: CHECKPOINT_THREAD not in {each.name for each in threading.enumerate()})


class Script:
    """What connections opened through it do besides executing statements.

    ``executed`` has every statement of every connection; each plan is carried out once.
    """

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.opened: list[str] = []
        self._before: dict[str, Callable[[], object]] = {}
        self._after: dict[str, Callable[[], object]] = {}

    def before(self, statement: str, action: Callable[[], object]) -> None:
        """Do something just before the next execution of a statement."""
        self._before[statement] = action

    def after(self, statement: str, action: Callable[[], object]) -> None:
        """Do something just after it."""
        self._after[statement] = action

    def fail(self, statement: str, code: int) -> None:
        """Let its next execution fail with a result code of SQLite."""
        self.before(statement, lambda: fail(code))

    @property
    def is_waiting(self) -> bool:
        """Whether a plan has not been carried out yet."""
        return bool(self._before or self._after)

    def connect(self, uri: str, timeout: float) -> sqlite3.Connection:
        """Open a connection that keeps to the script."""
        self.opened.append(uri)
        script = self

        class Scripted(sqlite3.Connection):
            def cursor(self, *_: Any) -> Any:
                return _Cursor(self, script)

            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                return script.run(self, sql, lambda: super(Scripted, self).execute(sql, *values))

        return sqlite3.connect(
            uri,
            uri=True,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=Scripted,
        )

    def run(
        self, connection: sqlite3.Connection, sql: str, execute: Callable[[], sqlite3.Cursor]
    ) -> sqlite3.Cursor:
        """Execute a statement as planned; one that fails rolls back, as in SQLite."""
        self.executed.append(sql)
        try:
            self._before.pop(sql, lambda: None)()
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise
        cursor = execute()
        self._after.pop(sql, lambda: None)()
        return cursor


class _Cursor(sqlite3.Cursor):
    def __init__(self, connection: sqlite3.Connection, script: Script) -> None:
        super().__init__(connection)
        self._script = script

    def execute(self, sql: str, *values: Any) -> Any:
        return self._script.run(
            self.connection, sql, lambda: super(_Cursor, self).execute(sql, *values)
        )


def fail(code: int) -> None:
    """Raise what SQLite would."""
    error = sqlite3.OperationalError("scripted failure")
    error.sqlite_errorcode = code
    raise error


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread or process does."""
    waiting.until(condition, seconds=WAIT)


@pytest.fixture
def script() -> Script:
    """A seam below the database: pass its ``connect``."""
    return Script()
