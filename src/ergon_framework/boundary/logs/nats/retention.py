"""Dropping payloads: the log begins higher, in one commit, and then they go. Ids stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item, Reader
from ergon_framework.boundary.logs.nats.entries import Place
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.boundary.logs.nats.quarantine import open_items
from ergon_framework.boundary.logs.nats.shelves import Shelf
from ergon_framework.errors import StoreError
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
            self._clear(below, self._subjects.entries(log))
            self._clear_repairs(below, log)
        return dropped

    def _clear_repairs(self, below: int, log: str) -> None:
        """Remove what stood in the place of damaged entries that are gone."""
        with suppress(StoreError):  # what was committed counts, whether they go or not
            for each in self._stream.latest([self._subjects.repairs(log)]):
                if int(each.subject.rpartition(".")[2]) < below:
                    self._stream.delete(each.seq)


def _dropped(
    log: str, bound: Bound, reason: str | None, now: float, books: Books
) -> tuple[int, int]:
    """Let the log begin higher; how many are gone, and below which sequence."""
    shelf = books.shelf(log)
    last = 0 if shelf is None else min(bound(books), shelf.head)
    if shelf is None or last < shelf.first:
        return 0, 0
    first, place = shelf.first, Place(max(0, shelf.first_seq - 1), b"")
    # Looked for, and not remembered: what lies below this place will be gone.
    edge = pages.search(books, shelf, lambda entry: entry.offset <= last)
    if edge is not None:
        shelf.cut_total, shelf.cut_at = edge.total, edge.recorded_at
        shelf.cut_risen_at = edge.risen_at
        place = Place(edge.seq, edge.chain if edge.offset == last else b"")
    shelf.cut_latest = _latest_below(books, shelf, last, place)
    shelf.first, shelf.first_seq, shelf.cut_chain = last + 1, place.seq + 1, place.chain
    shelf.head_seq = 0 if shelf.head == last else shelf.head_seq
    lost = max(first, _confirmed_by_all(books, log) + 1)
    if reason is not None and lost <= last:
        _lose(books, shelf, lost, reason, now)
        books.note(now, "truncate", f"{log} lost {lost} to {last}: {reason}")
    return last - first + 1, shelf.first_seq


def _latest_below(books: Books, shelf: Shelf, last: int, place: Place) -> dict[str, int]:
    """For each zone, the last offset up to one of a fact to it."""
    found: dict[str, int] = {}
    for zone, offset in shelf.latest.items():
        if offset > last:
            subject = books.subjects.facts(shelf.name, zone)
            following = books.stream.next(subject, place.seq + 1)
            entry = None if following is None else books.entry(shelf, following)
            offset = shelf.cut_latest.get(zone, 0) if entry is None else entry.alike  # noqa: PLW2901
        if offset:
            found[zone] = offset
    return found


def _lose(books: Books, shelf: Shelf, first: int, reason: str, now: float) -> None:
    """Record that what was dropped from an offset on is lost; a loss that goes on is one."""
    for gap in pages.gaps_of(books, shelf):
        if gap.source_first is None and (gap.last + 1, gap.reason) == (first, reason):
            first = gap.first
            break
    shelf.gaps += 1
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
