"""Enqueueing inside the caller's own transaction from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from ergon_framework.errors import (
    DuplicateJobError,
    JobError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Topic
from tests.jobs.postgres.event_loops import (
    INSERT,
    at_work,
    engine_of,
    open_shop,
    stored,
    until_queued,
)

pytestmark = pytest.mark.req("SCALE:transaction", "SCALE:jobs-postgres")
PATIENCE = 15.0


@pytest.fixture(autouse=True)
def shop(jobs_url: str) -> None:
    """A table of the caller's own."""
    open_shop(jobs_url)


@pytest.mark.parametrize("is_kept", [True, False], ids=["commit", "rollback"])
def test_a_job_shares_the_fate_of_its_transaction(jobs_url: str, is_kept: bool) -> None:
    """Until the commit there is nothing to be claimed; the commit wakes the workers."""
    store = PostgresJobStore(jobs_url)
    subscription = store.subscribe(Topic.WORK)

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            await mine.execute(INSERT)
            job = await client.enqueue("ship", ["pie"], id="a", connection=mine)
            assert str(job) == "a"
            assert stored(jobs_url) == ([], [])
            await (mine.commit() if is_kept else mine.rollback())

    asyncio.run(main())
    assert stored(jobs_url) == ((["a"], ["pie"]) if is_kept else ([], []))
    if is_kept:
        assert subscription.wait(PATIENCE)
    subscription.close()
    store.close()


@pytest.mark.parametrize("is_kept", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
def test_whatever_sqlalchemy_has_for_event_loops(jobs_url: str, kind: str, is_kept: bool) -> None:
    """Also where the job is the first thing that happens in the transaction."""

    async def main() -> None:
        async with AsyncJobClient(jobs_url) as client, engine_of(jobs_url) as engine:
            given: Any = AsyncSession(engine)
            if kind == "connection":
                given = await engine.connect()
            elif kind == "scoped session":
                given = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            await client.enqueue("ship", ["pie"], id="a", connection=given)
            await given.execute(text(INSERT))
            await client.enqueue("ship", ["pie"], id="b", connection=given)
            await (given.commit() if is_kept else given.rollback())
            await given.close()

    asyncio.run(main())
    assert stored(jobs_url) == ((["a", "b"], ["pie"]) if is_kept else ([], []))


def test_many_jobs(jobs_url: str) -> None:
    """In the same transaction, as often as one likes."""

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            for begin in (0, 3):
                jobs = [{"handler": "ship", "id": f"{n}"} for n in range(begin, begin + 3)]
                done = await client.enqueue_many(jobs, connection=mine)
                assert [str(each) for each in done] == [each["id"] for each in jobs]
            await mine.commit()

    asyncio.run(main())
    assert stored(jobs_url)[0] == ["0", "1", "2", "3", "4", "5"]


def test_a_refused_job_leaves_the_transaction_usable(jobs_url: str) -> None:
    """Only what was done for the job is undone."""

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            await client.enqueue("ship", id="a")
            await mine.execute(INSERT)
            with pytest.raises(DuplicateJobError):
                await client.enqueue("ship", id="a", connection=mine)
            await client.enqueue("ship", id="b", connection=mine)
            await mine.commit()

    asyncio.run(main())
    assert stored(jobs_url) == (["a", "b"], ["pie"])


def test_the_transaction_is_begun_as_its_connection_would(jobs_url: str) -> None:
    """How isolated it is to be, is said with its first statement; what its owner makes of rows does
    not matter.
    """

    def refuse(_: object) -> Any:
        raise AssertionError("no rows of theirs")

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            await mine.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
            await mine.set_deferrable(True)
            rows, mine.row_factory = mine.row_factory, refuse
            await client.enqueue("ship", id="a", connection=mine)
            mine.row_factory = rows
            for name, value in (("isolation", "serializable"), ("deferrable", "on")):
                found = await mine.execute(f"SHOW transaction_{name}".encode())
                assert await found.fetchall() == [(value,)]
            await mine.rollback()
            await mine.set_read_only(True)
            with pytest.raises(StoreReadOnlyError, match="read-only transaction"):
                await client.enqueue("ship", id="b", connection=mine)

    asyncio.run(main())


def test_the_transaction_is_begun_alike_when_another_one_was_ended_just_before(
    jobs_url: str,
) -> None:
    """By somebody who shares the connection, and who was first."""

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            await mine.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
            await mine.execute("SELECT 1")
            async with mine.lock:
                ending = asyncio.create_task(mine.commit())
                await asyncio.sleep(0)
                enqueued = asyncio.create_task(client.enqueue("ship", connection=mine))
                await until_queued(mine, 2)
            await asyncio.gather(ending, enqueued)
            found = await mine.execute("SHOW transaction_isolation")
            assert await found.fetchall() == [("serializable",)]

    asyncio.run(main())


def test_nothing_is_begun_for_a_job_that_cannot_be(jobs_url: str) -> None:
    """Bad input is refused before the connection is used."""

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            with pytest.raises(JobError, match="handler is empty"):
                await client.enqueue("", connection=mine)
            assert mine.info.transaction_status is psycopg.pq.TransactionStatus.IDLE

    asyncio.run(main())


def test_a_connection_that_commits_by_itself(jobs_url: str) -> None:
    """Within a transaction of its own it is fine; without one the job would be there at once."""

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            await mine.set_autocommit(True)
            with pytest.raises(StoreError, match="no transaction open"):
                await client.enqueue("ship", id="a", connection=mine)
            async with mine.transaction():
                await client.enqueue("ship", id="b", connection=mine)

    asyncio.run(main())
    assert stored(jobs_url)[0] == ["b"]


def test_a_connection_of_sqlalchemy_that_commits_by_itself(jobs_url: str) -> None:
    """It is refused with what helps, as by the other client, and can be used as before."""

    async def main() -> None:
        async with AsyncJobClient(jobs_url) as client, engine_of(jobs_url) as engine:
            mine = await engine.connect()
            await mine.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(StoreError, match="no transaction open") as caught:
                await client.enqueue("ship", id="a", connection=mine)
            assert "AUTOCOMMIT" in caught.value.remedy
            assert not mine.in_transaction()
            await mine.close()

    asyncio.run(main())
    assert stored(jobs_url)[0] == []


def test_a_session_whose_connection_is_lost(jobs_url: str) -> None:
    """It is told so: what its block raises is our error, and after that it connects anew."""

    async def main() -> None:
        async with (
            at_work(jobs_url) as (client, mine),
            engine_of(jobs_url) as engine,
            AsyncSession(engine) as session,
        ):

            async def cut_off() -> None:
                async with session.begin():
                    pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
                    await mine.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
                    await client.enqueue("ship", id="a", connection=session)

            with pytest.raises(StoreUnavailableError):
                await cut_off()
            async with session.begin():
                await client.enqueue("ship", id="b", connection=session)

    asyncio.run(main())
    assert stored(jobs_url)[0] == ["b"]


async def _in_pipeline(client: AsyncJobClient, mine: psycopg.AsyncConnection) -> None:
    async with mine.pipeline():
        await client.enqueue("ship", connection=mine)


async def _in_two_phases(client: AsyncJobClient, mine: psycopg.AsyncConnection) -> None:
    await mine.tpc_begin(mine.xid(1, "a", "b"))
    try:
        await client.enqueue("ship", connection=mine)
    finally:
        await mine.tpc_rollback()


async def _closed(client: AsyncJobClient, mine: psycopg.AsyncConnection) -> None:
    other = await psycopg.AsyncConnection.connect(mine.info.dsn, password="")
    await other.close()
    await client.enqueue("ship", connection=other)


async def _hung_up(client: AsyncJobClient, mine: psycopg.AsyncConnection) -> None:
    other = await psycopg.AsyncConnection.connect(mine.info.dsn, password="")
    async with other:
        await mine.execute("SELECT pg_terminate_backend(%s)", (other.info.backend_pid,))
        await client.enqueue("ship", connection=other)


async def _failed(client: AsyncJobClient, mine: psycopg.AsyncConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await mine.execute("SELECT 1 / 0")
    await client.enqueue("ship", connection=mine)


async def _elsewhere(client: AsyncJobClient, _: psycopg.AsyncConnection) -> None:
    await client.enqueue("ship", connection=object())


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (_in_pipeline, "pipeline"),
        (_in_two_phases, "two phases"),
        (_closed, "closed"),
        (_hung_up, "cannot be used for now"),
        (_failed, "has failed before"),
        (_elsewhere, "no connection of psycopg"),
    ],
    ids=["pipeline", "two phases", "closed", "hung up", "failed", "something else"],
)
def test_what_cannot_carry_a_job_is_refused(
    jobs_url: str,
    call: Callable[[AsyncJobClient, psycopg.AsyncConnection], Awaitable[None]],
    told: str,
) -> None:
    """In words of our own, with what to do."""

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            with pytest.raises(StoreError, match=told) as caught:
                await call(client, mine)
            assert caught.value.remedy

    asyncio.run(main())
    assert stored(jobs_url)[0] == []


def test_an_engine_is_no_connection(jobs_url: str) -> None:
    """Nobody is told to give it to the client that has just refused it."""

    async def main() -> None:
        async with AsyncJobClient(jobs_url) as client, engine_of(jobs_url) as engine:
            with pytest.raises(StoreError, match="AsyncEngine is no connection") as caught:
                await client.enqueue("ship", connection=engine)
            assert "engine.begin()" in caught.value.remedy

    asyncio.run(main())


def test_what_the_server_says_unasked_is_told_to_the_owner(jobs_url: str) -> None:
    """In the thread of its event loop."""
    heard: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with at_work(jobs_url) as (client, mine):
            await mine.execute("LISTEN shop_news")
            await mine.commit()

            def hear(notify: psycopg.Notify) -> None:
                assert asyncio.get_running_loop() is loop
                heard.append(notify.payload)

            mine.add_notify_handler(hear)
            async with await psycopg.AsyncConnection.connect(jobs_url, autocommit=True) as other:
                await other.execute("NOTIFY shop_news, 'fresh pie'")
            await client.enqueue("ship", id="a", connection=mine)
            await mine.commit()

    asyncio.run(main())
    assert heard == ["fresh pie"]


def test_notices_are_told_in_full(jobs_url: str) -> None:
    """What the server said is gone when the thread goes on, and was kept for the owner."""
    heard: list[tuple[str | None, str | None]] = []

    def hear(said: psycopg.errors.Diagnostic) -> None:
        heard.append((said.severity, said.message_primary))

    async def main() -> None:
        async with at_work(jobs_url) as (client, mine):
            await mine.execute("SET client_min_messages = debug2")
            mine.add_notice_handler(hear)
            await client.enqueue("ship", id="a", connection=mine)
            mine.remove_notice_handler(hear)
            await mine.commit()

    asyncio.run(main())
    assert heard
    assert all(severity and message for severity, message in heard)


def test_a_connection_that_is_not_asynchronous_is_used_where_it_is(jobs_url: str) -> None:
    """As whatever else the caller does with it."""

    async def main() -> None:
        async with AsyncJobClient(jobs_url) as client:
            with psycopg.connect(jobs_url) as mine:
                await client.enqueue("ship", id="a", connection=mine)

    asyncio.run(main())
    assert stored(jobs_url)[0] == ["a"]
