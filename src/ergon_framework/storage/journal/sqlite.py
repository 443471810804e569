"""A journal in one SQLite file, written and read by several processes at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ergon_framework.ports.jobstore import Bell
from ergon_framework.ports.journal import Entry, SpanRecord, Wanted
from ergon_framework.storage.bells import Belfry
from ergon_framework.storage.journal import rows
from ergon_framework.storage.schema import Schema
from ergon_framework.storage.writer import Database

KEEP = 7 * 86400.0
"""Seconds that something stays."""
MOST = 200_000
"""Entries that stay, and as many spans."""

_SCHEMA = Schema("journal", "ergon_framework.storage.journal")
_TOPIC = "told"
_SWEEP_AFTER = 2_000  # rows of this process between two sweeps: what others write they sweep
_AT_ONCE = 2_000  # rows dropped by one commit, so that nobody waits long for his turn
_OLD = """
DELETE FROM {table} WHERE number IN (
    SELECT number FROM {table} WHERE {at} < :before LIMIT :most
)
"""
_SURPLUS = """
DELETE FROM {table} WHERE number IN (
    SELECT number FROM {table}
    WHERE number <= (SELECT coalesce(max(number), 0) FROM {table}) - :keep
    ORDER BY number LIMIT :most
)
"""
_TABLES = (("ergon_entries", "at"), ("ergon_spans", "ended_at"))


class SqliteJournal:
    """One file. Any thread may call any method; trouble with the file is a ``StoreError``.

    With ``read_only`` a file that is not there is an error, and is not made.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        keep: float = KEEP,
        most: int = MOST,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        read_only: bool = False,
    ) -> None:
        self._database = Database(
            path, schema=_SCHEMA, busy_timeout=busy_timeout, read_only=read_only
        )
        self._belfry = Belfry(self._database.path)
        self._keep = keep
        self._most = most
        self._clock = clock
        self._left = 0  # rows until the next sweep: the first write sweeps

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def write(self, entries: Sequence[Entry], spans: Sequence[SpanRecord] = ()) -> None:
        """Add them in one commit; rings the bells. Now and then it sweeps."""
        if not entries and not spans:
            return
        told = [rows.entry_row(entry) for entry in entries]
        ended = [rows.span_row(span) for span in spans]

        def work(connection: sqlite3.Connection) -> None:
            with closing(connection.cursor()) as cursor:
                cursor.executemany(rows.ADD_ENTRY, told)
                cursor.executemany(rows.ADD_SPAN, ended)

        self._database.write(work, is_synced=False)
        self._belfry.ring(_TOPIC)
        self._left -= len(told) + len(ended)
        if self._left <= 0:
            self._left = _SWEEP_AFTER
            self.sweep(self._keep, self._most)

    def read(self, wanted: Wanted, after: int = 0, limit: int = 1000) -> list[Entry]:
        """Entries with a number above ``after``, the oldest first."""
        statement, values = rows.select(wanted, after, limit)
        return [rows.entry_of(row) for row in self._rows(statement, values)]

    def newest(self, wanted: Wanted, limit: int = 1000) -> list[Entry]:
        """The last entries, the oldest of them first."""
        statement, values = rows.select(wanted, 0, limit, order="DESC")
        return [rows.entry_of(row) for row in reversed(self._rows(statement, values))]

    def last(self) -> int:
        """The highest number given so far, also to what has been swept since."""
        found = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'ergon_entries'")
        return int(found[0][0]) if found else 0

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """The spans of a trace, by their beginning."""
        return [rows.span_of(row) for row in self._rows(rows.TRACE, [trace_id])]

    def traces_of(self, unit: str) -> list[str]:
        """The traces in which a unit took part, the newest first."""
        return [row[0] for row in self._rows(rows.TRACES_OF, {"unit": unit})]

    def traces_beginning(self, prefix: str, limit: int = 20) -> list[str]:
        """The traces whose id begins so, for people who type less."""
        return [row[0] for row in self._rows(rows.TRACES_BEGINNING, [prefix, f"{prefix}g", limit])]

    def sweep(self, keep: float, most: int) -> int:
        """Drop what is older than ``keep`` seconds or beyond ``most`` rows; how many went."""
        before = self._clock() - keep
        gone = 0
        for table, at in _TABLES:
            gone += self._drop(_OLD.format(table=table, at=at), {"before": before})
            gone += self._drop(_SURPLUS.format(table=table), {"keep": most})
        return gone

    def listen(self) -> Bell:
        """A bell that rings at each write, from any process; look now and then all the same."""
        return self._belfry.listen(_TOPIC)

    def data_version(self) -> int:
        """A number that changes when anybody has written."""
        return self._database.data_version()

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        self._belfry.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _rows(self, statement: str, values: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        def work(connection: sqlite3.Connection) -> list[Any]:
            with closing(connection.execute(statement, values)) as cursor:
                return cursor.fetchall()

        return self._database.read(work)

    def _drop(self, statement: str, values: dict[str, Any]) -> int:
        """Run a deletion until it finds nothing more, a few rows in each commit."""

        def work(connection: sqlite3.Connection) -> int:
            with closing(connection.execute(statement, {**values, "most": _AT_ONCE})) as cursor:
                return cursor.rowcount

        gone = 0
        while dropped := self._database.write(work, is_synced=False):
            gone += dropped
        return gone
