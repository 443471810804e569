"""What a user pays: jobs from a client, through a worker and its executor, until all have ended."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comparison import ContestantError, Record
from jobs_parts import run_file
from jobs_parts.processes import (
    StartedProcess,
    cpu_seconds,
    environment,
    process_tree,
    wait_until,
)

from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.flow_client import flows_of
from ergon_framework.ports.jobstore import Search
from flow_parts.kinds import KINDS, STEPS, Add
from flow_parts.store_alone import Pids, compared

IN_FLIGHT = 1000
LONGEST = 120.0
WARMUP = 2
"""Turns before those that count: the worker, its executor and the server grow warm."""
_POLL = 0.002
_WHO = ("client", "worker", "executor", "server")
_RUNNING = Search(statuses=(JobStatus.ACTIVE,))
_HANDLERS = "flow_parts.step_app:registry"


class WorkerRun:
    """A worker with one executor, which runs what is added to a store."""

    def __init__(self, url: str, folder: Path, server: Pids, *, calls: int, turns: int) -> None:
        self._url = url
        self._folder = folder
        self._server = server
        self.number = calls * STEPS
        """Jobs of one turn."""
        self._next = 0
        run_file.create(folder / "runs", self.number * turns)
        self._reader = run_file.RunFileReader(folder / "runs", self.number * turns)

    @contextmanager
    def worker(self) -> Iterator[StartedProcess]:
        """A worker of this store, in a process of its own."""
        settings = self._folder / "ergon.toml"
        command = [sys.executable, "-m", "ergon_framework.executor", "--app", _HANDLERS]
        settings.write_text(
            f'[store]\nurl = "{self._url}"\n\n[executors.python]\n'
            f"command = {json.dumps(command)}\npool_size = 1\nmax_in_flight = {IN_FLIGHT}\n"
        )
        command = [sys.executable, "-m", "ergon_framework.cli", "worker", "--config", str(settings)]
        env = environment(**{run_file.PATH: str(self._folder / "runs")})
        worker = StartedProcess(command, env, self._folder / "worker.log")
        try:
            yield worker
        finally:
            worker.stop()

    def turn(self, client: JobClient, add: Add, worker: StartedProcess) -> dict[str, float]:
        """Add jobs in several calls while the worker runs them; seconds of everybody, and all."""
        first, last = self._next, self._next + self.number
        self._next = last
        before, began = self._times(worker), time.perf_counter()
        own = cpu_seconds([os.getpid()])
        for start in range(first, last, STEPS):
            add(client, range(start, start + STEPS))
        own = cpu_seconds([os.getpid()]) - own
        self._await(worker, lambda: self._reader.ran() >= last)
        self._await(worker, lambda: client.store.count(_RUNNING) == 0)
        wall = time.perf_counter() - began
        found = {
            who: end - begin
            for who, begin, end in zip(_WHO[1:], before, self._times(worker), strict=True)
        }
        return {"client": own, **found, "cpu": own + sum(found.values()), "wall": wall}

    def check(self, client: JobClient) -> None:
        """Every job ran once, and every flow has completed."""
        mismatch = self._reader.mismatch()
        if mismatch is not None:
            raise ContestantError(mismatch)
        others = [each for each in FlowStatus if each is not FlowStatus.COMPLETED]
        if flows_of(client.store).search(others, 1):
            raise ContestantError("a flow has not completed")

    def _times(self, worker: StartedProcess) -> list[float]:
        main, *children = process_tree(worker.pid)
        return [cpu_seconds([main]), cpu_seconds(children), cpu_seconds(self._server())]

    def _await(self, worker: StartedProcess, true: Callable[[], bool]) -> None:
        if not wait_until(lambda: worker.is_over() or true(), LONGEST, _POLL) or worker.is_over():
            raise ContestantError(f"jobs are left, or the worker ended: {worker.log_tail()}")


def measure(
    client: JobClient, run: WorkerRun, names: Sequence[str], rounds: int
) -> Iterator[Record]:
    """The ratio of each kind of flow, by processor time and by the clock."""
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in names}
    with run.worker() as worker:
        for turn in range(rounds + WARMUP):
            for name in names:
                pair: list[dict[str, float]] = [{}, {}]
                for n in (0, 1) if turn % 2 else (1, 0):
                    pair[n] = run.turn(client, KINDS[name][n], worker)
                if turn >= WARMUP:
                    found[name].append(pair)
        run.check(client)
    for name, pairs in found.items():
        ratios = {
            what: compared([(step[what], plain[what]) for step, plain in pairs], run.number)
            for what in ("cpu", "wall")
        }
        parts = {f"{who}_us": [_median(pairs, n, who, run.number) for n in (1, 0)] for who in _WHO}
        yield {"flow": name, **ratios, **parts, "rounds": len(pairs)}


def _median(pairs: Sequence[Sequence[dict[str, float]]], n: int, who: str, number: int) -> float:
    return round(statistics.median(pair[n][who] for pair in pairs) / number * 1e6, 1)
