# ruff: noqa: D102 - the base class says what each method does
"""RQ with workers that run jobs in their own process; a fork for each job is far slower."""

from __future__ import annotations

import sys

import redis
import rq

from jobs_parts import client, run_file

_run = run_file.handler()


def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(client.Peer):
    """Two simple workers; results are kept for a day."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(f"{client.url()}/5")
        self._queue = rq.Queue("default", connection=self._redis)

    def reset(self) -> None:
        client.clear(self._redis)

    def workers(self) -> list[list[str]]:
        arguments = ["from rq.cli import main; main()", "worker", "default", "--quiet"]
        arguments += ["--worker-class", "rq.worker.SimpleWorker", "--url", f"{client.url()}/5"]
        return [[sys.executable, "-c", *arguments]] * 2

    def enqueue(self, number: int) -> None:
        self._queue.enqueue(noop, number, result_ttl=86_400)

    def enqueue_many(self, count: int) -> None:
        make = rq.Queue.prepare_data
        for start in range(0, count, 500):
            numbers = range(start, min(start + 500, count))
            self._queue.enqueue_many([make(noop, (each,), result_ttl=86_400) for each in numbers])

    def waiting(self) -> int:
        return int(self._queue.count)

    def recorded(self) -> int:
        return int(self._queue.finished_job_registry.count)
