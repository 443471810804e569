"""One turn of one contestant: start with nothing, do the work, check that it was done, clean up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comparison import Turn

from jobs_parts import run_file
from jobs_parts.processes import StartedProcess, cpu_seconds, process_tree, resident_bytes
from jobs_parts.queue_systems import ClientProcess, ContestantError

WARMUP = 0.1
"""The part of a drain that passes before the clock starts: workers come up one after the other."""
STARTUP_TIMEOUT, STALL_TIMEOUT = 20.0, 10.0
POLL_INTERVAL = 0.002
STOP_GRACE = 0.25
"""Seconds a worker has to leave; all is recorded by then, so nothing is lost by killing it."""


def drain(queue_client: ClientProcess, count: int) -> Turn:
    """From a full queue until the last result is kept."""
    queue_client.call("reset")
    run_path = new_run_file(queue_client, count)
    queue_client.call("enqueue_many", count=count)
    reader = run_file.RunFileReader(run_path, count)
    with running_workers(queue_client, run_path) as workers:
        wait_for_jobs(reader, 1, STARTUP_TIMEOUT, workers)
        began_with = wait_for_jobs(reader, int(count * WARMUP), STALL_TIMEOUT, workers)
        pids = [pid for worker in workers for pid in process_tree(worker.pid)]
        cpu_time, began = cpu_seconds(pids), time.perf_counter()
        wait_for_jobs(reader, count, STALL_TIMEOUT, workers)
        ended = wait_for_results(queue_client, count)
        cpu_time = cpu_seconds(pids) - cpu_time
        extra = {"resident_mib": round(resident_bytes(workers[0].pid) / 2**20, 1)}
    mismatch = reader.mismatch()
    if mismatch is not None:
        raise ContestantError(mismatch)
    return Turn(count - began_with, ended - began, (), cpu_time, extra)


def enqueue(queue_client: ClientProcess, how: str, count: int) -> Turn:
    """Into an empty queue nobody works on; with the processor time of its client alone."""
    queue_client.call("reset")
    cpu_time = cpu_seconds([queue_client.pid])
    seconds = float(queue_client.call("time", how=how, count=count))
    cpu_time = cpu_seconds([queue_client.pid]) - cpu_time
    found = queue_client.call("waiting")
    if found != count:
        raise ContestantError(f"{found} of {count} jobs are in the queue")
    return Turn(count, seconds, (), cpu_time)


def latencies(queue_client: ClientProcess, count: int, warm: int = 3) -> Turn:
    """From enqueue to the start of the handler in a worker that is idle."""
    queue_client.call("reset")
    run_path = new_run_file(queue_client, count + warm)
    with running_workers(queue_client, run_path, timestamps=True):
        measured = [
            each / 1e3
            for each in queue_client.call("latencies", path=str(run_path), count=count, warm=warm)
        ]
    return Turn(count, sum(measured), measured)


def idle(queue_client: ClientProcess, seconds: float) -> Turn:
    """What workers use while there is nothing to do."""
    queue_client.call("reset")
    run_path = new_run_file(queue_client, 1)
    with running_workers(queue_client, run_path) as workers:
        queue_client.call("enqueue", number=0)
        wait_for_jobs(run_file.RunFileReader(run_path, 1), 1, STARTUP_TIMEOUT, workers)
        time.sleep(1.0)  # what follows a start is not idling
        pids = [pid for worker in workers for pid in process_tree(worker.pid)]
        before, began = cpu_seconds(pids), time.perf_counter()
        time.sleep(seconds)
        return Turn(1, time.perf_counter() - began, (), cpu_seconds(pids) - before)


def resident_mib(queue_client: ClientProcess, queued: int, ran: int = 1000) -> float:
    """The worker's resident set when it has run some of the jobs of a long queue."""
    queue_client.call("reset")
    run_path = new_run_file(queue_client, queued)
    queue_client.call("enqueue_many", count=queued)
    with running_workers(queue_client, run_path) as workers:
        wait_for_jobs(
            run_file.RunFileReader(run_path, queued), min(ran, queued), STARTUP_TIMEOUT, workers
        )
        return resident_bytes(workers[0].pid) / 2**20


@contextmanager
def running_workers(
    queue_client: ClientProcess, run_path: Path, *, timestamps: bool = False
) -> Iterator[list[StartedProcess]]:
    """The contestant's workers, ended by their ids at the end."""
    workers = queue_client.start_workers(run_path, timestamps=timestamps)
    try:
        yield workers
    except ContestantError as error:
        tail = workers[0].log_tail()
        raise ContestantError(f"{error} ({tail})" if tail else str(error)) from None
    finally:
        for worker in workers:
            worker.stop(STOP_GRACE)


def wait_for_jobs(
    reader: run_file.RunFileReader, count: int, seconds: float, workers: list[StartedProcess]
) -> int:
    """Wait until that many jobs ran, or none for so many seconds; how many they are by now."""
    ran, until = 0, time.monotonic() + seconds
    while (now := reader.ran()) < count:
        if now > ran:
            ran, until = now, time.monotonic() + seconds
        if time.monotonic() > until:
            raise ContestantError(f"{now} of {count} jobs ran, and then none for {seconds:g} s")
        if any(worker.is_over() for worker in workers):
            raise ContestantError(f"a worker ended after {now} of {count} jobs")
        time.sleep(POLL_INTERVAL)
    return now


def wait_for_results(queue_client: ClientProcess, count: int) -> float:
    """Wait until all jobs have ended in the contestant's own books; when that was."""
    until = time.monotonic() + STARTUP_TIMEOUT
    while True:
        asked = time.perf_counter()
        found = queue_client.call("recorded")
        if found == count:
            return asked
        if time.monotonic() > until:
            raise ContestantError(f"{found} of {count} results are kept")
        time.sleep(POLL_INTERVAL)


def new_run_file(queue_client: ClientProcess, count: int) -> Path:
    """A file of its own for each turn, so that a worker that lingers leaves nothing in it."""
    path = queue_client.folder / f"runs-{time.monotonic_ns()}"
    run_file.create(path, count)
    return path
