"""Reads the rows of one table: first their keys, then their columns.

So a row whose columns cannot be read does not hold up the others, and rows that are in hand are not
read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, OperationalError

from ergon_framework.errors import ConfigurationError, ConnectorError

_CHUNK = 500


class UnusableRowError(ConnectorError):
    """A row cannot be read as a transaction, and is set aside."""

    code = "unusable_row"


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row that is to be delivered."""

    key: str
    raw_key: Any
    """The key as the database has it, so that its index finds it."""
    position: Any


@dataclass(frozen=True, slots=True)
class LoadedRow:
    """A row and its columns, or why they cannot be read."""

    key: str
    position: Any
    columns: dict[str, Any]
    problem: str | None = None


def conditions(where: str | None) -> list[Any]:
    """A condition in SQL, as it was written: in parentheses, and without parameters of its own."""
    return [] if where is None else [sa.literal_column(f"({where}\n)")]


class TableRows:
    """Reads rows of a table by its key column. It holds no connection."""

    def __init__(self, table: sa.Table, key: sa.Column[Any]) -> None:
        self._table = table
        self._key = key
        # As the driver gives it: a value that SQLAlchemy reads and writes anew may be another one.
        self._raw_key: Any = sa.type_coerce(key, sa.types.NullType())
        self.text_key = sa.cast(key, sa.Text)

    def due(
        self,
        connection: sa.Connection,
        position: sa.Column[Any],
        named: Sequence[Any],
        limit: int,
        *,
        skips_locked: bool = False,
    ) -> list[DueRow]:
        """Keys and positions of the first rows that meet these conditions."""
        question = (
            sa.select(self.text_key, self._raw_key, position)
            .where(*named)
            .order_by(position, self._key)
            .limit(limit)
        )
        if skips_locked:
            question = question.with_for_update(skip_locked=True)
        try:
            found = [DueRow(*row) for row in connection.execute(question)]
        except Exception as error:
            if not _is_unreadable(error):
                raise
            raise ConfigurationError(
                f"a key or a position in {self._table.fullname} cannot be read, between"
                f" {self._key.name} and {position.name} ({type(error).__name__})",
                remedy="fix the row, or leave it out with where=",
            ) from None
        if len({row.key for row in found}) != len(found):
            raise ConfigurationError(
                f"several rows of {self._table.fullname} have the same {self._key.name}",
                remedy="name a column whose values are unique with key=",
            )
        return found

    def among(self, rows: Sequence[DueRow]) -> Any:
        """The SQL condition that a row is one of these."""
        return self._raw_key.in_([row.raw_key for row in rows])

    def load(self, connection: sa.Connection, rows: Sequence[DueRow]) -> list[LoadedRow]:
        """The columns of these rows. A deleted row is left out."""
        found: list[LoadedRow] = []
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            try:
                found += self._load(connection, some)
            except Exception as error:
                if not _is_unreadable(error):
                    raise
                if len(some) > 1:
                    found += [each for row in some for each in self.load(connection, [row])]
                else:
                    why = f"its columns cannot be read ({type(error).__name__})"
                    found.append(LoadedRow(some[0].key, some[0].position, {}, why))
        return found

    def _load(self, connection: sa.Connection, rows: Sequence[DueRow]) -> list[LoadedRow]:
        read = self._read(connection, self.among(rows))
        missing = [row.key for row in rows if row.key not in read]
        if missing:  # they are gone, or equal nothing by their key itself, as floats may
            read |= self._read(connection, self.text_key.in_(missing))
        names = self._table.c.keys()
        return [
            LoadedRow(row.key, row.position, dict(zip(names, read[row.key], strict=True)))
            for row in rows
            if row.key in read
        ]

    def _read(self, connection: sa.Connection, chosen: Any) -> dict[str, Sequence[Any]]:
        question = sa.select(self.text_key, *self._table.c).where(chosen)
        return {row[0]: row[1:] for row in connection.execute(question)}

    def find(
        self, connection: sa.Connection, column: sa.Column[Any], text: str
    ) -> LoadedRow | None:
        """The row whose column has this text, whether it is done or not."""
        question = sa.select(self.text_key, self._raw_key, self._raw_key)
        found = connection.execute(
            question.where(sa.cast(column, sa.Text) == text).limit(1)
        ).first()
        return None if found is None else next(iter(self.load(connection, [DueRow(*found)])), None)

    def without(
        self, connection: sa.Connection, position: sa.Column[Any], named: Sequence[Any]
    ) -> int:
        """How many rows that match the conditions have no key or no position."""
        has_none = sa.or_(self._key.is_(None), position.is_(None))
        question = sa.select(sa.func.count()).select_from(self._table)
        return connection.execute(question.where(has_none, *named)).scalar_one()


def _is_unreadable(error: Exception) -> bool:
    """Whether a value is none of the type of its column, as far as the driver can tell."""
    if isinstance(error, OperationalError):  # sqlite3 says so of a text that is not UTF-8
        return str(error.orig).startswith("Could not decode")
    return isinstance(error, ValueError | TypeError | ArithmeticError | DataError)
