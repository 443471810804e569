"""Kills workers and clients of flows at any moment, and counts what became of the steps.

    python flow_kills.py STORE KILLS STEPS SIBLINGS

STORE is the URL of a job store. Each flow is a group of so many siblings with a step after it, and
one more after that. Four processes claim and settle steps of them, while another one adds more such
flows; one after another is killed and replaced. Prints a report as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import LeaseExpired, Succeeded
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Job, Search, Settlement

WORKERS = 4
LEASE = 0.4
DEADLINE = 900.0
CLIENTS = 5
"""Of so many that are killed, one is a client."""
MOST = 10_000


def work(url: str) -> None:
    """One worker: claims, settles, and rescues what the dead ones held, until it is killed."""
    store: Any = open_store(url)
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


def add(url: str, siblings: int) -> str:
    """One more flow."""
    with JobClient(store=open_store(url)) as client:
        return client.chain(client.group(["a"] * siblings, then="b"), "c").enqueue().id


def start(call: Callable[[], object]) -> int:
    """Fork a process."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
            time.sleep(DEADLINE)  # it is killed
        finally:
            os._exit(1)
    return pid


def kill(pid: int) -> None:
    """End a process at once."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main(url: str, kills: int, steps: int, siblings: int) -> None:
    """Enqueue, kill, wait for the end, and report."""
    dice = random.Random(steps)  # noqa: S311 - it says whom to kill
    flows = [add(url, siblings) for _ in range(steps // siblings)]
    workers = [start(lambda: work(url)) for _ in range(WORKERS)]
    client = start(lambda: add(url, siblings))
    for number in range(kills):
        time.sleep(dice.uniform(0.0, 0.05))
        if number % CLIENTS == 0:
            kill(client)
            client = start(lambda: add(url, siblings))
        else:
            kill(workers.pop(dice.randrange(WORKERS)))
            workers.append(start(lambda: work(url)))
    kill(client)
    store: Any = open_store(url, read_only=True)
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until and not _are_over(store):
        time.sleep(0.05)
    for pid in workers:
        kill(pid)
    if not _are_over(store):
        sys.exit(f"the flows have not ended within {DEADLINE:g} s: that says nothing about steps")
    found = [flow.id for flow in store.flows.search((), MOST)]
    names = ("lost", "twice", "early", "half", "rescued")
    report = {"kills": kills, "flows": len(flows), **dict.fromkeys(names, 0)}
    report["lost"] += len(set(flows) - set(found)) * (siblings + 2)
    for each in found:
        _look(store, each, siblings, report)
    report["half"] += store.count(Search()) - len(found) * (siblings + 2)
    print(json.dumps(report))


def _are_over(store: Any) -> bool:
    return all(flow.status.is_final for flow in store.flows.search((), MOST))


def _look(store: Any, flow_id: str, siblings: int, report: dict[str, int]) -> None:
    jobs = {job.id: job for job in store.search(Search(flow=flow_id))}
    flow = store.flows.find(flow_id)
    events = {job.id: [json.loads(each)["event"] for each in job.history] for job in jobs.values()}
    report["lost"] += siblings + 2 - (0 if flow is None else flow.state.completed)
    report["half"] += siblings + 2 - len(jobs)
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
    main(sys.argv[1], *map(int, sys.argv[2:5]))
