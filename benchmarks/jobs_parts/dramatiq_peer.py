# ruff: noqa: D102 - the base class says what each method does
"""Dramatiq with its Redis broker and results kept in Redis."""

from __future__ import annotations

import sys

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from jobs_parts import client, marks

broker = RedisBroker(url=f"{client.url()}/3")
broker.add_middleware(Results(backend=RedisBackend(url=f"{client.url()}/4"), store_results=True))
dramatiq.set_broker(broker)
_run = marks.handler()


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

    def reset(self) -> None:
        client.clear(self._broker, self._results)

    def workers(self) -> list[list[str]]:
        words = [sys.executable, "-m", "dramatiq", "jobs_parts.dramatiq_peer"]
        return [[*words, "--processes", "2", "--threads", "16"]]

    def enqueue(self, number: int) -> None:
        noop.send(number)

    def waiting(self) -> int:
        return int(self._broker.llen("dramatiq:default"))

    def recorded(self) -> int:
        return int(self._results.dbsize())
