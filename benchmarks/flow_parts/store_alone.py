"""What the store takes of it: adding by a client, and claims and settlements without a worker."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence

from comparison import Record
from jobs_parts.processes import cpu_seconds

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import Succeeded
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.jobs.flow_results import hand_over
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.jobstore import Settlement
from flow_parts.kinds import STEPS, Add

SLOTS = 20
_NUMBERS = range(STEPS)
Pids = Callable[[], Sequence[int]]


def measure(client: JobClient, adds: tuple[Add, Add], server: Pids, rounds: int) -> Record:
    """Processor time of this process and of the server: of a plain job, and of a step by it."""
    times: dict[str, list[tuple[float, float]]] = {"add": [], "run": []}
    for turn in range(rounds + 1):
        pairs = {name: [0.0, 0.0] for name in times}
        for n in (0, 1) if turn % 2 else (1, 0):
            pairs["add"][n] = _timed(lambda add=adds[n]: add(client, _NUMBERS), server)
            pairs["run"][n] = _timed(lambda: _run(client), server)
        if turn == 0:  # caches, plans and connections of both are made then
            continue
        for name, (step, plain) in pairs.items():
            times[name].append((step, plain))
    return {f"{name}_alone": compared(each, STEPS) for name, each in times.items()}


def compared(times: Sequence[tuple[float, float]], number: int) -> Record:
    """Microseconds of a plain job and of a step, and the median of the ratios of all rounds."""
    ratios = [step / plain for step, plain in times]
    step, plain = (statistics.median(each) / number * 1e6 for each in zip(*times, strict=True))
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


def _timed(call: Callable[[], object], server: Pids) -> float:
    """Seconds of processor time of this process and of the server."""
    before = cpu_seconds([os.getpid(), *server()])
    call()
    return cpu_seconds([os.getpid(), *server()]) - before
