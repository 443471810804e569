# ruff: noqa: D102 - the base class says what each method does
"""Dramatiq with its Redis broker and results kept in Redis."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from jobs_parts import client, run_file

broker = RedisBroker(url=f"{client.url()}/3")
broker.add_middleware(Results(backend=RedisBackend(url=f"{client.url()}/4"), store_results=True))
dramatiq.set_broker(broker)
_run = run_file.handler()
PROCESSES, THREADS = 2, 16


@dramatiq.actor(actor_name="noop", queue_name="default")
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.Peer):
    """Messages and results are in two databases, so that both can be counted."""

    def __init__(self) -> None:
        self._broker, self._results = (
            redis.Redis.from_url(f"{client.url()}/{number}") for number in (3, 4)
        )

        self._backend = RedisBackend(url=f"{client.url()}/4")
        self._pool = ThreadPoolExecutor(THREADS)
        self.reset()

    def reset(self) -> None:
        client.clear(self._broker, self._results)
        self._consumer = broker.consume("default")
        self._held: list[dramatiq.MessageProxy] = []

    def workers(self) -> list[list[str]]:
        arguments = [sys.executable, "-m", "dramatiq", "jobs_parts.dramatiq_peer"]
        return [[*arguments, "--processes", str(PROCESSES), "--threads", str(THREADS)]]

    def enqueue(self, number: int) -> None:
        noop.send(number)

    def fill(self, first: int, count: int) -> None:
        sample = json.loads(noop.message(0).encode())
        for start in range(first, first + count, client.FILL_BATCH):
            made = {}
            for number in range(start, min(start + client.FILL_BATCH, first + count)):
                key = str(uuid4())
                sample |= {"args": [number], "message_id": key}
                made[key] = json.dumps(sample | {"options": {"redis_message_id": key}})
            self._broker.hset("dramatiq:default.msgs", mapping=made)
            self._broker.rpush("dramatiq:default", *made)

    def claim(self, count: int) -> None:
        while (left := count - len(self._held)) > 0:
            self._consumer.prefetch = min(2 * THREADS, left)
            message = next(self._consumer)
            if message is None:
                raise RuntimeError("the queue is empty")
            self._consumer.queued_message_ids.clear()  # a worker would be done with it soon
            self._held.append(message)

    def settle(self, count: int) -> None:
        held, self._held = self._held, []
        list(self._pool.map(self._settle, held))

    def _settle(self, message: dramatiq.MessageProxy) -> None:
        self._backend.store_result(message, 1, 600_000)
        self._consumer.ack(message)

    def waiting(self) -> int:
        return int(self._broker.llen("dramatiq:default"))

    def recorded(self) -> int:
        return int(self._results.dbsize())
