"""``ergon db`` on a real PostgreSQL database: every part, and programs of two versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

import psycopg
import pytest

from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.cli import invoke
from ergon_framework.jobs.stores.postgres.store import PostgresJobStore
from ergon_framework.jobs.stores.postgres.transactions import SCHEMA
from tests.app.workplace import Workplace
from tests.cli.test_db_command import DbCommands, db

__all__ = ["db"]

pytestmark = pytest.mark.req("SCALE:upgrade")


def rows(db: DbCommands) -> dict[str, dict[str, str | None]]:
    """What was shown, by part."""
    return {row.pop("part"): row for row in json.loads(db.out)}


def test_the_tables_of_every_part_are_made(db: DbCommands, postgres_url: str) -> None:
    """Provider calls, and jobs when they are asked for; zones have theirs when they are there."""
    assert db("upgrade", "--store", postgres_url, "--json") == 0
    assert set(rows(db)) == {"providers"}
    assert db("upgrade", "--store", postgres_url, "--jobs", "--json") == 0
    found = rows(db)
    assert set(found) == {"providers", "jobs"}
    assert found["jobs"] == {
        "before": None,
        "now": str(SCHEMA.version),
        "latest": str(SCHEMA.version),
    }
    with closing(PostgresJobStore(postgres_url)) as store:
        assert store.queues() == []
    PostgresFactStore(postgres_url, zone="plant a").close()
    assert db("current", "--store", postgres_url, "--json") == 0
    assert set(rows(db)) == {"providers", "jobs", "zone plant a"}
    assert db("upgrade", "--store", postgres_url, "--json") == 0
    assert rows(db)["zone plant a"]["before"] is not None


def test_the_settings_name_the_parts(
    db: DbCommands, workplace: Workplace, postgres_url: str
) -> None:
    """Each where it is kept, zones by their names."""
    workplace.settings(
        f'[store]\nurl = "{postgres_url}"\n[zones.plant]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[executors.python]\ncommand = ["true"]\n'
    )
    assert db("upgrade", "--json") == 0
    assert set(rows(db)) == {"providers", "jobs", "zone plant"}


@pytest.mark.parametrize("place", ["[zones.plant]", "[boundary]"])
def test_a_zone_may_be_all_that_has_a_store(db: DbCommands, postgres_url: str, place: str) -> None:
    """Nothing else is made in its database."""
    db.settings(f'{place}\nstore = "{postgres_url}"\n[zones.plant.limits]\n')
    for command in ("upgrade", "current"):
        assert db(command, "--json") == 0
        assert set(rows(db)) == {"zone plant"}
    assert db("upgrade", "--sql") == 0
    assert "CREATE TABLE facts" in db.out


def test_the_printed_sql_makes_the_same_tables(db: DbCommands, postgres_url: str) -> None:
    """Whoever may not run the command runs the statements."""
    assert db("upgrade", "--store", postgres_url, "--jobs", "--sql") == 0
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(db.out.encode())
    with closing(PostgresJobStore(postgres_url)) as store:
        assert store.find("none") is None
    assert db("current", "--store", postgres_url, "--json") == 0
    assert all(row["now"] == row["latest"] for row in rows(db).values())


def test_tables_that_are_too_new_stay_as_they_are(db: DbCommands, postgres_url: str) -> None:
    """The command says which version they have, and which it knows."""
    PostgresJobStore(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE ergon_schema SET version = 99, compatible = 98")
    assert db("upgrade", "--store", postgres_url) == 1
    assert "for programs that work with version 98 or later" in db.err


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nats://127.0.0.1:1"])
def test_a_store_without_tables_says_so(db: DbCommands, workplace: Workplace, url: str) -> None:
    """By name it is refused; in the settings there is just nothing to do."""
    assert db("upgrade", "--store", url) == 2
    assert "has no tables" in db.err
    workplace.settings(f'[store]\nurl = "{url}"\n')
    assert db("upgrade") == 0
    assert "nothing to bring up to date" in db.out


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize("words", [("db", "upgrade"), ("providers", "health")])
def test_a_server_that_refuses(
    capsys: pytest.CaptureFixture[str],
    workplace: Workplace,
    postgres_url: str,
    words: Sequence[str],
) -> None:
    """A database and a user that are not there are mistakes in the settings, and no outage."""
    absent = postgres_url.replace("/test_", "/absent_")
    stranger = postgres_url.replace("//ergon", "//nobody:hush-hush", 1)
    for url, told in ((absent, "no database of that name"), (stranger, "not let this user in")):
        assert invoke([*words, "--store", url]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "hush" not in error
