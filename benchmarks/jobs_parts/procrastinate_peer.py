# ruff: noqa: D102 - the base class says what each method does
"""procrastinate on PostgreSQL: handlers run in the worker; it keeps final states, no results."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Job, Status

from jobs_parts import client, run_file

IN_FLIGHT = 30
LINKS = 10
BATCH = 1000

app = App(connector=PsycopgConnector(conninfo=client.url(), min_size=1, max_size=LINKS))
_run = run_file.handler()
_FILL = b"""INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args)
SELECT 'default', 'noop', 0, jsonb_build_object('number', number)
FROM generate_series(%s::int, %s::int) AS number"""


@app.task(name="noop")
async def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.AsyncPeer):
    """Two worker processes with thirty jobs each in flight."""

    async def open(self) -> None:
        self._connection = psycopg.connect(client.url(), autocommit=True)
        await app.open_async()
        if self._connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (
            None,
        ):
            await app.schema_manager.apply_schema_async()
        self._worker = await app.job_manager.register_worker()
        self._held: list[Job] = []

    def reset(self) -> None:
        tables = "procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers"
        self._connection.execute(f"TRUNCATE {tables}".encode())
        self._held = []

    def workers(self) -> list[list[str]]:
        return [[sys.executable, "-m", "jobs_parts.procrastinate_peer"]] * 2

    async def add(self, number: int) -> None:
        await noop.defer_async(number=number)

    def enqueue_many(self, count: int) -> None:
        async def batches() -> None:
            for start in range(0, count, BATCH):
                numbers = range(start, min(start + BATCH, count))
                await noop.batch_defer_async(*({"number": number} for number in numbers))

        self.run(batches())

    def fill(self, first: int, count: int) -> None:
        self._connection.execute(_FILL, (first, first + count - 1))

    def after_fill(self) -> None:
        self._connection.execute("VACUUM ANALYZE")

    def claim(self, count: int) -> None:
        async def each() -> None:
            for _ in range(count):
                job = await app.job_manager.fetch_job(None, self._worker)
                if job is None:
                    raise RuntimeError("the queue is empty")
                self._held.append(job)

        self.run(each())

    def settle(self, count: int) -> None:
        async def one(job: Job) -> None:
            await app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=False)

        held, self._held = self._held, []
        self.run(client.run_concurrently(one, held, IN_FLIGHT))

    def waiting(self) -> int:
        return self._count("todo")

    def recorded(self) -> int:
        return self._count("succeeded")

    def _count(self, status: str) -> int:
        question = b"SELECT count(*) FROM procrastinate_jobs WHERE status = %s"
        found: Any = self._connection.execute(question, (status,)).fetchone()
        return int(found[0])


async def serve() -> None:
    """A worker, until it is told to stop."""
    async with app.open_async():
        await app.run_worker_async(concurrency=IN_FLIGHT)


if __name__ == "__main__":
    asyncio.run(serve())
