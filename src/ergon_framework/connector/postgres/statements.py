"""The SQL for one table, written when its columns are known."""

# ruff: noqa: S608 - names are quoted, and values are bound

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ergon_framework.connector.postgres.columns import ROLES, WHOLE_ROW, TableOptions
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.storage.postgres.pool import Connection

_PAYLOADS = frozenset({"jsonb", "json", "text", "bytea", "character varying"})
_TEXTS = frozenset({"text", "character varying"})
_FITS = {
    "payload": _PAYLOADS,
    "headers": frozenset({"jsonb", "json", "text"}),
    "lease": frozenset({"text", "uuid", "character varying"}),
    "visible_at": frozenset({"timestamp with time zone"}),
    "attempts": frozenset({"integer", "bigint", "smallint"}),
    "error": _TEXTS,
}
_LOOK = """
SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull,
       a.atthasdef OR a.attidentity <> '',
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique
               AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
FROM pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    type: str
    is_required: bool
    has_default: bool
    is_unique: bool


def quoted(name: str) -> str:
    """The name of a column in SQL that has values bound to it."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def quoted_table(name: str) -> str:
    """The name of a table, with its schema if it has one."""
    return ".".join(quoted(part) for part in name.split("."))


def look_at(connection: Connection, table: str) -> dict[str, Column]:
    """The columns of a table by name; empty when there is no such table."""
    rows = connection.execute(_LOOK, (quoted_table(table).replace("%%", "%"),)).fetchall()
    return {name: Column(*about) for name, *about in rows}


def refuse_unfit(options: TableOptions, found: Mapping[str, Column], name: str) -> None:
    """Refuse a table that the connector cannot use, with what to do about it."""
    table = options.table
    if not found:
        raise ConfigurationError(
            f"{name} has no table {table!r}", remedy=f"make it: {_create(options)}"
        )
    for role, column in options.columns.items():
        if role == "payload" and column == WHOLE_ROW:
            continue
        if column not in found:
            raise ConfigurationError(
                f"the table {table!r} has no column {column!r} for its {role}",
                remedy=f"name another one, or add it: ALTER TABLE {table} ADD COLUMN {column}"
                f" …; {role} is {ROLES[role]}",
            )
        fits = _FITS.get(role)
        if fits is not None and found[column].type not in fits:
            raise ConfigurationError(
                f"the column {column!r} of {table!r} is {found[column].type}, which no {role} is",
                remedy=f"{role} is {ROLES[role]}",
            )
    identity = options.columns["id"]
    if not found[identity].is_unique:
        raise ConfigurationError(
            f"the column {identity!r} of {table!r} does not identify a row: it has no unique index",
            remedy=f"CREATE UNIQUE INDEX ON {table} ({identity})",
        )
    lease = options.columns.get("lease")
    if lease is not None and found[lease].is_required:
        raise ConfigurationError(
            f"the column {lease!r} of {table!r} is NOT NULL, and a row that waits has no lease",
            remedy=f"ALTER TABLE {table} ALTER COLUMN {lease} DROP NOT NULL",
        )


def _create(options: TableOptions) -> str:
    types = {"id": "text PRIMARY KEY", "payload": "jsonb", "headers": "jsonb", "status": "text"}
    types |= {"attempts": "integer DEFAULT 0", "lease": "text", "visible_at": "timestamptz"}
    types |= {"error": "text", "order": "bigint GENERATED ALWAYS AS IDENTITY"}
    columns = ", ".join(f"{column} {types[role]}" for role, column in options.columns.items())
    return f"CREATE TABLE {options.table} ({columns})"


class TableStatements:
    """The SQL statements for one table."""

    def __init__(self, options: TableOptions, found: Mapping[str, Column]) -> None:
        self._options = options
        self.found = found
        """The columns of the table when it was inspected."""
        self._columns = {role: quoted(column) for role, column in options.columns.items()}
        self._table = quoted_table(options.table)
        self.takes_ids = found[options.columns["id"]].type in _TEXTS
        """Whether the id of a transaction is that of its row. Otherwise the server makes one."""
        self._payload_type = self._type_of("payload")
        self.is_binary = self._payload_type == "bytea"
        self._mine = f"{self._columns['id']} = %(id)s"
        if options.is_leased:
            self._mine += f" AND {self._columns['lease']} = %(token)s::{self._type_of('lease')}"
        self.claim = self._claim() if options.is_leased else self._read()
        self.done = self._done()
        self.dead = self._dead()

    def refuses(self, body: bytes) -> bool:
        """Whether the column cannot keep a body that is JSON otherwise."""
        return self._payload_type == "jsonb" and _NUL.search(body) is not None

    def _type_of(self, role: str) -> str:
        column = self.found.get(self._options.columns.get(role, ""))
        return "jsonb" if column is None else column.type

    # ---- reading --------------------------------------------------------------------------------

    @property
    def _waits(self) -> str:
        status = self._columns.get("status")
        return "true" if status is None else f"t.{status} = {_literal(self._options.pending)}"

    @property
    def _is_due(self) -> str:
        visible = f"t.{self._columns['visible_at']}"
        return f"{self._waits} AND ({visible} IS NULL OR {visible} <= now())"

    @property
    def _order(self) -> str:
        return self._columns.get("order", self._columns["id"])

    @property
    def _is_whole_row(self) -> bool:
        return self._options.columns["payload"] == WHOLE_ROW

    @property
    def _content(self) -> str:
        """The columns that are delivered of a row: id, payload, headers and attempts."""
        column = self._columns
        payload = f"t.{column['payload']}" + ("" if self.is_binary else "::text")
        if self._is_whole_row:
            own = {v for k, v in self._options.columns.items() if k not in ("id", "payload")}
            hidden = ", ".join(_literal(each) for each in sorted(own))
            payload = f"(to_jsonb(t) - ARRAY[{hidden}]::text[])::text"
        headers = f"t.{column['headers']}::text" if "headers" in column else "NULL"
        attempts = f"coalesce(t.{column['attempts']}, 0)" if "attempts" in column else "0"
        return (
            f"t.{column['id']} AS id, {payload} AS payload, {headers} AS headers,"
            f" {attempts} AS attempts"
        )

    @property
    def _size(self) -> str:
        if self._is_whole_row:
            return "pg_column_size(t.*)"
        column = f"t.{self._columns['payload']}"
        if self._payload_type == "jsonb":
            return f"pg_column_size({column})"
        return f"octet_length({column}{'::text' if self._payload_type == 'json' else ''})"

    def _claim(self) -> str:
        column = self._columns
        count = ""
        if "attempts" in column:  # NULL where another program has inserted it so
            count = f", {column['attempts']} = coalesce(t.{column['attempts']}, 0) + 1"
        return f"""
WITH locked AS MATERIALIZED (
    SELECT t.{column["id"]} AS id, {self._size} AS size FROM {self._table} AS t
    WHERE {self._is_due} ORDER BY t.{self._order} LIMIT %(most)s FOR UPDATE SKIP LOCKED
), due AS (
    SELECT id FROM (
        SELECT id, coalesce(sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size, 0) AS before
        FROM locked
    ) AS sized WHERE before < %(room)s
), claimed AS (
    UPDATE {self._table} AS t SET {column["lease"]} = %(token)s::{self._type_of("lease")},
        {column["visible_at"]} = now() + make_interval(secs => %(seconds)s){count}
    FROM due WHERE t.{column["id"]} = due.id
    RETURNING {self._content}, t.{self._order} AS place
)
SELECT id, payload, headers, attempts FROM claimed ORDER BY place"""

    def _read(self) -> str:
        return f"""
SELECT id, payload, headers, attempts FROM (
    SELECT {self._content}, coalesce(sum({self._size}) OVER (ORDER BY t.{self._order}
        ROWS UNBOUNDED PRECEDING) - {self._size}, 0) AS before, t.{self._order} AS place
    FROM (
        SELECT * FROM {self._table} AS t
        WHERE {self._waits} AND t.{self._columns["id"]} <> ALL(%(held)s::{self._type_of("id")}[])
        ORDER BY t.{self._order} LIMIT %(most)s
    ) AS t
) AS found WHERE before < %(room)s ORDER BY place"""

    @property
    def next_due(self) -> str:
        """Seconds until the first row that waits may be delivered; NULL when there is none."""
        visible = f"t.{self._columns['visible_at']}"
        return (
            f"SELECT extract(epoch FROM min({visible}) - now())::float8 FROM {self._table} AS t"
            f" WHERE {self._waits} AND {visible} > now()"
        )

    @property
    def count(self) -> str:
        """How many rows wait, including parked ones."""
        held = ""
        if self._options.is_leased:
            lease, visible = self._columns["lease"], self._columns["visible_at"]
            held = f" AND NOT (t.{lease} IS NOT NULL AND t.{visible} > now())"
        return f"SELECT count(*) FROM {self._table} AS t WHERE {self._waits}{held}"

    @property
    def by_id(self) -> str:
        """The rows whose id, or whose transaction's id, is this one."""
        matches = f"t.{self._columns['id']}::text = %(id)s"
        if "headers" in self._columns and not self.takes_ids:
            headers = f"t.{self._columns['headers']}::jsonb"
            matches = f"{headers} ->> 'ergon-transaction-id' = %(id)s OR {matches}"
        return f"SELECT {self._content} FROM {self._table} AS t WHERE {matches} LIMIT 1"

    # ---- settling -------------------------------------------------------------------------------

    def _done(self) -> str:
        if not self._options.keeps_done:
            return f"DELETE FROM {self._table} WHERE {self._mine}"
        return self._end(self._options.done, "")

    def _dead(self) -> str:
        if self._options.dead_letters is None:
            error = self._columns.get("error")
            return self._end(self._options.dead, f", {error} = %(reason)s" if error else "")
        kept = [
            self._columns[each] for each in ("id", "payload", "headers") if each in self._columns
        ]
        names, into = ", ".join(kept), quoted_table(self._options.dead_letters)
        return (
            f"WITH gone AS (DELETE FROM {self._table} WHERE {self._mine} RETURNING {names})"
            f" INSERT INTO {into} ({names}, {self._columns.get('error', 'error')})"
            f" SELECT {names}, %(reason)s FROM gone"
        )

    def _end(self, status: str, more: str) -> str:
        lease = f", {self._columns['lease']} = NULL" if self._options.is_leased else ""
        return (
            f"UPDATE {self._table} SET {self._columns.get('status', 'status')} ="
            f" {_literal(status)}{lease}{more} WHERE {self._mine}"
        )

    @property
    def park(self) -> str:
        """Give a row back, to be delivered in so many seconds; the attempt is not counted.

        Empty where a reader's lock holds the rows: then nothing changes in the table.
        """
        if not self._options.is_leased:
            return ""
        column = self._columns
        attempts = (
            f"{column['attempts']} = greatest({column['attempts']} - 1, 0), "
            if ("attempts" in column)
            else ""
        )
        return (
            f"UPDATE {self._table} SET {attempts}{column['lease']} = NULL, {column['visible_at']} ="
            f" now() + make_interval(secs => %(seconds)s) WHERE {self._mine}"
        )

    @property
    def renew(self) -> str:
        """Keep rows for another while; the leases of those that are still ours.

        One that somebody else's transaction has locked, perhaps the handler's own, holds up no
        other. It is left as it is: while it is locked nobody can claim it, and the next round
        renews it.
        """
        identity, lease = self._columns["id"], self._columns["lease"]
        ours = (
            f"t.{identity} = ANY(%(ids)s::{self._type_of('id')}[])"
            f" AND t.{lease} = ANY(%(tokens)s::{self._type_of('lease')}[])"
        )
        return f"""
WITH free AS MATERIALIZED (
    SELECT t.{identity} AS id FROM {self._table} AS t WHERE {ours} FOR UPDATE SKIP LOCKED
), kept AS (
    UPDATE {self._table} AS t SET {self._columns["visible_at"]} = now()
        + make_interval(secs => %(seconds)s)
    FROM free WHERE t.{identity} = free.id RETURNING t.{identity} AS id, t.{lease}::text AS lease
)
SELECT id, lease FROM kept
UNION ALL SELECT t.{identity}, t.{lease}::text FROM {self._table} AS t
WHERE {ours} AND t.{identity} NOT IN (SELECT id FROM free)"""

    # ---- writing --------------------------------------------------------------------------------

    @property
    def insert(self) -> str:
        """Insert the rows that do not exist yet. Returns the ids of those that were inserted."""
        array = "bytea[]" if self.is_binary else "text[]"
        targets = {"payload": f"payload::{self._payload_type}"}
        if self.takes_ids:
            targets["id"] = "id"
        if "headers" in self._columns:
            targets["headers"] = f"headers::{self._type_of('headers')}"
        if "status" in self._columns:
            targets["status"] = _literal(self._options.pending)
        names = ", ".join(self._columns[role] for role in targets)
        again = f" ON CONFLICT ({self._columns['id']}) DO NOTHING" if self.takes_ids else ""
        return (
            f"INSERT INTO {self._table} ({names}) SELECT {', '.join(targets.values())}"
            f" FROM unnest(%(ids)s::text[], %(bodies)s::{array}, %(headers)s::text[])"
            " WITH ORDINALITY AS given(id, payload, headers, n) ORDER BY n"
            f"{again} RETURNING {self._columns['id']}"
        )

    @property
    def there(self) -> str:
        """The payloads of rows with these ids."""
        payload = self._columns["payload"] + ("" if self.is_binary else "::text")
        identity = self._columns["id"]
        return f"SELECT {identity}, {payload} FROM {self._table} WHERE {identity} = ANY(%(ids)s)"

    def refuse_dispatch(self) -> None:
        """Refuse rows whose values would be read back changed."""
        table = self._options.table
        if self._is_whole_row:
            raise ConfigurationError(
                f"the payload of {table!r} is a whole row, which is not dispatched to",
                remedy="insert rows yourself, or name a column for the payload",
            )
        identity = self._options.columns["id"]
        if not self.takes_ids and "headers" not in self._columns:
            raise ConfigurationError(
                f"the table {table!r} has no room for the id of a transaction: {identity!r} is"
                f" {self.found[identity].type}, and columns names no headers",
                remedy=f"ALTER TABLE {table} ADD COLUMN headers jsonb, and write"
                ' columns="headers"; or let the id be text',
            )

    def refuse_reading(self) -> None:
        """Refuse to deliver rows if there is no place for those that fail for good."""
        if "status" not in self._columns and self._options.dead_letters is None:
            table = self._options.table
            raise ConfigurationError(
                f"a row of {table!r} that fails for good has nowhere to go",
                remedy='name a status column, columns="status, error", or a table of its own:'
                f' dead_letters="{table}_dead"',
            )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"


Row = tuple[Any, ...]
