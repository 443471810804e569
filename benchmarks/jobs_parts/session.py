"""Where contestants with clients and servers of their own race, and records of times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from comparison import Entry, Record, Turn, race

from jobs_parts.queue_systems import Seat, Who
from jobs_parts.servers import Servers


class Ground:
    """Where a run takes place: a folder, servers, and the clients that were started so far."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.servers = Servers(folder)
        self._seats: dict[str, Seat] = {}

    def entry(
        self, who: Who, case: str, turn: Callable[[Seat], Turn], label: str | None = None
    ) -> Entry:
        """A contestant in a case; its client and its server start with its first turn."""
        return Entry(label or who.name, lambda: turn(self.seat(who, case)))

    def seat(self, who: Who, case: str) -> Seat:
        """The contestant with its client; raises ``FailedError`` when there is none."""
        name = f"{who.key}-{case}" if who.has_cases else who.key
        if name not in self._seats:
            url = self.servers.url(who.server) if who.server else ""
            self._seats[name] = Seat(who, case, url, self.folder / name)
        return self._seats[name]

    def race(self, entries: Sequence[Entry], rounds: int | None = None) -> None:
        """Every contestant has a turn in each round."""
        race(entries, rounds or self.rounds)

    def close(self) -> None:
        """End all clients, then the servers."""
        for seat in self._seats.values():
            seat.close()
        self.servers.stop()


def time_record(case: str, label: str, samples: Sequence[float], ours: Sequence[float]) -> Record:
    """Milliseconds; the ratio is our median divided by theirs, so that less than 1 is good."""
    median = statistics.median(samples)
    record: Record = {
        "case": case,
        "who": label,
        "p50_ms": round(median, 4),
        "p99_ms": round(sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))], 4),
        "spread_ms": [round(min(samples), 4), round(max(samples), 4)],
        "samples": len(samples),
    }
    if ours and samples is not ours:
        record["ratio"] = round(statistics.median(ours) / median, 3)
    return record
