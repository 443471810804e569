"""Rows that SQLite keeps although no version of Ergon wrote them: they hold up nobody."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import UnreadableJobError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.flow import step_id
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import LEASE, JobStoreSubject, ids_of

ODD = [
    ("stage", "9"),
    ("status", "'dreaming'"),
    ("status", "x'ff'"),
    ("fence", "'many'"),
    ("deliveries", "'x'"),
    ("attempts", "x'01'"),
    ("run_at", "'soon'"),
    ("run_at", "1e300"),
    ("expires_at", "'never'"),
    ("limit_key", "x'6b'"),
    ("key_limit", "'two'"),
    ("priority", "'high'"),
    ("created_at", "'long ago'"),
    ("queue", "CAST(x'ff41' AS TEXT)"),
    ("queue", "x'41'"),
    ("executor", "CAST(x'ff41' AS TEXT)"),
    ("executor", "x'41'"),
    ("id", "CAST(x'ff41' AS TEXT)"),
    ("handler", "CAST(x'ff41' AS TEXT)"),
    ("handler", "x'41'"),
    ("options", "'{'"),
    ("options", "'[1]'"),
    ("options", """'{"timeout": "long"}'"""),
    ("options", "CAST(x'ff' AS TEXT)"),
    ("args", "NULL"),
    ("args", "'[]'"),
    ("args", "CAST('[1]' || char(10) || '[2]' AS BLOB)"),
    ("kwargs", "x'7b'"),
    ("last_error", "'{'"),
]


@pytest.fixture
def s(tmp_path: Path) -> Iterator[JobStoreSubject]:
    """A store on disk with a clock set by hand."""
    clock = HandClock()
    store = SqliteJobStore(tmp_path / "jobs.db", clock=clock)
    yield JobStoreSubject(store, clock, None, 10.0)
    store.close()


def write(s: JobStoreSubject, column: str, value: str) -> None:
    """Put something into the row of the job ``bad``."""
    assert isinstance(s.store, SqliteJobStore)
    with closing(sqlite3.connect(s.store.path)) as connection, connection:
        statement = f"UPDATE ergon_jobs SET {column} = {value} WHERE id = 'bad'"  # noqa: S608
        connection.execute(statement)


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(("column", "value"), ODD)
def test_a_waiting_row_that_cannot_be_read_holds_up_nobody(
    s: JobStoreSubject, column: str, value: str
) -> None:
    """All others are claimed, found, rescued, counted and swept, whatever stands in the row."""
    s.put("a", "bad", "b")
    write(s, column, value)
    found = s.ids(5) + s.ids(5)
    assert sorted(set(found) - {"bad"}) == ["a", "b"]
    s.put("c")
    assert {"a", "b", "c"} <= set(ids_of(s.store.search(Search())))
    assert {"a", "b"} <= set(ids_of(s.store.search(Search(statuses=(JobStatus.ACTIVE,)))))
    assert s.store.count(Search()) >= 3
    s.clock.forward(LEASE + 1.0)
    assert {"a", "b"} <= set(ids_of(s.store.expired_leases(10)))
    s.store.prune(100)
    assert s.store.queues()
    with suppress(UnreadableJobError):
        s.store.find("bad")


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize("value", ["'{'", "CAST(x'ff' AS TEXT)"])
def test_a_running_row_that_cannot_be_read_is_set_aside_by_a_rescue(
    s: JobStoreSubject, value: str
) -> None:
    """Its last failure is no JSON: it is not rescued, and the one behind it is."""
    s.put("bad", "a")
    s.claim(2)
    write(s, "last_error", value)
    s.clock.forward(LEASE + 1.0)
    assert ids_of(s.store.expired_leases(1)) == ["a"]
    [found] = s.store.unreadable()
    assert (found.id, found.status, found.since) == ("bad", "active", s.clock())


@pytest.mark.req("JOBS:store")
def test_an_outdated_row_that_cannot_be_read_stops_no_sweep(s: JobStoreSubject) -> None:
    """A sweep that meets one ends all the others."""
    s.put("bad", "a", expires_at=s.clock() + 5.0, delay=1.0)
    write(s, "status", "'dreaming'")
    s.clock.forward(6.0)
    assert s.store.prune(100).outdated == 1
    assert s.status("a") is JobStatus.FAILED
    assert [each.id for each in s.store.unreadable()] == ["bad"]


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("max_active", "'two'"), ("rate", "x'01'"), ("full_at", "'soon'")],
        ("pinned_version", "x'01'"),
    ],
)
def test_a_queue_whose_limits_cannot_be_read_is_paused(
    s: JobStoreSubject, column: str, value: str
) -> None:
    """Nobody knows how it is limited: it waits, all others go on, and new limits put it right."""
    s.store.set_queue("q", max_active=1, rate=100.0)
    s.put("a", queue="q")
    s.put("b")
    assert isinstance(s.store, SqliteJobStore)
    with closing(sqlite3.connect(s.store.path)) as connection, connection:
        connection.execute(f"UPDATE ergon_queues SET {column} = {value}")  # noqa: S608
    assert s.ids(5) == ["b"]
    assert {each.name: each.is_paused for each in s.store.queues()} == {"default": False, "q": True}
    s.store.set_queue("q", is_paused=False, max_active=1)
    assert s.ids(5) == ["a"]


def test_a_reader_sets_nothing_aside(s: JobStoreSubject, tmp_path: Path) -> None:
    """A store that was opened to be read leaves such rows out, and changes nothing."""
    s.put("bad", "a")
    s.claim(2)
    write(s, "last_error", "'{'")
    s.clock.forward(LEASE + 1.0)
    with closing(SqliteJobStore(tmp_path / "jobs.db", clock=s.clock, read_only=True)) as reader:
        assert ids_of(reader.expired_leases(10)) == ["a"]
        assert ids_of(reader.search(Search())) == ["a"]
        assert reader.unreadable() == []


def test_what_stands_in_the_row_is_not_told(
    s: JobStoreSubject, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the log nor the listing has anything of the arguments."""
    s.put("bad", args=b'["sesame"]')
    write(s, "args", """CAST('["sesame' AS BLOB)""")
    assert s.claim(5) == []
    [found] = s.store.unreadable()
    assert "sesame" not in caplog.text + repr(found)
    assert "bad" in caplog.text


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize(
    ("on_failure", "follows", "ends"),
    [("cancel", "cancelled", "failed"), ("continue", "pending", "running")],
)
def test_a_step_that_is_discarded_counts_as_cancelled(
    s: JobStoreSubject, on_failure: str, follows: str, ends: str
) -> None:
    """Its flow does not wait for ever for a row that nobody can read."""
    flow = JobClient(store=s.store).chain("first", "second", on_failure=on_failure).enqueue()
    first, second = (step_id(flow, number) for number in (1, 2))
    assert isinstance(s.store, SqliteJobStore)
    with closing(sqlite3.connect(s.store.path)) as connection, connection:
        connection.execute("UPDATE ergon_jobs SET options = '{' WHERE id = ?", (first,))
    assert s.ids(5) == []
    [found] = s.store.unreadable()
    assert (found.id, flow.status()) == (first, "running"), "an operator may still fix it"
    assert s.store.discard_unreadable(found.key)
    assert s.store.unreadable() == []
    assert (s.status(second).value, flow.status()) == (follows, ends)
    assert s.ids(5) == ([second] if on_failure == "continue" else [])
