"""Programs of two versions side by side: tables that are newer by additions are good enough."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator

import psycopg
import pytest

from ergon_framework.errors import StoreReadOnlyError, StoreSchemaError
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.transactions import SCHEMA
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, ask, new
from tests import fork_server

pytestmark = pytest.mark.req("SCALE:upgrade", "SCALE:fleet-versions", "SCALE:jobs-postgres")


@pytest.fixture
def upgraded(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A database that a later version has added something to."""
    PostgresJobStore(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE ergon_jobs ADD COLUMN colour text DEFAULT 'red'")
        connection.execute("CREATE TABLE ergon_colours (name text)")
        set_version(connection, SCHEMA.version + 1, compatible=SCHEMA.version)
        yield connection


def set_version(connection: psycopg.Connection, version: int, *, compatible: int) -> None:
    """Say which version the tables have, and who may use them."""
    connection.execute(
        "UPDATE ergon_schema SET version = %s, compatible = %s WHERE part = 'jobs'",
        (version, compatible),
    )


def test_the_command_that_makes_the_tables_is_told(postgres_url: str) -> None:
    """It names the store, and works when it is pasted."""
    with pytest.raises(StoreSchemaError, match="jobs tables of version 0") as told:
        PostgresJobStore(postgres_url, read_only=True)
    [command] = re.findall("`ergon (.*)`", told.value.remedy)
    words = [sys.executable, "-m", "ergon_framework.cli", *shlex.split(command)]
    done = fork_server.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    PostgresJobStore(postgres_url, read_only=True).close()


def test_this_program_goes_on_with_later_tables(
    postgres_url: str, upgraded: psycopg.Connection
) -> None:
    """It adds, claims, settles, finds and copies, and leaves what it does not know alone."""
    store = PostgresJobStore(postgres_url)
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    store.add([new("a"), new("b", unique_key="k", limit_key="l")])
    jobs = store.settle_and_claim([], ask(5))[1].jobs
    assert [job.id for job in jobs] == ["a", "b"]
    assert store.settle_and_claim([s.told(job, SUCCEEDED) for job in jobs], None)[0] == [True, True]
    assert {each.id for each in map(s.get, "ab")} == {"a", "b"}
    store.close()
    assert upgraded.execute("SELECT DISTINCT colour FROM ergon_jobs").fetchall() == [("red",)]


def test_a_program_that_was_open_goes_on(postgres_url: str) -> None:
    """Tables that change while a worker has its statements prepared do not stop it."""
    store = PostgresJobStore(postgres_url)
    for n in range(8):
        store.add([new(f"{n}")])
        assert store.find(f"{n}") is not None
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE ergon_jobs ADD COLUMN colour text DEFAULT 'red'")
    assert len(store.settle_and_claim([], ask(100))[1].jobs) == 8
    assert store.find("1") is not None
    assert len(store.expired_leases(5)) == 0
    store.close()


def test_a_program_that_is_too_old_is_told(postgres_url: str, upgraded: psycopg.Connection) -> None:
    """Tables that this program cannot use are refused, and left alone."""
    set_version(upgraded, SCHEMA.version + 1, compatible=SCHEMA.version + 1)
    for read_only in (False, True):
        with pytest.raises(StoreSchemaError, match="or later") as caught:
            PostgresJobStore(postgres_url, read_only=read_only)
        assert "upgrade" in caught.value.remedy


@pytest.mark.req("SCALE:url-errors")
def test_a_table_that_was_dropped_is_missed(postgres_url: str) -> None:
    """Nobody is sent round in circles: neither opening nor upgrading takes it for good."""
    PostgresJobStore(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE ergon_jobs, ergon_workers CASCADE")
        for read_only in (False, True):
            with pytest.raises(StoreSchemaError, match=": ergon_jobs, ergon_workers") as told:
                PostgresJobStore(postgres_url, read_only=read_only)
            assert "restore a backup" in told.value.remedy
        with pytest.raises(StoreSchemaError, match="lost jobs tables"):
            SCHEMA.upgrade(connection, "the database", None)
        for table in (
            *("ergon_queues", "ergon_schedules", "ergon_job_moves", "ergon_executors"),
            *("ergon_flows", "ergon_flow_joins", "ergon_flow_work", "ergon_job_tags"),
            *("ergon_queue_keys", "ergon_job_keys"),
        ):
            connection.execute(f"DROP TABLE {table}".encode())
        connection.execute("DELETE FROM ergon_schema WHERE part = 'jobs'")
    store = PostgresJobStore(postgres_url)
    store.add([new("a")])
    store.close()


def test_a_reader_makes_no_tables(postgres_url: str) -> None:
    """Somebody who only looks is told what is missing."""
    with pytest.raises(StoreSchemaError, match="version 0"):
        PostgresJobStore(postgres_url, read_only=True)


def test_a_user_who_may_only_read(postgres_url: str) -> None:
    """Writing says that it may not; reading goes on."""
    store = PostgresJobStore(postgres_url)
    store.add([new("a")])
    store.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
    guest = PostgresJobStore(postgres_url.replace("//ergon@", "//guest@"), read_only=True)
    assert guest.find("a") is not None
    assert [queue.name for queue in guest.queues()] == ["default"]
    with pytest.raises(StoreReadOnlyError, match="opened to be read"):
        guest.add([new("b")])
    guest.close()
    guest = PostgresJobStore(postgres_url.replace("//ergon@", "//guest@"))
    with pytest.raises(StoreReadOnlyError, match="permission denied for table") as caught:
        guest.add([new("b")])
    assert "GRANT" in (caught.value.remedy or "")
    guest.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP OWNED BY guest")
        connection.execute("DROP ROLE guest")
