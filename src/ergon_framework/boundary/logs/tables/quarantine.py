"""What was set aside, so that the facts behind it can pass."""

from __future__ import annotations

from ergon_framework.boundary.logs.settling import (
    ACTIONS,
    not_there,
    refuse_wrong_state,
    said_of,
)
from ergon_framework.boundary.logs.tables.ground import Books, Ground, Row, note
from ergon_framework.ports.factstore import Quarantined


class TableQuarantine(Ground):
    """The part of the store where facts lie that somebody has to look at."""

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""
        rows = self._read(lambda books: books.all("quarantine.items", consumer, state))
        return [_item(row) for row in rows]

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""

        def work(books: Books) -> Quarantined:
            item = _numbered(books, quarantine_id)
            if item.state == state:
                return item
            refuse_wrong_state(item.id, item.state, state)
            books.run("quarantine.settle", state, item.id)
            note(books, self._clock(), ACTIONS[state], said_of(item, reason))
            return _numbered(books, item.id)

        return self._write(work, "quarantine")


def keep(books: Books, item: Quarantined, consumer: str = "") -> Quarantined:
    """Set something aside. A fact that could not enter a log is kept once, however often it is."""
    owner = consumer or item.consumer
    place = (owner, item.log, item.offset)
    if item.fact and books.one("quarantine.same", *place, item.envelope, item.fact):
        return item
    values = (*place, item.reason, item.message, item.attempts, item.at, item.envelope, item.fact)
    return _numbered(books, books.add("quarantine.add", *values))


def set_aside(books: Books, item: Quarantined) -> Quarantined:
    """Set a fact of a log aside; one that is, or was released, is the same item still."""
    found = books.one("quarantine.open_at", item.consumer, item.offset)
    if found is None:
        return keep(books, item)
    books.run("quarantine.again", item.reason, item.message, item.attempts, found[0])
    return _numbered(books, found[0])


def state_at(books: Books, consumer: str, offset: int) -> str | None:
    """Whether a fact is set aside for a consumer, or released to it."""
    found = books.one("quarantine.open_at", consumer, offset)
    return None if found is None else str(found[1])


def _numbered(books: Books, number: int) -> Quarantined:
    row = books.one("quarantine.item", number)
    if row is None:
        raise not_there(number)
    return _item(row)


def _item(row: Row) -> Quarantined:
    return Quarantined(*row)
