"""Enqueues, claims and settles per second, into and out of queues of given lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from jobs_parts.queue_systems import Seat, Who
from jobs_parts.processes import cpu_seconds
from jobs_parts.session import Ground
from comparison import FailedError, Record, Turn, records

from scale_parts.options import Effort
from scale_parts.engines import BULK, Engine

OPERATIONS = {
    "enqueue": "enqueue_each",
    BULK: "enqueue_many",
    "claim": "claim",
    "settle": "settle",
}
AT_ONCE = 1000
"""Jobs in one call that adds many."""
WARM = 20


def queueing(ground: Ground, effort: Effort) -> Iterator[Record]:
    """One engine and one length after the other; everybody who lives there in turn."""
    for engine in effort.engines:
        for length in effort.lengths:
            yield from _at(ground, effort, engine, length)


def _at(ground: Ground, effort: Effort, engine: Engine, length: int) -> Iterator[Record]:
    books = [Book(ground, who, length, effort.seconds) for who in engine.field(effort.peers)]
    entries = [ground.entry(book.who, "drain", book.turn) for book in books]
    ground.race(entries)
    for name in OPERATIONS:
        ours, *others = [
            replace(entry, turns=book.turns[name])
            for entry, book in zip(entries, books, strict=True)
            if name in book.turns
        ]
        case = f"{engine.key}-{name}-{length}"
        yield from records(case, ours, [(other, None) for other in others])
    for book in books:
        book.empty()


@dataclass(frozen=True)
class Spent:
    """Seconds that passed, and those of processor time in the client and in the server."""

    seconds: float = 0.0
    client: float = 0.0
    server: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.seconds + other.seconds, self.client + other.client, self.server + other.server
        )

    def turn(self, count: int) -> Turn:
        """What it was for so many jobs."""
        facts = {"server_us": round(self.server / count * 1e6, 1)}
        return Turn(count, self.seconds, (), self.client, facts)


@dataclass
class Book:
    """What one contestant does at one length of the queue."""

    ground: Ground
    who: Who
    length: int
    seconds: float
    is_filled: bool = False
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = {name: [] for name in OPERATIONS if name != BULK or BULK in self.who.cases}

    def turn(self, seat: Seat) -> Turn:
        """Add jobs, take as many and end them, again and again; the queue is as long as before."""
        if not self.is_filled:
            seat.ask("reset")
            seat.fill(0, self.length)
            self._cycle(seat, self._counts(WARM))  # what is done for the first time takes longer
            self.is_filled = True
        counts = self._counts(max(WARM, int(self.who.enqueue_pace * self.seconds / 4)))
        spent = {name: Spent() for name in counts}
        cycles = 0
        while sum(each.seconds for each in spent.values()) < self.seconds:
            cycles += 1
            for name, each in self._cycle(seat, counts).items():
                spent[name] += each
        found = seat.ask("waiting")
        if found != self.length:
            raise FailedError(f"{found} jobs are waiting instead of {self.length}")
        for name, each in spent.items():
            self.turns[name].append(each.turn(counts[name] * cycles))
        return self.turns["enqueue"][-1]

    def empty(self) -> None:
        """A queue that is done with shall take no memory."""
        if self.is_filled:
            self.ground.seat(self.who, "drain").ask("reset")

    def _counts(self, each: int) -> dict[str, int]:
        bulk = min(AT_ONCE, each * 4) if BULK in self.turns else 0
        counts = {"enqueue": each, BULK: bulk, "claim": each + bulk, "settle": each + bulk}
        return {name: counts[name] for name in self.turns}

    def _cycle(self, seat: Seat, counts: dict[str, int]) -> dict[str, Spent]:
        return {name: self._spent(seat, OPERATIONS[name], each) for name, each in counts.items()}

    def _spent(self, seat: Seat, how: str, count: int) -> Spent:
        pids = [seat.pid], self.ground.servers.pids(self.who.server)
        before = [cpu_seconds(each) for each in pids]
        seconds = float(seat.ask("time", how=how, count=count))
        client, server = (
            cpu_seconds(each) - began for each, began in zip(pids, before, strict=True)
        )
        return Spent(seconds, client, server)
