"""Dropping payloads: the log begins higher, in one commit, and then they go. Ids stay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item, Reader
from ergon_framework.boundary.logs.nats.entries import Place
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.boundary.logs.nats.quarantine import open_items
from ergon_framework.boundary.logs.nats.shelves import Shelf
from ergon_framework.ports.factstore import Gap

Bound: TypeAlias = Callable[[Books], int]
"""Up to where a log may be dropped, by what is written when that is asked."""


class NatsRetention(Ground):
    """The part of the store that lets facts go."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids."""
        if loss_reason is None:
            return self._drop(log, lambda books: min(through, _settled_by_all(books, log)))
        return self._drop(log, lambda _: through, loss_reason)

    def _drop(self, log: str, bound: Bound, loss_reason: str | None = None) -> int:
        end = partial(_dropped, log, bound, loss_reason, self._clock())
        dropped, below = self._step(end, "truncate")
        if dropped:
            self._stream.purge(self._subjects.entries(log), below)
        return dropped


def _dropped(
    log: str, bound: Bound, reason: str | None, now: float, books: Books
) -> tuple[int, int]:
    """Let the log begin higher; how many are gone, and below which sequence."""
    shelf = books.shelf(log)
    last = 0 if shelf is None else min(bound(books), shelf.head)
    if shelf is None or last < shelf.first:
        return 0, 0
    first, base, place = shelf.first, shelf.base, pages.place_of(books, shelf, last)
    edge = pages.search(books, shelf, lambda entry: entry.offset <= last)
    if edge is not None:
        base.total, base.risen_at, base.last_at = edge.total, edge.risen_at, edge.recorded_at
    base.latest |= _latest_below(books, shelf, place)
    base.first, base.first_seq, base.chain = last + 1, place.seq + 1, place.chain
    lost = max(first, _confirmed_by_all(books, log) + 1)
    if reason is not None and lost <= last:
        _lose(books, shelf, lost, reason, now)
        books.note(now, "truncate", f"{log} lost {lost} to {last}: {reason}")
    books.put_base(shelf)
    return last - first + 1, base.first_seq


def _latest_below(books: Books, shelf: Shelf, place: Place) -> dict[str, int]:
    """For each zone, the last offset up to a place of a fact to it."""
    found: dict[str, int] = {}
    for newest in books.stream.latest([books.subjects.facts(shelf.name)]):
        entry = books.entry(shelf, newest)
        if entry is not None and entry.seq > place.seq:
            first = books.stream.next(newest.subject, place.seq + 1)
            after = None if first is None else books.entry(shelf, first)
            found[entry.to_zone] = 0 if after is None else after.alike
        elif entry is not None:
            found[entry.to_zone] = entry.offset
    return {zone: offset for zone, offset in found.items() if offset}


def _lose(books: Books, shelf: Shelf, first: int, reason: str, now: float) -> None:
    """Record that what was dropped from an offset on is lost; a loss that goes on is one."""
    for gap in pages.gaps_of(books, shelf):
        if gap.source_first is None and (gap.last + 1, gap.reason) == (first, reason):
            first = gap.first
            break
    shelf.base.gaps += 1
    gap = Gap(shelf.name, first, shelf.first - 1, reason, now)
    books.put(books.subjects.gap(shelf.name, first, is_ours=True), gap)


def _settled_by_all(books: Books, log: str) -> int:
    """Up to where no required consumer needs anything, nor anybody what was set aside for it."""
    required = [each for each in _readers(books, log) if each.is_required]
    aside: list[Item] = [item for one in required for item in open_items(books, one.name)]
    return min([*(one.cursor for one in required), *(item.offset - 1 for item in aside)], default=0)


def _confirmed_by_all(books: Books, log: str) -> int:
    """Up to where every consumer has confirmed; where there is none, nobody has anything."""
    return min((one.cursor for one in _readers(books, log)), default=0)


def _readers(books: Books, log: str) -> list[Reader]:
    found = books.all(Reader, books.subjects.consumers).values()
    return [each for each in found if each.log == log and not each.is_gone]
