# ruff: noqa: D102 - the base class says what each method does
"""Ergon: jobs on durable SQLite or on a server, handlers in executor processes."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import structs

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.executor_protocol import Reply, Status
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.jobstore import Settlement
from jobs_parts import client

COMMAND = (
    sys.executable,
    "-m",
    "ergon_framework.executor",
    "--app",
    "jobs_parts.ours_app:registry",
)
IN_FLIGHT = 1000
THREADS = 8
CHUNK = 100_000
ASK = ClaimRequest(
    worker="bench",
    lease=600.0,
    slots={"python": IN_FLIGHT},
    default="python",
)

_DONE = Reply("", Status.SUCCESS)
_DATABASE = f"ergon_{client.store_number()}"


def address() -> str:
    """The URL of the store."""
    given = client.url()
    if "://" not in given:
        return f"sqlite:///{_folder()}/work.db"
    if given.startswith("postgresql"):
        return f"{given.rpartition('/')[0]}/{_DATABASE}"
    return f"{given}/{9 + client.store_number() + (client.store_number() > 0)}"  # 10 is taken


def _folder() -> Path:
    return Path(client.url()) / "store"


class Peer(client.Peer):
    """One worker with one executor; how much it holds at once depends on the case."""

    def __init__(self) -> None:
        self._client: JobClient | None = None
        self._claims: list[Claim] = []
        self._settler = Settler(JobsSettings(), "bench")

    def reset(self) -> None:
        if self._client is not None:
            self._client.close()
        self._claims = []
        _EMPTY[urlsplit(address()).scheme]()
        self._client = JobClient(address())

    def workers(self) -> list[list[str]]:
        # One request at a time, which is the default, is best where nothing is to be gathered.
        in_flight = 1 if client.is_case("latency") else IN_FLIGHT
        settings = Path("ergon.toml").resolve()
        settings.write_text(
            f"""[store]
url = "{address()}"

[executors.python]
command = {json.dumps(COMMAND)}
pool_size = 1
max_in_flight = {in_flight}
"""
        )
        command = [sys.executable, "-m", "ergon_framework.cli", "worker", "--config", str(settings)]
        return [command] * client.workers()

    def enqueue(self, number: int) -> None:
        self._open.enqueue("noop", [number])

    def enqueue_many(self, count: int) -> None:
        self.fill(0, count)

    def fill(self, first: int, count: int) -> None:
        numbers = range(first, first + count)
        self._open.enqueue_many((("noop", [number]) for number in numbers), chunk=CHUNK)

    def after_fill(self) -> None:
        if address().startswith("postgresql"):
            import psycopg

            with psycopg.connect(address(), autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def enqueue_threads(self, count: int) -> None:
        def some(first: int) -> None:
            for number in range(first, count, THREADS):
                self.enqueue(number)

        threads = [threading.Thread(target=some, args=(first,)) for first in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def claim(self, count: int) -> None:
        while (left := count - len(self._claims)) > 0:
            ask = ASK if left >= IN_FLIGHT else structs.replace(ASK, slots={"python": left})
            _, claimed = self._open.store.settle_and_claim([], ask)
            if not claimed.jobs:
                raise RuntimeError("the queue is empty")
            self._claims += map(Claim, claimed.jobs)

    def settle(self, count: int) -> None:
        claims, self._claims = self._claims, []
        for start in range(0, len(claims), IN_FLIGHT):
            batch = [self._settled(claim) for claim in claims[start : start + IN_FLIGHT]]
            applied, _ = self._open.store.settle_and_claim(batch, None)
            if not all(applied):
                raise RuntimeError("a settlement was not applied")

    def _settled(self, claim: Claim) -> Settlement:
        seen = self._settler.event_of(_DONE, claim.job)
        return self._settler.settle_claim(claim, seen, time.time(), 0.0, b"1")

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


# ---- a store with nothing in it ----


def _no_file() -> None:
    shutil.rmtree(_folder(), ignore_errors=True)
    _folder().mkdir()


def _no_database() -> None:
    import psycopg

    with psycopg.connect(client.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {_DATABASE} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {_DATABASE}".encode())


def _no_keys() -> None:
    import redis

    with redis.Redis.from_url(address()) as connection:
        client.clear(connection)


_EMPTY = {"sqlite": _no_file, "postgresql": _no_database, "redis": _no_keys}
