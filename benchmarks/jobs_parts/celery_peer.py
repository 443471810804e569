# ruff: noqa: D102 - the base class says what each method does
"""Celery with Redis as broker and as result backend."""

from __future__ import annotations

import sys

import celery
import redis

from jobs_parts import client, marks

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
_run = marks.handler()


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

    def reset(self) -> None:
        client.clear(self._broker, self._results)

    def workers(self) -> list[list[str]]:
        words = [sys.executable, "-m", "celery", "-A", "jobs_parts.celery_peer", "worker"]
        words += ["--pool", "threads", "--concurrency", "4", "--loglevel", "error"]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--hostname"]
        return [[*words, name] for name in ("one", "two")]

    def enqueue(self, number: int) -> None:
        noop.delay(number)

    def waiting(self) -> int:
        return int(self._broker.llen("celery"))

    def recorded(self) -> int:
        return int(self._results.dbsize())
