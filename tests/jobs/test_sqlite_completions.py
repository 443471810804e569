"""Completions that an SQLite store writes many at a time; each has the answer it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import ClaimedJob, Job, Settlement
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    LEASE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
)

pytestmark = pytest.mark.req("JOBS:store")
MANY = 45


@pytest.fixture
def s(tmp_path: Path) -> Iterator[JobStoreSubject]:
    """A fresh store with a clock set by hand."""
    clock = HandClock()
    with closing(SqliteJobStore(tmp_path / "jobs.db", clock=clock)) as store:
        yield JobStoreSubject(store, clock, None, LEASE)


def completed(s: JobStoreSubject, job: ClaimedJob, **changes: Any) -> Settlement:
    """What a worker reports of a success, with what it knows of the step from its claim."""
    fields = {"keep": 60.0, "is_step": job.flow_id is not None, "feeds": job.feeds}
    return s.told(job, SUCCEEDED, result=b'"%s"' % job.id.encode(), **(fields | changes))


def seen(job: Job) -> tuple[Any, ...]:
    """What is told of a job, without its place in the file and what names its claim."""
    return job.id, job.status, job.result, job.history, job.attempts, job.purge_at, job.worker


def flow_of(s: JobStoreSubject, chains: int, steps: int) -> tuple[JobClient, str]:
    """Chains side by side in one flow, and the client that added it."""
    client = JobClient(store=s.store)
    chain = [client.chain(*["work"] * steps) for _ in range(chains)]
    return client, client.group(chain).enqueue().id


def test_completions_read_as_if_each_was_written_alone(s: JobStoreSubject, tmp_path: Path) -> None:
    """One call with many of them leaves the same jobs as one call for each."""
    ids = [f"j{n}" for n in range(MANY)]
    with closing(SqliteJobStore(tmp_path / "other.db", clock=s.clock)) as store:
        other = JobStoreSubject(store, s.clock, None, LEASE)
        for each in (s, other):
            each.put(*ids)
        together = [completed(s, job) for job in s.claim(MANY)]
        applied, _ = s.store.settle_and_claim(together, None)
        for job in other.claim(MANY):
            assert store.settle_and_claim([completed(other, job)], None)[0] == [True]
        assert applied == [True] * MANY
        assert [seen(s.get(each)) for each in ids] == [seen(other.get(each)) for each in ids]


def test_many_completions_are_few_statements(s: JobStoreSubject) -> None:
    """32 completions are written by one statement."""
    s.put(*[f"j{n}" for n in range(33)])
    s.ended("j0")  # looks at limit keys once
    settlements = [completed(s, job) for job in s.claim(32)]
    statements: list[str] = []
    s.store.transactions.write(  # type: ignore[attr-defined]
        lambda tx: tx.cursor.connection.set_trace_callback(statements.append), "desk"
    )
    assert s.store.settle_and_claim(settlements, None)[0] == [True] * 32
    assert len([each for each in statements if each.startswith("UPDATE")]) == 1


@pytest.mark.parametrize("late", [0, 20, MANY - 1])
def test_one_that_came_too_late_is_refused_alone(s: JobStoreSubject, late: int) -> None:
    """A job that is somebody else's by now stays as it is, and the others complete."""
    s.put(*[f"j{n}" for n in range(MANY)])
    jobs = s.claim(MANY)
    s.must(jobs[late], RELEASED)
    again = s.take(jobs[late].id, worker="w2")
    applied, claimed = s.settle_and_claim([completed(s, job) for job in jobs], 1)
    assert applied == [n != late for n in range(MANY)]
    assert claimed.jobs == []
    assert s.status(again.id) is JobStatus.ACTIVE
    assert s.get(again.id).worker == "w2"
    assert s.settle(again, SUCCEEDED)


def test_the_same_report_twice_counts_once(s: JobStoreSubject) -> None:
    """Of two reports of one claim in one call the second is refused."""
    s.put(*[f"j{n}" for n in range(10)])
    settlements = [completed(s, job) for job in s.claim(10)]
    applied, _ = s.store.settle_and_claim([*settlements, settlements[3]], None)
    assert applied == [True] * 10 + [False]


def test_other_ends_between_completions_keep_their_order(s: JobStoreSubject) -> None:
    """A failure in the midst of many completions is written as such."""
    s.put(*[f"j{n}" for n in range(MANY)])
    jobs = s.claim(MANY)
    settlements = [completed(s, job) for job in jobs]
    settlements[20] = s.told(jobs[20], FAILS_FOR_GOOD)
    applied, _ = s.store.settle_and_claim(settlements, None)
    assert applied == [True] * MANY
    ends = [s.status(job.id) for job in jobs]
    assert ends.count(JobStatus.COMPLETED) == MANY - 1
    assert ends[20] is JobStatus.FAILED


@pytest.mark.parametrize("chains", [1, 5, MANY])
def test_chains_go_on_step_by_step(s: JobStoreSubject, chains: int) -> None:
    """Each completion of many releases the step behind it, and the flow ends with the last ones."""
    client, flow_id = flow_of(s, chains, 3)
    ended: list[Settlement] = []
    ran: list[int] = []
    while jobs := s.settle_and_claim(ended, chains)[1].jobs:
        ran.append(len(jobs))
        ended = [completed(s, job) for job in jobs]
    assert ran == [chains] * 3
    flow = client.flow(flow_id).show()
    assert (flow.status.value, flow.state.completed) == ("completed", 3 * chains)


def test_a_step_that_others_wait_for_meanwhile_lets_them_go(s: JobStoreSubject) -> None:
    """A job was told to wait for a step while that ran: its worker did not know, and it starts."""
    client, _ = flow_of(s, MANY, 1)
    jobs = s.claim(MANY)
    client.enqueue("later", id="later", after=[jobs[7].id])
    applied, claimed = s.settle_and_claim([completed(s, job) for job in jobs], 5)
    assert applied == [True] * MANY
    assert [job.id for job in claimed.jobs] == ["later"]


def test_a_late_step_does_not_count(s: JobStoreSubject) -> None:
    """The step behind one that is somebody else's by now waits; those behind the others start."""
    flow_of(s, 10, 2)
    jobs = s.claim(10)
    s.must(jobs[4], RELEASED)
    s.take(jobs[4].id, worker="w2")
    applied, claimed = s.settle_and_claim([completed(s, job) for job in jobs], 20)
    assert applied == [n != 4 for n in range(10)]
    assert len(claimed.jobs) == 9


@pytest.mark.parametrize("others", [0, 1, 20])
def test_a_step_whose_flow_was_deleted_meanwhile_is_refused_alone(
    s: JobStoreSubject, others: int
) -> None:
    """Its worker was away for so long that another one ended the flow, and it was not kept."""
    client, flow_id = flow_of(s, 1, 1)
    s.put(*[f"j{n}" for n in range(others)])
    jobs = s.claim(1 + others)
    late = next(n for n, job in enumerate(jobs) if job.flow_id is not None)
    s.must(jobs[late], RELEASED)
    assert s.settle(s.take(jobs[late].id, worker="w2"), SUCCEEDED)
    client.flow(flow_id).purge()
    applied, _ = s.store.settle_and_claim([completed(s, job) for job in jobs], None)
    assert applied == [n != late for n in range(1 + others)]


@pytest.mark.parametrize("feeds", ["xx", "[1]", '["noflow"]', "[]"])
@pytest.mark.parametrize("others", [0, 20])
def test_a_place_that_cannot_be_read_harms_no_other(
    s: JobStoreSubject, others: int, feeds: str
) -> None:
    """The row is looked at in place of what the claim said, and the other jobs complete."""
    flow_of(s, 1, 1)
    s.put(*[f"j{n}" for n in range(others)])
    settlements = [completed(s, job, feeds=job.feeds and feeds) for job in s.claim(1 + others)]
    assert s.store.settle_and_claim(settlements, None)[0] == [True] * (1 + others)


def test_a_claim_tells_where_its_step_counts(s: JobStoreSubject) -> None:
    """Of a step it does, so that its completion need not read it; no other job counts anywhere."""
    flow_of(s, 1, 1)
    s.put("plain")
    feeds = {job.id: job.feeds for job in s.claim(2)}
    assert feeds.pop("plain") is None
    assert None not in feeds.values()
