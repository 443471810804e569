"""``ergon db``: what it prints, what it does to a store, and what it refuses."""

from __future__ import annotations

import json
import shlex
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.errors import StoreSchemaError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.store_urls import open_store as open_job_store
from ergon_framework.jobs.stores.sqlite.transactions import SCHEMA
from ergon_framework.providers.migrations import HEAD, VERSION_TABLE
from ergon_framework.providers.models import metadata
from ergon_framework.providers.store_urls import open_store
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("PROVIDERS:storage", "PROVIDERS:cli")
URL = "sqlite:///work.db"
OURS = {*metadata.tables, VERSION_TABLE}


class DbCommands:
    """The command line in a working directory."""

    def __init__(self, place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = place.directory / "work.db"
        self.settings = place.settings
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        """Run ``ergon db`` with these; what it said is in ``out`` and ``err``."""
        self._capsys.readouterr()
        code = invoke(("db", *arguments))
        self.out, self.err = self._capsys.readouterr()
        return code

    def tables(self, file: Path | None = None) -> set[str]:
        """The tables of the file."""
        return {
            name
            for (name,) in self.ask("SELECT name FROM sqlite_master WHERE type = 'table'", file)
        }

    def ask(self, statement: str, file: Path | None = None) -> Sequence[Any]:
        """Run one statement on the file."""
        with closing(sqlite3.connect(file or self.file)) as connection, connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def db(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> DbCommands:
    """The command line with no settings and no store."""
    return DbCommands(workplace, capsys)


def test_a_store_is_made_and_looked_at(db: DbCommands) -> None:
    """For people as a table, for programs as JSON."""
    assert db("upgrade", "--store", URL, "--json") == 0
    assert json.loads(db.out) == [
        {"part": "providers", "before": None, "now": HEAD, "latest": HEAD}
    ]
    assert db.tables() == OURS
    assert db("current", "--store", URL) == 0
    assert [line.split() for line in db.out.splitlines()] == [
        ["part", "now", "latest"],
        ["providers", HEAD, HEAD],
    ]
    assert db("upgrade", "--url", URL, "--json") == 0
    assert json.loads(db.out)[0]["before"] == HEAD


def test_any_name_of_a_file(db: DbCommands) -> None:
    """It is taken as it is written."""
    file = db.file.with_name("a %41 ü+1.db")
    assert db("upgrade", "--store", f"sqlite:///{file}") == 0
    assert db.tables(file) == OURS


@pytest.mark.req("PEF:G-1")
def test_going_back_takes_a_yes(db: DbCommands) -> None:
    """Without it nothing happens; with it exactly our tables go."""
    db.ask("CREATE TABLE mine (x)")
    db("upgrade", "--store", URL)
    assert db("downgrade", "--store", URL) == 2
    assert "deletes quotas, health, metrics and dead letters" in db.err
    assert "give --yes" in db.err
    assert db.tables() == OURS | {"mine"}
    assert db("downgrade", "--store", URL, "--yes", "--json") == 0
    assert json.loads(db.out) == [
        {"part": "providers", "before": HEAD, "now": None, "latest": HEAD}
    ]
    assert db.tables() == {"mine"}


def test_the_store_of_the_settings(db: DbCommands) -> None:
    """A file is relative to the settings that name it."""
    db.settings('[store]\nurl = "sqlite:///work.db"\n')
    assert db("upgrade") == 0
    assert db.tables() == OURS
    assert db("current") == 0


def test_provider_calls_may_have_a_store_of_their_own(db: DbCommands) -> None:
    """It comes before the one of all parts."""
    db.settings('[store]\nurl = "sqlite:///x.db"\n[providers]\nstore = "sqlite:///work.db"\n')
    assert db("upgrade") == 0
    assert db.tables() == OURS
    assert not db.file.with_name("x.db").exists()


def test_tables_of_jobs_are_brought_up_to_date_too(db: DbCommands) -> None:
    """When the file has them; they stay when ours go."""
    with closing(JobClient(URL)) as client:
        job = client.enqueue("h").id
    latest = str(SCHEMA.version)
    assert db("upgrade", "--store", URL, "--json") == 0
    assert json.loads(db.out)[1] == {
        "part": "jobs",
        "before": latest,
        "now": latest,
        "latest": latest,
    }
    assert db("current", "--store", URL, "--json") == 0
    assert json.loads(db.out) == [
        {"part": "providers", "now": HEAD, "latest": HEAD},
        {"part": "jobs", "now": latest, "latest": latest},
    ]
    assert db("downgrade", "--store", URL, "--yes") == 0
    assert not db.tables() & OURS
    with closing(JobClient(URL)) as client:
        assert client.find(job).id == job


def test_tables_of_jobs_are_made_in_a_file_on_request(db: DbCommands) -> None:
    """As on a server; without the word whoever opens the file first makes them."""
    assert db("upgrade", "--store", URL) == 0
    assert "ergon_jobs" not in db.tables()
    assert db("upgrade", "--store", URL, "--jobs", "--json") == 0
    latest = str(SCHEMA.version)
    made = {"part": "jobs", "before": None, "now": latest, "latest": latest}
    assert made in json.loads(db.out)
    assert "ergon_jobs" in db.tables()


def test_tables_of_jobs_that_are_too_new(db: DbCommands) -> None:
    """They are refused by the part they belong to."""
    with closing(JobClient(URL)) as client:
        client.enqueue("h")
    db.ask("UPDATE ergon_schema SET version = 999")
    assert db("upgrade", "--store", URL) == 1
    assert "jobs tables of version 999" in db.err


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
@pytest.mark.parametrize("url", [URL, "postgresql://nobody@nowhere.invalid/none"])
def test_the_sql_can_be_had_without_a_database(db: DbCommands, direction: str, url: str) -> None:
    """Nothing is opened, and no yes is asked for."""
    assert db(direction, "--store", url, "--sql") == 0
    assert db.out.strip().startswith("BEGIN;")
    assert db.out.strip().endswith("COMMIT;")
    words = "CREATE TABLE" if direction == "upgrade" else "DROP TABLE"
    said = db.out.replace("IF EXISTS ", "")
    assert {table for table in OURS if f"{words} {table}" in said} == OURS
    assert not db.file.exists()
    assert db(direction, "--store", url, "--sql", "--json") == 0
    assert words in json.loads(db.out)["sql"]


def test_the_printed_sql_is_what_upgrade_does(db: DbCommands) -> None:
    """Run by another program, it leaves a store that upgrade finds up to date."""
    db("upgrade", "--store", URL, "--sql")
    with closing(sqlite3.connect(db.file)) as connection:
        connection.executescript(db.out)
    assert db("upgrade", "--store", URL, "--json") == 0
    assert json.loads(db.out)[0]["before"] == HEAD


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ("current", "--store", URL),
            1,
            "there is no file work.db (ergon db upgrade --store sqlite:///work.db makes it)",
        ),
        (("downgrade", "--yes", "--store", URL), 1, "there is no file work.db"),
        (("upgrade", "--store", "sqlite:///no/such/work.db"), 1, "there is no folder no/such"),
        (("upgrade", "--store", "memory://"), 2, "a store in memory has no tables"),
        (("upgrade", "--store", "mysql://u:hush@h/d"), 2, "no store of the kind 'mysql'"),
        (("upgrade", "--store", "work.db"), 2, "must say of which kind it is"),
        (("upgrade", "--store", "sqlite://"), 2, "an SQLite store needs a file"),
        (("upgrade", "--store", "sqlite:///:memory:"), 2, "an SQLite store needs a file"),
        (("upgrade", "--store", "sqlite://work.db"), 2, "three slashes come before the path"),
        (("upgrade", "--store", "postgresql://u:hush@h:port/d"), 2, "cannot be read"),
        (("upgrade",), 2, "no store: there is no settings file"),
        (("downgrade", "0815", "--sql", "--store", URL), 2, "known are base, 0001"),
    ],
)
def test_what_is_refused(db: DbCommands, arguments: tuple[str, ...], code: int, told: str) -> None:
    """In one line that names no password, and without making a file."""
    assert db(*arguments) == code
    assert told in db.err
    assert db.err.count("\n") == 1
    assert "hush" not in db.err
    assert not db.file.exists()


@pytest.mark.req("PROVIDERS:badinput")
def test_a_server_that_is_not_there(db: DbCommands) -> None:
    """It is named without its password, with what to do."""
    url = "postgresql://user:hush@127.0.0.1:1/base?connect_timeout=5"
    assert db("upgrade", "--store", url, "--json") == 1
    assert json.loads(db.out)["error"]["code"] == "store_unavailable"
    assert "postgresql://user:***@127.0.0.1:1/base cannot be used for now" in db.err
    assert "hush" not in db.out + db.err


@pytest.mark.req("PROVIDERS:badinput")
def test_settings_without_a_store(db: DbCommands) -> None:
    """The file is named, and what to write into it."""
    db.settings("[telemetry]\n")
    assert db("current") == 2
    assert "ergon.toml has none" in db.err
    assert "give --store" in db.err


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize("command", ["upgrade", "current"])
def test_a_file_that_is_no_database(db: DbCommands, command: str) -> None:
    """It stays as it is."""
    db.file.write_bytes(b"something else entirely" * 100)
    assert db(command, "--store", URL) == 1
    assert "is not an SQLite database" in db.err
    assert db.file.read_bytes() == b"something else entirely" * 100


def test_old_tables_of_jobs_are_told_with_the_command_that_mends_them(db: DbCommands) -> None:
    """For this very file: the command names it."""
    with JobClient(URL) as client:
        client.enqueue("h", id="a")
    db.ask("UPDATE ergon_schema SET version = 1 WHERE part = 'jobs'")
    with pytest.raises(StoreSchemaError) as caught:
        open_job_store(URL, read_only=True)
    store = f"sqlite:///{db.file.absolute()}"
    assert caught.value.remedy.endswith(f":  ergon db upgrade --store {shlex.quote(store)}")


def test_provider_tables_that_are_too_new_are_not_told_to_be_upgraded(db: DbCommands) -> None:
    """ergon db upgrade refuses them: what helps is a newer program."""
    db("upgrade", "--store", URL)
    db.ask("UPDATE ergon_provider_alembic_version SET version_num = '0999'")
    with pytest.raises(StoreSchemaError) as caught:
        open_store(URL)
    assert caught.value.remedy == "upgrade ergon-framework here, or name another store"


@pytest.mark.req("PROVIDERS:badinput")
def test_tables_that_are_too_new(db: DbCommands) -> None:
    """They can be looked at, and are neither upgraded nor taken away."""
    db("upgrade", "--store", URL)
    db.ask("UPDATE ergon_provider_alembic_version SET version_num = '0999'")
    assert db("current", "--store", URL, "--json") == 0
    assert json.loads(db.out)[0]["now"] == "0999"
    assert db("upgrade", "--store", URL) == 1
    assert "of revision '0999'" in db.err
    assert "upgrade ergon-framework" in db.err
    assert db("downgrade", "--yes", "--store", URL) == 1
    assert db.tables() == OURS


@pytest.mark.req("PROVIDERS:badinput")
def test_postgresql_without_its_driver(db: DbCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it is named."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert db("current", "--store", "postgresql://u:hush@h/d") == 2
    assert "pip install 'ergon-framework[postgres]'" in db.err


def test_the_help(db: DbCommands) -> None:
    """Says what each command does, and that going back deletes."""
    assert db("--help") == 0
    assert {"upgrade", "current", "downgrade"} <= {*db.out.split()}
    assert db("downgrade", "--help") == 0
    assert "Without REVISION, delete them with all rows." in db.out
