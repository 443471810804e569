"""Every statement that runs often finds its rows by an index, whatever else is in the tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.postgres import PostgresJobStore, admin
from ergon_framework.jobs.stores.postgres.statements import statements
from ergon_framework.jobs.stores.postgres.transactions import PLANNER_SETTINGS
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.postgres.pool import Connection
from ergon_framework.testing.suites.jobstore.under_test import new
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.req("SCALE:jobs-postgres")
FILES = (
    *("jobs.sql", "transitions.sql", "claim.sql", "admin.sql", "schedules.sql", "records.sql"),
    *("flows.sql", "key_limits.sql"),
)
PIECES = re.compile(
    r"jobs$|in_|by_|newest_|not_aside|look_first|few$|find_first|then_|synced_later|notify"
    r"|ended_groups|kept_long_enough|holds_its_key"
)

# What may sort, and why that is fine: what is sorted is what the caller gave, or a page.
SORTS = {
    "renew": "the holds of one worker",
    "overdue": "as many of each queue as were asked for",
    "claim": "as many as there are slots",
    "lock_keys": "the keys of one call",
    "put": "the copies of one call",
    "flow_joins": "the joins of the flows of one page",
    "lock_gates": "the queues of one call",
    "save": "the limit keys of one claim, so that two claims lock them in one order",
    "lock_holders": "the keys of one call",
    "lock_flows_of": "the flows of one call, so that two calls lock them in one order",
    "lock_flows_of_holders": "the same",
    "lock_steps": "the jobs of one call",
    "predecessors": "the jobs of one call",
    "tell_executors": "the executors of one worker, so that two workers lock them in one order",
}
COUNTS = re.compile(r"count_|queues$|workers$|all$|mark$|forget_workers")
SEARCHES = {
    "all": Search(),
    "failed": Search(statuses=(JobStatus.FAILED,)),
    "active": Search(statuses=(JobStatus.ACTIVE,)),
    "retrying": Search(statuses=(JobStatus.RETRYING,)),
    "pending": Search(statuses=(JobStatus.PENDING,), queue="q", handler="work", before=5.0),
    "ids": Search(ids=("a", "b"), code="flaky"),
    "tag": Search(tags=("a", "b"), statuses=(JobStatus.PENDING,), error="timeout"),
    "tag and id": Search(ids=("a", "b"), metadata={"plan": "pro"}, since=5.0, until=6.0),
    "flow": Search(flow="f", statuses=(JobStatus.PENDING,), is_released=True),
}
PLACES = {
    "all": {"ergon_jobs_pkey"},
    "failed": {"ergon_jobs_dead"},
    "active": {"ergon_jobs_running"},
    "retrying": {"ergon_jobs_retrying", "ergon_jobs_pkey"},  # either will do in an empty table
    "pending": {"ergon_jobs_due", "ergon_jobs_later", "ergon_jobs_blocked"},
    "ids": {"ergon_jobs_id"},
    "tag": {"ergon_jobs_pkey"},
    "tag and id": {"ergon_jobs_id"},
    "flow": {"ergon_jobs_flow"},
}


@pytest.fixture(scope="module")
def tables(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """The URLs of two databases, whose tables the planner knows as empty or as long."""
    urls = {name: postgres_server.new_database() for name in ("empty", "filled")}
    for name, url in urls.items():
        with closing(PostgresJobStore(url)) as store:
            jobs = [new(f"j{n}", queue=f"q{n % 3}", tags=(f"t{n % 9}",)) for n in range(5000)]
            store.add(jobs if name == "filled" else [])
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("VACUUM ANALYZE ergon_jobs, ergon_job_tags")
    yield urls
    for url in urls.values():
        postgres_server.drop_database(url)


@pytest.fixture(params=["empty", "filled"])
def connection(request: pytest.FixtureRequest, tables: dict[str, str]) -> Iterator[Connection]:
    """A connection that explains statements; nothing changes the tables."""
    with psycopg.connect(tables[request.param], autocommit=True) as connection:
        connection.execute(PLANNER_SETTINGS)
        yield connection


def nodes_of(connection: Connection, statement: bytes) -> list[dict[str, Any]]:
    """The steps of the plan that the server remembers for a statement."""
    names: dict[str, str] = {}
    text = re.sub(
        r"%\((\w+)\)s", lambda m: names.setdefault(m[1], f"${len(names) + 1}"), statement.decode()
    )
    explained = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}".encode())
    [[found]] = explained.fetchall()
    plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    nodes = [plan]
    for node in nodes:
        nodes += node.get("Plans", ())
    return nodes


def test_every_statement_uses_an_index(connection: Connection) -> None:
    """None reads a table from end to end, and none sorts more than it was given."""
    for file in FILES:
        for name, statement in statements(file).items():
            if PIECES.match(name) or statement.startswith(b"LOCK TABLE"):  # which has no plan
                continue
            kinds = {node["Node Type"] for node in looked_at(connection, statement)}
            assert "Seq Scan" not in kinds or COUNTS.match(name), f"{file}: {name}"
            assert kinds.isdisjoint({"Bitmap Heap Scan", "Hash Join", "Merge Join"}), name
            if "Sort" in kinds:
                assert name in SORTS, f"{file}: {name} sorts"


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_uses_an_index(connection: Connection, name: str) -> None:
    """A search reads its first page without looking at all the rest, or sorting it."""
    nodes = looked_at(connection, admin.statement_of(SEARCHES[name]))
    kinds = {node["Node Type"] for node in nodes}
    assert "Seq Scan" not in kinds
    assert "Sort" not in kinds or name in ("active", "pending", "ids", "tag and id"), name  # if few
    indexes = {node.get("Index Name") for node in nodes}
    assert indexes & PLACES[name]


def looked_at(connection: Connection, statement: bytes) -> list[dict[str, Any]]:
    """The steps that have to do with the job table, or with no table at all."""
    nodes = nodes_of(connection, statement)
    return [node for node in nodes if node.get("Relation Name", "ergon_jobs") == "ergon_jobs"]


def test_a_claim_takes_the_first_of_its_lanes(connection: Connection) -> None:
    """The jobs of a lane are read in their order, and those taken are written where they are."""
    nodes = nodes_of(connection, statements("claim.sql")["claim"])
    scans = [(node["Node Type"], node.get("Index Name")) for node in nodes]
    assert ("Index Scan", "ergon_jobs_due") in scans
    assert ("Tid Scan", None) in scans


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("release", "ergon_jobs_join"),
        ("waiting", "ergon_jobs_flow"),
        ("ended_badly", "ergon_jobs_flow"),
        ("purge_steps", "ergon_jobs_flow"),
        ("signals", "ergon_jobs_signal"),
        ("predecessors", "ergon_jobs_id"),
    ],
)
def test_steps_are_found_by_an_index_of_theirs(
    connection: Connection, name: str, index: str
) -> None:
    """However many other jobs there are, and whatever the planner took the table for."""
    nodes = nodes_of(connection, statements("flows.sql")[name])
    assert index in {node.get("Index Name") for node in nodes}


RUNNING, DUE, BLOCKED = "ergon_jobs_running_keys", "ergon_jobs_due_keys", "ergon_jobs_blocked"
BY_KEY = {
    "key_limits.sql": {
        "gates": {RUNNING},
        "due": {RUNNING},
        "next_keys": {DUE},
        "heads": {DUE},
        "block_rest": {DUE},
        "save": {BLOCKED},
        "wake": {BLOCKED},
    },
    "claim.sql": {"running_of_keys": {RUNNING}, "blocked": {BLOCKED}},
    "transitions.sql": {"wake": {RUNNING, BLOCKED}, "blocked_keys": {BLOCKED}},
}


def test_jobs_of_a_limit_key_are_found_by_it_alone(connection: Connection) -> None:
    """However many other keys the queue has, and whatever the planner took the table for."""
    for file, expected in BY_KEY.items():
        for name, indexes in expected.items():
            nodes = nodes_of(connection, statements(file)[name])
            scans = [node for node in nodes if node.get("Relation Name") == "ergon_jobs"]
            used = {node["Index Name"] for node in scans if "Index Name" in node}
            assert used == indexes, f"{file}: {name}"
