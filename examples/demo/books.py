"""The handlers' own database: what they did, each thing once however often it was tried."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (job_id TEXT PRIMARY KEY, what TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS under_way (job_id TEXT NOT NULL, pid INTEGER NOT NULL, at REAL NOT NULL);
"""
FRESH = 0.2
"""Seconds for which an entry says that its process is really at it."""


class Books:
    """One SQLite file, shared by all executor processes."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)

    def enter(self, job_id: str, what: str) -> None:
        """The effect of a job. The key makes a second attempt harmless."""
        self._run("INSERT OR IGNORE INTO effects VALUES (?, ?)", job_id, what)

    @contextmanager
    def attempt(self, job_id: str) -> Iterator[None]:
        """Notes which process has a job in hand, for those who would like to kill it."""
        pid = os.getpid()
        self._run("INSERT INTO under_way VALUES (?, ?, ?)", job_id, pid, time.time())
        try:
            yield
        finally:
            self._run("DELETE FROM under_way WHERE job_id = ? AND pid = ?", job_id, pid)

    def busy(self) -> tuple[str, int] | None:
        """A job that has just been begun, and the process that has it."""
        found = self._run(
            "SELECT job_id, pid FROM under_way WHERE at > ? ORDER BY at DESC LIMIT 1",
            time.time() - FRESH,
        )
        return (found[0][0], found[0][1]) if found else None

    def effects(self) -> list[str]:
        """The jobs that had their effect."""
        return [row[0] for row in self._run("SELECT job_id FROM effects")]

    def _run(self, statement: str, *values: object) -> list[Any]:
        with closing(self._connect()) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)
