"""Giving pages to consumers."""

from __future__ import annotations

from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item, Reader
from ergon_framework.boundary.logs.nats.desk import MOST_SETTLED, NatsDesk, move
from ergon_framework.boundary.logs.nats.quarantine import keep, put, released_to
from ergon_framework.boundary.logs.nats.readers import given, info_of, reader_named
from ergon_framework.boundary.logs.nats.shelves import Shelf
from ergon_framework.boundary.logs.refusing import refuse_held
from ergon_framework.errors import BoundaryError, ConsumerHeldError
from ergon_framework.ports.factstore import ConsumerInfo, Gap, Page, Serving

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

        def work(books: Books) -> Serving | ConsumerHeldError:
            now, one = self._clock(), reader_named(books, name)
            before = info_of(one)
            if before.is_overlong(now):
                one.held_until = now + one.lease
            try:
                refuse_held(info_of(one), holder, now)
            except ConsumerHeldError as error:
                if one.held_until != before.held_until:  # that is written, though it is refused
                    books.put(books.subjects.consumer(name), one)
                return error
            page = _released(books, one, limit, max_bytes)
            is_released = page is not None
            if page is None:
                page = _next(books, one, limit, max_bytes, now)
                one.served = max(one.served, page.through)
                is_next = holder != one.holder or not one.deliveries
                one.deliveries += bool(page.facts and holder and is_next)
            if holder is not None:
                one.holder, one.lease, one.held_until = holder, lease, now + lease
            _note_released(books, one, page)
            if info_of(one) != before:
                books.put(books.subjects.consumer(name), one)
            return Serving(given(books, one), page, is_released)

        served = self._narrow(work, "desk", self._subjects.consumer(name))
        if isinstance(served, ConsumerHeldError):
            raise served
        return served


def _note_released(books: Books, one: Reader, page: Page) -> None:
    offsets = {fact.offset for fact in page.facts}
    for item in released_to(books, one.name):
        if item.offset in offsets and not item.is_served:
            item.is_served = True
            put(books, item)


def _released(books: Books, one: Reader, limit: int, max_bytes: int) -> Page | None:
    """The page of what an operator released, if anything; all of it lies below the cursor.

    What lies above it, after a seek, comes along with its neighbours: confirmed on its own, it
    would take the cursor past them.
    """
    below = [item for item in released_to(books, one.name) if item.offset <= one.cursor]
    shelf = books.shelf(one.log)
    if not below or shelf is None:
        return None
    page, size, is_full = Page([], 0, shelf.head), 0, False
    most = min(limit, MOST_SETTLED)  # each is marked
    for item in sorted(below, key=lambda item: item.offset):
        entry = pages.entry_at(books, shelf, item.offset)
        if entry is None or entry.is_marker:
            item.state, item.reason = "quarantined", "corrupted"
            put(books, item)
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
        _refuse_truncated(books, shelf, info_of(one))
        stretch = pages.read(books, shelf, one.cursor, limit, max_bytes, one.to_zone)
        page, at = stretch.page, stretch.corrupted
        if at is None or page.facts or page.gaps:
            # A gap is told, and confirmed, before what lies behind it is passed.
            page.gaps[:0] = passed
            return page
        message = f"the fact at {at} of {shelf.name} is not what was stored there"
        keep(books, Item(0, one.name, shelf.name, at, "corrupted", message, 0, now))
        move(one, at)
        passed.append(Gap(one.log, at, at, "corrupted", now))
    return Page([], one.cursor, shelf.head, gaps=passed)  # the rest is for the next call


def _refuse_truncated(books: Books, shelf: Shelf, info: ConsumerInfo) -> None:
    lost = pages.unexplained(books, shelf, info.cursor)
    if lost is None:
        return
    raise BoundaryError(
        f"facts {lost[0]} to {lost[1]} of {info.log} were dropped before {info.name!r} had them",
        code="out_of_range",
        reason="truncated",
        remedy="seek to what is kept, when they can be done without",
        details={"first_lost": lost[0], "last_lost": lost[1], "first_offset": shelf.first},
    )
