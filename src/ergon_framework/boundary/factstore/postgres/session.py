"""Runs named statements in one transaction on one connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, takewhile
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ergon_framework.boundary.factstore.sql.session import Row
from ergon_framework.storage.postgres.pipeline import Packed, taking_arrays
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.storage.sql_files import load

SQL = "ergon_framework.boundary.factstore.postgres.sql"
_FILES = ("consumers", "logs", "objects", "quarantine", "records", "store")
_FIRST, _MOST = 64, 1024  # rows whose sizes are looked at together
_BYTES = 1 << 20  # of payloads that are fetched together, unless one row alone has more
_SIZES = b"SELECT octet_length(envelope) + octet_length(fact) FROM (%s) AS sized"
_names = count()


@dataclass(frozen=True, slots=True)
class ZoneStatements:
    """The statements for one zone's tables, to look at them and to change them."""

    reading: Mapping[str, bytes]
    writing: Mapping[str, bytes]
    """Rows that are looked at are locked where what happens next depends on them."""


def statements_for(namespace: str, place: str) -> ZoneStatements:
    """The statements for the tables in one schema; ``place`` is what sets it apart from copies."""
    texts = {f"{file}.{name}": text for file in _FILES for name, text in _load(file)}
    fixed = {"{zone}": f'"{namespace}"', "{place}": f"'{place}'"}

    def worded(locked: str) -> dict[str, bytes]:
        words = fixed | {"{locked}": locked}
        return {name: _filled(text, words).encode() for name, text in texts.items()}

    return ZoneStatements(worded(""), worded("FOR UPDATE"))


def _load(file: str) -> Iterable[tuple[str, str]]:
    return load(SQL, f"{file}.sql").items()


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


class PostgresSession:
    """The tables of one zone within one transaction."""

    def __init__(self, connection: Connection, statements: Mapping[str, bytes]) -> None:
        self._connection = connection
        self._statements = statements

    def send(
        self, statement: str, *values: Any, is_prepared: bool = False
    ) -> psycopg.RawCursor[Row]:
        """Execute, and leave the answer for later: in a pipeline that costs no round trip.

        Only statements that never search are prepared: the tables grow while a plan is kept.
        """
        cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
        if any(isinstance(each, Packed) for each in values):
            taking_arrays(cursor)
        return cursor.execute(self._statements[statement], _kept(values), prepare=is_prepared)

    def alter(self, statement: str) -> None:
        """Execute a statement that changes the tables themselves, and goes by no name."""
        self._connection.execute(statement.encode(), prepare=False)

    def one(self, statement: str, *values: Any) -> Row | None:
        """The first row, or None."""
        return self.send(statement, *values).fetchone()

    def only(self, statement: str, *values: Any) -> Row:
        """The row of a statement that always finds one."""
        [row] = self.send(statement, *values).fetchall()
        return row

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Every row."""
        return self.send(statement, *values).fetchall()

    def each(self, statement: str, *values: Any) -> Iterator[Row]:
        """Rows with payloads, as they are asked for; other statements may be run in between.

        Their sizes are read first: a reader that stops early has not paid for what lies
        behind it. Only within a transaction that sees one state of the tables.
        """
        number, text = next(_names), self._statements[statement].rstrip(b"; \n")
        rows, sizes = b"ergon_rows_%d" % number, b"ergon_sizes_%d" % number
        asked = _FIRST
        with self._connection.pipeline():
            self._declare(rows, text, values)
            self._declare(sizes, _SIZES % text, values)
            answer, seen = self._fetch(rows, 1), self._fetch(sizes, asked)
        yield from answer.fetchall()
        known = [size for [size] in seen.fetchall()]
        is_all = len(known) < asked
        del known[:1]
        while known:
            count = _fitting(known)
            is_due = count == len(known) and not is_all
            asked = min(asked * 4, _MOST) if is_due else asked
            with self._connection.pipeline():
                answer = self._fetch(rows, count)
                seen = self._fetch(sizes, asked) if is_due else seen
            yield from answer.fetchall()
            del known[:count]
            if is_due:
                known = [size for [size] in seen.fetchall()]
                is_all = len(known) < asked

    def run(self, statement: str, *values: Any) -> int:
        """Change something; how many rows it was."""
        return self.send(statement, *values).rowcount

    def run_all(self, statement: str, rows: Iterable[Row]) -> None:
        """Run one statement for many rows of values."""
        for row in rows:
            self.send(statement, *row)

    def add(self, statement: str, *values: Any) -> int:
        """Insert one row that gets a number; the number."""
        [number] = self.only(statement, *values)
        return int(number)

    def _declare(self, name: bytes, text: bytes, values: tuple[Any, ...]) -> None:
        cursor = psycopg.RawCursor(self._connection)
        declare = b"DECLARE %s NO SCROLL CURSOR FOR %s" % (name, text)
        cursor.execute(declare, _kept(values), prepare=False)

    def _fetch(self, name: bytes, rows: int) -> psycopg.RawCursor[Row]:
        cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
        return cursor.execute(b"FETCH %d FROM %s" % (rows, name), prepare=False)


def _fitting(sizes: Sequence[int]) -> int:
    """How many of these rows to fetch together: at least one."""
    sums = accumulate(sizes)
    return max(1, sum(1 for _ in takewhile(lambda total: total <= _BYTES, sums)))


def _kept(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The values as the server can keep them: it has no text with a NUL in it."""
    if any(type(each) is str and "\0" in each for each in values):
        return tuple(
            each.replace("\0", "\ufffd") if isinstance(each, str) else each for each in values
        )
    return values or None
