"""Files that an earlier version of this store wrote."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.factstore.sqlite.session import SCHEMA
from ergon_framework.errors import StoreSchemaError
from ergon_framework.ports.factstore import OUTBOUND, Gap, Link
from ergon_framework.storage.sql_files import statements_of
from ergon_framework.testing.suites.factstore.under_test import INBOX, PEER, new, sent
from tests.boundary.sqlite.conftest import ZONE

pytestmark = pytest.mark.req("BOUNDARY:store")
ROWS = "SELECT name FROM {0}.sqlite_master WHERE type = 'table' AND name LIKE 'ergon_%'"


def columns(connection: sqlite3.Connection, schema: str, table: str) -> list[str]:
    """The names of a table's columns."""
    return [row[1] for row in connection.execute(f"PRAGMA {schema}.table_info({table})")]


def of_version(version: int, path: Path, old: Path) -> None:
    """Write what a store has into a file with the tables of an earlier version."""
    with closing(sqlite3.connect(old)) as connection, connection:
        for _, text in SCHEMA.files[:version]:
            for statement in statements_of(text):
                connection.execute(statement)
        connection.execute("CREATE TABLE ergon_schema (part PRIMARY KEY, version, applied_at)")
        connection.execute("INSERT INTO ergon_schema VALUES (?, ?, 0)", (SCHEMA.part, version))
        connection.commit()
        connection.execute("ATTACH ? AS now", (str(path),))
        for (table,) in connection.execute(ROWS.format("main")).fetchall():
            if table != "ergon_schema":
                there = columns(connection, "now", table)
                kept = [each for each in columns(connection, "main", table) if each in there]
                names = ", ".join(f'"{each}"' for each in kept)
                connection.execute(f"DELETE FROM main.{table}")  # noqa: S608 - our own tables
                copied = f"INSERT INTO main.{table} ({names}) SELECT {names} FROM now.{table}"  # noqa: S608
                connection.execute(copied)


def filled(path: Path) -> SqliteFactStore:
    """A store with something of everything that the first version had."""
    store = SqliteFactStore(path, zone=ZONE, clock=lambda: 50.0)
    store.append(OUTBOUND, [new(each) for each in "abc"])
    store.create_consumer("c", OUTBOUND)
    store.create_consumer("d", INBOX)
    store.truncate(OUTBOUND, 1, loss_reason="disk")
    link = Link(PEER, "e1", 7, b"\x01" * 32, at=40.0)
    store.receive(PEER, [sent("x", 6), sent("y", 7)], link)
    store.seal(PEER, "drill")
    return store


def seen(store: SqliteFactStore) -> list[object]:
    """What its users see."""
    facts = [store.page(log, 0, 99, 1 << 20) for log in (OUTBOUND, INBOX)]
    return [facts, store.gaps(), store.links(), store.consumers(), store.journal(), store.logs()]


def test_a_file_of_the_first_version_opens(tmp_path: Path) -> None:
    """Nothing of it is lost, and it takes losses of peers from then on."""
    path, old = tmp_path / "now.db", tmp_path / "old.db"
    with closing(filled(path)) as store:
        before = seen(store)
    of_version(1, path, old)
    with pytest.raises(StoreSchemaError, match="version 1; this program works with version"):
        SqliteFactStore(old, zone=ZONE, read_only=True)
    with closing(SqliteFactStore(old, zone=ZONE, clock=lambda: 50.0)) as store:
        assert seen(store) == before
        assert store.gaps() == [Gap(OUTBOUND, 1, 1, "disk", 50.0)]
        lost = [Gap(OUTBOUND, 8, 9, "age", 3.0)]
        store.receive(PEER, [sent("z", 10)], Link(PEER, "e1", 10), (), lost)
        page = store.serve("d", 99, 1 << 20).page
        assert [fact.offset for fact in page.facts] == [1, 2, 4]
        assert page.gaps == [Gap(INBOX, 3, 3, "age", 3.0, 8, 9)]
        assert store.link(PEER).offset == 10
        assert store.link(PEER).is_sealed
    with closing(SqliteFactStore(old, zone=ZONE, read_only=True)) as store:
        assert [gap.source_last for gap in store.gaps()] == [None, 9]


def test_a_migration_that_is_cut_short_begins_anew(tmp_path: Path) -> None:
    """The step is one transaction: a file is of one version or of the other."""
    path, old = tmp_path / "now.db", tmp_path / "old.db"
    with closing(filled(path)) as store:
        before = seen(store)
    of_version(1, path, old)
    with closing(sqlite3.connect(old)) as connection:  # the last statement of the step fails
        connection.execute("CREATE INDEX in_the_way ON ergon_boundary_links (last)")
    with pytest.raises(StoreSchemaError, match="0002"):
        SqliteFactStore(old, zone=ZONE)
    with closing(sqlite3.connect(old)) as connection:
        assert "source_first" not in columns(connection, "main", "ergon_boundary_gaps")
        connection.execute("DROP INDEX in_the_way")
    with closing(SqliteFactStore(old, zone=ZONE, clock=lambda: 50.0)) as store:
        assert seen(store) == before
