"""Rounds in which every contestant has a turn, and the records that come of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs_parts.contestants import FailedError, Seat, Who
from jobs_parts.servers import MissingError, Servers
from jobs_parts.turns import Figures

Record = dict[str, Any]


@dataclass
class Entry:
    """A contestant in a case: its seat, how many jobs a turn has, and what came out."""

    who: Who
    count: int
    label: str
    seat: Seat | None = None
    skipped: str | None = None
    turns: list[Figures] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Goal:
    """What our figure divided by a peer's must reach, and in words."""

    ratio: float
    text: str


class Ground:
    """Where a run takes place: a folder, servers, and the clients that were started so far."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self._servers = Servers(folder)
        self._seats: dict[str, Seat] = {}

    def _seat(self, entry: Entry, case: str) -> None:
        """Give the contestant its client, or note why it has none."""
        who = entry.who
        name = f"{who.key}-{case}" if who.has_cases else who.key
        try:
            if name not in self._seats:
                url = self._servers.url(who.server) if who.server else ""
                self._seats[name] = Seat(who, case, url, self.folder / name)
            entry.seat = self._seats[name]
            entry.seat.ask("reset")
        except (FailedError, MissingError, OSError) as error:
            entry.skipped = str(error)

    def close(self) -> None:
        """End all clients, then the servers."""
        for seat in self._seats.values():
            seat.close()
        self._servers.stop()

    def race(
        self,
        case: str,
        entries: Sequence[Entry],
        turn: Callable[[Entry, Seat], None],
        rounds: int | None = None,
    ) -> None:
        """Every contestant has a turn in each round; the order changes from round to round."""
        for entry in entries:
            self._seat(entry, case)
        for number in range(rounds or self.rounds):
            for entry in _order(entries, number):
                if entry.skipped is None and entry.seat is not None:
                    try:
                        turn(entry, entry.seat)
                    except FailedError as error:
                        entry.skipped = f"failed: {error}"


def _order(entries: Sequence[Entry], number: int) -> list[Entry]:
    shift = number % len(entries)
    rotated = [*entries[shift:], *entries[:shift]]
    return rotated[::-1] if number % 2 else rotated


def rate_record(case: str, entry: Entry, first: Entry, goal: Goal | None) -> Record:
    """Jobs per second; the ratio is the median over the rounds of ours divided by theirs."""
    record: Record = {"case": case, "who": entry.label}
    if entry.skipped is not None:
        return record | {"skipped": entry.skipped}
    rates = [each.rate for each in entry.turns]
    record |= {
        "per_second": round(statistics.median(rates)),
        "spread": [round(min(rates)), round(max(rates))],
        "rounds": len(rates),
        "count": entry.count,
    }
    if any(each.cpu_us for each in entry.turns):
        record["cpu_us"] = round(statistics.median(each.cpu_us for each in entry.turns), 1)
    if entry is first:
        return record | entry.turns[-1].facts
    if first.skipped is not None:
        return record
    quotients = [
        ours.rate / theirs.rate for ours, theirs in zip(first.turns, entry.turns, strict=True)
    ]
    ratio = statistics.median(quotients)
    record |= {
        "ratio": round(ratio, 3),
        "ratio_spread": [round(min(quotients), 3), round(max(quotients), 3)],
    }
    if goal is not None:
        record |= {"target": goal.text, "met": ratio >= goal.ratio}
    return record


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
