"""How the statements of the provider store are said to PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from ergon_framework.providers.stores.ground import Into, Row, Values

_NAME = re.compile(r"(?<!:):([a-z_]\w*)")


class PostgresHand:
    """A cursor in a transaction."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        self._cursor: psycopg.Cursor[Row] = cursor

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run a statement that answers with rows."""
        return self._cursor.execute(_spelt(sql), values).fetchall()

    def run(self, sql: str, values: Values) -> int:
        """Run a statement that changes rows; how many."""
        return self._cursor.execute(_spelt(sql), values).rowcount

    def each(self, sql: str, values: Sequence[Values]) -> list[list[Row]]:
        """Run a statement once for each, in this order; the driver sends them all at once."""
        if not values:
            return []
        cursor = self._cursor
        cursor.executemany(_spelt(sql), values, returning=True)
        found = [cursor.fetchall()]
        while cursor.nextset():
            found.append(cursor.fetchall())
        return found

    def many(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that answers nothing once for each, in this order."""
        self._cursor.executemany(_spelt(sql), values)

    def insert_new(self, into: Into, rows: Sequence[Row]) -> set[str]:
        """Insert rows unless they are there, all with one statement."""
        # In one order for everybody: two who write the same rows must not wait for each other.
        names = [name for name, _ in into.columns]
        ordered = sorted(rows, key=lambda row: str(row[0]))
        values = [dict(zip(names, row, strict=True)) for row in ordered]
        sent = {"rows": msgspec.json.encode(values).decode()}
        return {found for (found,) in self.rows(_inserting(into), sent)}


_spellings: dict[str, bytes] = {}
_insertions: dict[Into, str] = {}


def _spelt(sql: str) -> bytes:
    """A statement as psycopg takes it."""
    spelt = _spellings.get(sql)
    if spelt is None:
        spelt = _NAME.sub(r"%(\1)s", sql.replace("%", "%%")).encode()
        if len(_spellings) < 1000:
            _spellings[sql] = spelt
    return spelt


def _inserting(into: Into) -> str:
    found = _insertions.get(into)
    if found is None:
        names = ", ".join(name for name, _ in into.columns)
        kinds = ", ".join(f"{name} {kind}" for name, kind in into.columns)
        first = into.columns[0][0]
        found = _insertions[into] = (
            f"INSERT INTO {into.table} ({names})"  # noqa: S608 - our own names
            f" SELECT {names} FROM json_to_recordset(CAST(:rows AS json)) AS given ({kinds})"
            f" ON CONFLICT ({first}) DO NOTHING RETURNING {first}"
        )
    return found
