"""Giving pages to consumers."""

from __future__ import annotations

from copy import copy

from ergon_framework.boundary.logs import cursors
from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item, Reader
from ergon_framework.boundary.logs.nats.desk import MOST_SETTLED, NatsDesk
from ergon_framework.boundary.logs.nats.quarantine import keep, put, released_to
from ergon_framework.boundary.logs.nats.readers import given, info_of, reader_named
from ergon_framework.boundary.logs.refusing import refuse_held, refuse_truncated
from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import Gap, Page, Serving

ROUNDS = 100
"""Corrupted facts that one call passes at most."""


class NatsServing(NatsDesk):
    """The part of the store that gives facts out."""

    def serve(
        self,
        name: str,
        limit: int,
        max_bytes: int,
        *,
        holder: str | None = None,
        lease: float = 30.0,
    ) -> Serving:
        """The page after the cursor, or before it one of released facts."""

        def work(books: Books) -> Serving | ConsumerHeldError | None:
            now, one = self._clock(), reader_named(books, name)
            before = copy(one)
            if info_of(one).is_overlong(now):
                one.held_until = now + one.lease
            try:
                refuse_held(info_of(one), holder, now)
            except ConsumerHeldError as error:
                if one.held_until != before.held_until:  # that is written, though it is refused
                    books.put(books.subjects.consumer(name), one)
                return error
            if _spoilt(books, one):
                if one != before:
                    books.put(books.subjects.consumer(name), one)
                return None  # that is written, whatever is wrong with what comes next
            page = _released(books, one, limit, max_bytes)
            is_released = page is not None
            if page is None:
                page = _next(books, one, limit, max_bytes, now)
                cursors.give(one, page, holder)
            cursors.hold(one, holder, lease, now)
            _note_released(books, one, page)
            if one != before:
                books.put(books.subjects.consumer(name), one)
            return Serving(given(books, one), page, is_released)

        served = None
        while served is None:
            served = self._narrow(work, "desk", self._subjects.consumer(name))
        if isinstance(served, ConsumerHeldError):
            raise served
        return served


def _note_released(books: Books, one: Reader, page: Page) -> None:
    offsets = {fact.offset for fact in page.facts}
    for item in released_to(books, one):
        if item.offset in offsets and not item.is_served:
            item.is_served = True
            put(books, item)


def _below(books: Books, one: Reader) -> list[Item]:
    """What an operator released and lies below the cursor.

    What lies above it, after a seek, comes along with its neighbours: confirmed on its own, it
    would take the cursor past them.
    """
    below = [item for item in released_to(books, one) if item.offset <= one.cursor]
    return sorted(below, key=lambda item: item.offset)


def _spoilt(books: Books, one: Reader) -> bool:
    """Set aside again what was released and can no longer be delivered; whether there was any."""
    shelf, is_any = books.shelf(one.log), False
    if shelf is None:
        return False
    for item in _below(books, one):
        entry = pages.entry_at(books, shelf, item.offset)
        if entry is None or entry.is_marker:
            item.state, item.reason = "quarantined", "corrupted"
            put(books, item)
            is_any = True
    return is_any


def _released(books: Books, one: Reader, limit: int, max_bytes: int) -> Page | None:
    """The page of what an operator released, if anything."""
    below, shelf = _below(books, one), books.shelf(one.log)
    if not below or shelf is None:
        return None
    page, size, is_full = Page([], 0, shelf.head), 0, False
    most = min(limit, MOST_SETTLED)  # each is marked
    for item in below:
        entry = pages.entry_at(books, shelf, item.offset)
        if entry is None:
            continue
        size += entry.size
        is_full = is_full or len(page.facts) >= most or size > max_bytes
        if not page.facts or not is_full:
            page.facts.append(entry.seen(one.to_zone))
            page.through = item.offset
    return page if page.facts else None


def _next(books: Books, one: Reader, limit: int, max_bytes: int, now: float) -> Page:
    """The page after the cursor, which passes corrupted facts on its way."""
    shelf = books.shelf_or_new(one.log)
    passed: list[Gap] = []
    for _ in range(ROUNDS):
        lost = pages.unexplained(books, shelf, one.cursor)
        refuse_truncated(one, lost)
        stretch = pages.read(books, shelf, one.cursor, limit, max_bytes, one.to_zone)
        page, at = stretch.page, stretch.corrupted
        if at is None or page.facts or page.gaps:
            # A gap is told, and confirmed, before what lies behind it is passed.
            page.gaps[:0] = passed
            return page
        message = f"the fact at {at} of {shelf.name} is not what was stored there"
        keep(books, one, Item(0, one.name, shelf.name, at, "corrupted", message, 0, now))
        cursors.move(one, at)
        passed.append(Gap(one.log, at, at, "corrupted", now))
    return Page([], one.cursor, shelf.head, gaps=passed)  # the rest is for the next call
