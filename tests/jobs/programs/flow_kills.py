"""Kills workers of flows at any moment, and counts what became of the steps.

    python flow_kills.py FILE KILLS STEPS SIBLINGS

Each flow is a group of so many siblings with a step after it, and one more after that. Four
processes claim and settle steps of them; one after another is killed and replaced. Prints a report
as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import LeaseExpired, Succeeded
from ergon_framework.jobs.claims import Claim, Settler
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Job, Search, Settlement

WORKERS = 4
LEASE = 0.4
DEADLINE = 900.0


def work(path: Path) -> None:
    """One worker: claims, settles, and rescues what the dead ones held, until it is killed."""
    store = SqliteJobStore(path)
    name = f"w-{os.getpid()}"
    settler = Settler(JobsSettings(max_deliveries=1_000), name)
    request = ClaimRequest(worker=name, lease=LEASE, slots={"python": 25}, default="python")
    told: list[Settlement] = []
    while True:
        lost = [
            settler.settle_stored(job, LeaseExpired(), store.now(), if_expired=True)
            for job in store.expired_leases(50)
        ]
        _, found = store.settle_and_claim([*told, *lost], request)
        now = store.now()
        told = [settler.settle_claim(Claim(job), Succeeded(), now, 0.0, b"1") for job in found.jobs]
        if not found.jobs:
            time.sleep(0.01)


def start(path: Path) -> int:
    """Fork a worker."""
    pid = os.fork()
    if pid == 0:
        try:
            work(path)
        finally:
            os._exit(1)
    return pid


def main(path: Path, kills: int, steps: int, siblings: int) -> None:
    """Enqueue, kill, wait for the end, and report."""
    dice = random.Random(steps)  # noqa: S311 - it says whom to kill
    with JobClient(store=SqliteJobStore(path)) as client:
        flows = [
            client.chain(client.group(["a"] * siblings, then="b"), "c").enqueue().id
            for _ in range(steps // siblings)
        ]
    workers = [start(path) for _ in range(WORKERS)]
    until = time.monotonic() + DEADLINE
    for _ in range(kills):
        time.sleep(dice.uniform(0.0, 0.05))
        doomed = workers.pop(dice.randrange(WORKERS))
        os.kill(doomed, signal.SIGKILL)
        os.waitpid(doomed, 0)
        workers.append(start(path))
    store = SqliteJobStore(path, read_only=True)
    while time.monotonic() < until and any(not _is_over(store, each) for each in flows):
        time.sleep(0.05)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not all(_is_over(store, each) for each in flows):
        sys.exit(f"the flows have not ended within {DEADLINE:g} s: that says nothing about steps")
    report = {"kills": kills, "flows": len(flows), "lost": 0, "twice": 0, "early": 0, "rescued": 0}
    for each in flows:
        _look(store, each, siblings, report)
    print(json.dumps(report))


def _is_over(store: SqliteJobStore, flow_id: str) -> bool:
    flow = store.flows.find(flow_id)
    return flow is not None and flow.status.is_final


def _look(store: SqliteJobStore, flow_id: str, siblings: int, report: dict[str, int]) -> None:
    jobs = {job.id: job for job in store.search(Search(flow=flow_id))}
    flow = store.flows.find(flow_id)
    events = {job.id: [json.loads(each)["event"] for each in job.history] for job in jobs.values()}
    report["lost"] += siblings + 2 - (0 if flow is None else flow.state.completed)
    report["rescued"] += sum(each.count("lost") for each in events.values())
    for job in jobs.values():
        # Every delivery ended in one event: one that was released twice has more of them.
        report["twice"] += events[job.id].count("completed") != 1
        report["twice"] += job.deliveries != len(events[job.id])
    then, last = jobs.pop(f"{flow_id}.{siblings + 1}"), jobs.pop(f"{flow_id}.{siblings + 2}")
    report["early"] += _end(then) < max(map(_end, jobs.values()))
    report["early"] += _end(last) < _end(then)


def _end(job: Job) -> float:
    """When it ended: soon after it was released, as every worker has free slots."""
    return job.finished_at or 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
