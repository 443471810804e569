"""Tables of a real PostgreSQL server, made and read by somebody else than the connector."""

# ruff: noqa: S608 - tables are named by the test itself

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg

from ergon_framework.connector.postgres import PostgresConnector
from ergon_framework.testing.suites.connector import ConnectorFaults
from tests.jobs.postgres.silent_proxy import SilentProxy
from tests.servers.postgres import PostgresServer, name_of

LEASED = (
    "id text PRIMARY KEY, payload bytea, headers json, status text DEFAULT 'pending', attempts int"
    " DEFAULT 0, lease text, visible_at timestamptz, error text,"
    " seq bigint GENERATED ALWAYS AS IDENTITY"
)
LEASED_COLUMNS = "headers, status, attempts, lease, visible_at, error, order=seq"
NUMBERED = (
    "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body json, headers jsonb,"
    " held_by uuid, held_until timestamptz"
)
NUMBERED_COLUMNS = "payload=body, headers, lease=held_by, visible_at=held_until"
OUTBOX = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text, headers json"

_numbers = count(1)


def execute(url: str, statement: str, values: tuple[Any, ...] | None = None) -> list[Any]:
    """Run a statement as somebody else; what it finds."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def new_table(url: str, columns: str, *, dead: bool = False) -> str:
    """A table of its own, and one for what fails."""
    table = f"orders_{next(_numbers)}"
    execute(url, f"CREATE TABLE {table} ({columns})")
    if dead:
        execute(url, f"CREATE TABLE {table}_dead (LIKE {table})")
        execute(url, f"ALTER TABLE {table}_dead ADD COLUMN error text")
    return table


class SuiteTables:
    """What the suite does to a connector from outside: it is one fresh table for each."""

    def __init__(self, server: PostgresServer, url: str, definition: str, **options: Any) -> None:
        self._server = server
        self._url = url
        self._definition = definition
        self._options = options
        self._is_moved = "status" not in options.get("columns", "")

    @contextmanager
    def make(self) -> Iterator[PostgresConnector]:
        """A connector behind a line of its own."""
        with SilentProxy(self._server.folder) as line:
            table = new_table(self._url, self._definition, dead=self._is_moved)
            made: Any = self._connector(line.url(name_of(self._url)), table)
            made.table, made.line = table, line
            yield made
            made.close()

    def _connector(self, url: str, table: str) -> PostgresConnector:
        dead: dict[str, Any] = {"dead_letters": f"{table}_dead"} if self._is_moved else {}
        return PostgresConnector(url, table=table, **dead, **{"wait": 0.0, **self._options})

    def crash(self, connector: Any) -> PostgresConnector:
        """Nothing more is heard of it."""
        connector.line.leave()
        return self._connector(self._url, connector.table)

    def cut(self, connector: Any) -> None:
        """Its connections break, once."""
        connector.line.cut()

    def put_malformed(self, connector: Any) -> None:
        """Something that is no JSON."""
        self._insert(connector.table, b"{", {})

    def put_foreign(self, connector: Any, body: bytes, headers: Mapping[str, str]) -> None:
        """As another program inserts."""
        self._insert(connector.table, body, headers)

    def _insert(self, table: str, body: bytes, headers: Mapping[str, str]) -> None:
        values: tuple[Any, ...] = (body, json.dumps(dict(headers)))
        if "id text" in self._definition:
            statement = f"INSERT INTO {table} (payload, headers, id) VALUES (%s, %s, %s)"
            execute(self._url, statement, (*values, f"row-{next(_numbers)}"))
            return
        column = "body" if "body" in self._definition else "payload"
        statement = f"INSERT INTO {table} ({column}, headers) VALUES (%s, %s)"
        execute(self._url, statement, (body.decode(), values[1]))

    def read_foreign(self, connector: Any) -> list[tuple[bytes, dict[str, str]]]:
        """As another program reads."""
        column = "body" if "body" in self._definition else "payload"
        found = execute(self._url, f"SELECT {column}, headers::jsonb FROM {connector.table}")
        return [(_bytes(payload), headers) for payload, headers in found]

    def dead(self, connector: Any) -> list[tuple[str, str]]:
        """The ids and reasons of what was set aside."""
        where = f"{connector.table}_dead" if self._is_moved else connector.table
        identity = "coalesce(headers::jsonb ->> 'ergon-transaction-id', id::text)"
        only = "" if self._is_moved else " WHERE status = 'dead'"
        return execute(self._url, f"SELECT {identity}, error FROM {where}{only}")

    @property
    def faults(self) -> ConnectorFaults:
        """All of it; a column of JSON takes nothing malformed."""
        is_json = "json," in self._definition.partition("headers")[0]
        return ConnectorFaults(
            crash=self.crash,
            cut=self.cut,
            put_malformed=None if is_json else self.put_malformed,
            put_foreign=self.put_foreign,
            read_foreign=self.read_foreign,
        )


def _bytes(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    return payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
