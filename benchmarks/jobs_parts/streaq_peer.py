# ruff: noqa: D102, SLF001 - the base class says what each method does; a worker's steps are its own
"""streaQ on Redis streams with its functions in the server; results in Redis."""

from __future__ import annotations

import pickle
import sys
from typing import Any
from uuid import uuid4

import redis
from streaq import Worker
from streaq.constants import REDIS_GROUP
from streaq.types import StreamMessage, Streaq

from jobs_parts import client, run_file

IN_FLIGHT = 100
BATCH = 1000
NOW = 1_750_000_000_000

worker: Worker[Any] = Worker(
    f"{client.url()}/10", concurrency=IN_FLIGHT, anyio_kwargs={"use_uvloop": True}
)
_run = run_file.handler()


@worker.task(name="noop", ttl=86_400, silent=True)
async def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.AsyncPeer):
    """Two worker processes with a hundred tasks each in flight."""

    async def open(self) -> None:
        self._redis = redis.Redis.from_url(f"{client.url()}/10")
        await worker.__aenter__()
        self._held: list[StreamMessage] = []

    def reset(self) -> None:
        client.clear(self._redis)
        self._held = []

    def workers(self) -> list[list[str]]:
        return [[sys.executable, "-m", "jobs_parts.streaq_peer"]] * 2

    async def add(self, number: int) -> None:
        await noop.enqueue(number)

    def enqueue_many(self, count: int) -> None:
        async def batches() -> None:
            for start in range(0, count, BATCH):
                numbers = range(start, min(start + BATCH, count))
                await worker.enqueue_many([noop.enqueue(number) for number in numbers])

        self.run(batches())

    def fill(self, first: int, count: int) -> None:
        stream = worker.stream_key + worker.priorities[-1]
        with self._redis.pipeline(transaction=False) as pipe:
            for number in range(first, first + count):
                key = uuid4().hex
                data = {"f": "noop", "a": (number,), "k": {}, "t": NOW}
                pipe.set(worker.task_key + key, pickle.dumps(data))
                pipe.xadd(stream, {"task_id": key, "enqueue_time": NOW})
                if len(pipe) >= client.FILL_BATCH:
                    pipe.execute()
            pipe.execute()

    def claim(self, count: int) -> None:
        async def batches() -> None:
            await worker._lib.create_groups(worker.stream_key, REDIS_GROUP, *worker.priorities)
            for start in range(0, count, IN_FLIGHT):
                messages = await self._read(min(IN_FLIGHT, count - start))
                await client.run_concurrently(_begin, messages, IN_FLIGHT)
                self._held += messages

        self.run(batches())

    async def _read(self, count: int) -> list[StreamMessage]:
        found = await worker._read_streams_legacy(count)
        if not found:
            raise RuntimeError("the queue is empty")
        return [
            StreamMessage(
                message_id=entry[0],
                task_id=entry[1]["task_id"],
                priority=worker.priorities[-1],
                enqueue_time=NOW,
            )
            for entries in found.values()
            for entry in entries
        ]

    def settle(self, count: int) -> None:
        held, self._held = self._held, []
        self.run(client.run_concurrently(_finish, held, IN_FLIGHT))

    def waiting(self) -> int:
        return int(self._redis.xlen(worker.stream_key + worker.priorities[-1]))

    def recorded(self) -> int:
        return int(self._redis.zcard(worker._results_set))


async def _begin(message: StreamMessage) -> None:
    """The first thing that its worker does with a message."""
    async with worker.redis.pipeline(transaction=False) as pipe:
        pipe.get(worker.task_key + message.task_id)
        pipe.incr(worker._retry_key + message.task_id)
        pipe.srem(worker._abort_key, [message.task_id])
        Streaq(pipe).refresh_timeout(
            worker.stream_key + message.priority, worker._running_set, REDIS_GROUP, worker.id,
            message.message_id, message.task_id,
        )  # fmt: skip


async def _finish(message: StreamMessage) -> None:
    await worker.finish_task(
        message, finish=True, schedule=None, return_value=1, start_time=NOW, finish_time=NOW,
        created_time=NOW, fn_name="noop", success=True, silent=True, ttl=86_400, triggers=None,
        lock_key=None, tries=1, otherwise=None,
    )  # fmt: skip


if __name__ == "__main__":
    worker.run_sync()
