# ruff: noqa: D102 - the base class says what each method does
"""The floor for a hand-over through Redis: RPUSH in one process, BLPOP in another."""

from __future__ import annotations

import sys

import redis

from jobs_parts import client, run_file


def serve() -> None:
    """Pop and run, for ever."""
    connection, run = redis.Redis.from_url(f"{client.url()}/10"), run_file.handler()
    while True:
        popped = connection.blpop("bench")
        run(int(popped[1]))


class Peer(client.Peer):
    """No state, no result, no acknowledgement."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(f"{client.url()}/10")

    def reset(self) -> None:
        client.clear(self._redis)

    def workers(self) -> list[list[str]]:
        return [[sys.executable, "-m", "jobs_parts.redis_list"]]

    def enqueue(self, number: int) -> None:
        self._redis.rpush("bench", number)

    def waiting(self) -> int:
        return int(self._redis.llen("bench"))


if __name__ == "__main__":
    serve()
