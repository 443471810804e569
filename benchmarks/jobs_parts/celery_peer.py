# ruff: noqa: D102 - the base class says what each method does
"""Celery with Redis as broker and as result backend."""

from __future__ import annotations

import base64
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import celery
import redis

from jobs_parts import client, run_file

app = celery.Celery("bench", broker=f"{client.url()}/1", backend=f"{client.url()}/2")
app.conf.update(
    worker_prefetch_multiplier=64,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=1,
    task_ignore_result=False,
    redis_max_connections=10,
)
_run = run_file.handler()
THREADS = 4


@app.task(name="noop")
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.Peer):
    """Two workers with threads: more than its own pool of processes does with such small jobs."""

    def __init__(self) -> None:
        self._broker, self._results = (
            redis.Redis.from_url(f"{client.url()}/{number}") for number in (1, 2)
        )

        self._connection = app.connection_for_write()
        self._pool = ThreadPoolExecutor(THREADS)
        self._held: list[Any] = []

    def reset(self) -> None:
        client.clear(self._broker, self._results)
        self._held = []

    def workers(self) -> list[list[str]]:
        arguments = [sys.executable, "-m", "celery", "-A", "jobs_parts.celery_peer", "worker"]
        arguments += ["--pool", "threads", "--concurrency", str(THREADS), "--loglevel", "error"]
        arguments += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--hostname"]
        return [[*arguments, name] for name in ("one", "two")]

    def enqueue(self, number: int) -> None:
        noop.delay(number)

    def fill(self, first: int, count: int) -> None:
        noop.delay(first)
        if count == 1:
            return
        sample = self._broker.lindex("celery", 0)
        made = [_like(sample, number) for number in range(first + 1, first + count)]
        for start in range(0, len(made), client.FILL_BATCH):
            self._broker.lpush("celery", *made[start : start + client.FILL_BATCH])

    def claim(self, count: int) -> None:
        with self._connection.SimpleQueue("celery") as queue:
            self._held += [queue.get_nowait() for _ in range(count)]

    def settle(self, count: int) -> None:
        held, self._held = self._held, []
        list(self._pool.map(_settle, held))

    def waiting(self) -> int:
        return int(self._broker.llen("celery"))

    def recorded(self) -> int:
        return int(self._results.dbsize())


def _like(sample: bytes, number: int) -> str:
    """The same message for another job."""
    message: dict[str, Any] = json.loads(sample)
    key = str(uuid4())
    message["headers"] |= {"id": key, "root_id": key, "argsrepr": f"({number},)"}
    message["properties"] |= {"correlation_id": key, "delivery_tag": str(uuid4())}
    body = json.loads(base64.b64decode(message["body"]))
    message["body"] = base64.b64encode(json.dumps([[number], *body[1:]]).encode()).decode()
    return json.dumps(message)


def _settle(message: Any) -> None:
    app.backend.store_result(message.headers["id"], 1, "SUCCESS")
    message.ack()
