# ruff: noqa: D102 - the base class says what each method does
"""pgqueuer on PostgreSQL: handlers run in the worker itself; it keeps final states, no results."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import EntrypointExecutionParameter, Queries
from pgqueuer.types import QueueEntrypoint, QueueManagerId

from jobs_parts import client, run_file

BATCH = 1000
WANTED = {QueueEntrypoint("noop"): EntrypointExecutionParameter(concurrency_limit=0)}


async def serve() -> None:
    """A worker, until it is told to stop."""
    run = run_file.handler()
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(client.url())))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        run(int(job.payload or b""))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    await queuer.run(batch_size=BATCH)


class Peer(client.AsyncPeer):
    """Two worker processes that claim as many jobs at once as ours may hold."""

    async def open(self) -> None:
        self._id, self._held = QueueManagerId(uuid4()), list[Job]()
        self._connection = await asyncpg.connect(client.url())
        self._queries = Queries(AsyncpgDriver(self._connection))
        if not await self._queries.has_table("pgqueuer"):
            await self._queries.install()

    def reset(self) -> None:
        self.run(self._connection.execute("TRUNCATE pgqueuer, pgqueuer_log"))
        self._held = []

    def workers(self) -> list[list[str]]:
        return [[sys.executable, "-m", "jobs_parts.pgqueuer_peer"]] * 2

    async def add(self, number: int) -> None:
        await self._queries.enqueue("noop", b"%d" % number)

    def enqueue_many(self, count: int) -> None:
        self.fill(0, count)

    def fill(self, first: int, count: int) -> None:
        async def batches() -> None:
            for start in range(first, first + count, 1000):
                numbers = range(start, min(start + 1000, first + count))
                names, payloads = ["noop"] * len(numbers), [b"%d" % each for each in numbers]
                await self._queries.enqueue(names, payloads, [0] * len(numbers))

        self.run(batches())

    def after_fill(self) -> None:
        self.run(self._connection.execute("VACUUM ANALYZE"))

    def claim(self, count: int) -> None:
        async def batches() -> None:
            for start in range(0, count, BATCH):
                self._held += await self._queries.dequeue(
                    min(BATCH, count - start), WANTED, self._id, None, timedelta(seconds=30)
                )
            if len(self._held) != count:
                raise RuntimeError(f"{len(self._held)} of {count} jobs were claimed")

        self.run(batches())

    def settle(self, count: int) -> None:
        async def batches(held: list[Job]) -> None:
            for start in range(0, len(held), BATCH):
                batch = held[start : start + BATCH]
                await self._queries.log_jobs([(job, "successful", None) for job in batch])

        held, self._held = self._held, []
        self.run(batches(held))

    def waiting(self) -> int:
        return self._count("SELECT count(*) FROM pgqueuer WHERE status = 'queued'")

    def recorded(self) -> int:
        return self._count("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")

    def _count(self, question: str) -> int:
        answer: Any = self.run(self._connection.fetchval(question))
        return int(answer)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
