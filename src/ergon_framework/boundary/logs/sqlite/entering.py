"""Facts on their way into logs, within one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

from ergon_framework.boundary.logs.records import read_proof
from ergon_framework.boundary.logs.sqlite.ground import SQL, SqliteBooks
from ergon_framework.boundary.logs.sqlite.ledger import Ledger
from ergon_framework.boundary.logs.tables.entering import Entry, Identity, View
from ergon_framework.boundary.logs.tables.ground import Row
from ergon_framework.boundary.logs.tables.rows import LogRow
from ergon_framework.boundary.logs.tables.runs import Run, last_run, view_of
from ergon_framework.ports.factstore import Reference
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "logs.sql")

MOST_ROWS = 64
"""Rows of one statement: a power of two, with fewer values than any SQLite takes."""


class SqliteEntry(Entry):
    """Looks things up as they are needed, and writes all at the end."""

    def __init__(self, books: SqliteBooks, now: float, ledger: Ledger) -> None:
        super().__init__(now)
        self._books = books
        self._ledger = ledger
        self._logs: dict[str, LogRow] = {}

    def finish(self) -> int:
        """Write it all; how many facts that was."""
        if not self._rows:
            return 0
        _insert(self._books, self._rows)
        runs = self._runs_to_write()
        if runs:
            self._books.run_all("logs.new_run", runs)
        # Only now: had one of these statements failed, nobody would notice what was remembered.
        self._ledger.add_all(self._fresh)
        for log in self._logs.values():
            self._ledger.reach(log)
        return len(self._rows)

    def _log(self, name: str) -> LogRow:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = self._ledger.log(self._books, name)
        return log

    def _known(self, log: LogRow, key: bytes) -> Identity | None:
        known = self._ledger.known(self._books, key)
        if known is None:
            return None
        digest, offset = known
        row = self._books.one("logs.fact", log.base + offset)
        found = None if row is None else read_proof(row[4])
        if found is not None and found.digest.startswith(digest):
            digest = found.digest  # all of it, and not the half that the ledger keeps
        return offset, digest, row

    def _stored(self, number: int) -> Row | None:
        return self._books.one("logs.fact", number)

    def _zone_of(self, view: int) -> str | None:
        row = self._books.one("logs.zone_of", view)
        return None if row is None else row[0]

    def _write_back(self, row: Row) -> None:
        number, *columns = row
        self._books.run("logs.write_back", *columns, number)

    def _object(self, wanted: Reference) -> Reference | None:
        row = self._books.one("objects.object", wanted.bucket, wanted.key)
        return None if row is None else Reference(*row[:4])

    def _refer(self, references: Sequence[Reference]) -> None:
        for each in references:
            if not self._books.run("objects.refer", each.bucket, each.key):
                self._books.run("objects.await", each.bucket, each.key)

    def _view(self, log: LogRow, to_zone: str) -> int:
        view = view_of(self._books, log, to_zone)
        return self._books.add("logs.new_view", log.id, to_zone) if view is None else view

    def _last_run(self, view: int) -> Run | None:
        return last_run(self._books, view)

    def _write_end(self, view: View, run: Run) -> None:
        self._books.run("logs.end_run", run.last, view.id, run.first)


def _insert(cursor: sqlite3.Cursor, rows: Sequence[Row]) -> None:
    """Write rows with few statements: after each, threads that wait would be let in between."""
    at = 0
    while left := len(rows) - at:
        count = min(1 << left.bit_length() - 1, MOST_ROWS)
        cursor.execute(_insert_of(count), [*chain.from_iterable(rows[at : at + count])])
        at += count


@cache
def _insert_of(count: int) -> str:
    """The statement for so many rows."""
    one = _SQL["insert_fact"]
    return one + f", {one[one.rindex('(') :]}" * (count - 1)
