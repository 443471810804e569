"""What is measured, who takes part in it, and which figure counts as good enough."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs_parts import turns
from jobs_parts.contestants import ALL, BARE, OURS, Seat, Who
from jobs_parts.processes import environment
from jobs_parts.races import Entry, Goal, Ground, Record, rate_record, time_record

BY_KEY = {who.key: who for who in ALL}
DRAIN_GOALS = {
    "celery": Goal(15.0, ">= 15 x"),
    "dramatiq": Goal(5.0, ">= 5 x"),
    "huey-sqlite": Goal(5.0, ">= 5 x"),
    "huey-redis": Goal(5.0, ">= 5 x"),
    "faststream": Goal(5.0, ">= 5 x"),
    "pgqueuer": Goal(1.4, ">= 1.4 x"),
}
WAYS = {"enqueue": "enqueue_each", "enqueue-threads": "enqueue_threads", "bulk": "enqueue_many"}
FLOORS = {"enqueue": Goal(0.8, ">= 0.8 x"), "bulk": Goal(0.3, ">= 0.3 x")}
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


def _entries(case: str, effort: Effort, pace: str, seconds: float) -> list[Entry]:
    found = [who for who in ALL if case in who.cases and effort.takes(who)]
    return [Entry(who, max(100, int(getattr(who, pace) * seconds)), who.name) for who in found]


def drain(ground: Ground, effort: Effort) -> Iterator[Record]:
    """No-op jobs per second out of a full queue, state and result kept."""

    def turn(entry: Entry, seat: Seat) -> None:
        entry.turns.append(turns.drain(seat, entry.count))

    entries = _entries("drain", effort, "drain_pace", effort.seconds)
    ground.race("drain", entries, turn)
    for entry in entries:
        yield rate_record("drain", entry, entries[0], DRAIN_GOALS.get(entry.who.key))


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
        Entry(BY_KEY[OURS], size, f"{BY_KEY[OURS].name}, {size:,} queued") for size in (long, short)
    ]

    def turn(entry: Entry, seat: Seat) -> None:
        entry.turns.append(turns.drain(seat, entry.count))

    ground.race("drain", entries, turn, 1 if long == LONGEST else None)
    for entry in entries:
        yield rate_record(case, entry, entries[0], Goal(0.9, ">= 0.9 x"))


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
    def turn(entry: Entry, seat: Seat) -> None:
        how = WAYS["enqueue"] if entry.who.key == BARE and case != "bulk" else WAYS[case]
        entry.turns.append(turns.enqueue(seat, how, entry.count))

    entries = _entries(case, effort, "enqueue_pace", seconds)
    if case == "bulk":
        for entry in entries:
            entry.count = entries[0].count
    ground.race(case, entries, turn)
    for entry in entries:
        goal = FLOORS.get(case) if entry.who.key == BARE else None
        yield rate_record(case, entry, entries[0], goal)


def latency(ground: Ground, effort: Effort) -> Iterator[Record]:
    """From enqueue in one process to the start of the handler in another, all of them idle."""

    def turn(entry: Entry, seat: Seat) -> None:
        entry.samples += turns.latencies(seat, effort.samples)

    entries = _entries("latency", effort, "enqueue_pace", 1.0)
    ground.race("latency", entries, turn)
    for entry in entries:
        if entry.skipped is not None:
            yield {"case": "latency", "who": entry.label, "skipped": entry.skipped}
            continue
        record = time_record("latency", entry.label, entry.samples, entries[0].samples)
        if entry is entries[0]:
            record |= {"target": "p50 <= 1 ms", "met": record["p50_ms"] <= 1.0}
        yield record


def idle(ground: Ground, effort: Effort) -> Iterator[Record]:
    """What our worker and its executor use while nothing is to be done."""
    entry = Entry(BY_KEY[OURS], 1, BY_KEY[OURS].name)

    def turn(entry: Entry, seat: Seat) -> None:
        entry.samples.append(turns.idle_cpu(seat, effort.idle))

    ground.race("latency", [entry], turn, 1)
    record: Record = {"case": "idle", "who": entry.label}
    if entry.skipped is not None:
        yield record | {"skipped": entry.skipped}
    elif not entry.samples[0]:
        yield record | {"skipped": "this system does not tell the processor time of others"}
    else:
        percent = round(entry.samples[0], 3)
        record |= {"cpu_percent": percent, "seconds": effort.idle}
        yield record | {"target": "< 1 %", "met": percent < 1.0}


def round_trip(ground: Ground, effort: Effort) -> Iterator[Record]:
    """One request to a warm executor and its answer, one in flight."""
    chunks = 10 if effort.is_quick else 10 * ground.rounds
    child = subprocess.run(  # noqa: S603 - these parts
        [sys.executable, "-m", "jobs_parts.roundtrip", str(chunks)],
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
    ours = time_record("round-trip", f"{BY_KEY[OURS].name}, runner", taken["ours"], taken["ours"])
    yield ours | {"target": "p50 <= 0.2 ms", "met": ours["p50_ms"] <= 0.2}
    yield time_record("round-trip", "raw pipe echo", taken["pipe"], taken["ours"])


def memory(ground: Ground, effort: Effort) -> Iterator[Record]:
    """The worker's resident set when a thousand jobs have run, by the length of the queue."""
    sizes = [1000, LONG // 4 if effort.is_quick else LONG, *([LONGEST] * effort.with_million)]
    entry = Entry(BY_KEY[OURS], 0, BY_KEY[OURS].name)

    def turn(entry: Entry, seat: Seat) -> None:
        entry.samples += [turns.resident_mib(seat, size) for size in sizes]

    ground.race("drain", [entry], turn, 1)
    if entry.skipped is not None:
        yield {"case": "memory", "who": entry.label, "skipped": entry.skipped}
        return
    for size, resident in zip(sizes, entry.samples, strict=True):
        record: Record = {"case": "memory", "who": f"{entry.label}, {size:,} queued"}
        record |= {"resident_mib": round(resident, 1)}
        if size > sizes[0]:
            growth = (resident - entry.samples[0]) * 2**20 / (size - sizes[0])
            record |= {"bytes_per_queued_job": round(growth, 1)}
            # The page cache of SQLite is bounded, and fuller in a larger file.
            record |= {"target": "no growth (<= 16 MiB)", "met": resident <= entry.samples[0] + 16}
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
