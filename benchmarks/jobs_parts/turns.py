"""One turn of one contestant: start with nothing, do the work, check that it was done, clean up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comparison import Turn

from jobs_parts import run_file
from jobs_parts.queue_systems import FailedError, Seat
from jobs_parts.processes import Started, cpu_seconds, family, resident_bytes

WARM = 0.1
"""The part of a drain that passes before the clock starts: workers come up one after the other."""
STARTUP, STALL = 20.0, 10.0
LOOK = 0.002
PARTING = 0.25
"""Seconds a worker has to leave; all is recorded by then, so nothing is lost by killing it."""


def drain(seat: Seat, count: int) -> Turn:
    """From a full queue until the last result is kept."""
    seat.ask("reset")
    marked = new_marks(seat, count)
    seat.ask("enqueue_many", count=count)
    reader = run_file.Reader(marked, count)
    with running(seat, marked) as workers:
        await_jobs(reader, 1, STARTUP, workers)
        began_with = await_jobs(reader, int(count * WARM), STALL, workers)
        pids = [pid for worker in workers for pid in family(worker.pid)]
        burnt, began = cpu_seconds(pids), time.perf_counter()
        await_jobs(reader, count, STALL, workers)
        ended = await_records(seat, count)
        burnt = cpu_seconds(pids) - burnt
        facts = {"resident_mib": round(resident_bytes(workers[0].pid) / 2**20, 1)}
    flaw = reader.flaw()
    if flaw is not None:
        raise FailedError(flaw)
    return Turn(count - began_with, ended - began, (), burnt, facts)


def enqueue(seat: Seat, how: str, count: int) -> Turn:
    """Into an empty queue nobody works on."""
    seat.ask("reset")
    seconds = float(seat.ask("time", how=how, count=count))
    found = seat.ask("waiting")
    if found != count:
        raise FailedError(f"{found} of {count} jobs are in the queue")
    return Turn(count, seconds)


def latencies(seat: Seat, count: int, warm: int = 3) -> Turn:
    """From enqueue to the start of the handler in a worker that is idle."""
    seat.ask("reset")
    marked = new_marks(seat, count + warm)
    with running(seat, marked, stamps=True):
        taken = [
            each / 1e3 for each in seat.ask("latencies", path=str(marked), count=count, warm=warm)
        ]
    return Turn(count, sum(taken), taken)


def idle(seat: Seat, seconds: float) -> Turn:
    """What workers use while there is nothing to do."""
    seat.ask("reset")
    marked = new_marks(seat, 1)
    with running(seat, marked) as workers:
        seat.ask("enqueue", number=0)
        await_jobs(run_file.Reader(marked, 1), 1, STARTUP, workers)
        time.sleep(1.0)  # what follows a start is not idling
        pids = [pid for worker in workers for pid in family(worker.pid)]
        before, began = cpu_seconds(pids), time.perf_counter()
        time.sleep(seconds)
        return Turn(1, time.perf_counter() - began, (), cpu_seconds(pids) - before)


def resident_mib(seat: Seat, queued: int, ran: int = 1000) -> float:
    """The worker's resident set when it has run some of the jobs of a long queue."""
    seat.ask("reset")
    marked = new_marks(seat, queued)
    seat.ask("enqueue_many", count=queued)
    with running(seat, marked) as workers:
        await_jobs(run_file.Reader(marked, queued), min(ran, queued), STARTUP, workers)
        return resident_bytes(workers[0].pid) / 2**20


@contextmanager
def running(seat: Seat, marked: Path, *, stamps: bool = False) -> Iterator[list[Started]]:
    """The contestant's workers, ended by their ids at the end."""
    workers = seat.start_workers(marked, stamps=stamps)
    try:
        yield workers
    except FailedError as error:
        words = workers[0].last_words()
        raise FailedError(f"{error} ({words})" if words else str(error)) from None
    finally:
        for worker in workers:
            worker.stop(PARTING)


def await_jobs(reader: run_file.Reader, count: int, seconds: float, workers: list[Started]) -> int:
    """Wait until that many jobs ran, or none for so many seconds; how many they are by now."""
    ran, until = 0, time.monotonic() + seconds
    while (now := reader.ran()) < count:
        if now > ran:
            ran, until = now, time.monotonic() + seconds
        if time.monotonic() > until:
            raise FailedError(f"{now} of {count} jobs ran, and then none for {seconds:g} s")
        if any(worker.is_over() for worker in workers):
            raise FailedError(f"a worker ended after {now} of {count} jobs")
        time.sleep(LOOK)
    return now


def await_records(seat: Seat, count: int) -> float:
    """Wait until all jobs have ended in the contestant's own books; when that was."""
    until = time.monotonic() + STARTUP
    while True:
        asked = time.perf_counter()
        found = seat.ask("recorded")
        if found == count:
            return asked
        if time.monotonic() > until:
            raise FailedError(f"{found} of {count} results are kept")
        time.sleep(LOOK)


def new_marks(seat: Seat, count: int) -> Path:
    """A file of its own for each turn, so that a worker that lingers leaves nothing in it."""
    path = seat.folder / f"marks-{time.monotonic_ns()}"
    run_file.create(path, count)
    return path
