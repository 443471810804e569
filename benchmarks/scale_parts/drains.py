"""Jobs per second out of a full queue through real workers, by its length and by their number."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from comparison import Contestant, ContestantError, Record, Target, Turn, record, records
from jobs_parts import client, run_file
from jobs_parts.processes import StartedProcess, cpu_seconds, process_tree
from jobs_parts.queue_systems import ClientProcess, QueueSystem
from jobs_parts.session import Session
from jobs_parts.turns import (
    POLL_INTERVAL,
    STARTUP_TIMEOUT,
    new_run_file,
    running_workers,
    wait_for_jobs,
    wait_for_results,
)

from scale_parts.engines import DRAIN_TARGETS, Engine
from scale_parts.options import ScaleOptions

WARMUP = 0.1, 5_000, 1.5
"""What passes before the clock starts, as workers come up one after the other: a part of the jobs,
but no more than so many, and no longer than so many seconds."""
WORKERS_LENGTH = 100_000
"""Jobs that workers share at least: they come up one by one, and the last must find some."""
REUSED = 200_000
"""A queue as long as this is filled once: a turn takes only a part of it."""
FLAT = Target(ratio=0.9)
"""How much of its speed must be left when a queue is ten times as long."""


def drain(session: Session, options: ScaleOptions) -> Iterator[Record]:
    """Ours beside the peers of each engine, at each length."""
    for engine in options.engines:
        for length in options.drained:
            systems = engine.participants(options.peers)
            contestants = [_contestant(session, options, system, length) for system in systems]
            session.race(contestants)
            targets = [DRAIN_TARGETS.get(system.key) for system in systems[1:]]
            pairs = list(zip(contestants[1:], targets, strict=True))
            yield from records(f"{engine.key}-drain-{length}", contestants[0], pairs)
            _reset_queues(session, systems, length)


def queue_lengths(session: Session, options: ScaleOptions) -> Iterator[Record]:
    """Ours at each length beside itself at the shortest, in the same rounds."""
    for engine in options.engines:
        system, (short, *longer) = engine.ours, options.drained
        names = {length: f"{system.name}, {length:,} queued" for length in options.drained}
        for length in longer:
            longer_system = _with_own_store(system, 1)
            contestants = [
                _contestant(session, options, longer_system, length, names[length]),
                _contestant(session, options, system, short, names[short]),
            ]
            session.race(contestants)
            target = FLAT if length == 10 * short else None
            yield from records(
                f"{engine.key}-queued-{length}", contestants[0], [(contestants[1], target)]
            )
            _reset_queues(session, [longer_system], length)


def worker_counts(session: Session, options: ScaleOptions) -> Iterator[Record]:
    """Ours with more workers on one store, beside one of them."""
    length = max(options.drained[-1], WORKERS_LENGTH)
    for engine in options.engines:
        systems = [
            _with_workers(engine, number, store_number)
            for store_number, number in enumerate(options.workers, 2)
        ]
        contestants = [
            _contestant(session, options, system, length, least_left=0.5) for system in systems
        ]
        session.race(contestants)
        yield record(f"{engine.key}-workers", contestants[0], None)
        for contestant in contestants[1:]:
            yield record(f"{engine.key}-workers", contestant, contestants[0])


def _with_workers(engine: Engine, number: int, store_number: int) -> QueueSystem:
    system = engine.ours
    name = f"{system.name}, {number} worker{'s' * (number > 1)}"
    return _with_own_store(
        replace(system, name=name, settings={client.WORKERS: str(number)}), store_number
    )


def _with_own_store(system: QueueSystem, store_number: int) -> QueueSystem:
    """Ourselves once more, in a store of our own: two clients cannot empty one in turns."""
    settings = {**system.settings, client.STORE_NUMBER: str(store_number)}
    return replace(system, key=f"{system.key}-{store_number}", settings=settings)


def _contestant(
    session: Session,
    options: ScaleOptions,
    system: QueueSystem,
    length: int,
    label: str | None = None,
    *,
    least_left: float = 0.0,
) -> Contestant:
    watched = Drain(session, system, length, options.window, least_left)
    return session.contestant(system, "drain", watched.turn, label)


def _reset_queues(session: Session, systems: Sequence[QueueSystem], length: int) -> None:
    """A long queue that is done with shall take no memory."""
    if length >= REUSED:
        for system in systems:
            try:
                session.queue_client(system, "drain").call("reset")
            except ContestantError:
                continue  # its record says so


@dataclass
class Drain:
    """A contestant's workers on a queue of some length."""

    session: Session
    system: QueueSystem
    length: int
    window: float
    """Seconds after which a drain that has not come to its end is measured as far as it got."""
    least_left: float = 0.0
    """The part of the jobs of which more must be left when the clock starts."""
    is_filled: bool = False

    def turn(self, queue_client: ClientProcess) -> Turn:
        """Start workers on the full queue and stop them when enough was seen."""
        if not self.is_filled:
            queue_client.call("reset")
            queue_client.fill(0, self.length)
            self.is_filled = self.length >= REUSED
        run_path = new_run_file(queue_client, self.length)
        reader = run_file.RunFileReader(run_path, self.length)
        with running_workers(queue_client, run_path) as workers:
            wait_for_jobs(reader, 1, STARTUP_TIMEOUT, workers)
            first = self._warm(reader)
            if self.length - first <= self.length * self.least_left:
                # What is left would time how workers start and stop, not how they work.
                raise ContestantError(
                    f"{first} of {self.length} jobs had run when the clock was to start:"
                    " ask for more with --drained"
                )
            times = _ProcessTimes(workers, self.session.servers.pids(self.system.server))
            began = time.perf_counter()
            last, ended = self._watch(queue_client, reader, workers, began)
            cpu_time, extra = times.cpu_time(last - first)
        if reader.repeated():
            raise ContestantError(f"{reader.repeated()} jobs ran again")
        return Turn(last - first, ended - began, (), cpu_time, extra)

    def _warm(self, reader: run_file.RunFileReader) -> int:
        part, most, seconds = WARMUP
        until = time.monotonic() + seconds
        while (ran := reader.ran()) < min(self.length * part, most):
            if time.monotonic() > until:
                break
            time.sleep(POLL_INTERVAL)
        return ran

    def _watch(
        self,
        queue_client: ClientProcess,
        reader: run_file.RunFileReader,
        workers: list[StartedProcess],
        began: float,
    ) -> tuple[int, float]:
        """How many jobs have run at the end, and when that was, with all results kept."""
        is_part = self.is_filled
        while (ran := reader.ran()) < self.length:
            now = time.perf_counter()
            if now - began > self.window:
                return ran, now
            if any(worker.is_over() for worker in workers):
                raise ContestantError(f"a worker ended after {ran} of {self.length} jobs")
            time.sleep(POLL_INTERVAL)
        return ran, time.perf_counter() if is_part else wait_for_results(queue_client, self.length)


class _ProcessTimes:
    """Processor time of workers, of their executors, and of the server."""

    def __init__(self, workers: list[StartedProcess], server: list[int]) -> None:
        self._mains = [worker.pid for worker in workers]
        self._all = [pid for worker in workers for pid in process_tree(worker.pid)]
        self._server = server
        self._before = self._read()

    def _read(self) -> tuple[float, float, float]:
        return tuple(map(cpu_seconds, (self._all, self._mains, self._server)))  # type: ignore[return-value]

    def cpu_time(self, count: int) -> tuple[float, Record]:
        """Seconds of all workers, and microseconds for each job of those who share them."""
        whole, mains, server = (
            after - before for after, before in zip(self._read(), self._before, strict=True)
        )
        extra = {"main_us": mains, "children_us": whole - mains, "server_us": server}
        done = max(1, count)
        return whole, {name: round(each / done * 1e6, 1) for name, each in extra.items()}
