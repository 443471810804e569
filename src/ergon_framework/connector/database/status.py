"""Rows whose status column says whether they are due, and that are settled by another status.

Nothing else is kept. The status is changed in the same transaction as the effect, and only if it is
still that of a due row. So of two processes that have one row, the second gets an error before its
effect is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sa

from ergon_framework.connector.database.reading import (
    MAX_REASON,
    RowTakenError,
    found_table,
)
from ergon_framework.connector.database.rows import DueRow, LoadedRow, TableRows, conditions
from ergon_framework.errors import ConfigurationError

STATUSES = "new, done, failed"


@dataclass(frozen=True, slots=True)
class StatusColumn:
    """The statuses, and the columns of status and error."""

    column: str
    new: str
    done: str
    failed: str
    working: str | None = None
    """The status of a row in hand."""
    error: str | None = None
    """The column for the reason why a row failed."""

    @classmethod
    def of(cls, column: str, statuses: str, error: str | None) -> Self:
        """Make it from the options of a connector, checked."""
        words = [each.strip() for each in statuses.split(",")]
        if len(words) not in (3, 4) or len({*words}) != len(words) or "" in words:
            raise ConfigurationError(
                "statuses are three words that differ, or four",
                remedy=f'write "{STATUSES}", or "new, working, done, failed"',
            )
        working = words.pop(1) if len(words) == 4 else None
        new, done, failed = words
        return cls(column, new, done, failed, working, error)


class StatusReader:
    """One table whose rows have a status column. It holds no connection."""

    def __init__(
        self,
        table: sa.Table,
        words: StatusColumn,
        *,
        key: str,
        position: str,
        where: str | None,
    ) -> None:
        self._table = table
        self._words = words
        self.key = table.c[key]
        self.position = table.c[position]
        self._status = table.c[words.column]
        self._rows = TableRows(table, self.key)
        self._text_key = self._rows.text_key
        self._where = conditions(where)
        # One process reads at a time: a row that says that it is in hand was left by a dead one.
        named = [words.new] if words.working is None else [words.new, words.working]
        self._is_due = self._status.in_(named)

    # ---- rows -----------------------------------------------------------------------------------

    def due(self, connection: sa.Connection, limit: int) -> list[DueRow]:
        """The first rows that are due."""
        # A row that somebody is changing right now is for the next fetch.
        skips_locked = self._words.working is not None
        named = [self.key.is_not(None), self._is_due, *self._where]
        return self._rows.due(connection, self.position, named, limit, skips_locked=skips_locked)

    def claim(self, connection: sa.Connection, rows: Sequence[DueRow]) -> None:
        """Set the status of rows in hand, if there is one for that."""
        if self._words.working is not None and rows:
            chosen = self._table.update().where(self._rows.among(rows), self._is_due)
            connection.execute(chosen.values({self._status: self._words.working}))

    def load(self, connection: sa.Connection, rows: Sequence[DueRow]) -> list[LoadedRow]:
        """The columns of these rows."""
        return self._rows.load(connection, rows)

    def left_out(self, connection: sa.Connection) -> int:
        """How many due rows are never delivered, because they have no key."""
        return self._rows.without(connection, self.key, [self._is_due, *self._where])

    def count(self, connection: sa.Connection) -> int:
        """How many rows are due."""
        question = sa.select(sa.func.count()).select_from(self._table)
        return connection.execute(question.where(self._is_due, *self._where)).scalar_one()

    def find(
        self, connection: sa.Connection, column: sa.Column[Any], text: str
    ) -> LoadedRow | None:
        """The row whose column has this text, whether it is done or not."""
        return self._rows.find(connection, column, text)

    def dead(self, connection: sa.Connection) -> list[tuple[str, float, str]]:
        """Key, no instant, and reason of rows that failed for good, in their order."""
        error = self._words.error
        reason = sa.literal("") if error is None else self._table.c[error]
        question = sa.select(self._text_key, reason).where(self._status == self._words.failed)
        found = connection.execute(question.order_by(self.position, self.key))
        return [(row[0], 0.0, row[1] or "") for row in found]

    # ---- settling -------------------------------------------------------------------------------

    def mark(
        self, connection: sa.Connection, key: str, position: Any, now: float, reason: str | None
    ) -> None:
        """Mark the row as done, or as failed for good, in this transaction."""
        words = self._words
        values: dict[Any, Any] = {self._status: words.done if reason is None else words.failed}
        if reason is not None and words.error is not None:
            values[self._table.c[words.error]] = reason[:MAX_REASON]
        ours = [self._text_key == key, self._is_due]
        changed = connection.execute(self._table.update().where(*ours).values(values))
        if changed.rowcount == 0:
            raise RowTakenError(
                f"row {key!r} of {self._table.fullname} is not due any more",
                remedy="nothing, if its owner changed it; let one process read the table at a time",
            )

    def give_back(self, connection: sa.Connection, key: str) -> None:
        """Set the status of a waiting row again."""
        words = self._words
        if words.working is not None:
            ours = [self._text_key == key, self._status == words.working]
            connection.execute(self._table.update().where(*ours).values({self._status: words.new}))

    def raise_floor(self, connection: sa.Connection, before: float) -> None:
        """Does nothing: the status says which rows are done."""


def status_reader_of(
    engine: sa.Engine,
    table: str,
    words: StatusColumn,
    *,
    key: str,
    position: str,
    where: str | None,
) -> StatusReader:
    """The table as it is in the database. Nothing is changed in it."""
    named = {"key": key, "position": position, "status": words.column}
    if words.error is not None:
        named["error"] = words.error
    found = found_table(engine, table, named)
    return StatusReader(found, words, key=key, position=position, where=where)
