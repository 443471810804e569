"""Numbered schema files, applied once each to an SQLite file by the process that opens it first."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ergon_framework.errors import StoreSchemaError
from ergon_framework.storage.sql_files import SchemaFiles, statements_of
from ergon_framework.storage.sqlite.errors import has_no_room, translate
from ergon_framework.storage.urls import SQLITE, store_option

_TABLE = """
CREATE TABLE IF NOT EXISTS ergon_schema (
    part TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    applied_at REAL NOT NULL
) WITHOUT ROWID
"""
_READ = "SELECT version FROM ergon_schema WHERE part = ?"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_WRITE = """
INSERT INTO ergon_schema (part, version, applied_at)
VALUES (?, ?, (julianday('now') - 2440587.5) * 86400.0)
ON CONFLICT (part) DO UPDATE SET version = excluded.version, applied_at = excluded.applied_at
"""


class SqliteSchema(SchemaFiles):
    """The migrations of a part's tables in an SQLite file."""

    def apply(self, connection: sqlite3.Connection, path: Path) -> None:
        """Bring the part's tables up to date, in a transaction that the caller began."""
        source = "the table ergon_schema"
        try:
            connection.execute(_TABLE)
            found = connection.execute(_READ, (self.part,)).fetchone()
            version = found[0] if found else 0
            # Before anything is changed: an older program must not work on tables it does not know.
            self._refuse_newer(version, path)
            self._refuse_lost(connection, path, version)
            if version == self.version:
                return
            for source, text in self.files[version:]:  # noqa: B007 - the error below names it
                # One by one: ``executescript`` would commit first, and a crash could leave half of
                # a version.
                for statement in statements_of(text):
                    connection.execute(statement)
            connection.execute(_WRITE, (self.part, self.version))
        except sqlite3.Error as error:
            if translate(error, path) is not None:
                raise
            raise StoreSchemaError(
                f"{path} has tables that are not of this {self.part} store: {source} says {error}",
                remedy="name another file; tables that begin with ergon_ are ours alone",
            ) from error

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuse to read tables that are not of this version."""
        try:
            found = connection.execute(_READ, (self.part,)).fetchone()
        except sqlite3.OperationalError as error:
            if translate(error, path) is not None:
                raise
            found = None
        if found is None and not path.stat().st_size and not has_no_room(path):
            raise StoreSchemaError(
                f"{path} is empty: it has no {self.part} tables",
                remedy="restore a backup; if it is new, open it once for writing",
            )
        if found is None or found[0] < self.version:
            raise StoreSchemaError(
                f"{path} has {self.part} tables of version {found[0] if found else 0}; this"
                f" program works with version {self.version}",
                remedy=self._upgrade(path, has_tables=found is not None),
            )
        self._refuse_newer(found[0], path)
        self._refuse_lost(connection, path, self.version)

    def _refuse_lost(self, connection: sqlite3.Connection, path: Path, version: int) -> None:
        """Refuse to work where tables that were made are not there any more."""
        there = {name for (name,) in connection.execute(_TABLES)}
        lost = [name for name in self.made(version) if name not in there]
        if lost:
            raise StoreSchemaError(
                f"{path} has lost {self.part} tables that were made: {', '.join(lost)}",
                remedy="stop what uses it, and put a backup of it in its place",
            )

    def _upgrade(self, path: Path, *, has_tables: bool) -> str:
        """How the tables are brought up to date; only those of jobs have a command for a file."""
        if has_no_room(path):  # which is why they were not made
            return "free some disk space, then start the program that works with it again"
        if self.part != "jobs":
            return "open it once for writing: that brings it up to date"
        makes = "" if has_tables else " --jobs"
        return f"this does it:  ergon db upgrade{makes}{store_option(f'{SQLITE}{path}')}"

    def _refuse_newer(self, version: int, path: Path) -> None:
        if version > self.version:
            raise StoreSchemaError(
                f"{path} has {self.part} tables of version {version}; this program works with"
                f" version {self.version}",
                remedy="upgrade ergon-framework here, or name another file",
            )
