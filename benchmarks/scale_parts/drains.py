"""Jobs per second out of a full queue through real workers, by its length and by their number."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jobs_parts import client, run_file
from jobs_parts.queue_systems import Seat, Who
from jobs_parts.processes import Started, cpu_seconds, family
from jobs_parts.session import Ground
from jobs_parts.turns import LOOK, STARTUP, await_jobs, await_records, new_marks, running
from comparison import Entry, FailedError, Goal, Record, Turn, record, records

from scale_parts.options import Effort
from scale_parts.engines import DRAIN_GOALS, Engine

WARM = 0.1, 5_000, 1.5
"""What passes before the clock starts, as workers come up one after the other: a part of the jobs,
but no more than so many, and no longer than so many seconds."""
REUSED = 200_000
"""A queue as long as this is filled once: a turn takes only a part of it."""
FLAT = Goal(ratio=0.9)
"""How much of its speed must be left when a queue is ten times as long."""


def draining(ground: Ground, effort: Effort) -> Iterator[Record]:
    """Ours beside the peers of each engine, at each length."""
    for engine in effort.engines:
        for length in effort.drained:
            field = engine.field(effort.peers)
            entries = [_entry(ground, effort, who, length) for who in field]
            ground.race(entries)
            goals = [DRAIN_GOALS.get(who.key) for who in field[1:]]
            pairs = list(zip(entries[1:], goals, strict=True))
            yield from records(f"{engine.key}-drain-{length}", entries[0], pairs)
            _forget(ground, field, length)


def lengthening(ground: Ground, effort: Effort) -> Iterator[Record]:
    """Ours at each length beside itself at the shortest, in the same rounds."""
    for engine in effort.engines:
        who, (short, *longer) = engine.ours, effort.drained
        names = {length: f"{who.name}, {length:,} queued" for length in effort.drained}
        for length in longer:
            twin = _twin(who, 1)
            entries = [
                _entry(ground, effort, twin, length, names[length]),
                _entry(ground, effort, who, short, names[short]),
            ]
            ground.race(entries)
            goal = FLAT if length == 10 * short else None
            yield from records(f"{engine.key}-queued-{length}", entries[0], [(entries[1], goal)])
            _forget(ground, [twin], length)


def crowding(ground: Ground, effort: Effort) -> Iterator[Record]:
    """Ours with more workers on one store, beside one of them."""
    length = effort.drained[-1]
    for engine in effort.engines:
        crew = [_crew(engine, number, place) for place, number in enumerate(effort.workers, 2)]
        entries = [_entry(ground, effort, who, length) for who in crew]
        ground.race(entries)
        yield record(f"{engine.key}-workers", entries[0], None)
        for entry in entries[1:]:
            yield record(f"{engine.key}-workers", entry, entries[0])


def _crew(engine: Engine, number: int, place: int) -> Who:
    who = engine.ours
    name = f"{who.name}, {number} worker{'s' * (number > 1)}"
    return _twin(replace(who, name=name, settings={client.WORKERS: str(number)}), place)


def _twin(who: Who, place: int) -> Who:
    """Ourselves once more, in a store of our own: two clients cannot empty one in turns."""
    settings = {**who.settings, client.TWIN: str(place)}
    return replace(who, key=f"{who.key}-{place}", settings=settings)


def _entry(
    ground: Ground, effort: Effort, who: Who, length: int, label: str | None = None
) -> Entry:
    drain = Drain(ground, who, length, effort.window)
    return ground.entry(who, "drain", drain.turn, label)


def _forget(ground: Ground, field: Sequence[Who], length: int) -> None:
    """A long queue that is done with shall take no memory."""
    if length >= REUSED:
        for who in field:
            try:
                ground.seat(who, "drain").ask("reset")
            except FailedError:
                continue  # its record says so


@dataclass
class Drain:
    """A contestant's workers on a queue of some length."""

    ground: Ground
    who: Who
    length: int
    window: float
    """Seconds after which a drain that has not come to its end is measured as far as it got."""
    is_filled: bool = False

    def turn(self, seat: Seat) -> Turn:
        """Start workers on the full queue and stop them when enough was seen."""
        if not self.is_filled:
            seat.ask("reset")
            seat.fill(0, self.length)
            self.is_filled = self.length >= REUSED
        marked = new_marks(seat, self.length)
        reader = run_file.Reader(marked, self.length)
        with running(seat, marked) as workers:
            await_jobs(reader, 1, STARTUP, workers)
            first = self._warm(reader)
            pids = _Pids(workers, self.ground.servers.pids(self.who.server))
            began = time.perf_counter()
            last, ended = self._watch(seat, reader, workers, began)
            burnt, facts = pids.burnt(last - first)
        if reader.again():
            raise FailedError(f"{reader.again()} jobs ran again")
        return Turn(last - first, ended - began, (), burnt, facts)

    def _warm(self, reader: run_file.Reader) -> int:
        part, most, seconds = WARM
        until = time.monotonic() + seconds
        while (ran := reader.ran()) < min(self.length * part, most):
            if time.monotonic() > until:
                break
            time.sleep(LOOK)
        return ran

    def _watch(
        self, seat: Seat, reader: run_file.Reader, workers: list[Started], began: float
    ) -> tuple[int, float]:
        """How many jobs have run at the end, and when that was, with all results kept."""
        is_part = self.is_filled
        while (ran := reader.ran()) < self.length:
            now = time.perf_counter()
            if now - began > self.window:
                return ran, now
            if any(worker.is_over() for worker in workers):
                raise FailedError(f"a worker ended after {ran} of {self.length} jobs")
            time.sleep(LOOK)
        return ran, time.perf_counter() if is_part else await_records(seat, self.length)


class _Pids:
    """Processor time of workers, of their executors, and of the server."""

    def __init__(self, workers: list[Started], server: list[int]) -> None:
        self._mains = [worker.pid for worker in workers]
        self._all = [pid for worker in workers for pid in family(worker.pid)]
        self._server = server
        self._before = self._read()

    def _read(self) -> tuple[float, float, float]:
        return tuple(map(cpu_seconds, (self._all, self._mains, self._server)))  # type: ignore[return-value]

    def burnt(self, count: int) -> tuple[float, Record]:
        """Seconds of all workers, and microseconds for each job of those who share them."""
        whole, mains, server = (
            after - before for after, before in zip(self._read(), self._before, strict=True)
        )
        facts = {"main_us": mains, "children_us": whole - mains, "server_us": server}
        done = max(1, count)
        return whole, {name: round(each / done * 1e6, 1) for name, each in facts.items()}
