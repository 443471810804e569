# ruff: noqa: D102, SLF001 - the base class says what each method does; a message is made inside
"""taskiq on a Redis stream, where messages are acknowledged; results in Redis."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from uuid import uuid4

import redis
from taskiq import AckableMessage, TaskiqResult
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from jobs_parts import client, run_file

IN_FLIGHT = 100
STREAM = "bench"

broker = RedisStreamBroker(
    f"{client.url()}/7", queue_name=STREAM, consumer_id="0", max_connection_pool_size=IN_FLIGHT
).with_result_backend(RedisAsyncResultBackend(f"{client.url()}/8", result_ex_time=86_400))
_run = run_file.handler()


@broker.task("noop")
async def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.AsyncPeer):
    """Two worker processes with a hundred tasks each in flight."""

    async def open(self) -> None:
        self._queue, self._results = (
            redis.Redis.from_url(f"{client.url()}/{number}") for number in (7, 8)
        )
        self._held: list[AckableMessage] = []
        self._stream: AsyncGenerator[AckableMessage, None] | None = None
        await broker.startup()

    def reset(self) -> None:
        client.clear(self._queue, self._results)
        self._held, self._stream = [], None
        self.run(broker.startup())  # the group was in there, too

    def workers(self) -> list[list[str]]:
        arguments = ["worker", "jobs_parts.taskiq_stream:broker", "--workers", "2", "--no-parse"]
        arguments += ["--max-async-tasks", str(IN_FLIGHT), "--log-level", "ERROR"]
        return [[sys.executable, "-m", "taskiq", *arguments]]

    async def add(self, number: int) -> None:
        await noop.kiq(number)

    def fill(self, first: int, count: int) -> None:
        sample = json.loads(broker.formatter.dumps(noop.kicker()._prepare_message(0)).message)
        with self._queue.pipeline(transaction=False) as pipe:
            for number in range(first, first + count):
                sample |= {"task_id": uuid4().hex, "args": [number]}
                pipe.xadd(STREAM, {b"data": json.dumps(sample)})
                if len(pipe) == client.FILL_BATCH:
                    pipe.execute()
            pipe.execute()

    def claim(self, count: int) -> None:
        async def each() -> None:
            self._stream = self._stream or broker.listen()
            while (left := count - len(self._held)) > 0:
                broker.count = min(IN_FLIGHT, left)
                self._held.append(await anext(self._stream))

        self.run(each())

    def settle(self, count: int) -> None:
        held, self._held = self._held, []
        self.run(client.run_concurrently(_settle, held, IN_FLIGHT))

    def waiting(self) -> int:
        group = self._queue.xinfo_groups(STREAM)[0]
        return int(group["lag"])

    def recorded(self) -> int:
        return int(self._results.dbsize())


async def _settle(message: AckableMessage) -> None:
    """What its worker does after a good run."""
    task = broker.formatter.loads(message.data)
    result = TaskiqResult[int](is_err=False, return_value=1, execution_time=0.0)
    await broker.result_backend.set_result(task.task_id, result)
    await message.ack()
