# ruff: noqa: D102 - the base class says what each method does
"""FastStream on a Redis list; each result is published to another list."""

from __future__ import annotations

import logging
import sys

import redis
from faststream import FastStream
from faststream.redis import ListSub, RedisBroker

from jobs_parts import client, run_file

broker = RedisBroker(f"{client.url()}/9", logger=None)
app = FastStream(broker, logger=None)
logging.disable(logging.INFO)
_run = run_file.handler()


@broker.subscriber(list=ListSub("bench", polling_interval=0.01), max_workers=1)
@broker.publisher(list="results")
async def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.AsyncPeer):
    """Two worker processes."""

    async def open(self) -> None:
        self._redis = redis.Redis.from_url(f"{client.url()}/9")
        await broker.connect()

    def reset(self) -> None:
        client.clear(self._redis)

    def workers(self) -> list[list[str]]:
        arguments = ["run", "jobs_parts.faststream_peer:app", "--workers", "2"]
        return [[sys.executable, "-m", "faststream", *arguments]]

    async def add(self, number: int) -> None:
        await broker.publish(number, list="bench")

    def enqueue_many(self, count: int) -> None:
        async def batches() -> None:
            for start in range(0, count, 500):
                numbers = range(start, min(start + 500, count))
                await broker.publish_batch(*numbers, list="bench")

        self.run(batches())

    def waiting(self) -> int:
        return int(self._redis.llen("bench"))

    def recorded(self) -> int:
        return int(self._redis.llen("results"))
