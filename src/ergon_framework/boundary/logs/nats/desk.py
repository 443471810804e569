"""Consumers and their cursors, in a stream."""

from __future__ import annotations

from copy import copy

from ergon_framework.boundary.logs import cursors
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item, Reader
from ergon_framework.boundary.logs.nats.ground import Ground
from ergon_framework.boundary.logs.nats.quarantine import put, released_to
from ergon_framework.boundary.logs.nats.readers import given, info_of, reader_named
from ergon_framework.boundary.logs.refusing import refuse_late, refuse_other, refuse_unserved
from ergon_framework.ports.factstore import ConsumerInfo

MOST_SETTLED = 300
"""Items of one commit."""


class NatsDesk(Ground):
    """The part of the store that knows its consumers."""

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start or the end of its log; the same again answers it."""

        def work(books: Books) -> ConsumerInfo:
            subject = books.subjects.consumer(name)
            one = books.get(Reader, subject)
            if one is None or one.is_gone:
                shelf = books.shelf_or_new(log)
                cursor = shelf.head if from_end else shelf.first - 1
                above = 0 if one is None else one.items_above
                one = Reader(name, log, cursor, to_zone, is_required)
                one.created_at, one.items_above = self._clock(), above
                books.put(subject, one)
            refuse_other(one, log, to_zone)
            return given(books, one)

        return self._step(work, "desk")

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""

        def work(books: Books) -> list[ConsumerInfo]:
            found = books.all(Reader, books.subjects.consumers).values()
            kept = sorted((each for each in found if not each.is_gone), key=lambda one: one.name)
            return [given(books, each) for each in kept]

        return self._look(work)

    def consumer(self, name: str) -> ConsumerInfo:
        """One of them; ``BoundaryNotFoundError`` when there is none."""
        return self._look(lambda books: given(books, reader_named(books, name)))

    def delete_consumer(self, name: str) -> None:
        """Forget it and its quarantine; retention no longer waits for it."""

        def work(books: Books) -> None:
            one = reader_named(books, name)
            books.note(self._clock(), "delete_consumer", cursors.deleted(one))
            one.is_gone, one.items_above = True, books.tally.items
            one.holder = None
            books.put(books.subjects.consumer(name), one)

        _, below = self._placed(work, "desk")
        self._clear(below, self._subjects.items_of(name), self._subjects.wholes_of(name))
        with self._turn:
            self._memory.forget(-1)

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""

        def work(books: Books) -> int | None:
            now, one = self._clock(), reader_named(books, name)
            before = copy(one)
            refuse_late(info_of(one), holder, now)
            refuse_unserved(one, offset)
            settled = _delivered(books, one, offset)
            for item in settled[:MOST_SETTLED]:
                item.state = "settled"
                put(books, item)
            if len(settled) > MOST_SETTLED:
                return None  # the cursor moves when all of them are
            cursors.move(one, max(one.cursor, offset))
            if holder is not None:
                one.held_until = now + one.lease
            if one != before:
                books.put(books.subjects.consumer(name), one)
            return one.cursor

        cursor = None
        while cursor is None:
            cursor = self._narrow(work, "confirm", self._subjects.consumer(name))
        return cursor

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""

        def work(books: Books) -> None:
            one = books.get(Reader, books.subjects.consumer(name))
            if one is not None and not one.is_gone and one.holder == holder:
                cursors.let_go(one)
                books.put(books.subjects.consumer(name), one)

        self._step(work, "desk")

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""

        def work(books: Books) -> ConsumerInfo:
            one = reader_named(books, name)
            shelf = books.shelf_or_new(one.log)
            text = cursors.sought(one, offset, reason)
            cursors.seek(one, offset, shelf.first, shelf.head)
            books.note(self._clock(), "seek", text)
            books.put(books.subjects.consumer(name), one)
            return given(books, one)

        return self._step(work, "desk")


def _delivered(books: Books, one: Reader, offset: int) -> list[Item]:
    """Released items that went out and are confirmed."""
    released = released_to(books, one)
    return [item for item in released if item.offset <= offset and item.is_served]
