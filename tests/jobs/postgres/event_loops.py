"""What programs with an event loop have in their hands when they enqueue in their transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Search

INSERT = "INSERT INTO shop.orders VALUES ('pie')"
_WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def open_shop(jobs_url: str) -> None:
    """Make a table of the caller's own."""
    with psycopg.connect(jobs_url, autocommit=True) as first:
        first.execute("DROP SCHEMA IF EXISTS shop CASCADE")
        first.execute("CREATE SCHEMA shop")
        first.execute("CREATE TABLE shop.orders (name text PRIMARY KEY)")


def stored(jobs_url: str) -> tuple[list[str], list[str]]:
    """The ids of all jobs, and the orders."""
    store = PostgresJobStore(jobs_url)
    with psycopg.connect(jobs_url) as connection:
        orders = [row[0] for row in connection.execute("SELECT name FROM shop.orders")]
    ids = sorted(job.id for job in store.search(Search()))
    store.close()
    return ids, orders


class CountingLock(asyncio.Lock):
    """Knows how many have asked for it and do not have it yet."""

    queued = 0

    async def acquire(self) -> Literal[True]:
        """Wait until it is free."""
        self.queued += 1
        try:
            return await super().acquire()
        finally:
            self.queued -= 1


@asynccontextmanager
async def at_work(jobs_url: str) -> AsyncIterator[tuple[AsyncJobClient, psycopg.AsyncConnection]]:
    """A client, and the caller's own connection to the same database."""
    async with (
        AsyncJobClient(jobs_url) as client,
        await psycopg.AsyncConnection.connect(jobs_url) as mine,
    ):
        mine.lock = CountingLock()
        yield client, mine
        await mine.rollback()


@asynccontextmanager
async def engine_of(jobs_url: str) -> AsyncIterator[AsyncEngine]:
    """One of SQLAlchemy."""
    engine = create_async_engine(jobs_url.replace("postgresql://", "postgresql+psycopg://", 1))
    yield engine
    await engine.dispose()


async def until_waiting(jobs_url: str, number: int = 1) -> None:
    """Until so many connections wait for what others have locked."""
    async with await psycopg.AsyncConnection.connect(jobs_url, autocommit=True) as third:
        for _ in range(10_000):
            [[waiting]] = await (await third.execute(_WAITING)).fetchall()
            if waiting >= number:
                return
            await asyncio.sleep(0.002)
    raise AssertionError("they never waited")


async def until_queued(connection: psycopg.AsyncConnection, number: int) -> None:
    """Until so many wait for the lock of a connection."""
    lock = connection.lock
    assert isinstance(lock, CountingLock)
    for _ in range(1_000_000):
        if lock.queued >= number:
            return
        await asyncio.sleep(0)
    raise AssertionError("they never waited")
