"""Numbered schema files, applied once each, whoever comes first."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from ergon_framework.errors import StoreSchemaError, WiringError
from ergon_framework.storage.faults import translate

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_TABLE = """
CREATE TABLE IF NOT EXISTS ergon_schema (
    part TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    applied_at REAL NOT NULL
) WITHOUT ROWID
"""
_READ = "SELECT version FROM ergon_schema WHERE part = ?"
_WRITE = """
INSERT INTO ergon_schema (part, version, applied_at)
VALUES (?, ?, (julianday('now') - 2440587.5) * 86400.0)
ON CONFLICT (part) DO UPDATE SET version = excluded.version, applied_at = excluded.applied_at
"""


@dataclass(frozen=True)
class SchemaFiles:
    """The tables of one part: files ``0001_name.sql``, ``0002_name.sql``, … of a package."""

    part: str
    package: str

    @cached_property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Name and text of each file, in order; their numbers start at 1 and leave none out."""
        try:
            folder = resources.files(self.package)
            found = sorted(each.name for each in folder.iterdir() if _FILE.fullmatch(each.name))
        except (ModuleNotFoundError, FileNotFoundError, NotADirectoryError) as error:
            raise WiringError(f"there is no package {self.package} with SQL files") from error
        numbers = [int(name[:4]) for name in found]
        if not found or numbers != list(range(1, len(found) + 1)):
            raise WiringError(
                f"the schema files of {self.package} are {', '.join(found) or 'missing'}",
                remedy="number them 0001_, 0002_, … and leave none out",
            )
        return tuple((name, (folder / name).read_text(encoding="utf-8")) for name in found)

    @property
    def version(self) -> int:
        """The version this code works with."""
        return len(self.files)


class Schema(SchemaFiles):
    """The same in an SQLite file."""

    def apply(self, connection: sqlite3.Connection, path: Path) -> None:
        """Bring the part's tables up to date, in a transaction that the caller began."""
        source = "the table ergon_schema"
        try:
            connection.execute(_TABLE)
            found = connection.execute(_READ, (self.part,)).fetchone()
            version = found[0] if found else 0
            self._refuse_newer(version, path)
            if version == self.version:
                return
            for source, text in self.files[version:]:  # noqa: B007 - the error below names it
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
        if found is None or found[0] < self.version:
            raise StoreSchemaError(
                f"{path} has {self.part} tables of version {found[0] if found else 0}; this"
                f" program works with version {self.version}",
                remedy="open it once for writing: that brings it up to date",
            )
        self._refuse_newer(found[0], path)

    def _refuse_newer(self, version: int, path: Path) -> None:
        if version > self.version:
            raise StoreSchemaError(
                f"{path} has {self.part} tables of version {version}; this program works with"
                f" version {self.version}",
                remedy="upgrade ergon-framework here, or name another file",
            )


def statements_of(text: str) -> Iterator[str]:
    """The single statements of a script, triggers included."""
    statement = ""
    for piece in text.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            if not _is_blank(statement):
                yield statement.strip()
            statement = ""
    if not _is_blank(statement):
        raise WiringError(f"an SQL script ends within a statement: {statement.strip()[:80]!r}")


def _is_blank(statement: str) -> bool:
    lines = (line.strip() for line in statement.replace(";", "").splitlines())
    return all(not line or line.startswith("--") for line in lines)
