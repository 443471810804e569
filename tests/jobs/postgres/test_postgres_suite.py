"""The PostgreSQL store under the behaviour suite, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import FullJobStore, JobAdmin, JobStore, ScheduleStore
from ergon_framework.testing.suites.jobstore import JOB_STORE_CHECKS, exercise_job_store
from ergon_framework.testing.suites.jobstore.claim import worker_with
from ergon_framework.testing.suites.jobstore.under_test import new
from tests.servers.postgres import empty_tables


@pytest.mark.req("SCALE:jobs-postgres")
@pytest.mark.parametrize(
    "check",
    [check.name for check in JOB_STORE_CHECKS],
)
def test_the_postgres_store_keeps_its_promises(check: str, jobs_url: str) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    clocks: list[Callable[[], float]] = []

    def make(clock: Callable[[], float]) -> PostgresJobStore:
        clocks.append(clock)
        return PostgresJobStore(jobs_url, clock=clock)

    def reopen(store: FullJobStore) -> PostgresJobStore:
        store.close()
        return PostgresJobStore(jobs_url, clock=clocks[-1])

    def spoil(_: FullJobStore, job_id: str) -> Callable[[], None]:
        def write(options: str | None) -> None:
            with psycopg.connect(jobs_url, autocommit=True) as connection:
                values = (options, job_id)
                connection.execute("UPDATE ergon_jobs SET options = %s WHERE id = %s", values)

        write('{"timeout": ')
        return lambda: write(None)

    report = exercise_job_store(make, reopen=reopen, spoil=spoil, only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


def test_the_store_serves_all_three_ports(jobs_url: str) -> None:
    """A type checker accepts it wherever a port is asked for."""
    store = PostgresJobStore(jobs_url)
    ports: tuple[JobStore, JobAdmin, ScheduleStore] = (store, store, store)
    assert all(port is store for port in ports)
    store.close()


def test_no_check_meets_what_another_has_left(jobs_url: str) -> None:
    """Between tests every table is emptied, also that of the executors that workers had."""
    with closing(PostgresJobStore(jobs_url)) as store:
        store.add([new("a", executor="cobol")])
        store.heartbeat(worker_with("w1", "cobol"))
        assert store.named()[0].seen_at is not None
    empty_tables(jobs_url)
    with closing(PostgresJobStore(jobs_url)) as store:
        store.add([new("a", executor="cobol")])
        assert [each.seen_at for each in store.named()] == [None]
