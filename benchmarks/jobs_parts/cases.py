"""What is measured, who takes part in it, and which figure counts as good enough."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from comparison import Contestant, ContestantError, Record, Target, records

from jobs_parts import turns
from jobs_parts.processes import environment
from jobs_parts.queue_systems import ALL, BARE, OURS, QueueSystem
from jobs_parts.session import Session, latency_record, time_record

US = next(system for system in ALL if system.key == OURS)
DRAIN_TARGETS = {
    "celery": Target(ratio=15.0),
    "dramatiq": Target(ratio=5.0),
    "huey-sqlite": Target(ratio=5.0),
    "huey-redis": Target(ratio=5.0),
    "faststream": Target(ratio=5.0),
    "pgqueuer": Target(ratio=1.4),
}
ENQUEUE_METHODS = {
    "enqueue": "enqueue_each",
    "enqueue-threads": "enqueue_threads",
    "bulk": "enqueue_many",
}
BASELINE_TARGETS = {"enqueue": Target(ratio=0.8), "bulk": Target(ratio=0.3)}
SHORT, LONG, LONGEST = 10_000, 100_000, 1_000_000
TIMEOUT = 120.0


@dataclass(frozen=True)
class JobsOptions:
    """How much to do."""

    seconds: float  # the length of a turn, roughly
    samples: int  # of a latency, in each round
    idle: float
    is_quick: bool
    with_million: bool
    peers: frozenset[str] | None  # None: all

    def includes(self, system: QueueSystem) -> bool:
        """Whether a contestant was asked for. We always take part."""
        return system.key == OURS or self.peers is None or system.key in self.peers


Case = Callable[[Session, JobsOptions], Iterator[Record]]


def _participants(case: str, options: JobsOptions) -> list[QueueSystem]:
    """The queue systems that take part, ours first."""
    return [system for system in ALL if case in system.cases and options.includes(system)]


def _number(pace: int, seconds: float) -> int:
    return max(100, int(pace * seconds))


def drain(session: Session, options: JobsOptions) -> Iterator[Record]:
    """No-op jobs per second out of a full queue, state and result kept."""
    systems = _participants("drain", options)
    contestants = [
        session.contestant(
            system, "drain", partial(turns.drain, count=_number(system.drain_pace, options.seconds))
        )
        for system in systems
    ]
    session.race(contestants)
    targets = [DRAIN_TARGETS.get(system.key) for system in systems[1:]]
    yield from records("drain", contestants[0], list(zip(contestants[1:], targets, strict=True)))


def queued(session: Session, options: JobsOptions) -> Iterator[Record]:
    """The same for us alone, with ten times (or a hundred times) as many jobs waiting."""
    sizes = [(LONG, SHORT)] if not options.is_quick else [(LONG // 4, SHORT // 4)]
    if options.with_million:
        sizes.append((LONGEST, SHORT))
    for long, short in sizes:
        yield from _queued(session, long, short)


def _queued(session: Session, long: int, short: int) -> Iterator[Record]:
    case = f"drain-{long}-queued"
    contestants = [
        session.contestant(
            US, "drain", partial(turns.drain, count=size), f"{US.name}, {size:,} queued"
        )
        for size in (long, short)
    ]
    session.race(contestants, 1 if long == LONGEST else None)
    yield from records(case, contestants[0], [(contestants[1], Target(ratio=0.9))])


def enqueue(session: Session, options: JobsOptions) -> Iterator[Record]:
    """One by one, each on disk before the next; in Redis nothing is on disk."""
    yield from _enqueue("enqueue", session, options, options.seconds / 2)


def enqueue_threads(session: Session, options: JobsOptions) -> Iterator[Record]:
    """One by one from eight threads that share commits, beside one that does not."""
    yield from _enqueue("enqueue-threads", session, options, options.seconds / 2)


def bulk(session: Session, options: JobsOptions) -> Iterator[Record]:
    """Many at once."""
    yield from _enqueue("bulk", session, options, options.seconds * 5)


def _enqueue(case: str, session: Session, options: JobsOptions, seconds: float) -> Iterator[Record]:
    systems = _participants(case, options)

    def contestant(system: QueueSystem) -> Contestant:
        how = (
            ENQUEUE_METHODS["enqueue"]
            if system.key == BARE and case != "bulk"
            else ENQUEUE_METHODS[case]
        )
        pace = US.enqueue_pace if case == "bulk" else system.enqueue_pace
        turn = partial(turns.enqueue, how=how, count=_number(pace, seconds))
        return session.contestant(system, case, turn)

    contestants = [contestant(system) for system in systems]
    session.race(contestants)
    targets = [BASELINE_TARGETS.get(case) if system.key == BARE else None for system in systems[1:]]
    yield from records(case, contestants[0], list(zip(contestants[1:], targets, strict=True)))


def latency(session: Session, options: JobsOptions) -> Iterator[Record]:
    """From enqueue in one process to the start of the handler in another, all of them idle."""
    turn = partial(turns.latencies, count=options.samples)
    contestants = [
        session.contestant(system, "latency", turn) for system in _participants("latency", options)
    ]
    session.race(contestants)
    ours = _samples(contestants[0])
    for contestant in contestants:
        if contestant.skipped is not None:
            yield {"case": "latency", "who": contestant.name, "skipped": contestant.skipped}
            continue
        record = latency_record("latency", contestant.name, _samples(contestant), ours)
        if contestant is contestants[0]:
            record |= {"target": "p50 <= 1 ms", "met": record["p50_ms"] <= 1.0}
        yield record


def _samples(contestant: Contestant) -> list[list[float]]:
    return [[each * 1e3 for each in turn.latencies] for turn in contestant.turns]


def idle(session: Session, options: JobsOptions) -> Iterator[Record]:
    """What our worker and its executor use while nothing is to be done."""
    contestant = session.contestant(US, "latency", partial(turns.idle, seconds=options.idle))
    session.race([contestant], 1)
    record: Record = {"case": "idle", "who": contestant.name}
    if contestant.skipped is not None:
        yield record | {"skipped": contestant.skipped}
    elif not contestant.turns[0].cpu_time:
        yield record | {"skipped": "this system does not tell the processor time of others"}
    else:
        percent = round(100 * contestant.turns[0].cpu_time / contestant.turns[0].seconds, 3)
        record |= {"cpu_percent": percent, "seconds": options.idle}
        yield record | {"target": "< 1 %", "met": percent < 1.0}


def round_trip(session: Session, options: JobsOptions) -> Iterator[Record]:
    """One request to a warm executor and its answer, one in flight."""
    chunks = 10 if options.is_quick else 10 * session.rounds
    child = subprocess.run(  # noqa: S603 - these parts
        [sys.executable, "-m", "jobs_parts.round_trip", str(chunks)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if child.returncode:
        yield {"case": "round-trip", "skipped": f"failed: {child.stderr.strip()[-300:]}"}
        return
    measured = json.loads(child.stdout)
    ours = time_record("round-trip", f"{US.name}, runner", measured["ours"], measured["ours"])
    yield ours | {"target": "p50 <= 0.2 ms", "met": ours["p50_ms"] <= 0.2}
    yield time_record("round-trip", "raw pipe echo", measured["pipe"], measured["ours"])


def memory(session: Session, options: JobsOptions) -> Iterator[Record]:
    """The worker's resident set when a thousand jobs have run, by the length of the queue."""
    sizes = [1000, LONG // 4 if options.is_quick else LONG, *([LONGEST] * options.with_million)]
    try:
        queue_client = session.queue_client(US, "drain")
        found = [turns.resident_mib(queue_client, size) for size in sizes]
    except ContestantError as error:
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
