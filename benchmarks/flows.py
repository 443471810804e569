"""What a step of a flow costs beside a plain job, from the client to its end.

    python benchmarks/flows.py                       # a fresh SQLite file
    python benchmarks/flows.py --store postgresql    # or redis: a private, temporary server
    python benchmarks/flows.py --rounds 9
    python benchmarks/flows.py --alone               # the store alone, without a worker

A client adds flows, and as many plain jobs in as many commits, in turns; a worker with one executor
runs them meanwhile. One JSON line for each kind of flow goes to standard output. Its ``cpu`` is the
processor time of a plain job and of a step in microseconds, of all processes together: client,
worker, executor and server. Those are told by themselves, too, a plain job first. ``wall`` is the
same by the clock, from the first call to the end of the last job. ``ratio`` is the median over the
rounds, with the lowest and the highest: a step may cost 1.5 times what a plain job costs.
``add_alone`` and ``run_alone`` are what the client and the store take of it when the same calls are
made without a worker.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from comparison import Record
from flow_parts import store_alone, worker_run
from flow_parts.kinds import KINDS
from flow_parts.store_alone import Pids
from flow_parts.worker_run import WARMUP, WorkerRun
from harness import temporary_folder
from jobs_parts.servers import Servers

from ergon_framework.jobs import JobClient

CALLS = 10
"""Calls of one turn, each of which adds a thousand jobs."""
TARGET = 1.5


def main() -> int:
    """Race each kind of flow against plain jobs, and print what was found."""
    given = _options()
    names = given.flow or list(KINDS)
    with _store(given.store) as (url, folder, server), closing(JobClient(url)) as client:
        records: list[Record] = [{"flow": name} for name in names]
        if not given.alone:
            turns = 2 * (given.rounds + WARMUP) * len(names)
            run = WorkerRun(url, folder, server, calls=given.calls, turns=turns)
            records = list(worker_run.measure(client, run, names, given.rounds))
        for record in records:
            alone = store_alone.measure(client, KINDS[record["flow"]], server, given.rounds)
            found = {"store": given.store, **record, **alone}
            if "cpu" in found:
                found["met"] = max(found["cpu"]["ratio"], found["wall"]["ratio"]) <= TARGET
            print(json.dumps(found), flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--store", choices=["sqlite", "postgresql", "redis"], default="sqlite")
    parser.add_argument("--flow", action="append", choices=list(KINDS), help="repeatable")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=CALLS, help="of a thousand jobs, in a turn")
    parser.add_argument("--alone", action="store_true", help="the store alone, without a worker")
    return parser.parse_args()


@contextmanager
def _store(kind: str) -> Iterator[tuple[str, Path, Pids]]:
    with temporary_folder("flows-bench-", None) as folder:
        if kind == "sqlite":
            yield f"sqlite:///{folder / 'jobs.db'}", folder, list
            return
        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        servers = Servers(folder)
        name = {"postgresql": "postgres", "redis": "redis-always"}[kind]
        try:
            yield servers.url(name), folder, lambda: servers.pids(name)
        finally:
            servers.stop()


if __name__ == "__main__":
    sys.exit(main())
