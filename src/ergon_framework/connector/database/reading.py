"""Which rows are due, and what is remembered of those that are done.

Rows get their numbers when they are inserted, and are seen when they are committed, in another
order. So a cursor that only moves forward passes over those that are committed late. Here each row
that is done has a mark of its own, and a row is due when it has none. What keeps the marks few is a
floor: everything below it is done, and its marks are deleted. The floor rises to a row that has
been done for ``late`` seconds when nothing below it waits. On PostgreSQL it also waits until every
transaction has ended that was under way when the row was marked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from ergon_framework.connector.database.lease import ReaderLease
from ergon_framework.connector.database.rows import DueRow, LoadedRow, TableRows, conditions
from ergon_framework.errors import ChannelLostError, ConfigurationError, ConnectorError, describe

MAX_KEY = 255
MAX_REASON = 1000
_BATCH = 5000
_METADATA = sa.MetaData()
CURSORS = sa.Table(
    "ergon_row_cursors",
    _METADATA,
    sa.Column("consumer", sa.String(200), primary_key=True),
    sa.Column("floor", sa.Text, nullable=False),
)
MARKS = sa.Table(
    "ergon_row_marks",
    _METADATA,
    sa.Column("consumer", sa.String(200), primary_key=True),
    sa.Column("key", sa.String(MAX_KEY), primary_key=True),
    sa.Column("position", sa.Text, nullable=False),
    sa.Column("done_at", sa.Double, nullable=False),
    sa.Column("snapshot", sa.BigInteger),
    sa.Column("reason", sa.Text),
    sa.Index("ergon_row_marks_done", "consumer", "done_at"),
)

READERS = sa.Table(
    "ergon_row_readers",
    _METADATA,
    sa.Column("consumer", sa.String(200), primary_key=True),
    sa.Column("holder", sa.String(36), nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("about", sa.String(400), nullable=False),
)
"""The table that records which process reads as a consumer."""


class DatabaseConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "database_connector"


class RowTakenError(ChannelLostError):
    """Another process that reads as the same consumer has settled this row already."""

    code = "row_taken"


class ReaderLockedError(DatabaseConnectorError):
    """Another process reads as this consumer."""

    code = "reader_locked"
    failure_kind = "transient"


class RowNotSettledError(DatabaseConnectorError):
    """The database did not take the outcome of a row; the row is as it was."""

    code = "row_not_settled"
    failure_kind = "transient"


class RowReader:
    """One table as one consumer reads it. It holds no connection."""

    def __init__(
        self, table: sa.Table, *, consumer: str, key: str, position: str, where: str | None
    ) -> None:
        self._consumer = f"{consumer}@{table.fullname}"
        self.lease: ReaderLease | None = None
        """The lease to read as this consumer, which the fetching process holds."""
        self._table = table
        self.key = table.c[key]
        self.position = table.c[position]
        self._rows = TableRows(table, self.key)
        self._text_key = self._rows.text_key
        self._where = conditions(where)
        self._ours = MARKS.c.consumer == self._consumer

    # ---- rows -----------------------------------------------------------------------------------

    def due(self, connection: sa.Connection, limit: int) -> list[DueRow]:
        """The first rows without a mark, all of which can be marked."""
        while True:
            floor = self._floor(connection)
            rows = self._rows.due(connection, self.position, self._above_unmarked(floor), limit)
            # Whoever raised it meanwhile has deleted marks: rows that are done would look due.
            if self._floor(connection) == floor:
                for row in rows:
                    self._check(connection, row)
                return rows

    def _check(self, connection: sa.Connection, row: DueRow) -> None:
        """Refuse a row, before it is worked on, whose outcome could not be recorded."""
        encode_position(row.position, f"row {_short(row.key)!r} of {self._table.fullname}")
        if len(row.key) > MAX_KEY and connection.dialect.name == "postgresql":
            raise ConfigurationError(
                f"row {_short(row.key)!r} of {self._table.fullname} has a key of more than"
                f" {MAX_KEY} characters",
                remedy="name a shorter column with key=, or leave the row out with where=",
            )

    def load(self, connection: sa.Connection, rows: Sequence[DueRow]) -> list[LoadedRow]:
        """The columns of these rows."""
        return self._rows.load(connection, rows)

    def left_out(self, connection: sa.Connection) -> int:
        """How many rows are never delivered, because they have no key or no position."""
        return self._rows.without(connection, self.position, self._where)

    def claim(self, connection: sa.Connection, rows: Sequence[DueRow]) -> None:
        """Does nothing, because the table is not changed for a row in hand."""

    def give_back(self, connection: sa.Connection, key: str) -> None:
        """Does nothing, for the same reason."""

    def count(self, connection: sa.Connection) -> int:
        """How many rows are due."""
        question = sa.select(sa.func.count()).select_from(self._table)
        floor = self._floor(connection)
        return connection.execute(question.where(*self._above_unmarked(floor))).scalar_one()

    def find(
        self, connection: sa.Connection, column: sa.Column[Any], text: str
    ) -> LoadedRow | None:
        """The row whose column has this text, whether it is done or not."""
        return self._rows.find(connection, column, text)

    def _above_unmarked(self, floor: Any) -> list[Any]:
        is_marked = sa.exists().where(self._ours, MARKS.c.key == self._text_key)
        above = [self.position.is_not(None) if floor is None else self.position >= floor]
        return [self.key.is_not(None), *above, ~is_marked, *self._where]

    # ---- marks ----------------------------------------------------------------------------------

    def mark(
        self, connection: sa.Connection, key: str, position: Any, now: float, reason: str | None
    ) -> None:
        """Mark the row as done, or as failed for good with a reason, in this transaction."""
        row: dict[str, Any] = {
            "consumer": self._consumer,
            "key": key,
            "position": encode_position(position),
            "done_at": now,
            "reason": None if reason is None else reason[:MAX_REASON],
        }
        if connection.dialect.name == "postgresql":
            row["snapshot"] = _transaction_number("xmax")
        if self.lease is not None and not self.lease.is_held(connection):
            raise RowTakenError(
                f"another process has begun to read as {self._consumer}, and has row {key!r} as"
                " well",
                remedy="nothing: this one was held up for too long, and stands by now",
            )
        try:
            connection.execute(MARKS.insert().values(row))
        except IntegrityError as error:
            raise RowTakenError(
                f"row {key!r} of {self._consumer} is done already",
                remedy="let one process read as a consumer, or give each a consumer= of its own",
            ) from error

    def dead(self, connection: sa.Connection) -> list[tuple[str, float, str]]:
        """Key, instant and reason of rows that failed for good, oldest first."""
        question = sa.select(MARKS.c.key, MARKS.c.done_at, MARKS.c.reason)
        failed = question.where(self._ours, MARKS.c.reason.is_not(None))
        found = connection.execute(failed.order_by(MARKS.c.done_at, MARKS.c.key))
        return [(row[0], row[1], row[2]) for row in found]

    def raise_floor(self, connection: sa.Connection, before: float) -> None:
        """Delete marks from before an instant, up to the first row that waits."""
        floor = self._floor(connection)
        old = [self._ours, MARKS.c.reason.is_(None), MARKS.c.done_at <= before]
        if connection.dialect.name == "postgresql":
            old.append(MARKS.c.snapshot <= _transaction_number("xmin"))
        marks = connection.execute(
            sa.select(MARKS.c.key, MARKS.c.position)
            .where(*old)
            .order_by(MARKS.c.done_at)
            .limit(_BATCH)
        ).fetchall()
        # After the marks: what was under way when they were made has ended, and is seen now.
        lowest = connection.execute(
            sa.select(sa.func.min(self.position)).where(*self._above_unmarked(floor))
        ).scalar()
        places = {key: decode_position(text) for key, text in marks}
        below = [each for each in places.values() if lowest is None or each < lowest]
        if not below:
            return
        highest = max(below) if floor is None else max(floor, *below)
        self._write_floor(connection, highest, is_first=floor is None)
        # That of the floor itself stays: another row may have the same number.
        gone = [key for key, each in places.items() if each < highest]
        for start in range(0, len(gone), 500):
            some = MARKS.c.key.in_(gone[start : start + 500])
            connection.execute(MARKS.delete().where(self._ours, some))

    def _floor(self, connection: sa.Connection) -> Any:
        question = sa.select(CURSORS.c.floor).where(CURSORS.c.consumer == self._consumer)
        text = connection.execute(question).scalar()
        return None if text is None else decode_position(text)

    def _write_floor(self, connection: sa.Connection, floor: Any, *, is_first: bool) -> None:
        text = encode_position(floor)
        if is_first:
            row = {"consumer": self._consumer, "floor": text}
            connection.execute(CURSORS.insert().values(row))
        else:
            ours = CURSORS.c.consumer == self._consumer
            connection.execute(CURSORS.update().where(ours).values(floor=text))


def reader_of(
    engine: sa.Engine, table: str, *, consumer: str, key: str, position: str, where: str | None
) -> RowReader:
    """The table as it is in the database. The connector's own two tables are made if they are
    missing.
    """
    found = found_table(engine, table, {"key": key, "position": position})
    _METADATA.create_all(engine)
    return RowReader(found, consumer=consumer, key=key, position=position, where=where)


def found_table(engine: sa.Engine, table: str, named: Mapping[str, str]) -> sa.Table:
    """The table as it is in the database. ``named`` has options, each with the column that it
    names.
    """
    schema, _, name = table.rpartition(".")
    try:
        found = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=engine)
    except sa.exc.NoSuchTableError:
        raise ConfigurationError(
            f"the database has no table {table!r}", remedy="correct table=, or make the table"
        ) from None
    for option, column in named.items():
        if column not in found.c:
            raise ConfigurationError(
                f"the table {table!r} has no column {column!r}",
                remedy=f"{option}= names one of {', '.join(found.c.keys())}",
            )
    return found


def _short(key: str) -> str:
    return key if len(key) <= 40 else key[:40] + "…"


def _transaction_number(bound: str) -> Any:
    """The number of the oldest transaction under way (``xmin``), or of the next one to begin
    (``xmax``).
    """
    function = getattr(sa.func, f"pg_snapshot_{bound}")
    text = sa.cast(function(sa.func.pg_current_snapshot()), sa.Text)
    return sa.cast(text, sa.BigInteger)


_KINDS: dict[str, tuple[type, Any, Any]] = {
    # The order matters: an instant is a date, too.
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "int": (int, str, int),
    "float": (float, repr, float),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}


def encode_position(value: Any, place: str = "a row") -> str:
    """A number, an instant or a uuid as text, from which the same value can be read."""
    for name, (kind, write, _) in _KINDS.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            return json.dumps([name, write(value)])
    raise ConfigurationError(
        f"a position is a number, an instant or a uuid, and {place} has one of type"
        f" {type(value).__name__}",
        remedy="name another column with position=, or leave the row out with where=",
    )


def decode_position(text: str) -> Any:
    """What :func:`encode_position` wrote."""
    try:
        name, value = json.loads(text)
        return _KINDS[name][2](value)
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise DatabaseConnectorError(
            f"a position in {MARKS.name} cannot be read: {describe(error)}",
            remedy="a newer version may have written it",
        ) from error
