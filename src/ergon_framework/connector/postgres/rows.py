"""Rows in hand. A lease in the table holds one of them, or one reader's lock holds them all."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import psycopg

from ergon_framework.connector.broker.leases import DeliveryExpiredError
from ergon_framework.connector.postgres.columns import TableOptions
from ergon_framework.connector.postgres.errors import ConflictingRowError, TableRefusedError
from ergon_framework.connector.postgres.statements import (
    TableStatements,
    look_at,
    quoted_table,
    refuse_unfit,
)
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    StoreError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.storage.postgres.database import PostgresDatabase, SessionLock
from ergon_framework.storage.postgres.pipeline import rows_changed

if TYPE_CHECKING:
    from ergon_framework.connector.broker.message import BrokerMessage
    from ergon_framework.storage.notifier import LocalSubscription
    from ergon_framework.storage.postgres.pool import Connection

T = TypeVar("T")
_IS_READ_ONLY = b"SELECT current_setting('transaction_read_only') = 'on'"
_LACKING = b"""
SELECT format('GRANT %%s ON %%s TO %%I', string_agg(kind, ', ' ORDER BY n), name::regclass,
    current_user)
FROM unnest(%s::text[]) AS name, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[])
    WITH ORDINALITY AS kinds(kind, n)
WHERE NOT has_table_privilege(name, kind) GROUP BY name ORDER BY name"""
"""What the owner says to give the user the rights on tables that it lacks."""


class TableRow(NamedTuple):
    """One row as it is delivered."""

    id: Any
    body: bytes
    headers: Mapping[str, str]
    attempts: int
    token: str
    """The token that proves that this process holds the row."""


class TableSchema:
    """Inspects the table when a database is opened. It is the user's table, so nothing is made."""

    statements: TableStatements

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def check(self, connection: Connection, name: str, namespace: str | None) -> None:
        """Refuse a table that the connector cannot use."""
        found = look_at(connection, self._options.table)
        refuse_unfit(self._options, found, name)
        dead = self._options.dead_letters
        if dead is not None and not look_at(connection, dead):
            table = self._options.table
            raise ConfigurationError(
                f"{name} has no table {dead!r} for what fails for good",
                remedy=f"CREATE TABLE {dead} (LIKE {table}); ALTER TABLE {dead}"
                " ADD COLUMN error text",
            )
        self.statements = TableStatements(self._options, found)

    settle = check


class RowHolder(Protocol):
    """How rows are held."""

    def claim(self, most: int, room: int) -> list[TableRow]:
        """Waiting rows, up to a number and a sum of bytes; or one row that is larger."""

    def settle(self, statement: str, row: TableRow, **values: Any) -> None:
        """Settle a row, if this process still holds it."""

    def close(self) -> None:
        """Release all rows."""


class LeasedRows:
    """Rows held by leases in the table: any number of processes may read it."""

    def __init__(
        self, database: PostgresDatabase, statements: TableStatements, options: TableOptions
    ) -> None:
        self._database = database
        self._statements = statements
        self._seconds = options.seconds

    def claim(self, most: int, room: int) -> list[TableRow]:
        """Waiting rows, up to a number and a sum of bytes; or one row that is larger."""
        token = secrets.token_hex(16)
        asked = {"most": most, "room": room, "token": token, "seconds": self._seconds}
        found = rows_of(self._database, self._statements.claim, asked)
        return [row_of(each, token) for each in found]

    def settle(self, statement: str, row: TableRow, **values: Any) -> None:
        """Settle a row, if this process still holds it."""
        given = {"id": row.id, "token": row.token, **values}
        try:  # written out, as every row comes through here
            is_ours = self._database.run(lambda on: _changed(on, statement, given))
        except StoreReadOnlyError as error:
            raise _refused(statement, error) from error
        if not is_ours:
            raise DeliveryExpiredError(
                f"the row {row.id!r} is not ours any more: its lease has ended",
                remedy="see why it was not renewed: the process was stopped, or the server was away"
                " for longer than the lease",
            )

    def renew(self, rows: Sequence[TableRow]) -> Collection[tuple[Any, str]]:
        """Renew the leases of rows. Returns the ids and leases that are still held."""
        asked = {
            "seconds": self._seconds,
            "ids": [row.id for row in rows],
            "tokens": list({row.token for row in rows}),
        }
        found = rows_of(self._database, self._statements.renew, asked)
        return {(identity, token.replace("-", "")) for identity, token in found}

    def next_due(self) -> float | None:
        """Seconds until a parked or leased row may be delivered."""
        [[seconds]] = rows_of(self._database, self._statements.next_due, {})
        return None if seconds is None else max(0.0, float(seconds))

    def close(self) -> None:
        """Does nothing, because leases expire."""


class ExclusiveRows:
    """Rows of a table without leases: one reader at a time has them all, in order.

    It holds a lock for as long as its connection lasts, and settles on that very connection: a
    reader that has lost the lock cannot settle any more. Others stand by until it ends.
    """

    def __init__(self, url: str, statements: TableStatements, options: TableOptions) -> None:
        self._lock = SessionLock(url, f"table {options.table}")
        self._statements = statements
        self._held: dict[Any, TableRow] = {}
        self._claiming = threading.Lock()  # two claims at once would find the same rows
        self._is_ours = False

    def claim(self, most: int, room: int) -> list[TableRow]:
        """Up to so many rows that wait, in order; none while another reader has the table."""
        with self._claiming:
            self._is_ours = self._is_ours or self._lock.acquire()
            return self._claim(most, room) if self._is_ours else []

    def _claim(self, most: int, room: int) -> list[TableRow]:
        asked = {"most": most, "room": room, "held": list(self._held)}
        statement = self._statements.claim
        with naming(statement):
            found = self._lock.run(lambda on: on.execute(statement.encode(), asked).fetchall())
        rows = [row_of(each, "") for each in found]
        self._held.update((row.id, row) for row in rows)
        return rows

    def settle(self, statement: str, row: TableRow, **values: Any) -> None:
        """Settle a row, on the connection that has the lock."""
        if self._held.get(row.id) is not row:
            raise ChannelLostError(f"the row {row.id!r} was delivered on a connection that is lost")
        if statement:  # without one the row is given back, and nothing changes in the table
            given = {"id": row.id, **values}
            with naming(statement):
                self._lock.run(lambda on: on.execute(statement.encode(), given))
        del self._held[row.id]

    @property
    def stands_by(self) -> bool:
        """Whether another reader has the table."""
        return not self._is_ours

    def close(self) -> None:
        """Let another reader have the table."""
        self._held = {}
        self._lock.close()


_MINE = ("id", "token")
"""What a statement is given that says no more than that a row is done."""


def _changed(on: Connection, statement: str, given: Mapping[str, Any]) -> int:
    """How many rows a statement has changed, in a transaction of its own."""
    if len(given) == len(_MINE) and isinstance(given["id"], str | int):
        return rows_changed(on, _bytes_of(statement), given)
    return on.execute(statement.encode(), given).rowcount


@cache
def _bytes_of(statement: str) -> bytes:
    return statement.encode()


def row_of(given: Sequence[Any], token: str) -> TableRow:
    """The row of a query result."""
    identity, payload, headers, attempts = given
    if isinstance(payload, int | float | list):  # of a number, bytes() would make as many
        raise StoreSchemaError(f"a payload is {type(payload).__name__}, which none was before")
    body = payload.encode() if isinstance(payload, str) else bytes(payload or b"")
    return TableRow(identity, body, _texts_in(headers), attempts, token)


def _texts_in(headers: str | None) -> dict[str, str]:
    """The texts in headers. What is no JSON object is left out: others may write there."""
    try:
        found = json.loads(headers) if headers else {}
    except (ValueError, RecursionError):  # a column of text may have anything in it
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def rows_of(database: PostgresDatabase, statement: str, values: Mapping[str, Any]) -> list[Any]:
    """The rows that one statement finds, in a transaction of its own."""
    with naming(statement):
        return database.run(lambda on: on.execute(statement.encode(), values).fetchall())


@contextmanager
def naming(statement: str) -> Iterator[None]:
    """Say which statement was refused for want of a right, so that it can be tried again."""
    try:
        yield
    except StoreReadOnlyError as error:
        raise _refused(statement, error) from error


def _refused(statement: str, error: StoreReadOnlyError) -> TableRefusedError:
    refused = TableRefusedError(error.message, remedy=error.remedy, details=error.details)
    refused.statement = statement
    return refused


class _Nulls(dict[str, None]):
    """NULL for every value of a statement."""

    def __missing__(self, name: str) -> None:
        """Any name has one."""


def plan(on: Connection, statement: str) -> None:
    """Raise what the server says when a statement that it has refused would be refused again.

    It is only planned, which asks for the same rights as doing it.
    """
    psycopg.ClientCursor(on).execute(b"EXPLAIN " + statement.encode(), _Nulls())
    [[is_read_only]] = on.execute(_IS_READ_ONLY).fetchall()
    if is_read_only and not statement.lstrip().startswith("SELECT"):
        raise StoreReadOnlyError(
            "the server takes no writes",
            remedy="make it one that does: no standby, default_transaction_read_only off",
        )


class NewRow(NamedTuple):
    """One row to insert."""

    id: str
    message: BrokerMessage


class TableSession:
    """An open database, with the inspected table."""

    def __init__(
        self, url: str, options: TableOptions, channel: str, refused: Iterable[str] = ()
    ) -> None:
        schema = TableSchema(options)
        self._options = options
        self._url = url
        self._channel = channel
        self._rows: RowHolder | None = None
        self.database = PostgresDatabase(url, schema=schema)
        self.statements = schema.statements
        self.subscription: LocalSubscription | None = None
        try:
            for each in refused:
                self.refuse(each)
        except BaseException:
            self.close()
            raise

    def do(self, work: Callable[[TableSession], T]) -> T:
        """Do something with the table.

        If that fails because the table was changed, the session ends. The next one inspects the
        table again, and says what it lacks.
        """
        try:
            return work(self)
        except TableRefusedError as error:
            error.remedy = self._grants() or error.remedy
            raise
        except StoreUnavailableError:
            raise
        except StoreError as error:
            self.refuse_changed(error.message)
            raise

    def refuse_changed(self, reason: str) -> None:
        """Raise an error if the table was changed since it was inspected."""
        found = self.database.run(lambda on: look_at(on, self._options.table))
        dead = self._options.dead_letters
        is_there = dead is None or self.database.run(lambda on: look_at(on, dead))
        if found != self.statements.found or not is_there:
            raise StoreUnavailableError(
                f"the table {self._options.table!r} was changed while it was open: {reason}",
                remedy="it is looked at again; a consumer is best stopped before a migration",
            )

    def refuse(self, statement: str) -> None:
        """Raise the server's error if a statement would be refused."""

        def work(_: TableSession) -> None:
            with naming(statement):
                self.database.run(lambda on: plan(on, statement))

        self.do(work)

    def _grants(self) -> str:
        """The statements that give the user the rights it lacks on the tables; empty if none."""
        tables = [quoted_table(self._options.table).replace("%%", "%")]
        if self._options.dead_letters is not None:
            tables.append(quoted_table(self._options.dead_letters).replace("%%", "%"))
        with suppress(StoreError):  # then what the server said is all there is to say
            found = self.database.run(lambda on: on.execute(_LACKING, (tables,)).fetchall())
            return "; ".join(grant for (grant,) in found)
        return ""

    def subscribed(self) -> LocalSubscription:
        """The subscription that is notified when a row was inserted."""
        if self.subscription is None:
            self.subscription = self.database.subscribe(self._channel)
        return self.subscription

    def rows(self) -> RowHolder:
        """The rows, as they are held; what reading needs is checked at the first time."""
        if self._rows is None:
            self.statements.refuse_reading()
            if self._options.is_leased:
                self._rows = LeasedRows(self.database, self.statements, self._options)
            else:
                self._rows = ExclusiveRows(self._url, self.statements, self._options)
        return self._rows

    def renew(self, rows: Sequence[TableRow]) -> Collection[tuple[Any, str]]:
        """Renew the leases of rows. Returns the ids and leases that are still held."""
        held = self.rows()
        return held.renew(rows) if isinstance(held, LeasedRows) else ()

    def look_within(self, longest: float, standby: float) -> float:
        """The longest time, in seconds, after which a waiting fetch reads the table by itself."""
        held = self.rows()
        if isinstance(held, LeasedRows):
            due = held.next_due()
            return longest if due is None else min(due, longest)
        return standby if isinstance(held, ExclusiveRows) and held.stands_by else longest

    def count(self) -> int:
        """How many rows wait."""
        [[found]] = rows_of(self.database, self.statements.count, {})
        return int(found)

    def find(self, identity: str) -> TableRow | None:
        """The row of a transaction in any state."""
        found = rows_of(self.database, self.statements.by_id, {"id": identity})
        return row_of(found[0], "") if found else None

    def insert(self, given: Sequence[NewRow], connection: Connection | None = None) -> None:
        """Insert all rows or none, and notify waiting fetches."""
        if connection is not None:
            self._insert(connection, given)
            return

        def work(on: Connection) -> None:
            with on.transaction():
                self._insert(on, given)

        with naming(self.statements.insert):
            self.database.run(work)
        self.database.changed()

    def _insert(self, connection: Connection, given: Sequence[NewRow]) -> None:
        cursor = psycopg.Cursor(connection)  # the caller's own may want other rows than tuples
        bodies = [each.message.body for each in given]
        values = {
            "ids": [each.id for each in given],
            "bodies": bodies if self.statements.is_binary else [each.decode() for each in bodies],
            "headers": [json.dumps(dict(each.message.headers)) for each in given],
        }
        inserted = cursor.execute(self.statements.insert.encode(), values).fetchall()
        if len(inserted) < len(given):
            self._refuse_others(cursor, given)
        cursor.execute(b"SELECT pg_notify(%s, '')", (self._channel,))

    def _refuse_others(self, cursor: psycopg.Cursor[Any], given: Sequence[NewRow]) -> None:
        """Refuse ids that stand for other payloads; the same again is fine."""
        asked = {"ids": [each.id for each in given]}
        found = dict(cursor.execute(self.statements.there.encode(), asked).fetchall())
        for each in given:
            payload = found.get(each.id)
            if payload is not None and _differs(payload, each.message.body):
                raise ConflictingRowError(
                    f"the id {each.id!r} stands for a row with another payload",
                    remedy="a new unit of work needs an id of its own: transaction.derive(...)"
                    " gives one",
                    details={"transaction_id": each.id},
                )

    def close(self) -> None:
        """Close the database. Others get the held rows when their leases end."""
        if self._rows is not None:
            self._rows.close()
        if self.subscription is not None:
            self.subscription.close()
        self.database.close()


def _differs(payload: Any, body: bytes) -> bool:
    """Whether a stored payload is another one; jsonb has its own order of keys, and spaces."""
    stored = payload.encode() if isinstance(payload, str) else bytes(payload)
    if stored == body:
        return False
    try:
        return bool(json.loads(stored) != json.loads(body))
    except ValueError:
        return True
