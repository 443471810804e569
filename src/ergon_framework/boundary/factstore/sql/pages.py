"""Reading a log: pages that are bounded, checked, and that leave nothing out unnoticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ergon_framework.boundary.factstore import page_plan
from ergon_framework.boundary.factstore.hashchain import NOBODY
from ergon_framework.boundary.factstore.page_plan import Hole, PageRead, fill_page
from ergon_framework.boundary.factstore.sql.rows import (
    LAST,
    LogRow,
    Zones,
    fact_of,
    gaps_of,
    last_run,
    view_of,
)
from ergon_framework.boundary.factstore.sql.session import Row, SqlSession
from ergon_framework.ports.factstore import LogPage, StoredFact

ALL_ROWS = -1
"""As many rows as there are."""


def read(
    session: SqlSession,
    log: LogRow,
    after: int,
    limit: int,
    max_bytes: int,
    to_zone: str | None = None,
) -> PageRead:
    """The facts after an offset, up to a limit, the head or a corrupted one."""
    found = fill_page(_facts_or_hole(session, log, after, to_zone), log.head, limit, max_bytes)
    # Most pages lie behind all that was ever dropped; for them no gap is looked for.
    is_whole = after >= log.first and not log.has_markers
    gaps = [] if is_whole else gaps_of(session, log, after, found.through)
    page = LogPage(
        found.given,
        found.through,
        log.head,
        chain=chain_at(session, log, after),
        end_chain=chain_at(session, log, found.through),
        gaps=gaps,
    )
    return PageRead(page, found.corrupted)


def chain_at(session: SqlSession, log: LogRow, offset: int) -> bytes:
    """The hash chain after an offset; empty when it is no longer known, or not yet."""
    if offset == log.head:
        return log.chain
    if offset == log.first - 1:
        return log.base_chain
    if not log.first <= offset < log.head:
        return b""
    row = session.one("logs.chain", log.base + offset)
    return row[0] if row is not None and isinstance(row[0], bytes) else b""


def unexplained(session: SqlSession, log: LogRow, after: int) -> tuple[int, int] | None:
    """The first and the last offset after a place that are gone and that no gap explains."""
    if after + 1 >= log.first:
        return None
    return page_plan.unexplained(after, log.first, gaps_of(session, log, after))


def _facts_or_hole(
    session: SqlSession, log: LogRow, after: int, to_zone: str | None
) -> Iterator[StoredFact | Hole]:
    """The facts of a view in order; the first that is missing or has changed ends them.

    Rows are read as facts are taken: a reader that has enough just stops.
    """
    start = max(after, log.first - 1)
    rows, end = _rows(session, log, start, to_zone)
    zones, last, count = Zones(session), start, 0
    for row in rows:
        offset, count = row[0] & LAST, count + 1
        first, before = (0, 0) if to_zone is None else row[7:]
        previous = offset - 1 if offset > first else before
        # The row before this one in the view is not the one that was read last: facts are missing.
        if previous > last or (count > 1 and previous != last):
            yield Hole(max(last + 1, first) if first < offset else previous)
            return
        zone = zones[row[1]]
        if zone != NOBODY:
            fact = fact_of(row, zone, previous)
            if fact is None:
                yield Hole(offset)
                return
            yield fact
        last = offset
    # The rows ended before the view does: what is missing is at the end.
    if last < end:
        yield Hole(last + 1 if to_zone is None else end)


def _rows(
    session: SqlSession, log: LogRow, start: int, to_zone: str | None
) -> tuple[Iterable[Row], int]:
    """Rows of a view after a place, and the offset that the last one there must have."""
    if to_zone is None:
        bounds = (log.base + start, log.base + log.head, ALL_ROWS)
        return session.each("logs.facts", *bounds), log.head
    view = view_of(session, log, to_zone)
    newest = None if view is None else last_run(session, view)
    if newest is None:
        return (), 0
    end = log.head if newest.last is None else newest.last
    return session.each("logs.facts_of_view", view, log.base, start, log.head, ALL_ROWS), end
