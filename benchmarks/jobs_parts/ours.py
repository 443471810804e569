# ruff: noqa: D102 - the base class says what each method does
"""Ergon: jobs on durable SQLite, handlers in executor processes."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path

from ergon_framework.jobs import JobClient
from jobs_parts import client

COMMAND = (
    sys.executable,
    "-m",
    "ergon_framework.executor",
    "--app",
    "jobs_parts.ours_app:registry",
)
IN_FLIGHT = 512
THREADS = 8
CHUNK = 100_000


def address() -> str:
    """The URL of the store."""
    return f"sqlite:///{_folder()}/work.db"


def _folder() -> Path:
    return Path(client.url()) / "store"


class Peer(client.Peer):
    """One worker with one executor; how much it holds at once depends on the case."""

    def __init__(self) -> None:
        self._client: JobClient | None = None

    def reset(self) -> None:
        if self._client is not None:
            self._client.close()
        shutil.rmtree(_folder(), ignore_errors=True)
        _folder().mkdir()
        self._client = JobClient(address())

    def workers(self) -> list[list[str]]:
        # One request at a time, which is the default, is best where nothing is to be gathered.
        in_flight = 1 if client.is_case("latency") else IN_FLIGHT
        settings = Path(client.url()) / "ergon.toml"
        settings.write_text(
            f"""[store]
url = "{address()}"

[executors.python]
command = {json.dumps(COMMAND)}
pool_size = 1
max_in_flight = {in_flight}
"""
        )
        return [[sys.executable, "-m", "ergon_framework.cli", "worker", "--config", str(settings)]]

    def enqueue(self, number: int) -> None:
        self._open.enqueue("noop", [number])

    def enqueue_many(self, count: int) -> None:
        self._open.enqueue_many((("noop", [number]) for number in range(count)), chunk=CHUNK)

    def enqueue_threads(self, count: int) -> None:
        def some(first: int) -> None:
            for number in range(first, count, THREADS):
                self.enqueue(number)

        threads = [threading.Thread(target=some, args=(first,)) for first in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def waiting(self) -> int:
        return self._counted("pending")

    def recorded(self) -> int:
        return self._counted("completed")

    @property
    def _open(self) -> JobClient:
        if self._client is None:
            raise RuntimeError("reset comes first")
        return self._client

    def _counted(self, status: str) -> int:
        return sum(queue.counts.get(status, 0) for queue in self._open.store.queues())
