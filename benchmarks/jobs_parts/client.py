# ruff: noqa: D102 - the base class says what each method does
"""A contestant's client: a process of its own that enqueues when it is told to.

``python -m jobs_parts.client MODULE`` reads one JSON object per line and answers each with another.
Contestants keep their settings in module globals, so each has its own process; it lives for the
whole run, and sleeps while it is somebody else's turn.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from jobs_parts.run_file import RunFileReader

URL = "JOBS_BENCH_URL"
"""The variable with the address of the server, or the path of a file."""
CASE = "JOBS_BENCH_CASE"
"""The variable with the name of the case, for settings that depend on it."""
WORKERS = "JOBS_BENCH_WORKERS"
"""The variable with the number of workers, for who is asked to start more of them."""
STORE_NUMBER = "JOBS_BENCH_STORE_NUMBER"
"""The variable with the number of the contestant's store, when it has several."""
LONGEST_WAIT = 15.0
GAPS = 0.01, 0.05
"""Seconds of rest between two latency samples, so that workers fall asleep."""
FILL_BATCH = 1000
"""Jobs that one command or pipeline brings into a queue that is filled."""
T = TypeVar("T")


def url() -> str:
    """Where this contestant keeps its jobs."""
    return os.environ[URL]


def is_case(name: str) -> bool:
    """Whether this is what is measured."""
    return os.environ.get(CASE) == name


def workers() -> int:
    """How many workers to start."""
    return int(os.environ.get(WORKERS, "1"))


def store_number() -> int:
    """Which of its stores a contestant shall use."""
    return int(os.environ.get(STORE_NUMBER, "0"))


def clear(*databases: Any) -> None:
    """Empty Redis databases, once nobody waits for them: a worker that was killed may seem to."""
    until = time.monotonic() + 2.0
    while databases[0].info("clients")["blocked_clients"] and time.monotonic() < until:
        time.sleep(0.01)
    for each in databases:
        each.flushdb()


async def run_concurrently(
    one: Callable[[T], Awaitable[object]], items: Iterable[T], number: int
) -> None:
    """Do this with each of them, so many at a time."""
    left = iter(items)

    async def some() -> None:
        for item in left:
            await one(item)

    await asyncio.gather(*(some() for _ in range(number)))


class Peer:
    """What a contestant's module offers as ``Peer``. Jobs are numbered from 0."""

    def reset(self) -> None:
        """Begin with an empty queue and no results."""
        raise NotImplementedError

    def workers(self) -> list[list[str]]:
        """The commands that start its worker processes, with its best settings for the case."""
        raise NotImplementedError

    def enqueue(self, number: int) -> None:
        """Add one job."""
        raise NotImplementedError

    def waiting(self) -> int:
        """How many jobs are in the queue."""
        raise NotImplementedError

    def recorded(self) -> int:
        """How many jobs have ended well and have a kept result, or a kept final state."""
        raise NotImplementedError

    def enqueue_each(self, count: int) -> None:
        """Add jobs one by one, each acknowledged before the next."""
        for number in range(count):
            self.enqueue(number)

    def enqueue_many(self, count: int) -> None:
        """Add jobs in the fastest way its users have."""
        self.enqueue_each(count)

    def fill(self, first: int, count: int) -> None:
        """Add jobs from that number on by whatever means, its own format kept: nobody times it."""
        raise NotImplementedError

    def after_fill(self) -> None:
        """Called when the queue is as long as it shall be: let a planner know, where one plans."""

    def claim(self, count: int) -> None:
        """Take so many jobs, in the batches in which its workers take them."""
        raise NotImplementedError

    def settle(self, count: int) -> None:
        """End the jobs that were taken, as its workers do after a good run; the result is kept."""
        raise NotImplementedError

    def enqueue_threads(self, count: int) -> None:
        """Add jobs one by one from eight threads."""
        raise NotImplementedError

    def sample(self, number: int) -> int:
        """Add one job; answers the instant before."""
        began = time.monotonic_ns()
        self.enqueue(number)
        return began


class AsyncPeer(Peer):
    """The same for a client that lives in an event loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.run(self.open())

    def run(self, work: Awaitable[Any]) -> Any:
        """Do this in the loop, which stands still otherwise."""
        return self._runner.run(work)  # type: ignore[arg-type]

    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def add(self, number: int) -> None:
        """Add one job."""

    def enqueue(self, number: int) -> None:
        self.run(self.add(number))

    def enqueue_each(self, count: int) -> None:
        async def each() -> None:
            for number in range(count):
                await self.add(number)

        self.run(each())

    def sample(self, number: int) -> int:
        async def one() -> int:
            began = time.monotonic_ns()
            await self.add(number)
            return began

        return int(self.run(one()))


def _timed(peer: Peer, how: str, count: int) -> float:
    began = time.perf_counter()
    getattr(peer, how)(count)
    return time.perf_counter() - began


def _latencies(peer: Peer, path: str, count: int, warm: int) -> list[float]:
    """Milliseconds from just before the call that enqueues to the start of the handler."""
    reader, measured = RunFileReader(Path(path), count + warm), []
    for number in range(count + warm):
        time.sleep(random.uniform(*GAPS))  # noqa: S311 - so that no poller keeps step with us
        began = peer.sample(number)
        until = time.monotonic() + LONGEST_WAIT
        while not reader.instant(number):
            if time.monotonic() > until:
                raise TimeoutError(f"job {number} was not begun in {LONGEST_WAIT:g} s")
            time.sleep(0.001)
        measured.append((reader.instant(number) - began) / 1e6)
    return measured[warm:]


def _do(peer: Peer, asked: dict[str, Any]) -> Any:
    match asked.pop("do"):
        case "time":
            return _timed(peer, **asked)
        case "latencies":
            return _latencies(peer, **asked)
        case name:
            return getattr(peer, name)(**asked)


def main() -> None:
    """Answer until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contestant prints is no answer
    peer: Peer | None = None
    for line in sys.stdin:
        try:
            if peer is None:
                peer = importlib.import_module(f"jobs_parts.{sys.argv[1]}").Peer()
            answer = {"value": _do(peer, json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
