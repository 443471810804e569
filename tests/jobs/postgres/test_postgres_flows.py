"""Flows on a real server: workers that settle at once, kills, and transactions of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from ergon_framework.core.job import JobStatus, LeaseExpired, Succeeded
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flows import FlowPlanner
from ergon_framework.jobs.newjob import new_job
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import ClaimedJob, Search, Settlement, Topic
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject, ask, ids_of
from tests.jobs.test_flow_kills import deadlocks_in

pytestmark = pytest.mark.req("SCALE:jobs-postgres", "JOBS:store")
PATIENCE = 15.0
SETTLER = Settler(JobsSettings(), "w1")


@pytest.fixture
def store(jobs_url: str) -> Iterator[PostgresJobStore]:
    """A store by the clock of its server."""
    made = PostgresJobStore(jobs_url)
    yield made
    made.close()


@pytest.fixture
def client(store: PostgresJobStore) -> JobClient:
    """A client of that store."""
    return JobClient(store=store)


def told(store: PostgresJobStore, job: ClaimedJob) -> Settlement:
    """What a worker reports of a job that has completed; it knows which ones are steps."""
    return SETTLER.settle_claim(Claim(job), Succeeded(), store.now(), 0.0, b"1")


def test_a_worker_settles_steps_and_claims_what_follows(
    store: PostgresJobStore, client: JobClient
) -> None:
    """In one exchange, beside jobs that belong to no flow."""
    flow = client.group(["a"] * 3, then="b").enqueue()
    client.enqueue("plain", id="plain")
    jobs = store.settle_and_claim([], ask(10))[1].jobs
    assert [job.flow_id for job in jobs] == [flow, flow, flow, None]
    applied, found = store.settle_and_claim([told(store, job) for job in jobs], ask(10))
    assert applied == [True] * 4
    assert ids_of(found.jobs) == [f"{flow}.4"]
    assert store.settle_and_claim([told(store, job) for job in jobs], None)[0] == [False] * 4
    assert store.settle_and_claim([told(store, found.jobs[0])], None)[0] == [True]
    assert flow.status() == "completed"
    assert store.count(Search(ids=("plain",))) == 1


def test_workers_of_two_flows_never_wait_for_each_other(
    store: PostgresJobStore, client: JobClient, jobs_url: str
) -> None:
    """Each report is about steps of both, in another order; some run, some are swept."""
    flows = [client.group(["a"] * 60, then="b").enqueue() for _ in range(2)]
    jobs = store.settle_and_claim([], ask(200))[1].jobs
    reports = [told(store, job) for job in jobs]
    first, second = reports[:60], reports[60:]
    mixed = [[first[n], second[-n - 1]] for n in range(50)]
    before = deadlocks_in(jobs_url)
    subject = JobStoreSubject(store, HandClock(), None, PATIENCE)
    calls = [
        partial(store.settle_and_claim, each[:: (-1) ** n], None) for n, each in enumerate(mixed)
    ]
    answers = subject.together([*calls, flows[0].cancel])
    assert [applied for applied, _ in answers[:-1]] == [[True, True]] * 50
    store.settle_and_claim([*first[50:], *second[:10]], None)
    assert flows[0].status() == "cancelled"
    assert store.settle_and_claim([], ask(5))[1].jobs[0].id == f"{flows[1]}.61"
    assert deadlocks_in(jobs_url) == before


def test_a_job_becomes_a_step_while_a_worker_runs_it(
    store: PostgresJobStore, client: JobClient
) -> None:
    """The worker does not know; its report counts all the same, also that of a rescue."""
    jobs = [client.enqueue("a"), client.enqueue("a")]
    first, second = store.settle_and_claim([], ask(2))[1].jobs
    then = client.enqueue("b", after=jobs)
    applied, found = store.settle_and_claim([told(store, first)], ask(5))
    assert (applied, found.jobs) == ([True], [])
    listed = store.find(second.id)
    assert listed is not None
    late = SETTLER.settle_stored(listed, LeaseExpired(), store.now(), if_expired=True)
    assert store.settle_and_claim([late], None)[0] == [False]  # its lease has not expired
    applied, found = store.settle_and_claim([told(store, second)], ask(5))
    assert (applied, ids_of(found.jobs)) == ([True], [then])


def test_a_step_with_a_unique_key_is_replaced(store: PostgresJobStore, client: JobClient) -> None:
    """Its flow takes it for cancelled; the key passes on."""
    held = client.enqueue("a", unique="k")
    then = client.enqueue("b", after=[held], on_failure="continue")
    new = client.enqueue("a", unique="k", on_duplicate="replace")
    assert new != held
    assert {job.id for job in store.settle_and_claim([], ask(5))[1].jobs} == {new, then}


def test_an_older_program_cannot_end_a_step(
    store: PostgresJobStore, client: JobClient, jobs_url: str
) -> None:
    """It would not count it. What it may do to other jobs it may do as before."""
    client.chain("a", "b").enqueue()
    client.enqueue("plain")
    ends = "UPDATE ergon_jobs SET stage = 0, status = %s, purge_at = %s WHERE handler = %s"
    with psycopg.connect(jobs_url, autocommit=True) as connection:
        for status, purge_at in (("completed", 1.0), ("completed", None), ("failed", 1.0)):
            with pytest.raises(psycopg.errors.CheckViolation, match="need_a_newer_program"):
                connection.execute(ends, (status, purge_at, "a"))
            connection.execute(ends, (status, purge_at, "plain"))
    assert store.count(Search(statuses=(JobStatus.FAILED,))) == 1


@pytest.mark.parametrize("is_kept", [True, False], ids=["commit", "rollback"])
def test_a_flow_in_the_callers_transaction(
    store: PostgresJobStore, client: JobClient, jobs_url: str, is_kept: bool
) -> None:
    """It is there with the caller's commit, which wakes the workers, or not at all."""
    subscription = store.subscribe(Topic.WORK)
    with psycopg.connect(jobs_url) as mine:
        flow = client.chain("a", "b").enqueue(connection=mine)
        assert store.flows.find(flow) is None
        (mine.commit if is_kept else mine.rollback)()
    assert (store.flows.find(flow) is not None) is is_kept
    assert ids_of(store.settle_and_claim([], ask(5))[1].jobs) == [f"{flow}.1"] * is_kept
    if is_kept:
        assert subscription.wait(PATIENCE)
    subscription.close()


def test_a_flow_in_a_transaction_of_an_event_loop(store: PostgresJobStore, jobs_url: str) -> None:
    """The same with an asynchronous connection; an id that is taken leaves it usable."""

    async def main() -> str:
        mine = await psycopg.AsyncConnection.connect(jobs_url)
        async with AsyncJobClient(jobs_url) as client, mine:
            flow = await client.chain("a", "b").aenqueue(connection=mine)
            await mine.commit()
            return str(flow)

    flow = asyncio.run(main())
    assert ids_of(store.settle_and_claim([], ask(5))[1].jobs) == [f"{flow}.1"]


def test_a_refused_flow_leaves_the_transaction_as_it_was(
    store: PostgresJobStore, client: JobClient, jobs_url: str
) -> None:
    """What the caller has done before and does after is kept."""
    made, steps = FlowPlanner(client.chain("a", "b")).plan(lambda handler, *_: new_job(handler))
    store.add([new_job("a", id=steps[1].id)])
    with psycopg.connect(jobs_url) as mine:
        kept = client.enqueue("a", connection=mine)
        with pytest.raises(DuplicateJobError, match="id"):
            store.flows.add_in(mine, made, steps)
        mine.commit()
    assert store.find(kept) is not None
    assert store.flows.find(made.id) is None


def test_a_large_flow_is_stored_and_cancelled(store: PostgresJobStore, client: JobClient) -> None:
    """More steps than one statement inserts, and than one slice cancels."""
    flow = client.group(["a"] * 10_500, then="b").enqueue()
    assert flow.show().state.unfinished == 10_501
    assert flow.cancel() == "cancelled"
    assert store.settle_and_claim([], ask(5))[1].jobs == []
    assert store.count(Search(flow=flow, is_released=True)) == 10_500
