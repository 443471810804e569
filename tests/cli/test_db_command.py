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


class Desk:
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
def desk(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Desk:
    """A desk with no settings and no store."""
    return Desk(workplace, capsys)


def test_a_store_is_made_and_looked_at(desk: Desk) -> None:
    """For people as a table, for programs as JSON."""
    assert desk("upgrade", "--store", URL, "--json") == 0
    assert json.loads(desk.out) == [
        {"part": "providers", "before": None, "now": HEAD, "latest": HEAD}
    ]
    assert desk.tables() == OURS
    assert desk("current", "--store", URL) == 0
    assert [line.split() for line in desk.out.splitlines()] == [
        ["part", "now", "latest"],
        ["providers", HEAD, HEAD],
    ]
    assert desk("upgrade", "--url", URL, "--json") == 0
    assert json.loads(desk.out)[0]["before"] == HEAD


def test_any_name_of_a_file(desk: Desk) -> None:
    """It is taken as it is written."""
    file = desk.file.with_name("a %41 ü+1.db")
    assert desk("upgrade", "--store", f"sqlite:///{file}") == 0
    assert desk.tables(file) == OURS


@pytest.mark.req("PEF:G-1")
def test_going_back_takes_a_yes(desk: Desk) -> None:
    """Without it nothing happens; with it exactly our tables go."""
    desk.ask("CREATE TABLE mine (x)")
    desk("upgrade", "--store", URL)
    assert desk("downgrade", "--store", URL) == 2
    assert "deletes quotas, health, metrics and dead letters" in desk.err
    assert "give --yes" in desk.err
    assert desk.tables() == OURS | {"mine"}
    assert desk("downgrade", "--store", URL, "--yes", "--json") == 0
    assert json.loads(desk.out) == [
        {"part": "providers", "before": HEAD, "now": None, "latest": HEAD}
    ]
    assert desk.tables() == {"mine"}


def test_the_store_of_the_settings(desk: Desk) -> None:
    """A file is relative to the settings that name it."""
    desk.settings('[store]\nurl = "sqlite:///work.db"\n')
    assert desk("upgrade") == 0
    assert desk.tables() == OURS
    assert desk("current") == 0


def test_provider_calls_may_have_a_store_of_their_own(desk: Desk) -> None:
    """It comes before the one of all parts."""
    desk.settings('[store]\nurl = "sqlite:///x.db"\n[providers]\nstore = "sqlite:///work.db"\n')
    assert desk("upgrade") == 0
    assert desk.tables() == OURS
    assert not desk.file.with_name("x.db").exists()


def test_tables_of_jobs_are_brought_up_to_date_too(desk: Desk) -> None:
    """When the file has them; they stay when ours go."""
    with closing(JobClient(URL)) as client:
        job = client.enqueue("h").id
    latest = str(SCHEMA.version)
    assert desk("upgrade", "--store", URL, "--json") == 0
    assert json.loads(desk.out)[1] == {
        "part": "jobs",
        "before": latest,
        "now": latest,
        "latest": latest,
    }
    assert desk("current", "--store", URL, "--json") == 0
    assert json.loads(desk.out) == [
        {"part": "providers", "now": HEAD, "latest": HEAD},
        {"part": "jobs", "now": latest, "latest": latest},
    ]
    assert desk("downgrade", "--store", URL, "--yes") == 0
    assert not desk.tables() & OURS
    with closing(JobClient(URL)) as client:
        assert client.find(job).id == job


def test_tables_of_jobs_are_made_in_a_file_on_request(desk: Desk) -> None:
    """As on a server; without the word whoever opens the file first makes them."""
    assert desk("upgrade", "--store", URL) == 0
    assert "ergon_jobs" not in desk.tables()
    assert desk("upgrade", "--store", URL, "--jobs", "--json") == 0
    latest = str(SCHEMA.version)
    made = {"part": "jobs", "before": None, "now": latest, "latest": latest}
    assert made in json.loads(desk.out)
    assert "ergon_jobs" in desk.tables()


def test_tables_of_jobs_that_are_too_new(desk: Desk) -> None:
    """They are refused by the part they belong to."""
    with closing(JobClient(URL)) as client:
        client.enqueue("h")
    desk.ask("UPDATE ergon_schema SET version = 999")
    assert desk("upgrade", "--store", URL) == 1
    assert "jobs tables of version 999" in desk.err


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
@pytest.mark.parametrize("url", [URL, "postgresql://nobody@nowhere.invalid/none"])
def test_the_sql_can_be_had_without_a_database(desk: Desk, direction: str, url: str) -> None:
    """Nothing is opened, and no yes is asked for."""
    assert desk(direction, "--store", url, "--sql") == 0
    assert desk.out.strip().startswith("BEGIN;")
    assert desk.out.strip().endswith("COMMIT;")
    words = "CREATE TABLE" if direction == "upgrade" else "DROP TABLE"
    said = desk.out.replace("IF EXISTS ", "")
    assert {table for table in OURS if f"{words} {table}" in said} == OURS
    assert not desk.file.exists()
    assert desk(direction, "--store", url, "--sql", "--json") == 0
    assert words in json.loads(desk.out)["sql"]


def test_the_printed_sql_is_what_upgrade_does(desk: Desk) -> None:
    """Run by another program, it leaves a store that upgrade finds up to date."""
    desk("upgrade", "--store", URL, "--sql")
    with closing(sqlite3.connect(desk.file)) as connection:
        connection.executescript(desk.out)
    assert desk("upgrade", "--store", URL, "--json") == 0
    assert json.loads(desk.out)[0]["before"] == HEAD


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
def test_what_is_refused(desk: Desk, arguments: tuple[str, ...], code: int, told: str) -> None:
    """In one line that names no password, and without making a file."""
    assert desk(*arguments) == code
    assert told in desk.err
    assert desk.err.count("\n") == 1
    assert "hush" not in desk.err
    assert not desk.file.exists()


@pytest.mark.req("PROVIDERS:badinput")
def test_a_server_that_is_not_there(desk: Desk) -> None:
    """It is named without its password, with what to do."""
    url = "postgresql://user:hush@127.0.0.1:1/base?connect_timeout=5"
    assert desk("upgrade", "--store", url, "--json") == 1
    assert json.loads(desk.out)["error"]["code"] == "store_unavailable"
    assert "postgresql://user:***@127.0.0.1:1/base cannot be used for now" in desk.err
    assert "hush" not in desk.out + desk.err


@pytest.mark.req("PROVIDERS:badinput")
def test_settings_without_a_store(desk: Desk) -> None:
    """The file is named, and what to write into it."""
    desk.settings("[telemetry]\n")
    assert desk("current") == 2
    assert "ergon.toml has none" in desk.err
    assert "give --store" in desk.err


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize("command", ["upgrade", "current"])
def test_a_file_that_is_no_database(desk: Desk, command: str) -> None:
    """It stays as it is."""
    desk.file.write_bytes(b"something else entirely" * 100)
    assert desk(command, "--store", URL) == 1
    assert "is not an SQLite database" in desk.err
    assert desk.file.read_bytes() == b"something else entirely" * 100


def test_old_tables_of_jobs_are_told_with_the_command_that_mends_them(desk: Desk) -> None:
    """For this very file: the command names it."""
    with JobClient(URL) as client:
        client.enqueue("h", id="a")
    desk.ask("UPDATE ergon_schema SET version = 1 WHERE part = 'jobs'")
    with pytest.raises(StoreSchemaError) as caught:
        open_job_store(URL, read_only=True)
    store = f"sqlite:///{desk.file.absolute()}"
    assert caught.value.remedy.endswith(f":  ergon db upgrade --store {shlex.quote(store)}")


def test_provider_tables_that_are_too_new_are_not_told_to_be_upgraded(desk: Desk) -> None:
    """ergon db upgrade refuses them: what helps is a newer program."""
    desk("upgrade", "--store", URL)
    desk.ask("UPDATE ergon_provider_alembic_version SET version_num = '0999'")
    with pytest.raises(StoreSchemaError) as caught:
        open_store(URL)
    assert caught.value.remedy == "upgrade ergon-framework here, or name another store"


@pytest.mark.req("PROVIDERS:badinput")
def test_tables_that_are_too_new(desk: Desk) -> None:
    """They can be looked at, and are neither upgraded nor taken away."""
    desk("upgrade", "--store", URL)
    desk.ask("UPDATE ergon_provider_alembic_version SET version_num = '0999'")
    assert desk("current", "--store", URL, "--json") == 0
    assert json.loads(desk.out)[0]["now"] == "0999"
    assert desk("upgrade", "--store", URL) == 1
    assert "of revision '0999'" in desk.err
    assert "upgrade ergon-framework" in desk.err
    assert desk("downgrade", "--yes", "--store", URL) == 1
    assert desk.tables() == OURS


@pytest.mark.req("PROVIDERS:badinput")
def test_postgresql_without_its_driver(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it is named."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert desk("current", "--store", "postgresql://u:hush@h/d") == 2
    assert "pip install 'ergon-framework[postgres]'" in desk.err


def test_the_help(desk: Desk) -> None:
    """Says what each command does, and that going back deletes."""
    assert desk("--help") == 0
    assert {"upgrade", "current", "downgrade"} <= {*desk.out.split()}
    assert desk("downgrade", "--help") == 0
    assert "with everything in them" in desk.out
