"""What a look at a PostgreSQL server tells, and what it calls unsafe."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.storage.postgres import diagnostics
from ergon_framework.storage.server import Observation, skew

pytestmark = pytest.mark.req("SCALE:doctor")

FINE = {
    "fsync": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "server_version": "16.4",
    "server_version_num": "160004",
    "max_connections": "100",
    "superuser_reserved_connections": "3",
}


def test_a_real_server_is_looked_at(postgres_url: str) -> None:
    """Everything is there, and the tests' own server is unsafe in the one way that it is."""
    seen = {each.what: each for each in diagnostics.observe(postgres_url)}
    wanted = {"version", "role", "durability", "connections", "vacuum", "latency", "clock"}
    wanted |= {"encryption"}
    assert set(seen) == wanted
    assert [each.what for each in seen.values() if each.is_grave] == ["durability"]
    assert "fsync is off" in seen["durability"].found
    assert "ms" in seen["latency"].found


def test_a_database_that_may_only_be_read_is_unfit(postgres_url: str) -> None:
    """Whoever set it so: nothing could be kept there."""
    mark = "&" if "?" in postgres_url else "?"
    url = f"{postgres_url}{mark}options=-cdefault_transaction_read_only%3Don"
    [role] = [each for each in diagnostics.observe(url) if each.what == "role"]
    assert role.is_grave
    assert "default_transaction_read_only" in role.remedy


def test_a_server_that_is_not_there_says_so() -> None:
    """The error is the one of connecting."""
    with pytest.raises(StoreUnavailableError):
        list(diagnostics.observe("postgresql://127.0.0.1:1/none"))


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_sync_is_unsafe(name: str) -> None:
    """Whatever else it does, a power cut takes the database."""
    [seen] = diagnostics.durability(FINE | {name: "off"}, "on")
    assert seen.is_grave
    assert seen.remedy == f"set {name} = on"


def test_every_setting_that_is_off_is_named() -> None:
    """Whoever fixes one finds the other; that commits do not wait is told all the same."""
    [seen, note] = diagnostics.durability(FINE | dict.fromkeys(FINE, "off"), "off")
    assert seen.found.startswith("fsync and full_page_writes are off: ")
    assert seen.remedy == "set fsync = on and full_page_writes = on"
    assert note.what == "synchronous_commit"


def test_a_database_whose_commits_do_not_wait(postgres_url: str) -> None:
    """Our own connection turns it on, and still says what those of the user get."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
    [note] = [e for e in diagnostics.observe(postgres_url) if e.what == "synchronous_commit"]
    assert not note.is_grave
    assert "a job that is enqueued there does not" in note.found


def test_commits_that_do_not_wait_are_worth_knowing() -> None:
    """Our own connections wait all the same; those of the user do not."""
    [fine, note] = diagnostics.durability(FINE, "off")
    assert not fine.remedy
    assert not note.is_grave
    assert "set synchronous_commit = on" in note.remedy


def test_an_old_server_is_refused() -> None:
    """It gets no corrections any more."""
    seen = diagnostics.version(FINE | {"server_version": "12.1", "server_version_num": "120001"})
    assert seen.is_grave
    assert "13" in seen.remedy


def test_connections_that_run_out_are_noticed() -> None:
    """Before the last one is gone."""
    assert not diagnostics.connection_usage(FINE, 20).remedy
    assert diagnostics.connection_usage(FINE, 90).remedy


def test_a_queue_needs_its_vacuum() -> None:
    """It must be on, and nobody may hold it up."""
    assert diagnostics.vacuum(FINE | {"autovacuum": "off"}, 0.0).is_grave
    assert "idle for 900 s" in diagnostics.vacuum(FINE, 900.0).found
    assert not diagnostics.vacuum(FINE, 1.0).remedy


def test_a_clock_that_differs_is_told() -> None:
    """Without alarm: nothing goes by this machine's clock."""
    assert skew(100.0, 100.0, 100.1) == Observation("clock", "-50 ms from this machine's")
    seen = skew(400.0, 100.0, 100.0)
    assert "+300.0 s" in seen.found
    assert not seen.is_grave
    assert "nothing breaks" in seen.remedy


def test_stores_say_what_an_acknowledgement_is_worth(postgres_url: str) -> None:
    """The server of the tests does not sync; of one that does, they say the other thing."""
    with (
        closing(PostgresJobStore(postgres_url)) as jobs,
        closing(PostgresFactStore(postgres_url, zone="plant")) as facts,
    ):
        for sentence in (jobs.durability, facts.acknowledgement):
            assert "where fsync is off: after a power cut" in sentence
        facts.database.server.unsafe_settings = "fsync and full_page_writes"
        assert "where fsync and full_page_writes are off: after" in facts.acknowledgement
        facts.database.server.unsafe_settings = None
        assert "survives the end of every process and power cuts" in facts.acknowledgement
        assert facts.database.server.acknowledged("job", "It is synced.") == "It is synced."
