"""What is measured, who takes part in it, and which figure counts as good enough."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from comparison import Entry, FailedError, Goal, Record, records

from jobs_parts import turns
from jobs_parts.queue_systems import ALL, BARE, OURS, Who
from jobs_parts.processes import environment
from jobs_parts.session import Ground, time_record

US = next(who for who in ALL if who.key == OURS)
DRAIN_GOALS = {
    "celery": Goal(ratio=15.0),
    "dramatiq": Goal(ratio=5.0),
    "huey-sqlite": Goal(ratio=5.0),
    "huey-redis": Goal(ratio=5.0),
    "faststream": Goal(ratio=5.0),
    "pgqueuer": Goal(ratio=1.4),
}
WAYS = {"enqueue": "enqueue_each", "enqueue-threads": "enqueue_threads", "bulk": "enqueue_many"}
FLOORS = {"enqueue": Goal(ratio=0.8), "bulk": Goal(ratio=0.3)}
SHORT, LONG, LONGEST = 10_000, 100_000, 1_000_000
PATIENCE = 120.0


@dataclass(frozen=True)
class Effort:
    """How much to do."""

    seconds: float  # the length of a turn, roughly
    samples: int  # of a latency, in each round
    idle: float
    is_quick: bool
    with_million: bool
    peers: frozenset[str] | None  # None: all

    def takes(self, who: Who) -> bool:
        """Whether a contestant was asked for. We always take part."""
        return who.key == OURS or self.peers is None or who.key in self.peers


Case = Callable[[Ground, Effort], Iterator[Record]]


def _field(case: str, effort: Effort) -> list[Who]:
    """Who takes part, ourselves first."""
    return [who for who in ALL if case in who.cases and effort.takes(who)]


def _number(pace: int, seconds: float) -> int:
    return max(100, int(pace * seconds))


def drain(ground: Ground, effort: Effort) -> Iterator[Record]:
    """No-op jobs per second out of a full queue, state and result kept."""
    field = _field("drain", effort)
    entries = [
        ground.entry(
            who, "drain", partial(turns.drain, count=_number(who.drain_pace, effort.seconds))
        )
        for who in field
    ]
    ground.race(entries)
    goals = [DRAIN_GOALS.get(who.key) for who in field[1:]]
    yield from records("drain", entries[0], list(zip(entries[1:], goals, strict=True)))


def queued(ground: Ground, effort: Effort) -> Iterator[Record]:
    """The same for us alone, with ten times (or a hundred times) as many jobs waiting."""
    sizes = [(LONG, SHORT)] if not effort.is_quick else [(LONG // 4, SHORT // 4)]
    if effort.with_million:
        sizes.append((LONGEST, SHORT))
    for long, short in sizes:
        yield from _queued(ground, long, short)


def _queued(ground: Ground, long: int, short: int) -> Iterator[Record]:
    case = f"drain-{long}-queued"
    entries = [
        ground.entry(US, "drain", partial(turns.drain, count=size), f"{US.name}, {size:,} queued")
        for size in (long, short)
    ]
    ground.race(entries, 1 if long == LONGEST else None)
    yield from records(case, entries[0], [(entries[1], Goal(ratio=0.9))])


def enqueue(ground: Ground, effort: Effort) -> Iterator[Record]:
    """One by one, each on disk before the next; in Redis nothing is on disk."""
    yield from _enqueue("enqueue", ground, effort, effort.seconds / 2)


def enqueue_threads(ground: Ground, effort: Effort) -> Iterator[Record]:
    """One by one from eight threads that share commits, beside one that does not."""
    yield from _enqueue("enqueue-threads", ground, effort, effort.seconds / 2)


def bulk(ground: Ground, effort: Effort) -> Iterator[Record]:
    """Many at once."""
    yield from _enqueue("bulk", ground, effort, effort.seconds * 5)


def _enqueue(case: str, ground: Ground, effort: Effort, seconds: float) -> Iterator[Record]:
    field = _field(case, effort)

    def entry(who: Who) -> Entry:
        how = WAYS["enqueue"] if who.key == BARE and case != "bulk" else WAYS[case]
        pace = US.enqueue_pace if case == "bulk" else who.enqueue_pace
        turn = partial(turns.enqueue, how=how, count=_number(pace, seconds))
        return ground.entry(who, case, turn)

    entries = [entry(who) for who in field]
    ground.race(entries)
    goals = [FLOORS.get(case) if who.key == BARE else None for who in field[1:]]
    yield from records(case, entries[0], list(zip(entries[1:], goals, strict=True)))


def latency(ground: Ground, effort: Effort) -> Iterator[Record]:
    """From enqueue in one process to the start of the handler in another, all of them idle."""
    turn = partial(turns.latencies, count=effort.samples)
    entries = [ground.entry(who, "latency", turn) for who in _field("latency", effort)]
    ground.race(entries)
    ours = _samples(entries[0])
    for entry in entries:
        if entry.skipped is not None:
            yield {"case": "latency", "who": entry.who, "skipped": entry.skipped}
            continue
        samples = ours if entry is entries[0] else _samples(entry)
        record = time_record("latency", entry.who, samples, ours)
        if entry is entries[0]:
            record |= {"target": "p50 <= 1 ms", "met": record["p50_ms"] <= 1.0}
        yield record


def _samples(entry: Entry) -> list[float]:
    return [each * 1e3 for turn in entry.turns for each in turn.taken]


def idle(ground: Ground, effort: Effort) -> Iterator[Record]:
    """What our worker and its executor use while nothing is to be done."""
    entry = ground.entry(US, "latency", partial(turns.idle, seconds=effort.idle))
    ground.race([entry], 1)
    record: Record = {"case": "idle", "who": entry.who}
    if entry.skipped is not None:
        yield record | {"skipped": entry.skipped}
    elif not entry.turns[0].burnt:
        yield record | {"skipped": "this system does not tell the processor time of others"}
    else:
        percent = round(100 * entry.turns[0].burnt / entry.turns[0].seconds, 3)
        record |= {"cpu_percent": percent, "seconds": effort.idle}
        yield record | {"target": "< 1 %", "met": percent < 1.0}


def round_trip(ground: Ground, effort: Effort) -> Iterator[Record]:
    """One request to a warm executor and its answer, one in flight."""
    chunks = 10 if effort.is_quick else 10 * ground.rounds
    child = subprocess.run(  # noqa: S603 - these parts
        [sys.executable, "-m", "jobs_parts.round_trip", str(chunks)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if child.returncode:
        yield {"case": "round-trip", "skipped": f"failed: {child.stderr.strip()[-300:]}"}
        return
    taken = json.loads(child.stdout)
    ours = time_record("round-trip", f"{US.name}, runner", taken["ours"], taken["ours"])
    yield ours | {"target": "p50 <= 0.2 ms", "met": ours["p50_ms"] <= 0.2}
    yield time_record("round-trip", "raw pipe echo", taken["pipe"], taken["ours"])


def memory(ground: Ground, effort: Effort) -> Iterator[Record]:
    """The worker's resident set when a thousand jobs have run, by the length of the queue."""
    sizes = [1000, LONG // 4 if effort.is_quick else LONG, *([LONGEST] * effort.with_million)]
    try:
        seat = ground.seat(US, "drain")
        found = [turns.resident_mib(seat, size) for size in sizes]
    except FailedError as error:
        yield {"case": "memory", "who": US.name, "skipped": str(error)}
        return
    for size, resident in zip(sizes, found, strict=True):
        record: Record = {"case": "memory", "who": f"{US.name}, {size:,} queued"}
        record |= {"resident_mib": round(resident, 1)}
        if size > sizes[0]:
            growth = (resident - found[0]) * 2**20 / (size - sizes[0])
            record |= {"bytes_per_queued_job": round(growth, 1)}
            # The page cache of SQLite is bounded, and fuller in a larger file.
            record |= {"target": "no growth (<= 16 MiB)", "met": resident <= found[0] + 16}
        yield record


CASES: dict[str, Case] = {
    "drain": drain,
    "queued": queued,
    "enqueue": enqueue,
    "enqueue-threads": enqueue_threads,
    "bulk": bulk,
    "latency": latency,
    "idle": idle,
    "round-trip": round_trip,
    "memory": memory,
}
