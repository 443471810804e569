"""What it costs to delete and to archive ended jobs beside many that are kept.

A private, temporary PostgreSQL or an SQLite file is filled with ended jobs whose time has not come,
and with some whose time has. One JSON line for each size goes to standard output: milliseconds of a
prune and of a read for the archive, of 500 jobs each, and of one claim and settlement; and of
PostgreSQL, how many of its blocks such a read touches, which no other load on the machine changes.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from harness import temporary_folder
from jobs_parts.servers import Servers

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import Succeeded
from ergon_framework.jobs.claims import Claim, Settler
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import FullJobStore, NewJob

BATCH = 500
ROUNDS = 40
_FIELDS = """
    stage, status, fence, changed_at, purge_at, queue, executor, priority, run_at, id, handler,
    created_at, args, kwargs, result, history
"""
_VALUES = """
    0, CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END, {first} + n, {now},
    {purge_at} + n * 0.001, 'queue-' || (n % 20), '', 0, {now}, 'kept-' || ({first} + n), 'work',
    {now}, {args}, {kwargs}, {result}, '{{"event":"completed","status":"completed"}}'
"""


def main() -> int:
    """Fill, measure, fill more, measure again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100000,1000000", help="how many jobs are kept")
    parser.add_argument("--store", choices=["postgresql", "sqlite"], default="postgresql")
    arguments = parser.parse_args()
    with _database(arguments.store) as (url, execute), closing(open_store(url)) as store:
        kept = 0
        for size in sorted(int(each) for each in arguments.sizes.split(",")):
            began = time.monotonic()
            _fill(execute, arguments.store, kept, size - kept, time.time() + 86_400.0)
            kept = size
            _fill(execute, arguments.store, 10**9 + size, 2 * ROUNDS * BATCH, 0.0)
            execute("ANALYZE ergon_jobs" if arguments.store == "postgresql" else "ANALYZE")
            found = {"kept": kept, "filled_in_s": round(time.monotonic() - began, 1)}
            if arguments.store == "postgresql":
                found["blocks"] = _blocks(execute)
            found |= {f"{name}_ms": each for name, each in _measured(store).items()}
            print(json.dumps(found), flush=True)
    return 0


def _measured(store: FullJobStore) -> dict[str, list[float]]:
    """The median and the slowest of each, in milliseconds."""
    settler, made = Settler(JobsSettings(), "bench"), iter(range(10**9))

    def archive() -> None:
        store.purge(store.ripe(BATCH))

    def one_job() -> None:
        store.add([NewJob(id=f"live-{time.monotonic_ns()}-{next(made)}", handler="work")])
        ask = ClaimRequest(worker="bench", lease=60.0, slots={"python": 1}, default="python")
        (job,) = store.settle_and_claim([], ask)[1].jobs
        end = settler.settle_claim(Claim(job), Succeeded(), store.now(), 0.1, b"1")
        store.settle_and_claim([end], None)

    return {
        "prune": _timed(lambda: store.prune(BATCH)),
        "archive": _timed(archive),
        "job": _timed(one_job),
    }


def _blocks(execute: Callable[[str], Any]) -> int:
    """Blocks of tables and indexes that the read of one slice for the archive touches."""
    from ergon_framework.jobs.stores.postgres.statements import statements

    text = statements("admin.sql")["ripe"].decode()
    text = text.replace("%(limit)s", str(BATCH)).replace("%(now)s", "NULL")
    ((plan,),) = execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}").fetchall()
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def _timed(call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return [round(statistics.median(times), 2), round(max(times), 2)]


def _fill(
    execute: Callable[[str], Any], kind: str, first: int, number: int, purge_at: float
) -> None:
    is_postgres = kind == "postgresql"
    texts = {"args": "'[1]'", "kwargs": "'{}'", "result": "'1'"}
    if is_postgres:
        texts = {name: f"{text}::bytea" for name, text in texts.items()}
    values = _VALUES.format(first=first, now=time.time(), purge_at=purge_at, **texts)
    source = (
        f"generate_series(1, {number}) AS n"
        if is_postgres
        else "(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s"  # noqa: S608
        f" WHERE n < {number}) SELECT n FROM s)"
    )
    execute(f"INSERT INTO ergon_jobs ({_FIELDS}) SELECT {values} FROM {source}")  # noqa: S608


@contextmanager
def _database(kind: str) -> Iterator[tuple[str, Callable[[str], Any]]]:
    with temporary_folder("retention-bench-", None) as folder:
        if kind == "sqlite":
            url = f"sqlite:///{folder / 'jobs.db'}"
            open_store(url).close()
            with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as connection:
                yield url, connection.execute
            return
        import psycopg

        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        servers = Servers(folder)
        try:
            url = servers.url("postgres")
            open_store(url).close()
            with psycopg.connect(url, autocommit=True) as connection:
                yield url, lambda text: connection.execute(text.encode())
        finally:
            servers.stop()


if __name__ == "__main__":
    sys.exit(main())
