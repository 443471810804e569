"""Processor time of a page of the console, with many jobs in many queues.

    python benchmarks/console.py                                    # SQLite, 10^4 and 10^6 jobs
    python benchmarks/console.py --store postgresql --jobs 1000000 --queues 10000
    python benchmarks/console.py --store redis --jobs 100000

A private, temporary store is filled with jobs: of ten in a queue, five have completed, one has
given up, one was cancelled, two are due and one waits for its time; in Redis, all are due. One JSON
line for each number of jobs goes to standard output: for each page the median and the largest
processor time of the server in milliseconds, that of the database's processes included where there
are any. Every request takes a new look at the store; what several would share is not shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
from harness import temporary_folder
from jobs_parts.filled_store import database, without_indexes
from jobs_parts.processes import cpu_seconds
from jobs_parts.servers import Servers

from ergon_framework.app.settings import load_settings
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.web.application import create_app

ROUNDS = 10
PAGES = (
    "/console",
    "/console/queues",
    "/console/queues?after=queue-05000",
    "/console/jobs",
    "/console/jobs?status=failed",
    "/console/jobs?queue=queue-00007",
    "/console/dead-letters",
    "/console/jobs/job-77",
    "/api/v1/queues",
    "/api/v1/jobs",
)
_FIELDS = """
    stage, status, fence, changed_at, queue, executor, priority, run_at, id, handler, created_at,
    args, kwargs, purge_at, history
"""
_VALUES = """
    CASE WHEN k < 7 THEN 0 WHEN k < 9 THEN 2 ELSE 3 END,
    CASE WHEN k < 5 THEN 'completed' WHEN k = 5 THEN 'failed' WHEN k = 6 THEN 'cancelled'
        ELSE 'pending' END,
    0, {now}, 'queue-' || {padded}, '', 0, {now} + CASE WHEN k = 9 THEN 86400 ELSE 0 END,
    'job-' || n, 'work', {now}, {args}, {kwargs},
    CASE WHEN k < 7 THEN {now} + 86400 END, '{{"event":"seen"}}'
"""


def main() -> int:
    """Fill, measure, fill more, measure again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="10000,1000000", help="how many jobs, one after another")
    parser.add_argument("--queues", type=int, default=10_000, help="in how many queues")
    parser.add_argument("--store", choices=["sqlite", "postgresql", "redis"], default="sqlite")
    arguments = parser.parse_args()
    for jobs in (int(each) for each in arguments.jobs.split(",")):
        began = time.monotonic()
        with _filled(arguments.store, jobs, arguments.queues) as (url, pids):
            found: dict[str, Any] = {"store": arguments.store, "jobs": jobs}
            found |= {"queues": arguments.queues, "filled_in_s": round(time.monotonic() - began, 1)}
            print(json.dumps(found | {"cpu_ms": _measured(url, pids)}), flush=True)
    return 0


@contextmanager
def _filled(kind: str, jobs: int, queues: int) -> Iterator[tuple[str, Callable[[], Sequence[int]]]]:
    if kind == "redis":
        with temporary_folder("console-bench-", None) as folder:
            servers = Servers(folder)
            try:
                url = servers.url("redis") + "?persistence=none"
                _add(url, jobs, queues)
                yield url, lambda: servers.pids("redis")
            finally:
                servers.stop()
        return
    with database(kind, "console-bench-") as (url, execute):
        with without_indexes(execute, kind):
            _insert(execute, kind, jobs, queues)
        execute("VACUUM ANALYZE ergon_jobs" if kind == "postgresql" else "ANALYZE")
        yield url, _backends(execute) if kind == "postgresql" else tuple


def _backends(execute: Callable[[str], Any]) -> Callable[[], Sequence[int]]:
    """The processes of the server that work for somebody."""
    return lambda: [
        pid
        for (pid,) in execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchall()
    ]


def _insert(execute: Callable[[str], Any], kind: str, jobs: int, queues: int) -> None:
    is_postgres = kind == "postgresql"
    in_bytes = "bytea" if is_postgres else "blob"
    padded = "lpad((n / 10 % {0})::text, 5, '0')" if is_postgres else "printf('%05d', n / 10 % {0})"
    values = _VALUES.format(
        now=time.time(),
        padded=padded.format(queues),
        args=f"CAST('[1]' AS {in_bytes})",
        kwargs=f"CAST('{{}}' AS {in_bytes})",
    )
    source = (
        f"(SELECT n, n % 10 AS k FROM generate_series(1, {jobs}) AS n) AS s"  # noqa: S608
        if is_postgres
        else "(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s"  # noqa: S608
        f" WHERE n < {jobs}) SELECT n, n % 10 AS k FROM s)"
    )
    execute(f"INSERT INTO ergon_jobs ({_FIELDS}) SELECT {values} FROM {source}")  # noqa: S608


def _add(url: str, jobs: int, queues: int) -> None:
    """Jobs that wait: those of Redis are not made by SQL."""
    with closing(open_store(url)) as store:
        for first in range(1, jobs + 1, 5_000):
            numbers = range(first, min(first + 5_000, jobs + 1))
            store.add(
                [
                    NewJob(id=f"job-{n}", handler="work", queue=f"queue-{n // 10 % queues:05}")
                    for n in numbers
                ]
            )


def _measured(url: str, pids: Callable[[], Sequence[int]]) -> dict[str, list[float]]:
    """The median and the largest processor time of each page, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ergon.toml"
        file.write_text(f'[store]\nurl = "{url}"\n')
        app = create_app(settings=load_settings(file, {}))
        return {path: _of_page(app, path, pids) for path in PAGES}


def _of_page(app: Any, path: str, pids: Callable[[], Sequence[int]]) -> list[float]:
    async def ask() -> None:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get(path)
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:300]}")

    asyncio.run(ask())  # templates and statements are compiled once
    times = []
    for _ in range(ROUNDS):
        known = pids()
        began = time.process_time() + cpu_seconds(known)
        # An event loop of its own: no other request has just looked, and shares what it saw.
        asyncio.run(ask())
        times.append((time.process_time() + cpu_seconds(known) - began) * 1000)
    return [round(statistics.median(times), 1), round(max(times), 1)]


if __name__ == "__main__":
    sys.exit(main())
