"""What a claim costs in a queue that limits each of its keys, by the number of keys.

    python benchmarks/key_limits.py                                     # a fresh SQLite file
    python benchmarks/key_limits.py --url redis://localhost:6379/9      # an empty store
    python benchmarks/key_limits.py --keys 10 1000 100000 --claims 300

Every key has waiting jobs. First one job of each key runs, so that every key is used up and its
jobs wait apart; then rounds of settling ten jobs and claiming ten. Beside it, the same with keys
that are not used up, which take turns. One JSON object per line: microseconds per job, the median
of the rounds, by the clock and by the time of this process, which leaves out what disks and other
programs do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ergon_framework.core.job import JobRule, JobSnapshot, JobStatus, Succeeded, next_transition
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.jobstore import ClaimedJob, FullJobStore, NewJob, Settlement
from ergon_framework.testing.suites.jobstore.under_test import ask

BATCH = 1000
SLOTS = 10
JOBS = 30_000
"""Jobs that wait, at least: with few keys each has many of them."""


def main() -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("--url", help="an empty job store; default: a fresh SQLite file")
    options.add_argument("--keys", type=int, nargs="+", default=[10, 1_000, 100_000])
    options.add_argument("--claims", type=int, default=200)
    given = options.parse_args()
    for number in given.keys:
        with tempfile.TemporaryDirectory() as folder:
            url = given.url or f"sqlite:///{Path(folder) / 'jobs.db'}"
            client = JobClient(url)
            for case, most in (("used up", 1), ("in turn", 1_000_000)):
                queue = f"{case}-{number}".replace(" ", "-")
                client.store.set_queue(queue, key_max_active=most)
                times = _measure(client.store, queue, number, given.claims, is_full=most == 1)
                found = {"store": url.partition(":")[0], "case": case, "keys": number}
                print(json.dumps(found | times), flush=True)
            client.close()


def _measure(
    store: FullJobStore, queue: str, keys: int, claims: int, *, is_full: bool
) -> dict[str, float]:
    _fill(store, queue, keys, max(2 * keys, JOBS))
    request = ask(SLOTS, queues=(queue,), lease=3600.0)
    running: list[ClaimedJob] = []
    more = ask(BATCH, queues=(queue,), lease=3600.0)
    while is_full and len(running) < keys:
        found = store.settle_and_claim([], more)[1].jobs
        running += found
        if not found:
            break
    while is_full and store.settle_and_claim([], request)[1].next_at is not None:
        pass  # until every job of a key that is used up waits apart
    times: list[tuple[float, float]] = []
    for _ in range(claims):
        done = [_done(job) for job in running[:SLOTS]]
        del running[:SLOTS]
        took, jobs = _timed(lambda done=done: store.settle_and_claim(done, request)[1].jobs)
        running += jobs
        if jobs:
            times.append((took[0] / len(jobs), took[1] / len(jobs)))
    wall, cpu = (statistics.median(each) * 1e6 for each in zip(*times, strict=True))
    return {"us_per_job": round(wall, 1), "cpu_us_per_job": round(cpu, 1)}


def _fill(store: FullJobStore, queue: str, keys: int, jobs: int) -> None:
    for first in range(0, jobs, BATCH):
        store.add(
            [
                NewJob(id=f"{queue}-{n}", handler="work", queue=queue, limit_key=f"t{n % keys}")
                for n in range(first, min(first + BATCH, jobs))
            ]
        )


def _done(job: ClaimedJob) -> Settlement:
    seen = JobSnapshot(JobStatus.ACTIVE, job.attempts, job.deliveries, job.excused)
    transition = next_transition(seen, Succeeded(), JobRule())
    fields = {"expected": JobStatus.ACTIVE, "transition": transition, "keep": 60.0}
    return Settlement(key=job.key, id=job.id, fence=job.fence, entry=b"{}", **fields)


def _timed(
    call: Callable[[], list[ClaimedJob]],
) -> tuple[tuple[float, float], list[ClaimedJob]]:
    start, cpu = time.perf_counter(), time.process_time()
    found = call()
    return (time.perf_counter() - start, time.process_time() - cpu), found


if __name__ == "__main__":
    main()
