"""Huey on SQLite that does not wait for the disk: what it has acknowledged may be lost."""

from __future__ import annotations

from huey import SqliteHuey

from jobs_parts import huey_peer, run_file

huey = SqliteHuey("bench", filename=huey_peer.file(), store_none=True, fsync=False)
_run = run_file.handler()


@huey.task()
def noop(number: int) -> int:
    """Do nothing."""
    return _run(number)


class Peer(huey_peer.Peer):
    """One worker process that polls: a second one only waits for the file."""

    def __init__(self) -> None:
        super().__init__(huey, noop, "jobs_parts.huey_unsynced.huey", 1)
