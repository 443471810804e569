"""A journal in one SQLite file, which several processes write and read at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from ergon_framework.ports.jobstore import Subscription
from ergon_framework.ports.journal import JournalEntry, JournalQuery, SpanRecord
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.sqlite.notifier import FifoNotifier

_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

ADD_ENTRY = """
INSERT INTO ergon_entries (at, name, source, unit, trace_id, fields) VALUES (?, ?, ?, ?, ?, ?)
"""
# A span that a writer offers again, not knowing whether it was taken, is there once.
ADD_SPAN = """
INSERT OR IGNORE INTO ergon_spans
    (trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, attributes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT = """
SELECT number, at, name, source, unit, trace_id, fields FROM ergon_entries
WHERE {terms} ORDER BY number {order} LIMIT ?
"""
TRACE = """
SELECT trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, attributes
FROM ergon_spans WHERE trace_id = ? ORDER BY began_at, number
"""
# The inner one goes down the primary key: how far back it looks does not grow with the file.
LATEST_SPANS = """
SELECT trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, attributes
FROM (SELECT * FROM ergon_spans ORDER BY number DESC LIMIT :looked_at)
WHERE :names IS NULL OR name IN (SELECT value FROM json_each(:names))
ORDER BY number DESC LIMIT :most
"""
TRACES_OF = """
SELECT trace_id FROM (
    SELECT trace_id, began_at AS at FROM ergon_spans WHERE unit = :unit AND unit <> ''
    UNION ALL
    SELECT trace_id, at FROM ergon_entries
    WHERE unit = :unit AND unit <> '' AND trace_id <> ''
) GROUP BY trace_id ORDER BY max(at) DESC, trace_id
"""
# Ids are hexadecimal: "g" comes after all that may follow.
TRACES_BEGINNING = """
SELECT DISTINCT trace_id FROM ergon_spans WHERE trace_id >= ? AND trace_id < ?
ORDER BY trace_id LIMIT ?
"""


def entry_row(entry: JournalEntry) -> tuple[Any, ...]:
    """The columns of :data:`ADD_ENTRY`."""
    fields = _encode(entry.fields).decode()
    return (entry.at, entry.name, entry.source, entry.unit, entry.trace_id, fields)


def entry_of(row: Sequence[Any]) -> JournalEntry:
    """What :func:`select` found."""
    number, at, name, source, unit, trace_id, fields = row
    return JournalEntry(
        at=at,
        name=name,
        source=source,
        unit=unit,
        trace_id=trace_id,
        fields=_decode(fields),
        number=number,
    )


def span_row(span: SpanRecord) -> tuple[Any, ...]:
    """The columns of :data:`ADD_SPAN`."""
    return (
        *(span.trace_id, span.span_id, span.parent_id, span.name, span.source, span.unit),
        *(span.began_at, span.ended_at, span.failure, _encode(span.attributes).decode()),
    )


def span_of(row: Sequence[Any]) -> SpanRecord:
    """What :data:`TRACE` found."""
    trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, more = row
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        source=source,
        unit=unit,
        began_at=began_at,
        ended_at=ended_at,
        failure=failure,
        attributes=_decode(more),
    )


def select(
    wanted: JournalQuery, after: int, limit: int, order: Literal["ASC", "DESC"] = "ASC"
) -> tuple[str, list[Any]]:
    """The statement that finds what is wanted, and its values."""
    terms, values = ["number > ?"], [after]
    for term, value in _terms(wanted):
        terms.append(term)
        values += value
    return SELECT.format(terms=" AND ".join(terms), order=order), [*values, limit]


def _terms(wanted: JournalQuery) -> list[tuple[str, list[Any]]]:
    found: list[tuple[str, list[Any]]] = []
    if wanted.names:
        # Whole, or the part before the dot: "job." up to what would come after all that begins so.
        either = " OR ".join("name = ? OR (name > ? AND name < ?)" for _ in wanted.names)
        values = [each for name in wanted.names for each in (name, f"{name}.", f"{name}/")]
        found.append((f"({either})", values))
    if wanted.unit:
        found.append(("unit = ? AND unit <> ''", [wanted.unit]))
    if wanted.trace_id:
        found.append(("trace_id = ? AND trace_id <> ''", [wanted.trace_id]))
    if wanted.source:
        found.append(("substr(source, 1, length(?)) = ?", [wanted.source] * 2))
    if wanted.since is not None:
        found.append(("at >= ?", [wanted.since]))
    return found


KEEP = 7 * 86400.0
"""Seconds that something stays."""
MAX_ENTRIES = 200_000
"""Entries that stay, and as many spans."""

_SCHEMA = SqliteSchema("journal", "ergon_framework.storage.journal")
_TOPIC = "told"
_SWEEP_AFTER = 2_000  # rows of this process between two sweeps: what others write they sweep
_DELETE_BATCH = 2_000  # rows dropped by one commit, so that other writers do not wait long
_LOOKED_AT = 20_000
"""Spans among which the latest of some names are looked for."""
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
_OF_UNIT = """
DELETE FROM {table} WHERE number IN (
    SELECT number FROM {table} WHERE unit = :unit AND unit <> '' LIMIT :most
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
        most: int = MAX_ENTRIES,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        read_only: bool = False,
    ) -> None:
        self._database = Database(
            path, schema=_SCHEMA, busy_timeout=busy_timeout, read_only=read_only
        )
        self._notifier = FifoNotifier(self._database.path)
        self._keep = keep
        self._most = most
        self._clock = clock
        self._left = 0  # rows until the next sweep: the first write sweeps

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def write(self, entries: Sequence[JournalEntry], spans: Sequence[SpanRecord] = ()) -> None:
        """Add them in one commit; notifies the subscribers. Now and then it sweeps."""
        if not entries and not spans:
            return
        rows = [entry_row(entry) for entry in entries]
        ended = [span_row(span) for span in spans]

        def work(connection: sqlite3.Connection) -> None:
            with closing(connection.cursor()) as cursor:
                cursor.executemany(ADD_ENTRY, rows)
                cursor.executemany(ADD_SPAN, ended)

        # Not synced: the journal makes no promise of durability, and must not slow down the work
        # that it records.
        self._database.write(work, is_synced=False)
        # After the commit: a reader that was woken earlier would find nothing, and sleep on.
        self._notifier.notify(_TOPIC)
        self._left -= len(rows) + len(ended)
        if self._left <= 0:
            # Before the sweep: one that fails is not tried again at each of the following writes.
            self._left = _SWEEP_AFTER
            self.sweep(self._keep, self._most)

    def read(self, wanted: JournalQuery, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """Entries with a number above ``after``, the oldest first."""
        statement, values = select(wanted, after, limit)
        return [entry_of(row) for row in self._rows(statement, values)]

    def newest(self, wanted: JournalQuery, limit: int = 1000) -> list[JournalEntry]:
        """The last entries, the oldest of them first."""
        statement, values = select(wanted, 0, limit, order="DESC")
        return [entry_of(row) for row in reversed(self._rows(statement, values))]

    def last(self) -> int:
        """The highest number given so far, also to what has been swept since."""
        # Not the largest number in the table, which a sweep may have emptied.
        found = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'ergon_entries'")
        return int(found[0][0]) if found else 0

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """The spans of a trace, by their beginning."""
        return [span_of(row) for row in self._rows(TRACE, [trace_id])]

    def latest_spans(self, limit: int, names: Sequence[str] = ()) -> list[SpanRecord]:
        """The spans that ended last, the newest first; of some names, among those of late."""
        values = {
            "names": _encode(list(names)).decode() if names else None,
            "looked_at": _LOOKED_AT if names else limit,
            "most": limit,
        }
        return [span_of(row) for row in self._rows(LATEST_SPANS, values)]

    def traces_of(self, unit: str) -> list[str]:
        """The traces in which a unit took part, the newest first."""
        return [row[0] for row in self._rows(TRACES_OF, {"unit": unit})]

    def traces_beginning(self, prefix: str, limit: int = 20) -> list[str]:
        """The traces whose id begins so, for people who type less."""
        return [row[0] for row in self._rows(TRACES_BEGINNING, [prefix, f"{prefix}g", limit])]

    def sweep(self, keep: float, most: int) -> int:
        """Drop what is older than ``keep`` seconds or beyond ``most`` rows; how many went."""
        before = self._clock() - keep
        gone = 0
        for table, at in _TABLES:
            gone += self._drop(_OLD.format(table=table, at=at), {"before": before})
            gone += self._drop(_SURPLUS.format(table=table), {"keep": most})
        return gone

    def forget(self, units: Sequence[str]) -> int:
        """Delete all rows about some units; how many were deleted."""
        return sum(
            self._drop(_OF_UNIT.format(table=table), {"unit": unit})
            for unit in units
            for table, _ in _TABLES
        )

    def subscribe(self) -> Subscription:
        """Subscribe to each write, by any process; look now and then all the same."""
        return self._notifier.subscribe(_TOPIC)

    def data_version(self) -> int:
        """A number that changes when any process has written."""
        return self._database.data_version()

    def close(self) -> None:
        """Close the journal. May be called twice."""
        self._notifier.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _rows(self, statement: str, values: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        def work(connection: sqlite3.Connection) -> list[Any]:
            with closing(connection.execute(statement, values)) as cursor:
                return cursor.fetchall()

        return self._database.read(work)

    def _drop(self, statement: str, values: dict[str, Any]) -> int:
        """Run a deletion until it finds nothing more, a few rows in each commit."""

        def work(connection: sqlite3.Connection) -> int:
            with closing(
                connection.execute(statement, {**values, "most": _DELETE_BATCH})
            ) as cursor:
                return cursor.rowcount

        # One short commit after the other, so that writers of other processes get in between.
        gone = 0
        while dropped := self._database.write(work, is_synced=False):
            gone += dropped
        return gone
