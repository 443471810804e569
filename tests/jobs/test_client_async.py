"""The client for event loops: the same answers, and nothing that waits blocks anything else."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from ergon_framework.core.job import JobStatus, Succeeded
from ergon_framework.errors import (
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.jobs.async_client import MAX_THREADS, AsyncJobClient, ResultWatcher
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import NewJob, Search, Topic
from tests.jobs.manual_worker import BROKEN, SETTINGS, Hand
from tests.storage.conftest import until

pytestmark = pytest.mark.req("JOBS:client")
LONG = 3600.0


def run(work: Coroutine[Any, Any, None]) -> None:
    """A test's coroutine, with a bound."""
    asyncio.run(asyncio.wait_for(work, 30))


def client_of(store: MemoryJobStore) -> AsyncJobClient:
    """A client with the settings of these tests."""
    return AsyncJobClient(store=store, settings=SETTINGS)


async def awaited(client: AsyncJobClient) -> None:
    """Until somebody waits for a result in that client's thread."""
    while not client.waiting:  # noqa: ASYNC110 - a thread's
        await asyncio.sleep(0.001)


def test_the_calls_are_those_of_the_other_client() -> None:
    """Enqueue, ask, move."""

    async def work() -> None:
        store = MemoryJobStore()
        hand = Hand(store)
        async with client_of(store) as client:
            job = await client.enqueue("h", [1], max_attempts=1)
            assert (job.is_new, job.replaced) == (True, None)
            assert await job.status() == "pending"
            hand.run(BROKEN)
            await client.requeue(job)
            hand.run(BROKEN)
            await client.retry(job)
            assert await job.cancel()
            assert not await client.cancel(job)
            assert (await client.show(job))["status"] == "cancelled"
            assert (await client.find(job)).args == b"[1]"
            held = await client.enqueue("h")
            hand.claim()
            assert await held.cancel(running=True, by="ann")
            asked = (await client.find(held)).cancel_request
            assert asked is not None
            assert asked.by == "ann"
            ids = await client.enqueue_many(["h", ("h", [2])], queue="q")
            assert [(await client.find(each)).queue for each in ids] == ["q", "q"]
            assert [found.id async for found in client.jobs(queue="q")] == ids[::-1]
            assert [found.id async for found in client.jobs(queue="q", limit=1)] == ids[1:]
            tagged = await client.enqueue_many(["h"] * 450, tags=["many"])
            assert [found.id async for found in client.jobs(tags=["many"])] == tagged[::-1]
            assert await client.count(tags=["many"], status=["pending", "active"]) == 450
            assert await client.reschedule_many(tags=["many"], delay=5, limit=1) == 1
            assert await client.cancel_many(tags=["many"]) == 450
            assert await client.delete_many(tags=["many"], limit=449) == 449
            await client.delete(tagged[0])
            await client.reschedule(ids[0], delay=60)
            assert await client.requeue_many(queue="q") == 0

    run(work())


def test_many_results_are_awaited_by_one_thread() -> None:
    """More waiters than threads, and the client still takes jobs meanwhile."""

    async def work() -> None:
        store = MemoryJobStore()
        hand = Hand(store)
        async with client_of(store) as client:
            jobs = await client.enqueue_many(["h"] * (4 * MAX_THREADS))
            waiting = [
                asyncio.create_task(client.result(job, poll=LONG)) for job in (*jobs, jobs[0])
            ]
            await asyncio.sleep(0)
            await client.enqueue("h", priority=-1)
            for n in range(len(jobs)):
                hand.run(Succeeded(), n)
            assert await asyncio.gather(*waiting) == [*range(len(jobs)), 0]
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("ergon-results") == 1

    run(work())


def test_results_that_will_not_come_are_errors() -> None:
    """Failed, cancelled, unknown, too late: as with the other client."""

    async def work() -> None:
        store = MemoryJobStore()
        hand = Hand(store)
        async with client_of(store) as client:
            failed = await client.enqueue("h", max_attempts=1)
            hand.run(BROKEN)
            with pytest.raises(JobFailedError, match="no such picture"):
                await failed.result()
            waiting = await client.enqueue("h")
            with pytest.raises(ResultTimeoutError, match="still pending"):
                await waiting.result(timeout=0.01)
            with pytest.raises(JobNotFoundError):
                await client.result("nobody")
            with pytest.raises(JobStateError):
                await client.cancel(failed)
            with pytest.raises(JobError):
                await client.enqueue("")

    run(work())


def test_waiting_can_be_cancelled() -> None:
    """Nothing is left behind, and others go on waiting for the same job."""

    async def work() -> None:
        store = MemoryJobStore()
        async with client_of(store) as client:
            job = await client.enqueue("h")
            first = asyncio.create_task(client.result(job, poll=LONG))
            second = asyncio.create_task(client.result(job, poll=LONG))
            await awaited(client)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            Hand(store).run(Succeeded(), "there")
            assert await second == "there"
            assert client.waiting == 0

    run(work())


def test_a_job_that_disappears_is_told() -> None:
    """Purged while somebody waited: seen at the next slow look."""

    async def work() -> None:
        store = MemoryJobStore()
        async with client_of(store) as client:
            job = await client.enqueue("h")
            waiting = asyncio.create_task(client.result(job, poll=0.01))
            await asyncio.sleep(0)
            await client.cancel(job)
            with pytest.raises((JobFailedError, JobNotFoundError)):
                await waiting

    run(work())


class Broken(MemoryJobStore):
    """A store that cannot be searched."""

    def search(self, search: Search, limit: int | None = None) -> Any:
        raise StoreError("the disk is gone")


def test_a_store_that_fails_is_told_to_all_who_wait() -> None:
    """The thread that waits survives it."""

    async def work() -> None:
        async with client_of(Broken()) as client:
            job = await client.enqueue("h")
            for _ in range(2):
                results = await asyncio.gather(job.result(), job.result(), return_exceptions=True)
                assert [str(each) for each in results] == ["the disk is gone"] * 2

    run(work())


def test_closing_ends_those_who_wait() -> None:
    """And a closed client says that it is closed."""

    async def work() -> None:
        client = client_of(MemoryJobStore())
        job = await client.enqueue("h")
        waiting = asyncio.create_task(job.result())
        await awaited(client)
        await client.close()
        with pytest.raises(StoreUnavailableError, match="closed"):
            await waiting
        with pytest.raises(StoreUnavailableError, match="closed"):
            await client.enqueue("h")
        await client.close()

    run(work())


def test_a_waiter_that_comes_while_the_client_closes_is_told() -> None:
    """The watching thread may have ended between the look for it and the call."""

    async def work() -> None:
        client = client_of(MemoryJobStore())
        job = await client.enqueue("h")
        waiting = asyncio.create_task(client.result(job))
        await asyncio.sleep(0)  # it asks for the watcher …
        client.shut()  # … which is closed while the loop is busy
        with pytest.raises(StoreUnavailableError, match="closed"):
            await waiting
        with pytest.raises(StoreUnavailableError, match="closed"):
            await client.result(job)

    run(work())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watching_thread_that_breaks_tells_everybody() -> None:
    """Those who wait, and those who come afterwards."""
    store = MemoryJobStore()
    told: list[Any] = []
    subscription = store.subscribe(Topic.DONE)
    is_broken = threading.Event()

    class Breaking:
        def wait(self, seconds: float | None) -> bool:
            is_broken.wait(30)
            raise OSError

        wake, close = subscription.wake, subscription.close

    store.subscribe = lambda topic: Breaking()  # type: ignore[method-assign]
    watcher = ResultWatcher(store, LONG)
    store.add([NewJob(id="a", handler="h")])
    watcher.add("a", told.append)
    is_broken.set()
    until(lambda: told)
    watcher.add("a", told.append)
    assert [type(each) for each in told] == [StoreUnavailableError] * 2
    watcher.close()


def test_workers_can_be_woken() -> None:
    """After a commit that the client did not make; a store that knows no such thing is left."""

    async def work() -> None:
        rung = []
        store = MemoryJobStore()
        async with client_of(store) as client:
            await client.announce()
            store.announce = lambda: rung.append(1)  # type: ignore[attr-defined]
            await client.announce()
        assert rung == [1]

    run(work())


def test_the_trace_of_the_coroutine_goes_with_the_job() -> None:
    """Although the job is stored by another thread."""

    async def work() -> None:
        span = NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1)))
        async with client_of(MemoryJobStore()) as client:
            with trace.use_span(span):
                job = await client.enqueue("h")
            context = (await client.find(job)).trace_context
            assert context == {"traceparent": f"00-{1:032x}-{2:016x}-01"}

    run(work())


def test_a_loop_that_is_gone_does_not_stop_the_waiting_thread() -> None:
    """Whoever closes a loop with waiters in it leaves the client usable."""
    store = MemoryJobStore()
    client = client_of(store)
    loop = asyncio.new_event_loop()
    job = loop.run_until_complete(client.enqueue("h"))
    abandoned = loop.create_task(client.result(job, poll=LONG))
    loop.run_until_complete(awaited(client))
    loop.close()

    async def again() -> None:
        waiting = asyncio.create_task(client.result(job))
        Hand(store).run(Succeeded(), 1)
        assert await waiting == 1
        await client.close()

    run(again())
    assert not abandoned.done()


@pytest.mark.req("SCALE:transaction")
def test_a_job_in_a_transaction_on_sqlite(tmp_path: Path) -> None:
    """Its connection belongs to the thread of the event loop, and is used there."""

    async def work() -> None:
        path = tmp_path / "work.db"
        async with AsyncJobClient(f"sqlite:///{path}") as client:
            with closing(sqlite3.connect(path)) as mine:
                await client.enqueue("h", id="a", connection=mine)
                mine.rollback()
                jobs = [{"handler": "h", "id": "b"}, {"handler": "h", "id": "c"}]
                await client.enqueue_many(jobs, connection=mine)
                mine.commit()
            assert await client.status("c") is JobStatus.PENDING
            with pytest.raises(JobNotFoundError):
                await client.status("a")

    run(work())


def test_a_store_that_takes_part_in_no_transaction() -> None:
    """Says so, as it does to the other client."""

    async def work() -> None:
        async with client_of(MemoryJobStore()) as client:
            with pytest.raises(JobError, match="another's transaction"):
                await client.enqueue("h", connection=object())

    run(work())


def in_child(work: Coroutine[Any, Any, None]) -> int:
    """The exit code of a forked child that does this, with a bound, and nothing else."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(work)
            code = 0
        finally:
            os._exit(code)
    work.close()  # it is the child's
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    """Also when those of its parent, which it does not have, enqueued and waited for a result."""
    client = AsyncJobClient(f"sqlite:///{tmp_path / 'work.db'}", settings=SETTINGS)

    async def before() -> None:
        job = await client.enqueue("h")
        with pytest.raises(ResultTimeoutError):
            await client.result(job, 0.01, poll=LONG)

    async def inside() -> None:
        job = await client.enqueue("h", queue="child")
        with pytest.raises(ResultTimeoutError):
            await client.result(job, 0.01, poll=LONG)
        assert await client.cancel_many(queue="child") == 1  # in a thread that may take long
        with pytest.raises(JobFailedError):
            await client.result(job, 20, poll=LONG)

    run(before())
    try:
        assert in_child(inside()) == 0
    finally:
        client.shut()


def test_a_closed_client_stays_closed_in_a_forked_child() -> None:
    """It would otherwise start threads that nobody ends."""
    client = client_of(MemoryJobStore())
    client.shut()

    async def inside() -> None:
        with pytest.raises(StoreUnavailableError, match="the client is closed"):
            await client.enqueue("h")

    assert in_child(inside()) == 0
