"""Numbered schema files on PostgreSQL, which programs may work with which version, and upgrades."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg import sql

from ergon_framework.errors import StoreSchemaError
from ergon_framework.storage.deadlines import SocketWatchdog
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.errors import first_line, translate
from ergon_framework.storage.postgres.pool import Connection, ConnectionPool
from ergon_framework.storage.sql_files import SchemaFiles
from ergon_framework.storage.urls import store_operand

_COMPATIBLE = re.compile(r"--\s*compatible:\s*(\d+)")
_LOCK = 0x6572676F6E  # "ergon" in ASCII: processes that make tables wait for each other
_TABLE = """
CREATE TABLE IF NOT EXISTS ergon_schema (
    part text PRIMARY KEY,
    version integer NOT NULL,
    compatible integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_THERE = "SELECT to_regclass('ergon_schema')::text"
_MISSING = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL ORDER BY 1"
_READ = "SELECT version, compatible FROM ergon_schema WHERE part = %s"
_WRITE = """
INSERT INTO ergon_schema (part, version, compatible) VALUES (%s, %s, %s)
ON CONFLICT (part) DO UPDATE SET version = excluded.version,
    compatible = excluded.compatible, applied_at = now()
"""


class PostgresSchema(SchemaFiles):
    """The tables of one part: files ``0001_name.sql``, ``0002_name.sql``, … of a package."""

    @property
    def compatible(self) -> int:
        """The oldest version of the program that can work with these tables."""
        return max(_compatible_with(text, int(name[:4])) for name, text in self.files)

    def settle(self, connection: Connection, name: str, namespace: str | None) -> None:
        """Make the tables when there are none; those of another version are only checked."""
        if self.found(connection, namespace) is None:
            self.upgrade(connection, name, namespace)
        else:
            self.check(connection, name, namespace)

    def upgrade(self, connection: Connection, name: str, namespace: str | None) -> int:
        """Bring the tables up to date, in the process that comes first; the version they had."""
        with connection.transaction():
            # Not without an end: a table that somebody holds would stop every program that starts.
            # The statements themselves may take long on large tables.
            connection.execute("SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = 0")
            # All processes that start at once find no tables; the second one waits here, and then
            # finds them made.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if namespace is not None:
                quoted = sql.Identifier(namespace)
                connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(quoted))
            self._look_in(connection, namespace)
            connection.execute(_TABLE)
            before = self._read(connection)
            # Read after the lock: what was there before does not count.
            version = 0 if before is None else before[0]
            if before is not None:
                self._refuse_newer_than(before, name)
            if before is not None:
                self._refuse_lost(connection, name, version)
            if version < self.version:
                self._apply(connection, name, version)
        return version

    def check(self, connection: Connection, name: str, namespace: str | None) -> None:
        """Refuse tables that this program cannot work with."""
        found = self.found(connection, namespace)
        if found is None or found[0] < self.version:
            raise StoreSchemaError(
                f"{name} has {self.part} tables of version {found[0] if found else 0}; this program"
                f" works with version {self.version}",
                remedy=self._upgrade_remedy(name, has_tables=found is not None),
            )
        self._refuse_newer_than(found, name)
        # In a transaction: ``set_config`` is to end with it, or the next borrower of the connection
        # would look in another schema.
        with connection.transaction():
            self._look_in(connection, namespace)
            self._refuse_lost(connection, name, self.version)

    def _upgrade_remedy(self, name: str, *, has_tables: bool) -> str:
        """How the tables are brought up to date; a zone has no command but that of its settings."""
        may_go_on = "programs that are running may go on meanwhile"
        if self.part != "jobs":
            return f"run `ergon db upgrade`; {may_go_on}"
        makes = "" if has_tables else " --jobs"
        return f"run `ergon db upgrade{makes} --store {store_operand(name)}`; {may_go_on}"

    def found(self, connection: Connection, namespace: str | None) -> tuple[int, int] | None:
        """The version of the tables, and of the oldest program that may use them."""
        with connection.transaction():
            self._look_in(connection, namespace)
            # ``to_regclass`` answers NULL; a plain query on a missing table would be an error in
            # the server's log.
            [[is_there]] = connection.execute(_THERE).fetchall()
            return None if is_there is None else self._read(connection)

    def script(self, namespace: str | None) -> str:
        """The SQL that makes the tables of this version, for operators who run it themselves."""
        values = f"('{self.part}', {self.version}, {self.compatible})"
        lines = ["BEGIN;"]
        if namespace is not None:
            lines += [f'CREATE SCHEMA "{namespace}";', f'SET LOCAL search_path = "{namespace}";']
        lines += [_TABLE.strip() + ";", *(text.strip() for _, text in self.files)]
        lines += [f"INSERT INTO ergon_schema (part, version, compatible) VALUES {values};"]  # noqa: S608
        return "\n\n".join([*lines, "COMMIT;"]) + "\n"

    def _look_in(self, connection: Connection, namespace: str | None) -> None:
        if namespace is not None:
            connection.execute("SELECT set_config('search_path', %s, true)", (f'"{namespace}"',))

    def _read(self, connection: Connection) -> tuple[int, int] | None:
        rows = connection.execute(_READ, (self.part,)).fetchall()
        return (int(rows[0][0]), int(rows[0][1])) if rows else None

    def _refuse_newer_than(self, found: tuple[int, int], name: str) -> None:
        version, compatible = found
        if version > self.version and compatible > self.version:
            raise StoreSchemaError(
                f"{name} has {self.part} tables of version {version}, for programs that work with"
                f" version {compatible} or later; this one works with {self.version}",
                remedy="upgrade ergon-framework here, or name another database",
            )

    def _refuse_lost(self, connection: Connection, name: str, version: int) -> None:
        """Refuse to work where tables of a version that was made are not there any more."""
        lost = [row[0] for row in connection.execute(_MISSING, (self.made(version),)).fetchall()]
        if lost:
            raise StoreSchemaError(
                f"{name} has lost {self.part} tables that were made: {', '.join(lost)}",
                remedy="restore a backup; to begin anew with empty ones, drop the others as well,"
                f" delete the row {self.part!r} of ergon_schema, and run `ergon db upgrade`",
            )

    def _apply(self, connection: Connection, name: str, version: int) -> None:
        source = ""
        try:
            for source, text in self.files[version:]:  # noqa: B007 - the error below names it
                connection.execute(text.encode())
            connection.execute(_WRITE, (self.part, self.version, self.compatible))
        except psycopg.errors.DuplicateTable as error:
            raise StoreSchemaError(
                f"{name} has tables that are not of this {self.part} store: {source} says"
                f" {first_line(error)}",
                remedy="name another database; tables that begin with ergon_ are ours alone",
            ) from error


def _compatible_with(text: str, number: int) -> int:
    found = _COMPATIBLE.match(text)
    return int(found[1]) if found else number


def version_of(url: str, schema: PostgresSchema, namespace: str | None = None) -> int | None:
    """The version of the tables; None when there are none."""
    with connected(url) as (connection, _):
        found = schema.found(connection, namespace)
    return None if found is None else found[0]


def has_table(url: str, table: str) -> bool:
    """Whether a database has a table of that name, where this user looks for it."""
    with connected(url) as (connection, _):
        found = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    return found is not None and found[0] is not None


def make_with(
    url: str,
    schema: PostgresSchema,
    namespace: str | None,
    statement: bytes,
    values: Mapping[str, object],
) -> None:
    """Make the tables and write something into them in one commit; nothing if they are there."""
    with connected(url) as (connection, name), connection.transaction():
        is_made = schema.found(connection, namespace) is not None
        # Another process may make them meanwhile, and use them: the upgrade says so.
        if not is_made and schema.upgrade(connection, name, namespace) == 0:
            connection.execute(statement, values)


def upgrade(url: str, schema: PostgresSchema, namespace: str | None = None) -> int:
    """Make the tables or bring them up to date; the version they had, 0 when there were none."""
    with connected(url) as (connection, name):
        return schema.upgrade(connection, name, namespace)


@contextmanager
def connected(url: str) -> Iterator[tuple[Connection, str]]:
    """One connection of the caller's own, and what to call the database."""
    address = address_of(url)
    connections = ConnectionPool(address, 1, SocketWatchdog())
    try:
        with connections.borrow() as connection:
            yield connection, address.name
    except psycopg.Error as error:
        raise translate(error, address.name) from error
    finally:
        connections.close()
