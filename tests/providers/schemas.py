"""What a database holds, as plain data that two moments can be compared by."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, inspect, text

HOST = (
    "CREATE TABLE task_executions (id VARCHAR(36) PRIMARY KEY, task_name TEXT NOT NULL)",
    "CREATE TABLE campaigns (id VARCHAR(36) PRIMARY KEY, name TEXT UNIQUE, state TEXT)",
    "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
    "CREATE INDEX ix_campaigns_state ON campaigns (state)",
    "CREATE VIEW live_campaigns AS SELECT id FROM campaigns WHERE state = 'live'",
    "INSERT INTO task_executions VALUES ('e1', 'crawl'), ('e2', 'rank')",
    "INSERT INTO campaigns VALUES ('c1', 'spring', 'live')",
    "INSERT INTO alembic_version VALUES ('0016_of_the_host')",
)
"""The tables of somebody else's application, with rows in them."""

_SQLITE = "SELECT type || ' ' || name AS name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_POSTGRESQL = """
SELECT 'column ' || table_name || '.' || column_name AS name,
       concat_ws(' ', ordinal_position, data_type, character_maximum_length, is_nullable,
                 column_default) AS sql
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'constraint ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'view ' || viewname, definition FROM pg_views WHERE schemaname = 'public'
"""


def build_host(connection: Connection) -> None:
    """Make the host's tables and fill them."""
    for statement in HOST:
        connection.execute(text(statement))


def things_in(connection: Connection) -> dict[str, str]:
    """Every table, column, index, constraint and view, and how it is defined."""
    is_sqlite = connection.dialect.name == "sqlite"
    rows = connection.execute(text(_SQLITE if is_sqlite else _POSTGRESQL)).all()
    return {str(row.name): " ".join(str(row.sql).split()) for row in rows}


def rows_in(connection: Connection) -> dict[str, list[Any]]:
    """Every row of every table."""
    return {
        table: sorted(map(tuple, connection.execute(text(f'SELECT * FROM "{table}"'))))  # noqa: S608 - a name from the catalogue
        for table in inspect(connection).get_table_names()
    }
