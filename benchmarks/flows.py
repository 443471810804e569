"""What a step of a flow costs beside a plain job: to add, and to claim and settle.

    python benchmarks/flows.py                       # a fresh SQLite file
    python benchmarks/flows.py --store postgresql    # or redis: a private, temporary server
    python benchmarks/flows.py --rounds 9

Plain jobs and flows take turns in one store. One JSON line for each kind of flow goes to standard
output: microseconds of processor time of a plain job and of a step, this process and the server
together, and their ratio, the median over the rounds with the lowest and the highest. A step may
cost 1.5 times what a plain job costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from harness import temporary_folder
from jobs_parts.processes import cpu_seconds
from jobs_parts.servers import Servers

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import Succeeded
from ergon_framework.jobs.claims import Claim, Settler
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.jobs.flow_results import hand_over
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.ports.jobstore import Settlement

STEPS = 1000
"""Jobs of one turn."""
SLOTS = 20
STEP = ("work", [1])
Pids = Callable[[], Sequence[int]]


def main() -> int:
    """Race each kind of flow against plain jobs, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--store", choices=["sqlite", "postgresql", "redis"], default="sqlite")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with _store(given.store) as (url, pids), closing(JobClient(url)) as client:
        for name, add in KINDS.items():
            found = {"store": given.store, "flow": name} | _race(client, add, pids, given.rounds)
            print(json.dumps(found), flush=True)
    return 0


def _add_plain(client: JobClient) -> None:
    client.enqueue_many([STEP] * STEPS)


def _add_group(client: JobClient) -> None:
    client.group([STEP] * (STEPS - 1), then=("work", [])).enqueue()


def _add_chains(client: JobClient) -> None:
    """Chains of ten, a hundred of them side by side in one commit."""
    chain = [STEP, *[("work", [])] * 9]
    client.group([client.chain(*chain) for _ in range(STEPS // 10)]).enqueue()


KINDS = {"group": _add_group, "chains": _add_chains}


def _race(
    client: JobClient, add_flow: Callable[[JobClient], None], pids: Pids, rounds: int
) -> dict[str, object]:
    times: dict[str, list[tuple[float, float]]] = {"add": [], "run": []}
    for turn in range(rounds + 1):
        pairs: dict[str, list[float]] = {"add": [], "run": []}
        order = (_add_plain, add_flow) if turn % 2 else (add_flow, _add_plain)
        for add in order:
            pairs["add"].append(_timed(lambda add=add: add(client), pids))
            pairs["run"].append(_timed(lambda: _run(client), pids))
        if turn == 0:  # caches, plans and connections of both are made then
            continue
        for name, (one, two) in pairs.items():
            times[name].append((one, two) if order[0] is _add_plain else (two, one))
    return {name: _summary(each) for name, each in times.items()}


def _summary(times: Sequence[tuple[float, float]]) -> dict[str, object]:
    ratios = [step / plain for plain, step in times]
    plain, step = (statistics.median(each) / STEPS * 1e6 for each in zip(*times, strict=True))
    return {
        "plain_us": round(plain, 1),
        "step_us": round(step, 1),
        "ratio": round(statistics.median(ratios), 2),
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def _run(client: JobClient) -> None:
    """Claim and settle as a worker does, until nothing is due."""
    store, settler = client.store, Settler(JobsSettings(), "bench")
    results = flows_of(store).results
    request = ClaimRequest(worker="bench", lease=60.0, slots={"python": SLOTS}, default="python")
    ended: list[Settlement] = []
    number = 0
    while True:
        claims = [Claim(job) for job in store.settle_and_claim(ended, request)[1].jobs]
        if not claims and not ended:
            break
        hand_over(claims, results)
        now = store.now()
        ended = [settler.settle_claim(each, Succeeded(), now, 0.001, b"1") for each in claims]
        number += len(claims)
    if number != STEPS:
        raise RuntimeError(f"{number} jobs ran instead of {STEPS}")


def _timed(call: Callable[[], object], pids: Pids) -> float:
    """Seconds of processor time of this process and of the server."""
    before = cpu_seconds([os.getpid(), *pids()])
    call()
    return cpu_seconds([os.getpid(), *pids()]) - before


@contextmanager
def _store(kind: str) -> Iterator[tuple[str, Pids]]:
    with temporary_folder("flows-bench-", None) as folder:
        if kind == "sqlite":
            yield f"sqlite:///{folder / 'jobs.db'}", list
            return
        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        servers = Servers(folder)
        name = {"postgresql": "postgres", "redis": "redis-always"}[kind]
        try:
            yield servers.url(name), lambda: servers.pids(name)
        finally:
            servers.stop()


if __name__ == "__main__":
    sys.exit(main())
