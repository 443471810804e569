"""Views: the facts of a log to one zone, and where they lie."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from ergon_framework.boundary.logs.sqlite.ground import SQL
from ergon_framework.boundary.logs.sqlite.rows import LogRow
from ergon_framework.storage.statements import load

_SQL = load(SQL, "logs.sql")


@dataclass(slots=True)
class Run:
    """A stretch of a log with facts to one zone only."""

    first: int
    last: int | None
    rank: int
    previous: int

    def before(self, offset: int) -> int:
        """The fact of the view before one of the run."""
        return offset - 1 if offset > self.first else self.previous


@dataclass(frozen=True, slots=True)
class Ahead:
    """The next fact of a view, and how many there are with it."""

    offset: int
    lag: int
    recorded_at: float | None


def view_of(cursor: sqlite3.Cursor, log: LogRow, to_zone: str) -> int | None:
    """The number of a view, if there has been a fact to that zone."""
    row = cursor.execute(_SQL["view"], (log.id, to_zone)).fetchone()
    return None if row is None else int(row[0])


def last_run(cursor: sqlite3.Cursor, view: int) -> Run | None:
    """The newest run of a view."""
    row = cursor.execute(_SQL["last_run"], (view,)).fetchone()
    return None if row is None else Run(*row)


def run_at(cursor: sqlite3.Cursor, view: int, offset: int) -> Run | None:
    """The run that an offset of a view lies in."""
    row = cursor.execute(_SQL["run_at"], (view, offset)).fetchone()
    return None if row is None else Run(*row)


def next_after(
    cursor: sqlite3.Cursor, log: LogRow, after: int, to_zone: str | None
) -> Ahead | None:
    """The next fact of a view, as the log has it written down."""
    after = max(after, log.first - 1)
    if to_zone is None:
        found = _next_of_all(cursor, log, after)
    else:
        found = _next_of(cursor, log, after, to_zone)
    if found is None:
        return None
    offset, lag = found
    row = cursor.execute(_SQL["recorded_at"], (log.base + offset,)).fetchone()
    return Ahead(offset, lag, None if row is None else row[0])


def _next_of_all(cursor: sqlite3.Cursor, log: LogRow, after: int) -> tuple[int, int] | None:
    markers: list[int] = []
    if log.has_markers:
        rows = cursor.execute(_SQL["markers"], (log.id, after)).fetchall()
        markers = [offset for (offset,) in rows]
    lag, offset = log.head - after - len(markers), after + 1
    for each in markers:
        offset += each == offset
    return (offset, lag) if lag > 0 else None


def _next_of(
    cursor: sqlite3.Cursor, log: LogRow, after: int, to_zone: str
) -> tuple[int, int] | None:
    view = view_of(cursor, log, to_zone)
    if view is None:
        return None
    row = cursor.execute(_SQL["run_after"], (view, after, log.head)).fetchone()
    newest = last_run(cursor, view)
    if row is None or newest is None:
        return None
    run = Run(*row)
    offset = max(run.first, after + 1)
    end = log.head if newest.last is None else newest.last
    return offset, newest.rank + end - newest.first - (run.rank + offset - run.first) + 1
