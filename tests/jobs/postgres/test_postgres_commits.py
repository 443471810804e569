"""What a store acknowledges waits for the disk of the server, whatever its defaults are."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    new,
)

# Deferred, so that it runs when the transaction commits, which is when the setting counts.
NOTE = b"""
CREATE TABLE noted (job text, was text, is_now text, commits text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO noted VALUES (
        NEW.id, OLD.status::text, NEW.status::text, current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE ON ergon_jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
"""


@pytest.mark.req("SCALE:jobs-postgres")
def test_jobs_and_outcomes_wait_for_the_disk(postgres_url: str) -> None:
    """Each commit that adds a job, ends it, or gives it back is synchronous."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        PostgresJobStore(postgres_url).close()
        connection.execute(NOTE)
        with closing(PostgresJobStore(postgres_url)) as store:
            s = JobStoreSubject(store, HandClock(), None, 50.0)
            store.add([new(f"j{n}") for n in range(5)])
            store.add([new("alone")])
            s.must(s.take("j0"), SUCCEEDED)
            s.must(s.take("j1"), FAILS_FOR_GOOD)
            s.must(s.take("j2"), FAILS_ONCE)
            s.must(s.take("j3"), RELEASED)
        noted = connection.execute("SELECT * FROM noted").fetchall()
    assert {row[0] for row in noted} == {"j0", "j1", "j2", "j3", "j4", "alone"}
    changes = [row for row in noted if row[1] != row[2] and row[2] != "active"]
    assert {row[3] for row in changes} == {"on"}
