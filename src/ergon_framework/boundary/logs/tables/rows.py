"""Rows as the rest of the store reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ergon_framework.boundary.logs.records import OFFSET_BITS, checked_seal, read_proof
from ergon_framework.boundary.logs.tables.ground import Books, Row
from ergon_framework.ports.factstore import INBOUND, Gap, LogInfo, StoredFact

LAST = (1 << OFFSET_BITS) - 1
"""The highest offset there can be."""


@dataclass(slots=True)
class LogRow:
    """One log."""

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


def log_named(books: Books, name: str) -> LogRow | None:
    """A log, if it is there."""
    row = books.one("logs.log", name)
    return None if row is None else _log(row)


def log_or_new(books: Books, name: str) -> LogRow:
    """A log, which comes into being when it is not there."""
    row = books.one("logs.log", name)
    if row is None:
        books.run("logs.new_log", name)
        row = books.only("logs.log", name)
    return _log(row)


def log_numbered(books: Books, number: int) -> LogRow:
    """A log that is known to be there."""
    return _log(books.only("logs.log_of", number))


def all_logs(books: Books) -> list[LogRow]:
    """Every log, ``outbound`` first."""
    names = books.all("logs.logs")
    return [log_or_new(books, name) for (name,) in names]


def _log(row: Row) -> LogRow:
    number, name, first, base_chain, base_total, sealed, last_at, last_view, last, *rest = row
    head, total, chain, at, view = first - 1, base_total, base_chain, last_at, last_view
    if last is not None:
        head, (total, chain, at, view) = last & LAST, rest
        # A row that was damaged must not stop the log; whoever verifies it is told.
        total = total if isinstance(total, int) else base_total
        chain = chain if isinstance(chain, bytes) else bytes(32)
    base = number << OFFSET_BITS
    return LogRow(
        *(number, name, first, base_chain, base_total, sealed),
        *(head, total, chain, at, view, base),
    )


def gaps_of(books: Books, log: LogRow, after: int = 0, through: int = LAST) -> list[Gap]:
    """Recorded losses that reach into a stretch of a log."""
    rows = books.all("logs.gaps", log.id, after, through)
    return [Gap(log.name, *row) for row in rows]


class Zones:
    """Where the facts of a view go, looked up once each."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._known: dict[int, str | None] = {}

    def __getitem__(self, view: int) -> str | None:
        if view not in self._known:
            row = self._books.one("logs.zone_of", view)
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
