"""Rows as the rest of the store reads them: logs, facts, views and consumers.

A view is the facts of a log to one zone; it is kept as runs of offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ergon_framework.boundary.factstore.consumers import unknown
from ergon_framework.boundary.factstore.hashchain import OFFSET_BITS, checked_seal, read_proof
from ergon_framework.boundary.factstore.sql.session import Row, SqlSession
from ergon_framework.ports.factstore import INBOUND, ConsumerInfo, Gap, LogInfo, StoredFact

LAST = (1 << OFFSET_BITS) - 1
"""The highest offset there can be."""


@dataclass(slots=True)
class LogRow:
    """The row of one log."""

    id: int
    name: str
    first: int
    base_chain: bytes
    base_total: int
    sealed: int
    head: int
    total: int
    """Bytes of all facts there have been."""
    chain: bytes
    last_at: float | None
    view: int | None
    """Where the last fact went."""
    base: int
    """What is added to an offset to get a fact's number."""
    views: dict[str, int] = field(default_factory=dict)
    """The views that were asked for so far, by zone."""

    @property
    def size(self) -> int:
        """Bytes of the facts that are kept."""
        return self.total - self.base_total

    @property
    def has_markers(self) -> bool:
        """Whether losses of a peer may lie among its facts."""
        return self.name.startswith(INBOUND)

    def info(self) -> LogInfo:
        """The log in figures."""
        return LogInfo(self.name, self.head, self.first, self.size, self.last_at)


def log_named(session: SqlSession, name: str) -> LogRow | None:
    """A log, if it is there."""
    row = session.one("logs.log", name)
    return None if row is None else _log(row)


def log_or_new(session: SqlSession, name: str) -> LogRow:
    """A log, created if it does not exist."""
    row = session.one("logs.log", name)
    if row is None:
        session.run("logs.new_log", name)
        row = session.only("logs.log", name)
    return _log(row)


def log_numbered(session: SqlSession, number: int) -> LogRow:
    """A log that is known to be there."""
    return _log(session.only("logs.log_of", number))


def all_logs(session: SqlSession) -> list[LogRow]:
    """Every log, ``outbound`` first."""
    names = session.all("logs.logs")
    return [log_or_new(session, name) for (name,) in names]


def _log(row: Row) -> LogRow:
    number, name, first, base_chain, base_total, sealed, last_at, last_view, last, *rest = row
    head, total, chain, at, view = first - 1, base_total, base_chain, last_at, last_view
    if last is not None:
        head, (total, chain, at, view) = last & LAST, rest
        # A damaged row must not stop the log; verification reports it.
        total = total if isinstance(total, int) else base_total
        chain = chain if isinstance(chain, bytes) else bytes(32)
    base = number << OFFSET_BITS
    return LogRow(
        *(number, name, first, base_chain, base_total, sealed),
        *(head, total, chain, at, view, base),
    )


def gaps_of(session: SqlSession, log: LogRow, after: int = 0, through: int = LAST) -> list[Gap]:
    """Recorded losses that reach into a stretch of a log."""
    rows = session.all("logs.gaps", log.id, after, through)
    return [Gap(log.name, *row) for row in rows]


class Zones:
    """Where the facts of a view go, looked up once each."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._known: dict[int, str | None] = {}

    def __getitem__(self, view: int) -> str | None:
        if view not in self._known:
            row = self._session.one("logs.zone_of", view)
            self._known[view] = None if row is None else row[0]
        return self._known[view]


def fact_of(row: Row, to_zone: str | None, previous: int) -> StoredFact | None:
    """The fact in a row, after another one in the reader's view; None when the row has changed."""
    number, _, _, recorded_at, proof, envelope, fact = row[:7]
    if to_zone is None or seal_in(row, to_zone) is None:
        return None
    found = read_proof(proof)
    if found is None:
        return None
    return StoredFact(
        number & LAST,
        previous,
        found.from_zone,
        found.message_id,
        to_zone,
        found.digest,
        envelope,
        fact,
        recorded_at,
        found.source_offset,
    )


def seal_in(row: Row, to_zone: str) -> bytes | None:
    """The seal of a row; None when the row is not what was put there."""
    number, _, total, recorded_at, proof, envelope, fact = row[:7]
    return checked_seal(number, total, recorded_at, proof, to_zone, envelope, fact)


@dataclass(slots=True)
class ViewSegment:
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


def view_of(session: SqlSession, log: LogRow, to_zone: str) -> int | None:
    """The number of a view, if there has been a fact to that zone."""
    row = session.one("logs.view", log.id, to_zone)
    return None if row is None else int(row[0])


def last_run(session: SqlSession, view: int) -> ViewSegment | None:
    """The newest run of a view."""
    row = session.one("logs.last_run", view)
    return None if row is None else ViewSegment(*row)


def run_at(session: SqlSession, view: int, offset: int) -> ViewSegment | None:
    """The run that an offset of a view lies in."""
    row = session.one("logs.run_at", view, offset)
    return None if row is None else ViewSegment(*row)


def next_after(session: SqlSession, log: LogRow, after: int, to_zone: str | None) -> Ahead | None:
    """The next fact of a view, as the log has it written down."""
    after = max(after, log.first - 1)
    if to_zone is None:
        found = _next_of_all(session, log, after)
    else:
        found = _next_of(session, log, after, to_zone)
    if found is None:
        return None
    offset, lag = found
    row = session.one("logs.recorded_at", log.base + offset)
    return Ahead(offset, lag, None if row is None else row[0])


def _next_of_all(session: SqlSession, log: LogRow, after: int) -> tuple[int, int] | None:
    markers: list[int] = []
    if log.has_markers:
        rows = session.all("logs.markers", log.id, after)
        markers = [offset for (offset,) in rows]
    lag, offset = log.head - after - len(markers), after + 1
    for each in markers:
        # Markers of a peer's losses take offsets, but are no facts that could come next.
        offset += each == offset
    return (offset, lag) if lag > 0 else None


def _next_of(session: SqlSession, log: LogRow, after: int, to_zone: str) -> tuple[int, int] | None:
    view = view_of(session, log, to_zone)
    if view is None:
        return None
    row = session.one("logs.run_after", view, after, log.head)
    newest = last_run(session, view)
    if row is None or newest is None:
        return None
    run = ViewSegment(*row)
    offset = max(run.first, after + 1)
    end = log.head if newest.last is None else newest.last
    # Ranks count the facts of the view from its beginning, so that the lag is a difference of two
    # ranks and no rows have to be counted.
    return offset, newest.rank + end - newest.first - (run.rank + offset - run.first) + 1


def reader_named(session: SqlSession, name: str) -> tuple[ConsumerInfo, LogRow]:
    """A consumer that must be there, without its lag, and the log it reads."""
    row = session.one("consumers.consumer", name)
    if row is None:
        raise unknown(name)
    return reader_of(session, row)


def reader_of(session: SqlSession, row: Row) -> tuple[ConsumerInfo, LogRow]:
    """The consumer in a row, without its lag, and the log it reads."""
    name, log_id, at, to_zone, is_required, served, deliveries, holder, held_until, *rest = row
    lease, created_at = rest
    log = log_numbered(session, log_id)
    info = ConsumerInfo(
        name=name,
        log=log.name,
        cursor=at,
        to_zone=to_zone,
        is_required=bool(is_required),
        served=served,
        deliveries=deliveries,
        holder=holder,
        held_until=held_until,
        lease=lease,
        created_at=created_at,
    )
    return info, log


def with_lag(session: SqlSession, info: ConsumerInfo, log: LogRow) -> ConsumerInfo:
    """The consumer with its lag: how much of its view lies above its cursor, and since when."""
    ahead = next_after(session, log, info.cursor, info.to_zone)
    if ahead is not None:
        info.lag, info.waiting_since = ahead.lag, ahead.recorded_at
    return info
