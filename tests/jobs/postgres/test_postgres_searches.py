"""A search for several statuses finds what the memory store finds, and walks past no other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import combinations
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.job import CancelRequested, JobEvent, JobStatus
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.pages import PAGE_SIZE
from ergon_framework.jobs.stores.postgres import PostgresJobStore, admin
from ergon_framework.jobs.stores.postgres.transactions import PLANNER_SETTINGS, PostgresTx
from ergon_framework.jobs.stores.unreadable import UnreadableLog
from ergon_framework.ports.jobstore import FullJobStore, Job, Search
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
)

pytestmark = pytest.mark.req("SCALE:jobs-postgres")
PATIENCE = 30.0

# ---- the same answers ---------------------------------------------------------------------------

ENDS: dict[str, JobEvent] = {
    "completed": SUCCEEDED,
    "retrying": FAILS_ONCE,
    "failed": FAILS_FOR_GOOD,
}
FATES = ("due", "later", "blocked", "cancelled", "active", *ENDS)
QUEUES = ("a", "b")
SETS = [each for n in range(7) for each in combinations(JobStatus, n)]

jobs = st.lists(st.tuples(st.sampled_from(FATES), st.sampled_from(QUEUES)), max_size=14)
searches = st.lists(
    st.tuples(
        st.sampled_from(SETS),
        st.none() | st.sampled_from(QUEUES),
        st.none() | st.sampled_from(["flaky", "bad_input"]),
        st.none() | st.integers(0, 13),
        st.none() | st.integers(1, 9),
    ),
    min_size=1,
    max_size=12,
)


def filled(store: FullJobStore, wanted: list[tuple[str, str]]) -> JobStoreSubject:
    """A store with jobs that stand as they were meant to."""
    s = JobStoreSubject(store, HandClock(), None, PATIENCE)
    s.put("runs", queue="limited", limit_key="k")
    s.take("runs")
    for n, (fate, queue) in enumerate(wanted):
        name = f"j{n}"
        match fate:
            case "due":
                s.put(name, queue=queue)
            case "later":
                s.put(name, queue=queue, delay=60.0)
            case "blocked":
                s.put(name, queue="limited", limit_key="k")
                assert s.claim(1, queues=("limited",)) == []
            case "cancelled":
                s.put(name, queue=queue)
                s.must(s.get(name), CancelRequested())
            case _:
                s.put(name, queue=queue, priority=9)
                job = s.take(name, queues=(queue,))
                if fate in ENDS:
                    s.must(job, ENDS[fate])
    return s


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(wanted=jobs, asked=searches, page=st.sampled_from([2, 200]), most=st.sampled_from([1, 99]))
def test_searches_find_what_the_memory_store_finds(
    jobs_url: str,
    wanted: list[tuple[str, str]],
    asked: list[Any],
    page: int,
    most: int,
) -> None:
    """The same jobs in the same order, and as many, whether there are few of a status or many."""
    with psycopg.connect(jobs_url, autocommit=True) as connection:
        connection.execute("TRUNCATE ergon_jobs, ergon_queues")
    with closing(PostgresJobStore(jobs_url, clock=HandClock())) as store:

        def by_pages(search: Search, limit: int | None) -> Iterator[Job]:
            bounds = {"page_size": page, "max_sorted": most}
            return admin.search_jobs(
                store.transactions.read, search, limit, UnreadableLog(), **bounds
            )

        ours, theirs = filled(store, wanted), filled(MemoryJobStore(HandClock()), wanted)
        for statuses, queue, code, below, limit in asked:
            found = []
            for s in (ours, theirs):
                place = s.store.find(f"j{below}")
                search = Search(
                    statuses=statuses,
                    queue=queue,
                    code=code,
                    below=None if place is None else place.key,
                )
                look = by_pages if s is ours else s.store.search
                found.append((ids_of(look(search, limit)), s.store.count(search)))
            assert found[0] == found[1]


# ---- how they are found -------------------------------------------------------------------------

MANY = 50_000
FILL = """
INSERT INTO ergon_jobs
    (stage, status, created_at, run_at, changed_at, priority, queue, executor, id, handler, args,
     kwargs)
SELECT CASE WHEN n %% 5000 < 4 THEN 0 ELSE %(stage)s END,
    CASE n %% 5000 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE %(status)s END,
    1, 1, 1, 0, 'q', '', n::text, 'work', '', ''
FROM generate_series(1, %(many)s) AS n
"""
CHANGE = "UPDATE ergon_jobs SET stage = %s, status = %s WHERE id = ANY(%s)"
OTHERS = {"retrying": 3, "active": 1, "pending": 2}


@pytest.fixture(scope="module", params=["completed", "pending"])
def store_of_one(request: pytest.FixtureRequest, jobs_database: str) -> Iterator[tuple[str, Any]]:
    """A store with many jobs of one status and a few of all others, as the planner knows."""
    usual = JobStatus(request.param)
    stage = 0 if usual.is_final else 2
    with psycopg.connect(jobs_database, autocommit=True) as other:
        other.execute("TRUNCATE ergon_jobs")
        other.execute(FILL, {"many": MANY, "stage": stage, "status": usual.value})
        for n, (status, at) in enumerate(OTHERS.items()):
            other.execute(CHANGE, (at, status, [str(1000 * n + m) for m in range(2, 6)]))
        other.execute(CHANGE, (0, "completed", ["9"]))
        other.execute("VACUUM ANALYZE ergon_jobs")
    with psycopg.connect(jobs_database, autocommit=True) as connection:
        connection.execute(PLANNER_SETTINGS)
        yield usual, connection


def rows_read(connection: Connection, search: Search) -> int:
    """How many rows of tables and indexes a search looks at for its first page."""
    values = admin.values_of(search) | {"limit": PAGE_SIZE}
    explain = b"EXPLAIN (ANALYZE, FORMAT JSON) " + admin.statement_of(search)
    [[[found]]] = PostgresTx(connection, None).execute(explain, values).fetchall()
    plan = found["Plan"]
    nodes = [plan]
    for node in nodes:
        nodes += node.get("Plans", ())
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in nodes
        if "Relation Name" in node
    )


@pytest.mark.parametrize("statuses", [each for each in SETS if each], ids="-".join)
def test_no_search_walks_past_the_others(
    store_of_one: tuple[JobStatus, Connection], statuses: tuple[JobStatus, ...]
) -> None:
    """What is rare is found without a look at what there is much of."""
    usual, connection = store_of_one
    read = rows_read(connection, Search(statuses=statuses))
    assert read < (admin.MAX_SORTED if usual in statuses else 0) + 5 * PAGE_SIZE
