"""A server that answers nobody: who said how long to wait has waited no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import pytest

from ergon_framework.errors import ResultTimeoutError, StoreUnavailableError
from ergon_framework.jobs import AsyncJobClient, JobClient
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.jobs.worker import WorkerTiming
from ergon_framework.ports.jobstore import FullJobStore
from ergon_framework.storage.postgres.pool import PostgresTimeouts
from ergon_framework.storage.redis.client import RedisTimeouts
from tests.differential.engines import ServerEngine, running
from tests.jobs.real_worker import at_work, get, job, quick, wait_until, worker
from tests.servers.skip_loudly import MissingServerError, missing

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:fleet-outage")]

T = TypeVar("T")
FOR_EVER = 3600.0
PATIENCE = 30.0


@pytest.fixture(scope="module", params=["postgres", "redis"])
def engine(request: pytest.FixtureRequest) -> Iterator[ServerEngine]:
    """A server that may be frozen."""
    try:
        with running(request.param, is_durable=True) as found:
            assert isinstance(found, ServerEngine)
            yield found
    except MissingServerError as error:
        missing(error)


@pytest.fixture
def store(engine: ServerEngine) -> FullJobStore:
    """An empty store, which waits for its server for as long as that takes."""
    url = engine.place().url
    if url.startswith("redis"):
        return RedisJobStore(url, timeouts=RedisTimeouts(response=FOR_EVER))
    return PostgresJobStore(url, timeouts=PostgresTimeouts(transaction=FOR_EVER))


@contextmanager
def frozen(engine: ServerEngine) -> Iterator[None]:
    """Answers nobody from here to the end."""
    engine.freeze()
    try:
        yield
    finally:
        engine.thaw()


def in_time(call: Callable[[], T]) -> BaseException | None:
    """How a call fails; it has ended before the server goes on."""
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(call).exception(PATIENCE)
    finally:
        threads.shutdown(wait=False)


@pytest.mark.req("JOBS:client")
def test_a_result_is_waited_for_as_long_as_was_said(
    engine: ServerEngine, store: FullJobStore
) -> None:
    """Whether the first question is not answered, or a new connection; the reason is told."""
    with closing(JobClient(store=store)) as client:
        waiting = client.enqueue("h")
        told = ""
        while "still pending" not in told:  # so that there is a subscription, and a connection
            with pytest.raises(ResultTimeoutError) as caught:
                client.result(waiting, timeout=0.01)
            told = str(caught.value)  # a busy machine may not answer in time
        with frozen(engine):
            for _ in range(2):
                error = in_time(lambda: client.result(waiting, timeout=0.1))
                assert isinstance(error, ResultTimeoutError)
                assert f"within 0.1 seconds how the job {waiting} stands: " in str(error)
                assert isinstance(error.__cause__, StoreUnavailableError)
                assert error.details == {"job_id": waiting}
        assert client.status(waiting) == "pending"


@pytest.mark.req("JOBS:client")
def test_others_have_more_time(engine: ServerEngine, store: FullJobStore) -> None:
    """That somebody could not wait says nothing about the server: it is asked all the same."""
    with closing(JobClient(store=store)) as client, ThreadPoolExecutor(1) as threads:
        waiting = client.enqueue("h")
        with frozen(engine):
            assert isinstance(
                in_time(lambda: client.result(waiting, timeout=0.0)), ResultTimeoutError
            )
            found = threads.submit(client.find, waiting)
        assert found.result(PATIENCE).id == waiting


@pytest.mark.req("JOBS:client")
@pytest.mark.parametrize("has_waited", [False, True])
def test_a_result_is_awaited_as_long_as_was_said(
    engine: ServerEngine, store: FullJobStore, *, has_waited: bool
) -> None:
    """Also when all threads of the client hang in calls that nobody bounded."""

    async def work() -> None:
        async with AsyncJobClient(store=store) as client:
            waiting = await client.enqueue("h")
            told = "" if has_waited else "still pending"
            while "still pending" not in told:
                with pytest.raises(ResultTimeoutError) as caught:
                    await client.result(waiting, timeout=0.01)
                told = str(caught.value)
            engine.freeze()
            try:
                with pytest.raises(ResultTimeoutError, match=r"did not tell within 0\.1 seconds"):
                    await asyncio.wait_for(client.result(waiting, timeout=0.1), PATIENCE)
                hanging = [asyncio.ensure_future(client.find(waiting)) for _ in range(20)]
                with pytest.raises(ResultTimeoutError, match=r"did not tell within 0\.1 seconds"):
                    await asyncio.wait_for(client.result(waiting, timeout=0.1), PATIENCE)
            finally:
                engine.thaw()
            await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.req("X19", "X25")
@pytest.mark.parametrize("is_held", [False, True])
def test_a_worker_leaves_a_server_that_is_frozen(
    engine: ServerEngine,
    store: FullJobStore,
    caplog: pytest.LogCaptureFixture,
    *,
    is_held: bool,
) -> None:
    """In the midst of a question or between two; what it could not write is rescued by others."""
    timing = WorkerTiming(shutdown_grace=0.1) if is_held else None
    with closing(store), ExitStack() as thawed:
        subject = worker(store, settings=quick(grace=0.1), timing=timing)
        if is_held:
            store.add([job("hang")])
        with at_work(subject):
            wait_until(store.workers)
            if is_held:
                wait_until(lambda: get(store, "hang").is_charged)
            thawed.enter_context(frozen(engine))
            subject.stop()
        if is_held:
            assert "the store did not take how 1 job(s) ended" in caplog.text
        thawed.close()
        assert not is_held or not get(store, "hang").status.is_final
