"""What people who watch the console cost a worker: its jobs per second with and without them.

    python benchmarks/watchers.py                       # 200 open pages
    python benchmarks/watchers.py --watchers 200 --reload

``ergon serve`` and a worker share an SQLite file. In each round a worker runs the same number of
jobs twice, once while nobody watches and once while so many streams of events are open; which comes
first changes. With ``--reload`` each watcher also loads the overview anew when its stream says so,
as a browser does whose window is in front. The watchers have the lowest priority, as people watch
from machines of their own. One JSON line for each round goes to standard output: jobs per second by
the clock, milliseconds of processor time of the worker and its executors for a job, and seconds of
processor time of the server in a second. The last line has the medians of the ratios: with watchers
to without them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from harness import temporary_folder
from jobs_parts.processes import cpu_seconds

from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob

HANDLERS = """\
from ergon_framework.executor import Registry

registry = Registry()


@registry.handler("work")
def work() -> None: ...
"""
SETTINGS = f"""\
[store]
url = "sqlite:///work.db"

[executors.python]
command = ["{sys.executable}", "-m", "ergon_framework.executor", "--app", "handlers:registry"]

[server]
port = 0
"""
ERGON = (sys.executable, "-m", "ergon_framework.cli")
LOWEST_PRIORITY = 19


def main() -> int:
    """Measure some rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, default=200, help="pages that are open")
    parser.add_argument("--reload", action="store_true", help="pages load themselves anew")
    parser.add_argument("--jobs", type=int, default=4000, help="jobs of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    ratios: dict[str, list[float]] = {"jobs_per_second": [], "worker_ms_per_job": []}
    with temporary_folder("watchers-bench-", None) as folder:
        (folder / "handlers.py").write_text(HANDLERS)
        (folder / "ergon.toml").write_text(SETTINGS)
        with served(folder) as (url, pid):
            for number in range(asked.rounds):
                turns: dict[int, dict[str, float]] = {}
                for watchers in (0, asked.watchers)[:: 1 if number % 2 else -1]:
                    with Watchers(url, watchers, reloads=asked.reload):
                        turns[watchers] = turn(folder, pid, asked.jobs)
                alone, watched = turns[0], turns[asked.watchers]
                for name, known in ratios.items():
                    known.append(watched[name] / alone[name])
                found = {"round": number + 1, "alone": alone, "watched": watched}
                print(json.dumps(found), flush=True)
    medians = {name: round(statistics.median(known), 3) for name, known in ratios.items()}
    about = {"watchers": asked.watchers, "reload": asked.reload, "load": os.getloadavg()[0]}
    print(json.dumps(about | {"ratios": medians}))
    return 0


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """A console over the store: its address and its process."""
    with subprocess.Popen(  # noqa: S603 - our own program
        [*ERGON, "serve"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            line = "" if process.stdout is None else process.stdout.readline()
            if not line:
                raise RuntimeError("ergon serve did not start")
            yield line.split()[-1], process.pid
        finally:
            process.terminate()


def turn(folder: Path, server: int, jobs: int) -> dict[str, float]:
    """A worker that runs so many jobs and ends, after all of them have been stored."""
    name = uuid4().hex
    with closing(open_store(f"sqlite:///{folder}/work.db")) as store:
        store.add([NewJob(id=f"{name}-{n}", handler="work") for n in range(jobs)])
    began, used, before = time.monotonic(), children_seconds(), cpu_seconds([server])
    subprocess.run(  # noqa: S603 - our own program
        [*ERGON, "worker", "--burst"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    took = time.monotonic() - began
    return {
        "jobs_per_second": round(jobs / busy_seconds(folder, name), 1),
        "worker_ms_per_job": round(1000 * (children_seconds() - used) / jobs, 4),
        "server_cpu": round((cpu_seconds([server]) - before) / took, 3),
    }


def busy_seconds(folder: Path, name: str) -> float:
    """From the first job that completed to the last one: the start of a worker is left out."""
    with closing(sqlite3.connect(folder / "work.db")) as connection:
        statement = "SELECT min(changed_at), max(changed_at) FROM ergon_jobs WHERE id GLOB ?"
        first, last = connection.execute(statement, (f"{name}-*",)).fetchone()
    return float(last - first)


def children_seconds() -> float:
    """Processor time of the children that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


class Watchers:
    """So many open pages, in a thread."""

    def __init__(self, url: str, number: int, *, reloads: bool) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 0
        self._number = number
        self._reloads = reloads
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._all(),))
        self._stop = asyncio.Event()

    def __enter__(self) -> None:
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the streams were not opened in time")

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _all(self) -> None:
        # People watch from machines of their own: readers take only what the worker leaves.
        with suppress(OSError):  # other systems than Linux have no priority of a thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        streams = [await self._ask("/console/events") for _ in range(self._number)]
        watching = [asyncio.ensure_future(self._watch(*each)) for each in streams]
        self._ready.set()
        await self._stop.wait()
        for each in watching:
            each.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    async def _ask(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        line = await reader.readline()
        if b" 200 " not in line:
            raise RuntimeError(f"{path}: {line!r}")
        return reader, writer

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while line := await reader.readline():
                if self._reloads and line.startswith(b"event: changed"):
                    with suppress(RuntimeError, OSError):  # a server that is busy says so
                        page, closes = await self._ask("/console")
                        with closing(closes):
                            await page.read()


if __name__ == "__main__":
    sys.exit(main())
