"""Consumers as rows: who they are, who holds them, and how far behind they are."""

from __future__ import annotations

from ergon_framework.boundary.logs.refusing import unknown
from ergon_framework.boundary.logs.tables.ground import Books, Row
from ergon_framework.boundary.logs.tables.rows import LogRow, log_numbered
from ergon_framework.boundary.logs.tables.runs import next_after
from ergon_framework.ports.factstore import ConsumerInfo


def reader_named(books: Books, name: str) -> tuple[ConsumerInfo, LogRow]:
    """A consumer that must be there, without its lag, and the log it reads."""
    row = books.one("consumers.consumer", name)
    if row is None:
        raise unknown(name)
    return reader_of(books, row)


def reader_of(books: Books, row: Row) -> tuple[ConsumerInfo, LogRow]:
    """The consumer in a row, without its lag, and the log it reads."""
    name, log_id, at, to_zone, is_required, served, deliveries, holder, held_until, *rest = row
    lease, created_at = rest
    log = log_numbered(books, log_id)
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


def with_lag(books: Books, info: ConsumerInfo, log: LogRow) -> ConsumerInfo:
    """The consumer, told how much of its view lies above its cursor, and since when."""
    ahead = next_after(books, log, info.cursor, info.to_zone)
    if ahead is not None:
        info.lag, info.waiting_since = ahead.lag, ahead.recorded_at
    return info
