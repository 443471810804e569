"""Huey on SQLite as it comes: what it has acknowledged is on disk."""

from __future__ import annotations

from huey import SqliteHuey

from jobs_parts import huey_peer, run_file

huey = SqliteHuey("bench", filename=huey_peer.file(), store_none=True)
_run = run_file.handler()


@huey.task()
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(huey_peer.Peer):
    """One worker process that polls: a second one only waits for the file."""

    def __init__(self) -> None:
        super().__init__(huey, noop, "jobs_parts.huey_sqlite.huey", 1)
