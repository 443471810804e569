# ruff: noqa: D102 - the base class says what each method does
"""taskiq on a Redis list, or on a stream where messages are acknowledged; results in Redis."""

from __future__ import annotations

import sys

import redis
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from jobs_parts import client, run_file

broker = ListQueueBroker(f"{client.url()}/7", queue_name="bench").with_result_backend(
    RedisAsyncResultBackend(f"{client.url()}/8", result_ex_time=86_400)
)
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
        await broker.startup()

    def reset(self) -> None:
        client.clear(self._queue, self._results)

    def workers(self) -> list[list[str]]:
        arguments = ["worker", "jobs_parts.taskiq_peer:broker", "--workers", "2", "--no-parse"]
        arguments += ["--max-async-tasks", "100", "--log-level", "ERROR"]
        return [[sys.executable, "-m", "taskiq", *arguments]]

    async def add(self, number: int) -> None:
        await noop.kiq(number)

    def waiting(self) -> int:
        return int(self._queue.llen("bench"))

    def recorded(self) -> int:
        return int(self._results.dbsize())
