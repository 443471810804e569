"""Numbered schema files: applied once, in order, all or nothing, by whoever comes first."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ergon_framework.errors import StoreSchemaError, WiringError
from ergon_framework.storage.sql_files import statements_of
from ergon_framework.storage.sqlite import connections
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from tests.storage.conftest import NEWER, SAMPLE, add, items

Open = Callable[..., Database]


def tables(path: Path) -> set[str]:
    """The names of all tables of a file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in found}


def package(
    folder: Path, name: str, files: dict[str, str], patch: pytest.MonkeyPatch
) -> SqliteSchema:
    """A schema made of these files."""
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(text)
    patch.syspath_prepend(folder)
    return SqliteSchema("made", name)


def test_a_fresh_file_gets_every_table(database: Database) -> None:
    """Triggers included, and the version is written down."""

    def work(connection: sqlite3.Connection) -> list[object]:
        add("a")(connection)
        connection.execute("DELETE FROM ergon_item")
        [log] = connection.execute("SELECT text FROM ergon_log").fetchone()
        [row] = connection.execute("SELECT part, version, applied_at > 1.7e9 FROM ergon_schema")
        return [log, *row]

    assert database.write(work) == ["deleted; a", "sample", 2, 1]


def test_an_older_file_is_brought_up_to_date(open_database: Open) -> None:
    """Only what is missing is applied, and what was there stays."""
    old = open_database()
    old.write(add("a"))
    old.close()
    new = open_database(NEWER)
    new.write(lambda found: found.execute("INSERT INTO ergon_third VALUES (1)"))
    assert items(new) == {"a": 0}


@pytest.mark.req("JOBS:badinput")
def test_a_newer_file_is_refused(open_database: Open) -> None:
    """The error names both versions and what to do, for writers and for readers."""
    open_database(NEWER).close()
    for read_only in (False, True):
        with pytest.raises(StoreSchemaError, match=r"version 3.* version 2.*upgrade") as caught:
            open_database(read_only=read_only)
        assert caught.value.code == "store_schema"


def test_a_users_own_database_is_welcome(open_database: Open, path: Path) -> None:
    """Our tables stand beside theirs."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (7)")
        connection.commit()
    database = open_database()
    assert database.read(lambda found: found.execute("SELECT id FROM orders").fetchall()) == [(7,)]
    assert tables(path) >= {"orders", "ergon_item", "ergon_schema"}


@pytest.mark.parametrize(
    "table", ["CREATE TABLE ergon_half (id)", "CREATE TABLE ergon_schema (id)"]
)
def test_foreign_tables_under_our_names_are_refused(
    open_database: Open, path: Path, table: str
) -> None:
    """Nothing is applied by halves."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(table)
    before = tables(path)
    with pytest.raises(StoreSchemaError, match=r"not of this sample store.*ergon_"):
        open_database()
    assert tables(path) == before


def test_a_script_that_fails_leaves_nothing(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its own tables nor those of the files before it."""
    files = {"0001_a.sql": "CREATE TABLE ergon_a (id);", "0002_b.sql": "CREATE TABLE;"}
    schema = package(tmp_path, "failing_schema", files, monkeypatch)
    with pytest.raises(StoreSchemaError, match=r"0002_b\.sql"):
        Database(path, schema=schema)
    assert tables(path) == set()


def test_a_part_that_cannot_be_opened_does_not_harm_the_others(
    open_database: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays open for who had it open before."""
    database = open_database()
    bad = package(tmp_path, "bad_schema", {"0001_a.sql": "CREATE TABLE;"}, monkeypatch)
    with pytest.raises(StoreSchemaError):
        open_database(bad)
    assert database.write(add("a")) == "a"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "missing"),
        ({"0001_a.sql": "", "0003_c.sql": ""}, "0001_a.sql, 0003_c.sql"),
        ({"0002_b.sql": ""}, "0002_b.sql"),
    ],
)
def test_files_are_numbered_without_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], message: str
) -> None:
    """A forgotten file is noticed before anything is applied."""
    schema = package(tmp_path, f"gaps_{len(files)}_{len(message)}", files, monkeypatch)
    with pytest.raises(WiringError, match=message):
        _ = schema.version


def test_a_package_that_is_not_there() -> None:
    """The error names it."""
    with pytest.raises(WiringError, match="nowhere_at_all"):
        _ = SqliteSchema("made", "nowhere_at_all").version


def test_a_statement_that_does_not_end() -> None:
    """A script that is cut off is not half applied."""
    assert list(statements_of("SELECT 1; -- a; b\nSELECT ';';\n-- end")) == [
        "SELECT 1;",
        "-- a; b\nSELECT ';';",
    ]
    with pytest.raises(WiringError, match="ends within a statement"):
        list(statements_of("SELECT 1; SELECT 'x"))


@pytest.mark.req("JOBS:store")
def test_many_open_a_fresh_file_at_once(path: Path) -> None:
    """Connections that know nothing of each other all succeed, and the tables are made once."""
    start = threading.Barrier(6)

    def open_one(n: int) -> str:
        def connect(uri: str, timeout: float) -> sqlite3.Connection:  # a file of its own each time
            return connections.connect(uri, timeout)

        start.wait()
        with Database(path, schema=SAMPLE, connect=connect, busy_timeout=20.0) as database:
            return database.write(add(str(n)))

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(open_one, range(6))) == list("012345")
    with Database(path, schema=SAMPLE) as database:
        assert items(database).keys() == set("012345")
