"""What was set aside, so that the facts behind it can pass."""

from __future__ import annotations

import sqlite3

from ergon_framework.boundary.logs.sqlite.ground import SQL, Ground, note
from ergon_framework.boundary.logs.sqlite.rows import Row
from ergon_framework.errors import BoundaryError, BoundaryNotFoundError
from ergon_framework.ports.factstore import Quarantined
from ergon_framework.storage.statements import load

_SQL = load(SQL, "quarantine.sql")
_ACTIONS = {
    "quarantined": "put_back",
    "released": "release",
    "discarded": "discard",
    "settled": "settle",
}
_FROM = {
    "quarantined": {"released"},
    "released": {"quarantined"},
    "discarded": {"quarantined", "released"},
    "settled": {"quarantined", "released"},
}
"""Which states may become which."""


class SqliteQuarantine(Ground):
    """The part of the store where facts lie that somebody has to look at."""

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""
        rows = self._read(
            lambda cursor: cursor.execute(_SQL["items"], (consumer, state)).fetchall()
        )
        return [_item(row) for row in rows]

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""

        def work(cursor: sqlite3.Cursor) -> Quarantined:
            item = _numbered(cursor, quarantine_id)
            if item.state == state:
                return item
            if item.state not in _FROM.get(state, ()):
                raise _wrong_state(item, state)
            cursor.execute(_SQL["settle"], (state, item.id))
            text = f"item {item.id}, {item.log} {item.offset} of {item.consumer}"
            note(cursor, self._clock(), _ACTIONS[state], f"{text}: {reason}" if reason else text)
            return _numbered(cursor, item.id)

        return self._write(work, "quarantine")


def keep(cursor: sqlite3.Cursor, item: Quarantined, consumer: str = "") -> Quarantined:
    """Set something aside. A fact that could not enter a log is kept once, however often it is."""
    owner = consumer or item.consumer
    place = (owner, item.log, item.offset)
    if item.fact and cursor.execute(_SQL["same"], (*place, item.envelope, item.fact)).fetchone():
        return item
    values = (*place, item.reason, item.message, item.attempts, item.at, item.envelope, item.fact)
    cursor.execute(_SQL["add"], values)
    assert cursor.lastrowid is not None  # noqa: S101 - an insert has one
    return _numbered(cursor, cursor.lastrowid)


def set_aside(cursor: sqlite3.Cursor, item: Quarantined) -> Quarantined:
    """Set a fact of a log aside; one that is, or was released, is the same item still."""
    found = cursor.execute(_SQL["open_at"], (item.consumer, item.offset)).fetchone()
    if found is None:
        return keep(cursor, item)
    cursor.execute(_SQL["again"], (item.reason, item.message, item.attempts, found[0]))
    return _numbered(cursor, found[0])


def state_at(cursor: sqlite3.Cursor, consumer: str, offset: int) -> str | None:
    """Whether a fact is set aside for a consumer, or released to it."""
    found = cursor.execute(_SQL["open_at"], (consumer, offset)).fetchone()
    return None if found is None else str(found[1])


def _numbered(cursor: sqlite3.Cursor, number: int) -> Quarantined:
    row = cursor.execute(_SQL["item"], (number,)).fetchone()
    if row is None:
        raise BoundaryNotFoundError(
            f"there is no quarantined item {number}",
            remedy="list the quarantine to see the numbers",
            details={"id": number},
        )
    return _item(row)


def _item(row: Row) -> Quarantined:
    return Quarantined(*row)


def _wrong_state(item: Quarantined, state: str) -> BoundaryError:
    return BoundaryError(
        f"item {item.id} is {item.state} and cannot become {state}",
        code="failed_precondition",
        reason="wrong_state",
        remedy="look at the item again: somebody has dealt with it",
        details={"id": item.id, "state": item.state},
    )
