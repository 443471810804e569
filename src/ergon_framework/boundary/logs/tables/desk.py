"""Consumers: creating, confirming, seeking, setting aside."""

from __future__ import annotations

from ergon_framework.boundary.logs.cursors import deleted, sought
from ergon_framework.boundary.logs.refusing import (
    not_next,
    refuse_late,
    refuse_other,
    refuse_outside,
    refuse_unserved,
)
from ergon_framework.boundary.logs.tables import quarantine
from ergon_framework.boundary.logs.tables.ground import Books, note
from ergon_framework.boundary.logs.tables.quarantine import TableQuarantine
from ergon_framework.boundary.logs.tables.readers import (
    reader_named,
    reader_of,
    with_lag,
)
from ergon_framework.boundary.logs.tables.rows import log_or_new
from ergon_framework.boundary.logs.tables.runs import next_after
from ergon_framework.ports.factstore import ConsumerInfo, Quarantined


class TableDesk(TableQuarantine):
    """The part of the store that knows who reads, and how far."""

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start (the first kept fact) or the end of its log."""

        def work(books: Books) -> ConsumerInfo:
            row = books.one("consumers.consumer", name)
            if row is None:
                found = log_or_new(books, log)
                start = found.head if from_end else found.first - 1
                values = (name, found.id, start, to_zone, is_required, self._clock())
                books.run("consumers.create", *values)
                row = books.only("consumers.consumer", name)
            info = with_lag(books, *reader_of(books, row))
            refuse_other(info, log, to_zone)
            return info

        return self._write(work, "desk")

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""

        def work(books: Books) -> list[ConsumerInfo]:
            rows = books.all("consumers.consumers")
            return [with_lag(books, *reader_of(books, row)) for row in rows]

        return self._read(work)

    def consumer(self, name: str) -> ConsumerInfo:
        """One of them; ``BoundaryNotFoundError`` when there is none."""
        return self._read(lambda books: with_lag(books, *reader_named(books, name)))

    def delete_consumer(self, name: str) -> None:
        """Forget it and its quarantine; retention no longer waits for it."""

        def work(books: Books) -> None:
            info, _ = reader_named(books, name)
            books.run("consumers.delete", name)
            books.run("quarantine.forget", name)
            note(books, self._clock(), "delete_consumer", deleted(info))

        self._write(work, "desk")

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""

        def work(books: Books) -> int:
            info, _ = reader_named(books, name)
            now = self._clock()
            refuse_late(info, holder, now)
            refuse_unserved(info, offset)
            books.run("quarantine.delivered", name, offset)
            if offset > info.cursor:
                books.run("consumers.move", name, offset)
            if holder is not None:
                books.run("consumers.renew", now, name, holder)
            return max(offset, info.cursor)

        return self._write(work, "confirm")

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""

        def work(books: Books) -> None:
            books.run("consumers.drop_lease", name, holder)

        self._write(work, "desk", is_synced=False)

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""

        def work(books: Books) -> ConsumerInfo:
            info, log = reader_named(books, name)
            refuse_outside(info, offset, log.first, log.head)
            books.run("consumers.seek", offset, name)
            note(books, self._clock(), "seek", sought(info, offset, reason))
            return with_lag(books, *reader_named(books, name))

        return self._write(work, "desk")

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
            info, log = reader_named(books, name)
            now = self._clock()
            refuse_late(info, holder, now)
            ahead = next_after(books, log, info.cursor, info.to_zone)
            if ahead is not None and ahead.offset == offset:
                books.run("consumers.move", name, offset)
            elif quarantine.state_at(books, name, offset) != "released":
                raise not_next(info, offset, None if ahead is None else ahead.offset)
            item = Quarantined(0, name, log.name, offset, reason, message, attempts, now)
            return quarantine.set_aside(books, item)

        return self._write(work, "quarantine")
