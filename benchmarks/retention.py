"""What it costs to delete, to archive and to work beside many ended jobs that are kept.

    python benchmarks/retention.py                                  # PostgreSQL, up to 10^6
    python benchmarks/retention.py --sizes 100000,1000000,10000000  # 10 GB in a temporary folder
    python benchmarks/retention.py --store sqlite

A private, temporary PostgreSQL or an SQLite file is filled with ended jobs whose time has not come,
and with some whose time has. One JSON line for each size goes to standard output: the median and
the slowest, in milliseconds, of a prune and of a read for the archive, of 500 jobs each; of 100
jobs that are added, of as many that are claimed and that end; of one job from its enqueue to its
end; and of the counts of all queues. Of PostgreSQL, also how many of its blocks a read for the
archive touches, which no other load on the machine changes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from jobs_parts.filled_store import database, without_indexes

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import Succeeded
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.newjob import new_id
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import ClaimedJob, FullJobStore, NewJob

BATCH = 500
ROUNDS = 40
LIVE = 100
"""Jobs of one commit beside those that have ended."""
COUNTS = 5
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
    with (
        database(arguments.store, "retention-bench-") as (url, execute),
        closing(open_store(url)) as store,
    ):
        kept = 0
        for size in sorted(int(each) for each in arguments.sizes.split(",")):
            began = time.monotonic()
            with without_indexes(execute, arguments.store):
                _fill(execute, arguments.store, kept, size - kept, time.time() + 86_400.0)
                kept = size
                _fill(execute, arguments.store, 10**9 * (1 + size), 2 * ROUNDS * BATCH, 0.0)
            execute("ANALYZE ergon_jobs" if arguments.store == "postgresql" else "ANALYZE")
            found = {"kept": kept, "filled_in_s": round(time.monotonic() - began, 1)}
            if arguments.store == "postgresql":
                found["blocks"] = _blocks(execute)
            found |= {f"{name}_ms": each for name, each in _measured(store).items()}
            print(json.dumps(found), flush=True)
    return 0


def _measured(store: FullJobStore) -> dict[str, list[float]]:
    """The median and the slowest of each, in milliseconds."""
    work = _Work(store)
    return {
        "prune": _timed(lambda: store.prune(BATCH)),
        "archive": _timed(lambda: store.purge(store.prunable(BATCH))),
        "add": _timed(work.add),
        "claim": _timed(work.claim),
        "settle": _timed(work.settle),
        "job": _timed(work.one_job),
        "counts": _timed(store.queues, COUNTS),
    }


class _Work:
    """What clients and workers do meanwhile, and what one round of it takes."""

    def __init__(self, store: FullJobStore) -> None:
        self._store = store
        self._settler = Settler(JobsSettings(), "bench")
        self._claimed: list[list[ClaimedJob]] = []

    def add(self, number: int = LIVE) -> None:
        """Add jobs in one commit."""
        self._store.add([NewJob(id=f"live-{new_id()}", handler="work") for _ in range(number)])

    def claim(self, number: int = LIVE) -> None:
        """Claim as many."""
        ask = ClaimRequest(worker="bench", lease=600.0, slots={"python": number}, default="python")
        jobs = self._store.settle_and_claim([], ask)[1].jobs
        if len(jobs) != number:
            raise RuntimeError(f"{len(jobs)} jobs were claimed instead of {number}")
        self._claimed.append(jobs)

    def settle(self) -> None:
        """End as many."""
        jobs, now = self._claimed.pop(), self._store.now()
        ends = [self._settler.settle_claim(Claim(job), Succeeded(), now, 0.1, b"1") for job in jobs]
        if not all(self._store.settle_and_claim(ends, None)[0]):
            raise RuntimeError("a settlement was not applied")

    def one_job(self) -> None:
        """One job from its enqueue to its end, three commits."""
        self.add(1)
        self.claim(1)
        self.settle()


def _blocks(execute: Callable[[str], Any]) -> int:
    """Blocks of tables and indexes that the read of one slice for the archive touches."""
    from ergon_framework.jobs.stores.postgres.statements import statements

    text = statements("admin.sql")["ripe"].decode()
    text = text.replace("%(limit)s", str(BATCH)).replace("%(now)s", "NULL")
    ((plan,),) = execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}").fetchall()
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def _timed(call: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return [round(statistics.median(times), 2), round(max(times), 2)]


def _fill(
    execute: Callable[[str], Any], kind: str, first: int, number: int, purge_at: float
) -> None:
    is_postgres = kind == "postgresql"
    kind_of_bytes = "bytea" if is_postgres else "blob"
    texts = {"args": "'[1]'", "kwargs": "'{}'", "result": "'1'"}
    texts = {name: f"CAST({text} AS {kind_of_bytes})" for name, text in texts.items()}
    values = _VALUES.format(first=first, now=time.time(), purge_at=purge_at, **texts)
    source = (
        f"generate_series(1, {number}) AS n"
        if is_postgres
        else "(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s"  # noqa: S608
        f" WHERE n < {number}) SELECT n FROM s)"
    )
    execute(f"INSERT INTO ergon_jobs ({_FIELDS}) SELECT {values} FROM {source}")  # noqa: S608


if __name__ == "__main__":
    sys.exit(main())
