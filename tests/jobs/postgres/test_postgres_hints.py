"""Hints to other processes: what is committed stands, whether or not anybody hears of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.transactions import PostgresTx
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    ask,
    ids_of,
    new,
)

pytestmark = pytest.mark.req("SCALE:jobs-postgres", "SCALE:fleet-outage")

FAILURES = {
    "at once": b"SELECT 1 / 0",
    "when it is committed": b"INSERT INTO late_to_fail VALUES (1)",  # as NOTIFY does
    "with the connection": b"SELECT pg_terminate_backend(pg_backend_pid())",
}


@pytest.fixture
def subject(jobs_url: str) -> Iterator[JobStoreSubject]:
    """A store, and a table that refuses what is written when it is committed."""
    with psycopg.connect(jobs_url, autocommit=True) as other:
        other.execute("CREATE TABLE late_to_fail (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        other.execute("INSERT INTO late_to_fail VALUES (1)")
        clock = HandClock()
        store = PostgresJobStore(jobs_url, clock=clock)
        yield JobStoreSubject(store, clock, None, 20.0)
        store.close()
        other.execute("DROP TABLE late_to_fail")


@pytest.fixture(params=FAILURES)
def failing(
    request: pytest.FixtureRequest, subject: JobStoreSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From here on no hint gets through."""
    subject.put(*"abcdef")
    notify_after, failure = PostgresTx.notify_after, FAILURES[request.param]

    def fail(tx: PostgresTx, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        assert b"notify" in statement
        notify_after(tx, failure)

    monkeypatch.setattr(PostgresTx, "notify_after", fail)


@pytest.mark.usefixtures("failing")
def test_an_exchange_is_told_when_its_hint_fails(
    subject: JobStoreSubject, caplog: pytest.LogCaptureFixture
) -> None:
    """What was settled and claimed is answered, and nothing runs in nobody's hands."""
    held = subject.claim(1)
    for count in (2, 3):
        told = [subject.told(held[0], SUCCEEDED)]
        applied, claimed = subject.store.settle_and_claim(told, ask(count))
        assert applied == [True]
        assert len(claimed.jobs) == count
        held = held[1:] + claimed.jobs
    active = subject.store.search(Search(statuses=(JobStatus.ACTIVE,)))
    assert sorted(ids_of(active)) == sorted(ids_of(held))
    assert "a hint to other processes was not given" in caplog.text


@pytest.mark.usefixtures("failing")
def test_jobs_are_added_when_their_hint_fails(subject: JobStoreSubject) -> None:
    """Whoever adds jobs, with keys or without, is told that they are there."""
    assert [each.id for each in subject.put("x", "y")] == ["x", "y"]
    assert subject.put("z", unique_key="k")[0].is_new
    assert subject.store.count(Search()) == 9


@pytest.mark.usefixtures("failing")
def test_ringing_in_vain_is_no_error(subject: JobStoreSubject) -> None:
    """Waking others is a hint wherever it happens, and the operation goes on without it."""
    store = subject.store
    assert isinstance(store, PostgresJobStore)
    store.announce()
    assert store.set_queue("q", max_active=3).max_active == 3
    subject.must(subject.claim(1)[0], FAILS_ONCE)


def test_an_error_before_the_hint_is_told(
    subject: JobStoreSubject, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the hint may fail: what goes wrong before it is the caller's to know."""
    subject.put("a")
    with pytest.raises(Exception, match="a"):
        subject.store.add([new("a")])
    assert subject.store.count(Search()) == 1
    assert "a hint" not in caplog.text


@pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_a_connection_that_forgot_its_statements_is_replaced(
    subject: JobStoreSubject, statement: str
) -> None:
    """What was prepared on it is gone, as behind some poolers: the call is made anew."""
    store = subject.store
    assert isinstance(store, PostgresJobStore)
    subject.put("a")
    for job_id in "bc":
        store.transactions.database.run(lambda found: found.execute(statement.encode()))
        subject.put(job_id)
    [job] = subject.claim(1)
    store.transactions.database.run(lambda found: found.execute(statement.encode()))
    assert subject.settle(job, SUCCEEDED)
    assert store.count(Search()) == 3


def test_counts_are_of_one_instant(subject: JobStoreSubject) -> None:
    """Queues are counted while their jobs move, and the numbers fit together."""
    subject.put(*map(str, range(30)))
    ends = threading.Event()

    def churn() -> None:
        while not ends.is_set():
            jobs = subject.claim(30)
            subject.store.settle_and_claim([subject.told(job, RELEASED) for job in jobs], None)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            [queue] = subject.store.queues()
            assert sum(queue.counts.values()) == 30
    finally:
        ends.set()
        thread.join(20)
