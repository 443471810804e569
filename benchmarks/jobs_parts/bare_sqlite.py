# ruff: noqa: D102 - the base class says what each method does
"""The floor for a durable queue: a row of like size, inserted and committed by sqlite3 alone."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs_parts import client

_TABLE = """CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY, stage INTEGER, status TEXT, changed_at REAL, queue TEXT,
    executor TEXT, priority INTEGER, run_at REAL, id TEXT, handler TEXT, created_at REAL,
    args BLOB, kwargs BLOB)"""
_INSERT = "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Peer(client.Peer):
    """No key but the row's number, no second index, no check, no trace: nothing but the write."""

    keys: tuple[str, ...] = ()
    _connection: sqlite3.Connection | None = None

    def reset(self) -> None:
        if self._connection is not None:
            self._connection.close()
        for file in Path(client.url()).glob("bare.db*"):
            file.unlink()
        self._connection = sqlite3.connect(Path(client.url()) / "bare.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        for statement in (_TABLE, *self.keys):
            self._connection.execute(statement)

    def enqueue(self, number: int) -> None:
        self._open.execute(_INSERT, _row(number))  # a commit of its own

    def enqueue_many(self, count: int) -> None:
        rows: Iterator[tuple[Any, ...]] = map(_row, range(count))
        self._open.execute("BEGIN")
        self._open.executemany(_INSERT, rows)
        self._open.execute("COMMIT")

    def waiting(self) -> int:
        return int(self._open.execute("SELECT count(*) FROM jobs").fetchone()[0])

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError("reset comes first")
        return self._connection


def _row(number: int) -> tuple[Any, ...]:
    now, job_id = time.time(), f"01J0000000{number:016d}"
    args = b"[%d]" % number
    return None, 2, "pending", now, "default", "", 0, now, job_id, "noop", now, args, b"{}"
