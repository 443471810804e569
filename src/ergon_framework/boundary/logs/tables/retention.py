"""Dropping payloads, a bounded number per commit. The ledger keeps the ids."""

from __future__ import annotations

from dataclasses import dataclass

from ergon_framework.boundary.logs.tables.ground import Books, note
from ergon_framework.boundary.logs.tables.rows import LAST, LogRow

SLICE = 2000
"""Facts dropped by one commit."""
STRETCH = 10_000
"""Facts looked at by one read."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What one commit dropped."""

    dropped: int
    is_last: bool


def last_to_drop(books: Books, log: LogRow, through: int, loss_reason: str | None) -> int:
    """Up to where payloads may go."""
    last = min(through, log.head)
    return last if loss_reason is not None else min(last, _settled_by_all(books, log))


def cut(books: Books, log: LogRow, last: int, loss_reason: str | None, now: float) -> Cut:
    """Drop the oldest payloads, up to an offset and no more than a slice."""
    end = min(last, log.first - 1 + SLICE)
    if end < log.first:
        return Cut(0, True)
    chain, total, at, view = books.one("logs.chain", log.base + end) or (
        *(log.base_chain, log.base_total, log.last_at, log.view),
    )
    stretch = (log.base + log.first, log.base + end)
    dropped = books.run("logs.drop", *stretch)
    books.run("logs.shortened", end + 1, chain, total, at, view, log.id)
    books.run("logs.drop_runs", log.id, end + 1)
    if loss_reason is not None:
        _write_down(books, log, end, loss_reason, now)
    return Cut(dropped, end == last)


def aged(books: Books, log: LogRow, start: int, before: float) -> tuple[int, bool]:
    """Up to where all after ``start`` were recorded before an instant, and whether that is all.

    Clocks go back: an older fact may bear a later instant, so each one is looked at.
    """
    start = max(start, log.first - 1)
    end = min(log.head, start + STRETCH)
    bounds = (log.base + start, log.base + end, before)
    row = books.one("logs.younger", *bounds)
    return (end, end == log.head) if row is None else ((row[0] & LAST) - 1, True)


def _settled_by_all(books: Books, log: LogRow) -> int:
    """Up to where no required consumer needs anything, nor what was set aside for it."""
    confirmed, aside = books.only("logs.needed", log.id)
    if aside is not None:
        return min(int(confirmed), int(aside) - 1)
    return 0 if confirmed is None else int(confirmed)


def _write_down(books: Books, log: LogRow, end: int, reason: str, now: float) -> None:
    """Record what somebody had not confirmed; where nobody reads, nobody has anything."""
    [confirmed] = books.only("logs.slowest", log.id)
    first = max(log.first, (confirmed or 0) + 1)
    if first > end:
        return
    if not books.run("logs.widen_gap", end, now, log.id, first - 1, reason):
        books.run("logs.add_gap", log.id, first, end, reason, now)
    note(books, now, "truncate", f"{log.name} lost {first} to {end}: {reason}")
