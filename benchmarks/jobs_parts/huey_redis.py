"""Huey on Redis."""

from __future__ import annotations

from huey import RedisHuey

from jobs_parts import client, huey_peer, run_file

huey = RedisHuey("bench", url=f"{client.url()}/6", store_none=True)
_run = run_file.handler()


@huey.task()
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(huey_peer.Peer):
    """Two worker processes, woken by Redis."""

    def __init__(self) -> None:
        super().__init__(huey, noop, "jobs_parts.huey_redis.huey", 2)

    def reset(self) -> None:
        """Empty its database."""
        client.clear(huey.storage.conn)
