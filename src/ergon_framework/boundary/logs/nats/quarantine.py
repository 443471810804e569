"""What was set aside for consumers, in a stream."""

from __future__ import annotations

from dataclasses import fields

from ergon_framework.boundary.logs import cursors
from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item, Reader
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.boundary.logs.nats.readers import info_of, reader_named
from ergon_framework.boundary.logs.refusing import not_next, refuse_late
from ergon_framework.boundary.logs.settling import (
    ACTIONS,
    OPEN,
    not_there,
    refuse_wrong_state,
    said_of,
)
from ergon_framework.ports.factstore import Quarantined


class NatsQuarantine(Ground):
    """The part of the store that keeps what failed."""

    def set_aside(
        self,
        name: str,
        offset: int,
        *,
        reason: str,
        message: str,
        attempts: int,
        holder: str | None = None,
    ) -> Quarantined:
        """Quarantine the next fact of the view and move the cursor past it, in one commit."""

        def work(books: Books) -> Quarantined:
            now, one = self._clock(), reader_named(books, name)
            refuse_late(info_of(one), holder, now)
            is_released = any(item.offset == offset for item in released_to(books, one))
            following = next_of(books, one)
            is_next = offset == following
            if not is_released and not is_next:
                raise not_next(one, offset, following)
            item = Item(0, name, one.log, offset, reason, message, attempts, now)
            kept = keep(books, one, item)
            if is_next:
                cursors.pass_by(one, offset)
            books.put(books.subjects.consumer(name), one)
            return given(kept)

        return self._step(work, "quarantine")

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""

        def work(books: Books) -> list[Quarantined]:
            return [
                given(item) for item in items_of(books, consumer) if state in {None, item.state}
            ]

        return self._look(work)

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""

        def work(books: Books) -> Quarantined:
            item = _numbered(books, quarantine_id)
            if item.state == state:
                return given(item)
            refuse_wrong_state(quarantine_id, item.state, state)
            books.note(self._clock(), ACTIONS[state], said_of(item, reason))
            item.state, item.is_served = state, False
            put(books, item)
            return given(item)

        return self._step(work, "quarantine")


def given(item: Item) -> Quarantined:
    """An item as everybody sees it."""
    return Quarantined(**{each.name: getattr(item, each.name) for each in fields(Quarantined)})


def put(books: Books, item: Item) -> None:
    """Write an item."""
    books.put(books.subjects.item(item.consumer, item.id), item)


def keep(books: Books, one: Reader, item: Item) -> Item:
    """Keep an item of a consumer; when its fact lies in quarantine already, it is the same item.

    The consumer changes with it, and is written by the caller: without what it knows, everything
    that was ever set aside would be read for each of its facts.
    """
    known = items_of(books, one.name) if item.offset <= one.aside_through else []
    one.aside_through = max(item.offset, *(each.offset for each in known), 0)
    for each in known:
        if each.state in OPEN and (each.log, each.offset) == (item.log, item.offset):
            item.id, item.at = each.id, each.at
            put(books, item)
            return item
    return _new(books, item)


def keep_whole(books: Books, item: Item) -> None:
    """Keep an item with its payload, unless it is there, whatever became of it."""
    mark = whole_mark(books, item)
    if books.get(Item, mark) is None:
        new = _new(books, item)
        books.put(mark, Item(new.id, "", "", item.offset, "", "", 0, item.at))


def whole_mark(books: Books, item: Item) -> str:
    """Under what is written down that something was set aside with its payload."""
    parts = (item.log.encode(), str(item.offset).encode(), item.envelope, item.fact)
    content = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return books.subjects.whole(item.consumer, content)


def _new(books: Books, item: Item) -> Item:
    tally = books.tally
    tally.items += 1
    books.put(books.subjects.tally, tally)
    item.id = tally.items
    put(books, item)
    return item


def items_of(books: Books, consumer: str | None) -> list[Item]:
    """What was set aside for a consumer, or for all; by number."""
    if not books.tally.items:
        return []
    if consumer is not None:
        found = books.all(Item, books.subjects.items_of(consumer))
        one = books.get(Reader, books.subjects.consumer(consumer))
        above = {consumer: one.items_above} if one is not None else {}
    else:
        found = books.all(Item, books.subjects.items)
        readers = books.all(Reader, books.subjects.consumers).values()
        above = {each.name: each.items_above for each in readers}
    kept = (item for item in found.values() if item.id > above.get(item.consumer, 0))
    return sorted(kept, key=lambda item: item.id)


def open_items(books: Books, consumer: str) -> list[Item]:
    """What was set aside for a consumer and not dealt with."""
    return [item for item in items_of(books, consumer) if item.state in OPEN]


def released_to(books: Books, one: Reader) -> list[Item]:
    """What is to be delivered to a consumer again, which remembers it when there is nothing."""
    notes = books.tally.notes
    if one.nothing_released == notes:
        return []
    found = [item for item in open_items(books, one.name) if item.state == "released"]
    one.nothing_released = -1 if found else notes
    return found


def _numbered(books: Books, number: int) -> Item:
    found = books.all(Item, books.subjects.item_numbered(number)).values()
    for item in found:
        one = books.get(Reader, books.subjects.consumer(item.consumer))
        if one is None or item.id > one.items_above:
            return item
    raise not_there(number)


def next_of(books: Books, one: Reader) -> int | None:
    """The next fact of a consumer's view."""
    shelf = books.shelf(one.log)
    if shelf is None:
        return None
    first = next(pages.entries_after(books, shelf, one.cursor, one.to_zone, chunk=1), None)
    return None if first is None else first.offset
