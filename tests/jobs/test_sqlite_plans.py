"""Every statement that runs often finds its rows by an index, whatever else is in the file."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.core.job import CancelRequested, JobStatus
from ergon_framework.jobs.stores.sqlite import SqliteJobStore, admin, queue_counts
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.jobs.stores.unreadable import UnreadableLog
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.sql_files import load
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject

FILES = ("jobs.sql", "transitions.sql", "claim.sql", "admin.sql", "schedules.sql", "flows.sql")
PIECES = {"jobs", "number", "in_all", "in_ids", "in_seqs", "in_running", "in_retrying", "in_dead"}
PIECES |= {"matching", "newest_first", "newest_tagged_first", "in_flow", "in_tag"}

# What may look at a whole table or index, and why that is fine.
LONG_LOOKS = {
    "any_unique_key": "stops at the first row",
    "live": "something could not be read, and nobody knows what",
    "ended": "the same",
    "lock": "it never looks at all",
    "complete_many": "it looks through the rows that it is given",
    "complete_steps": "the same",
    "lease_many": "it looks through the list that it is given",
    "held": "the same",
    "renew_many": "the same",
    "shorten": "the same",
    "any_max_active": "queues with settings are few",
    "queues": "the same",
    "pinned_queues": "the same",
    "overdue": "running jobs are few",
    "workers": "workers are few",
    "forget_workers": "the same",
    "tell_executors": "it looks through the list that it is given",
    "seen_executors": "executors are few",
    "all": "schedules are few",
    "count_due": "counting is looking at each, here in an index alone",
    "count_later": "the same",
    "count_blocked": "jobs that wait for a limit key, through their index",
    "count_steps": "steps that wait, through their indexes",
    "count_running": "the same",
    "count_ended": "the same",
    "count_retrying": "the same",
    "any_blocked": "it ends at the first",
    "cancel_requests": "it looks through the list that it is given",
    "predecessors": "it looks through the list that it is given",
    "results": "the same",
    "release": "the steps of one join",
    "first_work": "it ends at the first",
    "any_stopping": "flows with steps left to cancel are few",
    "stopped": "it looks through the list that it is given, and such flows are few",
    "still_due": "it looks through the list that it is given",
    "steps": "the same",
    "signalled": "the same",
    "flows_of_steps": "the same",
    "count_at": "the same",
    "flows": "it ends with a page, in the order of the table",
    "next_open_queue": "it walks past paused queues, and ends at the first that is open",
    "soonest": "it ends at the first few",
    "prunable": "it looks through the few states of one unique key",
    "keep_holder": "the same",
    "outlook": "it ends at the first of each",
    "next_lane_of_key": "the same, of two",
    "next_blocked": "the same, of three",
}
COVERED = {"count_due", "count_later", "count_running", "count_ended", "count_retrying"}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a fresh store's file."""
    SqliteJobStore(tmp_path / "jobs.db").close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        yield connection


def plan(connection: sqlite3.Connection, statement: str) -> list[str]:
    """How SQLite would go about a statement."""
    named = set(re.findall(r":([a-z_]+)", statement))
    numbers = [int(n) for n in re.findall(r"\?(\d+)", statement)]
    values = (
        dict.fromkeys(named)
        if named
        else [None] * (max(numbers, default=0) or statement.count("?"))
    )
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    return [row[3] for row in rows]


STATEMENTS = [
    pytest.param(name, load(SQL, file)[name], id=f"{file}-{name}")
    for file in FILES
    for name in load(SQL, file)
    if name not in PIECES or file != "admin.sql"
]


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(("name", "statement"), STATEMENTS)
def test_statements_use_indexes(connection: sqlite3.Connection, name: str, statement: str) -> None:
    """No statement reads through a table or sorts, except those that are listed with a reason."""
    steps = plan(connection, statement)
    if name in COVERED:
        assert all("INDEX" in step or "TEMP B-TREE" in step for step in steps), steps
        assert any("COVERING INDEX" in step for step in steps), steps
    elif name not in LONG_LOOKS:
        looks = [step for step in steps if step.startswith("SCAN") or "TEMP B-TREE" in step]
        assert not [look for look in looks if look != "SCAN CONSTANT ROW"], steps


def test_bounded_counts_read_indexes_alone(connection: sqlite3.Connection) -> None:
    """Looks at queues read no job; of steps that wait, which few are, they may."""
    for name, statement in load(SQL, "queue_counts.sql").items():
        steps = plan(connection, statement.replace("{from}", ">"))
        reads = [step for step in steps if "ergon_jobs" in step]
        if name.endswith(("_joining", "_signalling")):
            assert all("INDEX" in step for step in reads), (name, steps)
        else:
            assert all("COVERING INDEX" in step for step in reads), (name, steps)


def look_cost(connection: sqlite3.Connection) -> int:
    """How far SQLite had to work, in thousands of its own steps, for all bounded looks."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(connection.cursor()) as cursor:
        connection.set_progress_handler(count, 1000)
        names = queue_counts.queue_names(cursor, 0.0, prefix="", after="", limit=20, is_due=False)
        found = queue_counts.look_at_queues(cursor, names, 0.0, most=100, sample=100)
        queue_counts.count_by_status(cursor, most=100)
        queue_counts.numbers_in_queue(cursor, names[7], frozenset(JobStatus), 1_000)
        connection.set_progress_handler(None, 0)
    assert len(found) == 20
    return steps


def test_looks_at_queues_do_not_grow_with_jobs(connection: sqlite3.Connection) -> None:
    """With ten times the jobs in ten times the queues, a page of queues takes as much work."""
    add = """
        INSERT INTO ergon_jobs (stage, status, fence, changed_at, queue, executor, priority, run_at,
            id, handler, created_at)
        VALUES (?, ?, 0, 0.0, ?, '', 0, 0.0, ?, 'h', 0.0)
    """
    states = ((0, "completed"), (0, "failed"), (1, "active"), (2, "pending"), (2, "retrying"))

    def fill(numbers: range) -> None:
        connection.executemany(
            add, ((*states[n % 5], f"q{n % (10 * len(numbers) // 1000)}", str(n)) for n in numbers)
        )

    fill(range(2_000))
    few = look_cost(connection)
    fill(range(2_000, 22_000))
    assert look_cost(connection) < 2 * few + 2


@pytest.mark.parametrize("most", [1, 99])
def test_a_search_of_one_queue_finds_what_is_there(tmp_path: Path, most: int) -> None:
    """The newest first, page by page, whether its jobs are listed before or are too many."""
    with closing(SqliteJobStore(tmp_path / "jobs.db", clock=HandClock())) as store:
        s = JobStoreSubject(store, HandClock(), None, 1.0)
        s.put("other", queue="other")
        for n in range(3):
            s.put(f"done{n}", queue="q", priority=9)
            s.put(f"due{n}", f"gone{n}", queue="q")
            s.put(f"later{n}", queue="q", delay=60.0)
            s.must(s.take(f"done{n}", queues=("q",)), SUCCEEDED)
            s.must(s.get(f"gone{n}"), CancelRequested())
        for statuses in ((), (JobStatus.PENDING,), (JobStatus.COMPLETED, JobStatus.CANCELLED)):
            wanted = [job.id for job in store.search(Search(statuses=statuses)) if job.queue == "q"]
            read, search = store.transactions.read, Search(queue="q", statuses=statuses)
            found = admin.search_jobs(read, search, None, UnreadableLog(), most_listed=most)
            assert [job.id for job in found] == wanted
            below = store.find(wanted[0])
            assert below is not None
            search = Search(queue="q", statuses=statuses, below=below.key)
            found = admin.search_jobs(read, search, 2, UnreadableLog(), most_listed=most)
            assert [job.id for job in found] == wanted[1:3]


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("file", "name", "index"),
    [
        ("claim.sql", "candidates", "ergon_jobs_due (stage=? AND executor=? AND queue=?)"),
        ("claim.sql", "next_queue", "ergon_jobs_due (stage=? AND executor=? AND queue>?)"),
        ("claim.sql", "next_executor", "ergon_jobs_due (stage=? AND executor>?)"),
        ("claim.sql", "has_lane", "ergon_jobs_due (stage=? AND executor=? AND queue=?)"),
        (
            "claim.sql",
            "next_due_key",
            "ergon_jobs_due_keys (stage=? AND executor=? AND queue=? AND limit_key>?)",
        ),
        (
            "claim.sql",
            "candidates_of_key",
            "ergon_jobs_due_keys (stage=? AND executor=? AND queue=? AND limit_key=?)",
        ),
        (
            "claim.sql",
            "block_key",
            "ergon_jobs_due_keys (stage=? AND executor=? AND queue=? AND limit_key=?)",
        ),
        ("claim.sql", "keys_to_wake", "ergon_queue_keys_wakes (wakes_at<?)"),
        ("claim.sql", "has_blocked", "ergon_jobs_blocked (stage=? AND limit_key=? AND queue=?)"),
        ("admin.sql", "forget_keys", "ergon_queue_keys_full (full_at<?)"),
        ("claim.sql", "promote", "ergon_jobs_later (stage=? AND run_at<?)"),
        ("claim.sql", "lease_many", "INTEGER PRIMARY KEY (rowid=?)"),
        ("claim.sql", "running_in_queue", "ergon_jobs_running (stage=? AND queue=?)"),
        ("transitions.sql", "running_of_key", "ergon_jobs_running_keys (stage=? AND limit_key=?)"),
        (
            "transitions.sql",
            "wake",
            "ergon_jobs_blocked (stage=? AND limit_key=? AND queue=? AND executor=?)",
        ),
        (
            "transitions.sql",
            "next_lane_of_key",
            "ergon_jobs_blocked (stage=? AND limit_key=? AND queue=? AND executor>?)",
        ),
        (
            "claim.sql",
            "next_blocked",
            "ergon_jobs_blocked (stage=? AND limit_key=? AND queue>?)",
        ),
        ("claim.sql", "outlook", "ergon_jobs_later (stage=?)"),
        ("claim.sql", "outlook", "ergon_jobs_due (stage=?)"),
        ("claim.sql", "outlook", "ergon_jobs_expiring"),
        ("claim.sql", "end_queues", "ergon_jobs_due (stage=? AND executor=?)"),
        ("transitions.sql", "complete", "INTEGER PRIMARY KEY (rowid=?)"),
        ("flows.sql", "stopped", "INTEGER PRIMARY KEY (rowid=?)"),
        ("flows.sql", "steps", "INTEGER PRIMARY KEY (rowid=?)"),
        ("flows.sql", "complete_step", "INTEGER PRIMARY KEY (rowid=?)"),
        ("flows.sql", "still_due", "INTEGER PRIMARY KEY (rowid=?)"),
        ("jobs.sql", "key_holder", "ergon_jobs_unique (unique_key=?)"),
        ("jobs.sql", "held", "INTEGER PRIMARY KEY (rowid=?)"),
        ("jobs.sql", "renew_many", "INTEGER PRIMARY KEY (rowid=?)"),
        ("jobs.sql", "overdue", "ergon_jobs_running"),
        (
            "admin.sql",
            "kept_long_enough",
            "ergon_jobs_ended (stage=? AND queue=? AND status=? AND purge_at<?)",
        ),
        (
            "admin.sql",
            "prunable",
            "ergon_jobs_ended (stage=? AND queue=? AND status=? AND purge_at<?)",
        ),
        ("flows.sql", "prunable_flows", "ergon_flows_purge (purge_at>? AND purge_at<?)"),
        ("admin.sql", "next_ended", "ergon_jobs_ended (stage=? AND queue>?)"),
        (
            "admin.sql",
            "next_ended_status",
            "ergon_jobs_ended (stage=? AND queue=? AND status>?)",
        ),
        ("admin.sql", "next_named", "ergon_jobs_due (stage=? AND executor>?)"),
        ("admin.sql", "next_named_queue", "ergon_jobs_due (stage=? AND executor=? AND queue>?)"),
        ("admin.sql", "outdated", "ergon_jobs_expiring (expires_at>? AND expires_at<?)"),
    ],
)
def test_hot_statements_use_their_own_index(
    connection: sqlite3.Connection, file: str, name: str, index: str
) -> None:
    """The partial index that was made for a statement is the one that SQLite takes."""
    assert any(index in step for step in plan(connection, load(SQL, file)[name]))


@pytest.mark.parametrize(
    ("search", "step"),
    [
        (Search(ids=("a", "b")), "ergon_jobs_id (id=?"),
        (Search(statuses=(JobStatus.FAILED,)), "ergon_jobs_dead (stage=? AND status=? AND seq<?)"),
        (Search(statuses=(JobStatus.RETRYING,)), "ergon_jobs_retrying (status=? AND seq<?)"),
        (Search(statuses=(JobStatus.ACTIVE,)), "ergon_jobs_running"),
        (Search(tags=("a",)), "ergon_job_tags USING PRIMARY KEY (tag=? AND job<?)"),
        (Search(metadata={"a": "b"}), "ergon_jobs USING INTEGER PRIMARY KEY (rowid=?)"),
        (Search(tags=("a", "b")), "has USING PRIMARY KEY (tag=? AND job=?)"),
        (Search(queue="mail"), "INTEGER PRIMARY KEY (rowid<?)"),
    ],
)
def test_searches_look_where_few_jobs_are(
    connection: sqlite3.Connection, search: Search, step: str
) -> None:
    """A dead letter, a running job or one by its id or tag is found without reading all others."""
    steps = plan(connection, admin.statement_of(search))
    assert any(step in found for found in steps), steps
    if search.labels:
        assert not any("TEMP B-TREE" in found for found in steps), steps


KEPT = """
INSERT INTO ergon_jobs (
    stage, status, fence, changed_at, purge_at, queue, executor, priority, run_at, id, handler,
    created_at, args, kwargs
)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :number)
SELECT
    0, 'completed', n, 0.0, :purge_at + n, 'q' || (n % 3), '', 0, 0.0, :name || n, 'work', 0.0,
    '[]', '{}'
FROM numbers
"""
DUE = KEPT.replace("0, 'completed'", "2, 'pending'").replace("% 3), ''", "% 3), 'node'")


def instructions(connection: sqlite3.Connection, statement: str, values: object) -> int:
    """How many instructions SQLite takes for a statement, in steps of ten."""
    return counted(connection, lambda: connection.execute(statement, values).fetchall())  # type: ignore[arg-type]


def counted(connection: sqlite3.Connection, look: Callable[[], object]) -> int:
    """How many instructions SQLite takes for a look, in steps of ten."""
    number = [0]

    def count() -> int:
        number[0] += 1
        return 0

    connection.set_progress_handler(count, 10)
    look()
    connection.set_progress_handler(None, 0)
    return number[0]


@pytest.mark.req("JOBS:store")
def test_retention_reads_only_what_may_go(connection: sqlite3.Connection) -> None:
    """It costs the same among a hundred jobs that are kept and among a hundred thousand.

    So does looking for the executors that due jobs name.
    """
    statements = load(SQL, "admin.sql")
    costs, walks = [], []
    prunable = {"number": 30, "purge_at": 0.0, "name": "prunable"}
    connection.execute(KEPT, prunable)
    for number, name in ((100, "few"), (100_000, "many")):
        connection.execute(KEPT, {"number": number, "purge_at": 1e9, "name": name})
        connection.execute(DUE, {"number": number, "purge_at": None, "name": f"due-{name}"})
        looks = [
            ("kept_long_enough", ("q1", "completed", 1e6, 5)),
            ("prunable", ("q1", "completed", 1e6, 5)),
            ("prunable", ("q1", "completed", 1e6, 500)),  # all there are
        ]
        costs.append([instructions(connection, statements[each], values) for each, values in looks])
        walks.append(
            [
                counted(connection, lambda: list(admin.ended_statuses(connection.cursor()))),
                counted(connection, lambda: admin.named_executors(connection.cursor())),
            ]
        )
    assert all(abs(few - many) <= 1 for few, many in zip(*costs, strict=True)), costs
    assert max(costs[0]) < 100
    # Each is several statements, of which the count of each is rounded by itself.
    assert all(abs(few - many) <= 5 for few, many in zip(*walks, strict=True)), walks
    assert max(walks[0]) < 100


@pytest.mark.req("JOBS:store")
def test_a_purge_looks_for_labels_and_keys_only_where_there_are_any(
    connection: sqlite3.Connection,
) -> None:
    """A job that is deleted costs no lookup in tables that hold nothing."""
    costs = []
    connection.execute("PRAGMA foreign_keys = ON")  # as a store has it
    for number in range(2):
        connection.execute(KEPT, {"number": 100, "purge_at": 0.0, "name": f"round{number}-"})
        costs.append(instructions(connection, "DELETE FROM ergon_jobs WHERE seq > 0", ()))
        for table in ("tags", "keys"):
            connection.execute(f"DROP TRIGGER IF EXISTS ergon_jobs_forget_{table}")
        assert not connection.execute("PRAGMA foreign_key_list(ergon_job_keys)").fetchall()
    with_triggers, without = costs
    assert with_triggers - without <= 240, costs  # twelve for each of two triggers and 100 jobs


LATER = KEPT.replace("0, 'completed'", "3, 'pending'").replace("(n % 3)", "n")


@pytest.mark.req("JOBS:store")
def test_a_look_at_few_queues_groups_no_jobs_of_the_others(connection: sqlite3.Connection) -> None:
    """The rows of ten thousand other queues were grouped, handed out and dropped."""
    many = 20_000
    connection.execute(LATER, {"number": many, "purge_at": None, "name": "later"})
    cursor, found = connection.cursor(), []

    def look() -> None:
        found.extend(
            queue_counts.look_at_queues(cursor, ["q7", "q8"], 1.0, most=many, sample=many - 1)
        )

    assert counted(connection, look) * 10 / many < 30
    assert [(each.counts, each.more) for each in found] == [({"pending": 1}, ("pending",))] * 2
