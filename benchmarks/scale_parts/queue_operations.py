"""Enqueues, claims and settles per second, into and out of queues of given lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from comparison import ContestantError, Record, Turn, records
from jobs_parts.processes import cpu_seconds
from jobs_parts.queue_systems import ClientProcess, QueueSystem
from jobs_parts.session import Session

from scale_parts.engines import BULK, Engine
from scale_parts.options import ScaleOptions

OPERATIONS = {
    "enqueue": "enqueue_each",
    BULK: "enqueue_many",
    "claim": "claim",
    "settle": "settle",
}
AT_ONCE = 1000
"""Jobs in one call that adds many."""
WARMUP = 20


def queue_operations(session: Session, options: ScaleOptions) -> Iterator[Record]:
    """One engine and one length after the other; everybody who lives there in turn."""
    for engine in options.engines:
        for length in options.lengths:
            yield from _at(session, options, engine, length)


def _at(session: Session, options: ScaleOptions, engine: Engine, length: int) -> Iterator[Record]:
    operations = [
        OperationTurns(session, system, length, options.seconds)
        for system in engine.participants(options.peers)
    ]
    contestants = [
        session.contestant(operation.system, "drain", operation.turn) for operation in operations
    ]
    session.race(contestants)
    for name in OPERATIONS:
        ours, *others = [
            replace(contestant, turns=operation.turns[name])
            for contestant, operation in zip(contestants, operations, strict=True)
            if name in operation.turns
        ]
        case = f"{engine.key}-{name}-{length}"
        yield from records(case, ours, [(other, None) for other in others])
    for operation in operations:
        operation.empty()


@dataclass(frozen=True)
class Cost:
    """Seconds that passed, and those of processor time in the client and in the server."""

    seconds: float = 0.0
    client: float = 0.0
    server: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds, self.client + other.client, self.server + other.server
        )

    def turn(self, count: int) -> Turn:
        """What it was for so many jobs."""
        extra = {"server_us": round(self.server / count * 1e6, 1)}
        return Turn(count, self.seconds, (), self.client, extra)


@dataclass
class OperationTurns:
    """What one contestant does at one length of the queue."""

    session: Session
    system: QueueSystem
    length: int
    seconds: float
    is_filled: bool = False
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = {name: [] for name in OPERATIONS if name != BULK or BULK in self.system.cases}

    def turn(self, queue_client: ClientProcess) -> Turn:
        """Add jobs, take as many and end them, again and again; the queue is as long as before."""
        if not self.is_filled:
            queue_client.call("reset")
            queue_client.fill(0, self.length)
            self._cycle(
                queue_client, self._counts(WARMUP)
            )  # what is done for the first time takes longer
            self.is_filled = True
        counts = self._counts(max(WARMUP, int(self.system.enqueue_pace * self.seconds / 4)))
        costs = {name: Cost() for name in counts}
        cycles = 0
        while sum(each.seconds for each in costs.values()) < self.seconds:
            cycles += 1
            for name, each in self._cycle(queue_client, counts).items():
                costs[name] += each
        found = queue_client.call("waiting")
        if found != self.length:
            raise ContestantError(f"{found} jobs are waiting instead of {self.length}")
        for name, each in costs.items():
            self.turns[name].append(each.turn(counts[name] * cycles))
        return self.turns["enqueue"][-1]

    def empty(self) -> None:
        """A queue that is done with shall take no memory."""
        if self.is_filled:
            self.session.queue_client(self.system, "drain").call("reset")

    def _counts(self, each: int) -> dict[str, int]:
        bulk = min(AT_ONCE, each * 4) if BULK in self.turns else 0
        counts = {"enqueue": each, BULK: bulk, "claim": each + bulk, "settle": each + bulk}
        return {name: counts[name] for name in self.turns}

    def _cycle(self, queue_client: ClientProcess, counts: dict[str, int]) -> dict[str, Cost]:
        return {
            name: self._measure(queue_client, OPERATIONS[name], each)
            for name, each in counts.items()
        }

    def _measure(self, queue_client: ClientProcess, how: str, count: int) -> Cost:
        pids = [queue_client.pid], self.session.servers.pids(self.system.server)
        before = [cpu_seconds(each) for each in pids]
        seconds = float(queue_client.call("time", how=how, count=count))
        client, server = (
            cpu_seconds(each) - began for each, began in zip(pids, before, strict=True)
        )
        return Cost(seconds, client, server)
