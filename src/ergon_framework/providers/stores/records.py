"""The rows of provider calls as records, out of the tables of a database and into them.

Other stores have a part ``records``; ``SqlProviderStore`` has none. Opening that store makes its
tables, and refuses tables that a move has left behind or not finished. A move must look at a
database without making tables there, read tables that are frozen and write tables that are half
moved. So ``ProviderRecords`` works on the database itself, before and without a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, Self, cast

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    collate,
    inspect,
    literal,
    select,
    text,
    tuple_,
)

from ergon_framework.errors import StoreSchemaError
from ergon_framework.ports.record_codec import read_value
from ergon_framework.ports.transfer import C, Fence, TransferRecord
from ergon_framework.providers.migrations import HEAD, commands
from ergon_framework.providers.migrations.database import MigrationDatabase
from ergon_framework.providers.models import UtcDateTime, metadata
from ergon_framework.providers.stores.database import MARKS
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.freeze import postgres_bars, sqlite_bars

_TABLES = sorted(metadata.tables.values(), key=lambda table: table.name)
_MARKS, _JOB_MARKS = (
    Table(
        name,
        MetaData(),
        Column("one", Integer, primary_key=True),
        Column("mark", LargeBinary, nullable=False),
    )
    for name in (MARKS, "ergon_job_moves")
)
_MAY_ASK = text("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
_HOME = text(
    "SELECT (SELECT system_identifier FROM pg_control_system()),"
    " (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),"
    " to_regclass(:name)::oid::bigint"
)


declare("move.rows.before", "move.rows.after")


class ProviderRowRecord(TransferRecord, frozen=True):
    """A row, by table and primary key."""

    kind: ClassVar[str] = "provider_row"
    title: ClassVar[str] = "provider rows"
    table: str
    values: dict[str, Any]

    holds_keys: ClassVar[bool] = True

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Table and primary key."""
        keys = metadata.tables[self.table].primary_key.columns
        return (self.table, *(self.values[column.name] for column in keys))

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """A row of a document. ``ValueError`` if its columns are not those of its table."""
        name = document.get("table") if isinstance(document, dict) else None
        table = metadata.tables.get(name) if isinstance(name, str) else None
        values = document.get("values") if table is not None else None
        if (
            table is None
            or not isinstance(values, dict)
            or len(document) > len(cls.__struct_fields__)
        ):
            message = "a row has the name of a table of provider calls and its values"
            raise ValueError(message)
        columns = {str(column.name): column for column in table.columns}
        if columns.keys() != values.keys():
            message = f"{name} has other columns: {', '.join(columns)}"
            raise ValueError(message)
        return cls(str(name), {key: _read(columns[key], values[key]) for key in columns})


PROVIDER_KINDS: tuple[type[TransferRecord], ...] = (ProviderRowRecord,)


class ProviderRecords:
    """The tables of provider calls in one database."""

    def __init__(self, database: MigrationDatabase) -> None:
        self._database = database

    @property
    def name(self) -> str:
        """The name shown to users, without a password."""
        return self._database.name

    def is_there(self) -> bool:
        """Whether the database has the tables; tables of another version are refused."""
        if self._database.file is not None and not self._database.file.exists():
            return False
        with self._database.connect() as connection:
            found = commands.current(connection)
        if found not in (None, HEAD):
            raise StoreSchemaError(
                f"{self.name} has tables of provider calls of version {found}, not {HEAD}",
                remedy=f"this brings them up to date:  {self._database.upgrade_command}",
            )
        return found is not None

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """A page of rows after a sort key, in order."""
        del kind  # there is one
        if not self.is_there():
            return []
        with self._database.connect() as connection:
            found: list[ProviderRowRecord] = []
            for table in _TABLES:
                if after is None or table.name >= after[0]:
                    keys = after[1:] if after is not None and table.name == after[0] else None
                    found += _rows(connection, table, keys, limit - len(found))
                if len(found) >= limit:
                    break
        return cast("list[C]", found)

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write rows, in place of rows with the same keys."""
        with self._fenced(fence) as connection:
            for table, rows in _by_table(records):
                _remove(connection, table, rows)
                connection.execute(table.insert(), rows)
            failpoint("move.rows.before")
        failpoint("move.rows.after")

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete rows; rows that are not there are no error."""
        with self._fenced(fence) as connection:
            for table, rows in _by_table(records):
                _remove(connection, table, rows)

    def move_state(self) -> bytes | None:
        """What was written down about a move into this database."""
        if not self.is_there():
            return None
        with self._database.connect() as connection:
            return _mark(connection, _MARKS)

    def store_id(self) -> str:
        """The numbers of server, database and table, which no other store ever has.

        Empty for a file, which has no such numbers, and for a user that may not read them.
        """
        if self._database.file is not None or not self.is_there():
            return ""
        with self._database.connect() as connection:
            if not connection.scalar(_MAY_ASK):
                return ""
            return " ".join(map(str, connection.execute(_HOME, {"name": _TABLES[0].name}).one()))

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse changes of all tables because they moved to ``place``; None allows them again."""
        names = [str(table.name) for table in _TABLES]
        with self._fenced(fence) as connection:
            is_server = connection.dialect.name == "postgresql"
            for statement in (postgres_bars if is_server else sqlite_bars)(names, place):
                # psycopg takes a percent sign for the beginning of a placeholder.
                connection.exec_driver_sql(statement.replace("%", "%%") if is_server else statement)

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Write something down about a move into this database, or forget it.

        That is the first thing a move writes: where there are no tables yet, they are made.
        """
        with self._database.connect(creates=True) as connection:
            self._set_mark(connection, state, fence)

    def set_move_states(self, marks: Sequence[bytes], fences: Sequence[Fence]) -> None:
        """Write down the marks of these rows and of the jobs in the same database, in one commit.

        The tables of jobs are there: their store was opened.
        """
        [own, of_jobs], [own_fence, fence_of_jobs] = marks, fences
        with self._database.connect(creates=True) as connection:
            self._set_mark(connection, own, own_fence)
            fence_of_jobs.check_change(_locked_mark(connection, _JOB_MARKS), of_jobs)
            _write(connection, _JOB_MARKS, of_jobs)

    def _set_mark(self, connection: Connection, mark: bytes | None, fence: Fence | None) -> None:
        _lock_file(connection)
        commands.upgrade(connection)
        _MARKS.create(connection, checkfirst=True)
        if fence is not None:
            fence.check_change(_locked_mark(connection, _MARKS), mark)
        _write(connection, _MARKS, mark)

    @contextmanager
    def _fenced(self, fence: Fence | None) -> Iterator[Connection]:
        """A transaction that is committed only if the fence holds."""
        with self._database.connect() as connection:
            if fence is not None:
                _lock_file(connection)
                fence.check(_locked_mark(connection, _MARKS))
            yield connection


def _lock_file(connection: Connection) -> None:
    """Begin a transaction that locks the file against other writers until it ends.

    The driver would begin it with the first change, after what the change depends on was read.
    """
    if connection.dialect.name != "postgresql":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _locked_mark(connection: Connection, marks: Table) -> bytes | None:
    """The move state, locked against other writers until this transaction ends."""
    if connection.dialect.name == "postgresql" and inspect(connection).has_table(marks.name):
        connection.exec_driver_sql(f"LOCK TABLE {marks.name} IN SHARE ROW EXCLUSIVE MODE")
    return _mark(connection, marks)


def _mark(connection: Connection, marks: Table) -> bytes | None:
    if not inspect(connection).has_table(marks.name):
        return None
    found = connection.scalar(select(marks.c.mark))
    return None if found is None else bytes(found)


def _read(column: Column[Any], value: Any) -> Any:
    """The value of a column out of a file of records."""
    kind = datetime if isinstance(column.type, UtcDateTime) else column.type.python_type
    try:
        return read_value(kind | None if column.nullable else kind, value)
    except ValueError as error:
        message = f"{column.name}: {error}"
        raise ValueError(message) from error


def _write(connection: Connection, marks: Table, mark: bytes | None) -> None:
    connection.execute(marks.delete())
    if mark is not None:
        connection.execute(marks.insert(), [{"one": 1, "mark": mark}])


def _rows(
    connection: Connection, table: Table, after: tuple[Any, ...] | None, limit: int
) -> list[ProviderRowRecord]:
    """Rows after a primary key; texts are compared as everywhere, whatever the database thinks."""
    is_server = connection.dialect.name == "postgresql"
    keys = list(table.primary_key.columns)
    order = [
        collate(key, "C") if is_server and isinstance(key.type, String) else key for key in keys
    ]
    query = select(table).order_by(*order).limit(limit)
    if after is not None:
        place = [literal(value, key.type) for value, key in zip(after, keys, strict=True)]
        query = query.where(tuple_(*order) > tuple_(*place))
    names = [str(column.name) for column in table.columns]
    rows = connection.execute(query)
    return [ProviderRowRecord(str(table.name), dict(zip(names, row, strict=True))) for row in rows]


def _by_table(copies: Sequence[TransferRecord]) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for copy in copies:
        if isinstance(copy, ProviderRowRecord):
            rows.setdefault(copy.table, []).append(copy.values)
    for name, found in rows.items():
        yield metadata.tables[name], found


def _remove(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        same = [key == row[key.name] for key in table.primary_key.columns]
        connection.execute(table.delete().where(*same))
