"""A pooler in transaction mode, which the URL names: no part of Ergon keeps anything in a session.

Each test runs behind a small pooler of the tests, and behind a real PgBouncer where it is
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count

import psycopg
import pytest

from ergon_framework.boundary.factstore.postgres import PostgresFactStore
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import FullJobStore, Topic
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.store_urls import open_store as open_provider_store
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.postgres.database import SessionLock
from ergon_framework.testing.suites.factstore import FACT_STORE_CHECKS, exercise_fact_store
from ergon_framework.testing.suites.jobstore import JOB_STORE_CHECKS, exercise_job_store
from ergon_framework.testing.suites.providerstore import (
    PROVIDER_STORE_CHECKS,
    exercise_provider_store,
)
from ergon_framework.testing.suites.providerstore.under_test import Clock
from tests.jobs.real_worker import at_work, get, job, quick, wait_until, worker
from tests.servers.pgbouncer import PgBouncer
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer, empty_tables, name_of
from tests.servers.server import started

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-postgres")]
PATIENCE = 30.0
_zones = count(1)

FEW_OF_JOBS = {
    "claimers_never_share",
    "job_without_its_handler_is_left_to_others",
    "key_counts_across_queues",
    "key_is_held_across_queues",
    "late_report_changes_nothing",
    "queue_runs_no_more_than_its_limit",
    "released_job_can_be_claimed_in_the_same_call",
    "ring_before_the_wait_counts",
    "schedule_fires_once",
    "siblings_that_end_at_once_count_once_each",
}
QUIET = {"silence_is_silent"}
"""Checks that no store without notifications can pass: those who wait are woken to look."""


@pytest.fixture(scope="module", params=["small", "pgbouncer"])
def database(
    request: pytest.FixtureRequest, postgres_server: PostgresServer
) -> Iterator[tuple[str, str]]:
    """The URL of a database behind a pooler, and that of the database itself."""
    with ExitStack() as stack:
        direct = postgres_server.new_database()
        stack.callback(postgres_server.drop_database, direct)
        if request.param == "small":
            pooler = Pooler(postgres_server.folder, is_session=False, is_fair=True)
            stack.enter_context(closing(pooler))
            shared = f"postgresql://ergon@127.0.0.1:{pooler.port}/{name_of(direct)}"
        else:
            bouncer = stack.enter_context(started(lambda: PgBouncer(postgres_server.folder)))
            shared = bouncer.url(direct)
        PostgresJobStore(direct).close()
        yield f"{shared}?pooler=transaction", direct


@pytest.fixture
def url(database: tuple[str, str]) -> str:
    """A database behind a pooler, without jobs."""
    shared, direct = database
    empty_tables(direct)
    return shared


def _job_suite(url: str, check: str) -> None:
    clocks: list[Callable[[], float]] = []

    def make(clock: Callable[[], float]) -> PostgresJobStore:
        clocks.append(clock)
        return PostgresJobStore(url, clock=clock)

    def reopen(store: FullJobStore) -> PostgresJobStore:
        store.close()
        return PostgresJobStore(url, clock=clocks[-1])

    exercise_job_store(make, reopen=reopen, only={check})


@pytest.mark.parametrize("check", sorted(FEW_OF_JOBS))
def test_a_job_store_keeps_its_promises(check: str, url: str) -> None:
    """Claims, settlements, limits, flows and schedules, with connections that are lent out."""
    _job_suite(url, check)


@pytest.mark.campaign
@pytest.mark.parametrize("check", [each.name for each in JOB_STORE_CHECKS])
def test_a_job_store_keeps_all_its_promises(check: str, url: str) -> None:
    """The same for every check."""
    if check not in QUIET:
        _job_suite(url, check)


@pytest.mark.req("SCALE:boundary-postgres")
@pytest.mark.parametrize("check", [each.name for each in FACT_STORE_CHECKS if not each.needs][::40])
def test_a_fact_store_keeps_its_promises(check: str, url: str) -> None:
    """Appends, reads and consumers; every twelfth check."""

    def make(clock: Callable[[], float]) -> PostgresFactStore:
        return PostgresFactStore(url, zone=f"pooled-{next(_zones)}", clock=clock)

    exercise_fact_store(make, only={check})


def test_workers_run_jobs_behind_a_pooler(url: str) -> None:
    """Two workers and a client, none of which can listen: nothing is lost, nothing runs twice."""
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(url))) for _ in range(3)]
        for store in stores[:2]:
            stack.enter_context(at_work(worker(store, settings=quick(poll=0.2))))
        ids = [f"echo-{n}" for n in range(40)]
        stores[2].add([job("echo", id=each) for each in ids])
        wait_until(lambda: all(get(stores[2], each).status.is_final for each in ids), "all jobs")
        found = [get(stores[2], each) for each in ids]
    assert {each.status for each in found} == {JobStatus.COMPLETED}
    assert {(each.attempts, each.deliveries) for each in found} == {(1, 1)}


def test_nothing_is_left_in_a_session(url: str, database: tuple[str, str]) -> None:
    """No prepared statement, no setting, no advisory lock, nobody who listens."""
    _, direct = database
    with closing(open_store(url)) as store:
        store.subscribe(Topic.WORK)
        for n in range(20):
            store.add([job("echo", id=f"one-{n}")])
            list(store.workers())
        with psycopg.connect(f"{url.partition('?')[0]}", autocommit=True) as other:
            for _ in range(20):  # whichever connection of the server it is lent
                with other.transaction():
                    assert _left_in(other) == ("on", "0", 0, 0)
        with psycopg.connect(direct, autocommit=True) as watcher:
            found = watcher.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            ).fetchone()
            assert found == (0,)


def _left_in(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[object, ...]:
    return tuple(
        connection.execute(
            "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout'),"
            " (SELECT count(*) FROM pg_prepared_statements),"
            " (SELECT count(*) FROM pg_listening_channels())",
            prepare=False,
        ).fetchone()
        or ()
    )


def test_those_who_wait_are_woken_to_look(url: str) -> None:
    """Soon after a change of their own process, then less and less often."""
    with closing(open_store(url)) as store:
        subscription = store.subscribe(Topic.WORK)
        assert subscription.wait(PATIENCE)
        assert subscription.wait(PATIENCE)


@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize("check", [each.name for each in PROVIDER_STORE_CHECKS][::40])
def test_a_provider_store_keeps_its_promises(check: str, postgres_server: PostgresServer) -> None:
    """Calls, circuits and quotas; every fifteenth check, each in a database of its own."""
    with ExitStack() as stack:
        pooler = Pooler(postgres_server.folder, is_session=False, is_fair=True)
        stack.enter_context(closing(pooler))

        def make(clock: Clock | None) -> ProviderStore:
            direct = postgres_server.new_database()
            stack.callback(postgres_server.drop_database, direct)
            place = f"postgresql://ergon@127.0.0.1:{pooler.port}/{name_of(direct)}"
            return open_provider_store(f"{place}?pooler=transaction", clock=clock)

        exercise_provider_store(make, only={check})


@pytest.mark.req("SCALE:url-errors")
def test_a_lock_that_needs_a_session_is_refused(url: str) -> None:
    """With what to write in its place."""
    with pytest.raises(ConfigurationError, match="a connection of its own") as caught:
        SessionLock(url, "move")
    assert "the address of the server itself" in (caught.value.remedy or "")


def _open_again(url: str) -> None:
    """Open a store; a pooler may first hand out connections that have just been ended."""
    for _ in range(60):
        with suppress(StoreUnavailableError):
            open_store(url).close()
            return


@pytest.mark.req("SCALE:url-errors")
def test_defaults_that_cannot_be_changed_are_refused(database: tuple[str, str]) -> None:
    """A server that does not sync would break the promise of every acknowledgement."""
    shared, direct = database
    name = name_of(direct)
    with psycopg.connect(direct, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND pid <> pg_backend_pid()",
            (name,),
        )
    try:
        with pytest.raises(ConfigurationError, match="other defaults") as caught:
            _open_again(shared)
        assert "ALTER ROLE ergon SET synchronous_commit = 'on'" in (caught.value.remedy or "")
    finally:
        with psycopg.connect(direct, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} RESET synchronous_commit".encode())


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    ("given", "is_shared"),
    [
        ("", False),
        ("?pooler=transaction", True),
        ("?pooler=session", False),
        ("?sslmode=disable&pooler=transaction", True),
        ("?pooler=transaction&sslmode=disable", True),
    ],
)
def test_the_option_is_ours_and_not_of_the_driver(given: str, is_shared: bool) -> None:
    """It is taken out of what libpq is told."""
    address = address_of(f"postgresql://u@localhost/work{given}")
    assert address.is_shared is is_shared
    assert "pooler" not in address.options
    assert address.options.get("sslmode") == ("disable" if "sslmode" in given else None)


@pytest.mark.req("SCALE:url-errors")
def test_an_unknown_mode_is_refused() -> None:
    """With what can be written."""
    with pytest.raises(ConfigurationError, match="neither transaction nor session") as caught:
        address_of("postgresql://u@localhost/work?pooler=statement")
    assert "?pooler=transaction" in (caught.value.remedy or "")
