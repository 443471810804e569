"""Enqueueing from an event loop while others hold what is wanted, and when nobody wants it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from ergon_framework.jobs.async_client import MAX_THREADS
from tests.jobs.postgres.event_loops import INSERT, at_work, open_shop, stored, until_waiting

pytestmark = pytest.mark.req("SCALE:transaction", "SCALE:jobs-postgres")
PATIENCE = 15.0


@pytest.fixture(autouse=True)
def shop(jobs_url: str) -> None:
    """A table of the caller's own."""
    open_shop(jobs_url)


def test_a_transaction_goes_on_however_many_wait_for_it(jobs_url: str) -> None:
    """Their threads are not those that it needs: else all would wait for each other."""

    async def main() -> list[str]:
        async with at_work(jobs_url) as (client, mine):

            async def later() -> str:
                async with await psycopg.AsyncConnection.connect(jobs_url) as other:
                    return str(await client.enqueue("ship", unique="pie", connection=other))

            await client.enqueue("ship", unique="pie", id="a", connection=mine)
            others = [asyncio.create_task(later()) for _ in range(MAX_THREADS)]
            await until_waiting(jobs_url, MAX_THREADS)
            try:
                more = client.enqueue("bill", id="b", connection=mine)
                await asyncio.wait_for(more, PATIENCE)
            finally:
                await mine.commit()
            return await asyncio.gather(*others)

    assert asyncio.run(main()) == ["a"] * MAX_THREADS
    assert stored(jobs_url)[0] == ["a", "b"]


def test_a_cancelled_call_is_waited_for_and_does_not_last(jobs_url: str) -> None:
    """The connection is whole afterwards, and the server was asked to make an end of it."""

    async def main() -> None:
        async with (
            at_work(jobs_url) as (client, mine),
            await psycopg.AsyncConnection.connect(jobs_url) as other,
        ):
            await client.enqueue("ship", id="a", connection=other)  # and the id is waited for
            task = asyncio.create_task(client.enqueue("ship", id="a", connection=mine))
            await until_waiting(jobs_url)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, PATIENCE)
            await mine.rollback()
            await mine.execute(INSERT)
            await mine.commit()
            await other.rollback()

    asyncio.run(main())
    assert stored(jobs_url) == ([], ["pie"])


def test_a_cancelled_call_needs_no_thread_of_the_loop(jobs_url: str) -> None:
    """All of those may wait for what the cancelled transaction holds."""
    held = threading.Event()

    async def main() -> bool:
        async with (
            at_work(jobs_url) as (client, mine),
            await psycopg.AsyncConnection.connect(jobs_url) as other,
        ):
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            await client.enqueue("ship", id="a", connection=other)
            task = asyncio.create_task(client.enqueue("ship", id="a", connection=mine))
            await until_waiting(jobs_url)
            busy = loop.run_in_executor(None, held.wait)
            task.cancel()
            try:
                done, _ = await asyncio.wait({task}, timeout=PATIENCE)
            finally:
                held.set()
                await busy
            await other.rollback()
            await asyncio.wait({task})
            return bool(done)

    assert asyncio.run(main())


def test_a_server_is_asked_again_to_make_an_end(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first it may have had nothing to do for the job yet."""
    asked = threading.Event()
    ask = psycopg.Connection.cancel_safe

    def heard(connection: psycopg.Connection, *, timeout: float) -> None:
        ask(connection, timeout=timeout)
        asked.set()

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", heard)
    reading = threading.Event()

    def jobs() -> Iterator[dict[str, str]]:
        reading.set()
        assert asked.wait(PATIENCE)
        yield {"handler": "ship", "id": "a"}

    async def main() -> None:
        async with (
            at_work(jobs_url) as (client, mine),
            await psycopg.AsyncConnection.connect(jobs_url) as other,
        ):
            await client.enqueue("ship", id="a", connection=other)
            task = asyncio.create_task(client.enqueue_many(jobs(), connection=mine))
            assert await asyncio.to_thread(reading.wait, PATIENCE)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=PATIENCE)
            await other.rollback()
            assert done == {task}
            assert task.cancelled()

    asyncio.run(main())


def test_whoever_cancels_all_tasks_gets_no_connection_that_is_in_use(jobs_url: str) -> None:
    """As a loop does at its end; what is rolled back then, a thread may not be speaking on."""

    async def main() -> None:
        async with (
            at_work(jobs_url) as (client, mine),
            await psycopg.AsyncConnection.connect(jobs_url) as other,
        ):

            async def give_up() -> None:
                try:
                    await client.enqueue("ship", id="a", connection=mine)
                finally:
                    await mine.rollback()

            await client.enqueue("ship", id="a", connection=other)
            task = asyncio.create_task(give_up())
            await until_waiting(jobs_url)
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
            await other.rollback()
            with pytest.raises(asyncio.CancelledError):
                await task
            await mine.execute(INSERT)
            await mine.commit()

    asyncio.run(main())
    assert stored(jobs_url) == ([], ["pie"])
