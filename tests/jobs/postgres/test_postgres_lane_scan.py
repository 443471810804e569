"""Looking around after a claim: the same lanes wherever it begins, and no walk past the dead."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.claim import Lane
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.claim import NOWHERE, LaneScan, Place, in_order
from ergon_framework.jobs.stores.postgres.key_limits import place
from ergon_framework.jobs.stores.postgres.statements import statements
from ergon_framework.jobs.stores.postgres.transactions import PostgresTx
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.testing.suites.drivers import START, HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, ask, new

pytestmark = pytest.mark.req("SCALE:jobs-postgres")
PATIENCE = 30.0
NAMES = ("", "a", "b", "c")

jobs = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES[1:]), st.integers(-1, 1)), max_size=10
)
places = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.integers(-1, 1),
    st.sampled_from([START - 1.0, START, START + 1.0]),
    st.integers(-1, 12),
)


rows = st.lists(
    st.tuples(st.integers(-1, 1), st.sampled_from([START, START + 0.5]), st.integers(0, 9)),
    max_size=12,
)


@given(rows)
def test_the_quick_way_to_sort_agrees(
    found: list[tuple[int, float, int]],
) -> None:
    """By priority, due time and number."""
    given = [(seq, *[None] * 14, priority, run_at) for priority, run_at, seq in found]
    assert in_order(given) == sorted(given, key=place)


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    wanted=jobs,
    lasts=st.lists(places, min_size=1, max_size=6),
    after=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)),
)
def test_a_look_sees_the_same_wherever_it_looks_first(
    jobs_url: str, wanted: list[Any], lasts: list[Any], after: tuple[str, str]
) -> None:
    """Every lane after a place, in order, once; whatever was claimed last."""
    with psycopg.connect(jobs_url, autocommit=True) as connection:
        connection.execute("TRUNCATE ergon_jobs")
    with closing(PostgresJobStore(jobs_url, clock=HandClock())) as store:
        store.add(
            [
                new(f"j{n}", executor=executor, queue=queue, priority=priority)
                for n, (executor, queue, priority) in enumerate(wanted)
            ]
        )
        first = min((job.key for job in store.search(Search())), default=0)
        there = sorted({(executor, queue) for executor, queue, _ in wanted})
        expected = [Lane(*each) for each in there if each > after]
        for *rest, number in (NOWHERE, *((*rest, first + n) for *rest, n in lasts)):

            def look(tx: PostgresTx, last: Any = (*rest, number)) -> list[Lane]:
                return LaneScan(tx, ask(), after, last).read().lanes

            assert store.transactions.read(look) == expected


LAST = ("last_executor", "last_queue", "last_priority", "last_run_at", "last_seq")


def pages_read(connection: Connection, last: Place) -> int:
    """How many pages the look for lanes touches."""
    values = {"executor": "", "queue": "", "most": 256, "version": ""}
    values |= dict(zip(LAST, last, strict=True))
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statements("claim.sql")["lanes"]
    [[[found]]] = PostgresTx(connection, None).execute(explain, values).fetchall()
    return int(found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"])


def test_a_look_does_not_walk_past_what_was_claimed(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs have left a lane since the last vacuum, a look costs the same."""
    lanes, scans = statements("claim.sql")["lanes"], list[Mapping[str, Any]]()
    execute = PostgresTx.execute

    def watched(tx: PostgresTx, statement: bytes, values: Mapping[str, Any] | None = None) -> Any:
        if statement == lanes:
            scans.append(values or {})
        return execute(tx, statement, values)

    monkeypatch.setattr(PostgresTx, "execute", watched)
    with psycopg.connect(jobs_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE ergon_jobs SET (autovacuum_enabled = false)")
    try:
        with closing(PostgresJobStore(jobs_url)) as store:
            s = JobStoreSubject(store, HandClock(), None, PATIENCE)
            s.put(*(f"j{n}" for n in range(20_000)))
            told: list[Any] = []
            for _ in range(30):
                claimed = store.settle_and_claim(told, ask(600))[1]
                told = [s.told(job, SUCCEEDED, keep=60.0) for job in claimed.jobs]
            store.settle_and_claim([], ask(0))  # which looks once more
            last: Any = tuple(scans[-1][name] for name in LAST)
            run = store.transactions.database.run
            walked = run(lambda connection: pages_read(connection, NOWHERE))
            assert run(lambda connection: pages_read(connection, last)) < walked / 3
    finally:
        with psycopg.connect(jobs_url, autocommit=True) as connection:
            connection.execute("ALTER TABLE ergon_jobs RESET (autovacuum_enabled)")
