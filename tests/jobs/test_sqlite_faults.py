"""A file that is read-only, full, locked, too new or no database: a clear error, and no loss."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus, RequeueRequested
from ergon_framework.errors import (
    DuplicateJobError,
    JobError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import ClaimedJob, NewJob, Schedule, Search, WorkerRecord
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    SUCCEEDED,
    JobStoreSubject,
    ask,
    hold,
    new,
)

pytestmark = pytest.mark.req("JOBS:badinput", "JOBS:store")
Open = Callable[..., SqliteJobStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "jobs.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Open]:
    """Opens stores, and closes them after the test."""
    opened: list[SqliteJobStore] = []

    def open_one(busy_timeout: float = 5.0) -> SqliteJobStore:
        opened.append(SqliteJobStore(path, busy_timeout=busy_timeout))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def ids(store: SqliteJobStore) -> set[str]:
    """The ids of all jobs."""
    return {job.id for job in store.search(Search())}


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_file(open_store: Open, path: Path) -> None:
    """A file that may not be written is refused when it is opened."""
    store = open_store()
    store.add([new("a")])
    store.close()
    path.chmod(stat.S_IRUSR)
    path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(StoreReadOnlyError, match="may only be read"):
            open_store()
    finally:
        path.parent.chmod(stat.S_IRWXU)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert ids(open_store()) == {"a"}


@pytest.mark.parametrize(
    "call",
    [
        lambda store, _: store.add([new("b")]),
        lambda store, job: store.renew([hold(job)], 30.0),
        lambda store, _: store.set_queue("default", is_paused=True),
        lambda store, _: store.prune(1),
    ],
    ids=["add", "renew", "set_queue", "sweep"],
)
def test_a_file_that_cannot_be_written_any_more(
    open_store: Open, call: Callable[[SqliteJobStore, ClaimedJob], object]
) -> None:
    """A call that would write says that the store is read-only, and changes nothing."""
    store = open_store()
    store.add([new("a")])
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    before = store.find("a")
    store.transactions.database.write(
        lambda connection: connection.execute("PRAGMA query_only = ON")
    )
    with pytest.raises(StoreReadOnlyError):
        call(store, job)
    assert (ids(store), store.find("a")) == ({"a"}, before)


@pytest.mark.parametrize(
    "call",
    [
        lambda subject, _: subject.store.add([new("b")]),
        lambda subject, job: subject.settle(job, SUCCEEDED),
    ],
    ids=["add", "settle"],
)
def test_a_file_that_was_removed(
    open_store: Open, path: Path, call: Callable[[JobStoreSubject, ClaimedJob], object]
) -> None:
    """Neither a new job nor an outcome is acknowledged that would be in no file."""
    store = open_store()
    store.add([new("a")])
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    subject = JobStoreSubject(store, HandClock(), None, 15.0)
    for leftover in path.parent.glob("jobs.db*"):
        leftover.unlink()
    with pytest.raises(StoreUnavailableError, match="removed or replaced"):
        call(subject, job)
    with pytest.raises(StoreUnavailableError, match="is not there"):
        call(subject, job)


def test_a_full_disk(open_store: Open) -> None:
    """The error says so, the jobs that were acknowledged stay, and room makes it work again."""
    store = open_store()
    store.add([new("a")])

    def bound(pages: int) -> None:
        def work(connection: sqlite3.Connection) -> None:
            [count] = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {count + pages}")

        store.transactions.database.write(work)

    bound(0)
    with pytest.raises(StoreFullError, match="no room left"):
        store.add([NewJob(id="big", handler="work", args=b'"%s"' % (b"x" * 100_000))])
    with pytest.raises(StoreFullError):
        store.add([new(f"many-{n}") for n in range(1000)])
    assert ids(store) == {"a"}
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    assert job.id == "a"  # what needs no new page goes on
    bound(100_000)
    store.add([new(f"many-{n}") for n in range(1000)])
    assert len(ids(store)) == 1001


def test_a_settlement_on_a_full_disk_can_be_repeated(open_store: Open) -> None:
    """A result that did not fit is not lost: nothing of the settlement was applied."""
    store = open_store()
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    store.add([new("a")])
    [job] = store.settle_and_claim([], ask(1))[1].jobs
    told = s.told(job, SUCCEEDED, result=b'"%s"' % (b"x" * 200_000), keep=60.0)

    def bound(connection: sqlite3.Connection) -> None:
        [count] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {count + 1}")

    store.transactions.database.write(bound)
    with pytest.raises(StoreFullError):
        store.settle_and_claim([told], None)
    found = store.find("a")
    assert found is not None
    assert (found.status, found.result, found.history) == (JobStatus.ACTIVE, None, ())
    store.transactions.database.write(lambda db: db.execute("PRAGMA max_page_count = 100000"))
    assert store.settle_and_claim([told], None)[0] == [True]


def test_a_locked_file(open_store: Open, path: Path) -> None:
    """The error names the file; reading goes on, and writing once the lock is gone."""
    store = open_store(busy_timeout=0.0)
    store.add([new("a")])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        told = r"jobs\.db is locked.*on_commit\(handler\) or in_transaction\(handler\)"
        with pytest.raises(StoreUnavailableError, match=told):
            store.add([new("b")])
        with pytest.raises(StoreUnavailableError):
            store.settle_and_claim([], ask(1))
        assert ids(store) == {"a"}
    store.add([new("c")])
    assert ids(store) == {"a", "c"}


def test_a_newer_schema(open_store: Open, path: Path) -> None:
    """Tables of a later version are left alone."""
    store = open_store()
    store.add([new("a")])
    store.close()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE ergon_schema SET version = 99 WHERE part = 'jobs'")
    with pytest.raises(StoreSchemaError, match="version 99") as caught:
        open_store()
    assert "upgrade" in caught.value.remedy
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT id FROM ergon_jobs").fetchall() == [("a",)]


def test_a_text_file_in_its_place(open_store: Open, path: Path) -> None:
    """A file that is no database is refused and left as it is."""
    text = "dear diary\n" * 1000
    path.write_text(text)
    with pytest.raises(StoreSchemaError, match="not an SQLite database"):
        open_store()
    assert path.read_text() == text


def test_foreign_tables_of_our_names(open_store: Open, path: Path) -> None:
    """A table that only has our name is not touched."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE ergon_jobs (whatever TEXT)")
    with pytest.raises(StoreSchemaError, match="not of this jobs store"):
        open_store()


def test_a_missing_folder(tmp_path: Path) -> None:
    """The error says which folder is missing."""
    with pytest.raises(StoreUnavailableError, match="there is no folder"):
        SqliteJobStore(tmp_path / "nowhere" / "jobs.db")


def test_a_closed_store(open_store: Open) -> None:
    """Every call of a closed store is refused."""
    store = open_store()
    store.close()
    store.close()
    for call in (lambda: store.add([new("a")]), lambda: store.find("a"), store.queues):
        with pytest.raises(StoreUnavailableError, match="closed"):
            call()


# ---- refusals that leave nothing behind ---------------------------------------------------------


def test_a_duplicate_in_the_middle_of_a_batch(open_store: Open) -> None:
    """The error names the id, and none of the batch is stored."""
    store = open_store()
    store.add([new("b")])
    for batch in (["a", "b", "c"], ["b", "x"], ["x", "y", "x"]):
        taken = "x" if batch[0] == "x" else "b"
        with pytest.raises(DuplicateJobError) as caught:
            store.add([new(each) for each in batch])
        assert caught.value.details == {"id": taken}
    assert ids(store) == {"b"}


def test_a_requeue_whose_key_is_taken(open_store: Open) -> None:
    """A dead letter does not come back while another job holds its unique key."""
    store = open_store()
    s = JobStoreSubject(store, HandClock(), None, 15.0)
    s.put("old", unique_key="k")
    dead = s.ended("old", FAILS_FOR_GOOD)
    s.put("new", unique_key="k")
    assert not s.settle(dead, RequeueRequested())
    assert s.get("old") == dead
    assert s.status("new") is JobStatus.PENDING


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pace": 1}, "no setting 'pace'"),
        ({"rate": 0.0}, "rate of a queue must be above zero"),
        ({"max_active": "many"}, "max_active of a queue"),
        ({"burst": None}, "burst of a queue"),
        ({"burst": -1}, "burst of a queue must be above zero"),
        ({"key_rate": 1e-12}, "key_rate of a queue must be at least 1e-08"),
        ({"max_active": 2**63}, "max_active of a queue must be at most 1,000,000,000"),
        ({"key_burst": 2**63}, "key_burst of a queue must be at most 1,000,000,000"),
        ({"pinned_version": ""}, "a version has 1 to 100 printable characters"),
        ({"pinned_version": 2}, "pinned_version of a queue"),
    ],
)
def test_queue_settings_that_make_no_sense(
    open_store: Open, changes: dict[str, object], text: str
) -> None:
    """A wrong name or value is refused, and nothing is changed."""
    store = open_store()
    with pytest.raises(JobError, match=text):
        store.set_queue("default", is_paused=True, **changes)
    assert store.queues() == []


def test_a_worker_record_survives_as_it_was(open_store: Open) -> None:
    """What a worker told of itself comes back, with the store's own time."""
    store = open_store()
    record = WorkerRecord(
        id="w",
        host="h",
        pid=1,
        version="1",
        started_at=1.5,
        queues=("a",),
        executors={"python": {"busy": 1}},
        counters={"done": 3},
    )
    store.heartbeat(record)
    [found] = store.workers()
    assert (found.executors, found.counters, found.queues) == (
        {"python": {"busy": 1}},
        {"done": 3},
        ("a",),
    )
    assert found.seen_at > 1e9


def test_one_unreadable_row_does_not_hide_the_others(
    open_store: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers and schedules that somebody else wrote wrongly are left out, and told of once."""
    store = open_store()
    me = WorkerRecord(id="me", host="here", pid=1, version="1", started_at=1.0)
    good = Schedule(
        name="good", cron="@daily", zone="UTC", misfire="skip", job=b"{}", next_at=5.0, source="x"
    )
    store.heartbeat(me)
    store.put_schedule(good)
    rows = [("a", 1.0, '{"id":"a"}'), ("b", 1.0, b"\xff"), ("c", 1.0, 5), ("d", "late", "{}")]
    schedules = [("bad", b"{}", "soon"), ("hand", "{}", 5)]
    with closing(sqlite3.connect(path)) as other, other:
        other.executemany("INSERT INTO ergon_workers VALUES (?, ?, ?)", rows)
        other.executemany(
            "INSERT INTO ergon_schedules (name, cron, zone, misfire, job, next_at)"
            " VALUES (?, '@daily', 'UTC', 'skip', ?, ?)",
            schedules,
        )
    for _ in range(2):
        assert [each.id for each in store.workers()] == ["me"]
        assert [each.name for each in store.schedules()] == ["good", "hand"]
        assert {each.name for each in store.next_schedules(1)} <= {"good", "hand"}
    assert store.schedules()[0] == good
    assert store.schedules()[1].job == b"{}"
    assert len(caplog.records) == 5
    assert "the row of schedule 'bad' is left out" in caplog.text
