"""Views: the facts of a log to one zone, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass

from ergon_framework.boundary.logs.tables.ground import Books
from ergon_framework.boundary.logs.tables.rows import LogRow


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


def view_of(books: Books, log: LogRow, to_zone: str) -> int | None:
    """The number of a view, if there has been a fact to that zone."""
    row = books.one("logs.view", log.id, to_zone)
    return None if row is None else int(row[0])


def last_run(books: Books, view: int) -> Run | None:
    """The newest run of a view."""
    row = books.one("logs.last_run", view)
    return None if row is None else Run(*row)


def run_at(books: Books, view: int, offset: int) -> Run | None:
    """The run that an offset of a view lies in."""
    row = books.one("logs.run_at", view, offset)
    return None if row is None else Run(*row)


def next_after(books: Books, log: LogRow, after: int, to_zone: str | None) -> Ahead | None:
    """The next fact of a view, as the log has it written down."""
    after = max(after, log.first - 1)
    if to_zone is None:
        found = _next_of_all(books, log, after)
    else:
        found = _next_of(books, log, after, to_zone)
    if found is None:
        return None
    offset, lag = found
    row = books.one("logs.recorded_at", log.base + offset)
    return Ahead(offset, lag, None if row is None else row[0])


def _next_of_all(books: Books, log: LogRow, after: int) -> tuple[int, int] | None:
    markers: list[int] = []
    if log.has_markers:
        rows = books.all("logs.markers", log.id, after)
        markers = [offset for (offset,) in rows]
    lag, offset = log.head - after - len(markers), after + 1
    for each in markers:
        offset += each == offset
    return (offset, lag) if lag > 0 else None


def _next_of(books: Books, log: LogRow, after: int, to_zone: str) -> tuple[int, int] | None:
    view = view_of(books, log, to_zone)
    if view is None:
        return None
    row = books.one("logs.run_after", view, after, log.head)
    newest = last_run(books, view)
    if row is None or newest is None:
        return None
    run = Run(*row)
    offset = max(run.first, after + 1)
    end = log.head if newest.last is None else newest.last
    return offset, newest.rank + end - newest.first - (run.rank + offset - run.first) + 1
