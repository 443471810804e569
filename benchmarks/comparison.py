"""Rounds in which every contestant has a turn, and the records that come of them."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]

ONLY = "ERGON_BENCHMARK_ONLY"
"""In the environment: everybody whose name begins otherwise is left out."""


class FailedError(Exception):
    """A contestant could not do its part, or is not here."""


@dataclass(frozen=True)
class Effort:
    """How much to do."""

    folder: Path
    rounds: int
    seconds: float  # the length of a turn, roughly
    is_quick: bool
    is_huge: bool


@dataclass(frozen=True)
class Turn:
    """What came of one turn: how many in how many seconds, and the seconds of each.

    ``burnt`` are seconds of processor time: of this process, or of the server where there is one.
    """

    count: int
    seconds: float
    taken: Sequence[float] = ()
    burnt: float = 0.0
    facts: Record = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """How many per second."""
        return self.count / self.seconds


@dataclass
class Entry:
    """A contestant in a case."""

    who: str
    run: Callable[[], Turn]
    turns: list[Turn] = field(default_factory=list)
    skipped: str | None = None


@dataclass(frozen=True)
class Goal:
    """What is good enough: our rate divided by a peer's, or a rate, or milliseconds."""

    ratio: float | None = None
    rate: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None

    def __str__(self) -> str:
        parts = (
            (self.ratio, f">= {self.ratio:g} x" if self.ratio else ""),
            (self.rate, f">= {self.rate:,.0f}/s" if self.rate else ""),
            (self.p50_ms, f"p50 <= {self.p50_ms:g} ms" if self.p50_ms else ""),
            (self.p99_ms, f"p99 <= {self.p99_ms:g} ms" if self.p99_ms else ""),
        )
        return ", ".join(text for value, text in parts if value is not None)

    def judged(self, record: Record) -> Record:
        """The target and whether the record meets it."""
        checks = (
            (self.ratio, "ratio", True),
            (self.rate, "per_second", True),
            (self.p50_ms, "p50_ms", False),
            (self.p99_ms, "p99_ms", False),
        )
        met = all(
            record[name] >= bound if is_least else record[name] <= bound
            for bound, name, is_least in checks
            if bound is not None
        )
        return {"target": str(self), "met": met}


def left_out(who: str) -> str | None:
    """Why a contestant does not take part, if it does not."""
    only = os.environ.get(ONLY, "")
    return None if who.startswith(only) else f"only {only} was asked for"


def race(entries: Sequence[Entry], rounds: int) -> None:
    """Every contestant has a turn in each round; the order changes from round to round."""
    for entry in entries:
        entry.skipped = entry.skipped or left_out(entry.who)
    for number in range(rounds):
        for entry in _order(entries, number):
            if entry.skipped is None:
                gc.collect()
                try:
                    entry.turns.append(entry.run())
                except (FailedError, OSError) as error:
                    entry.skipped = f"{type(error).__name__}: {error}"[:300]


def _order(entries: Sequence[Entry], number: int) -> list[Entry]:
    shift = number % len(entries)
    rotated = [*entries[shift:], *entries[:shift]]
    return rotated[::-1] if number % 2 else rotated


def records(
    case: str, ours: Entry, peers: Sequence[tuple[Entry, Goal | None]], goal: Goal | None = None
) -> list[Record]:
    """One for us, with what our own figures must reach, and one for each peer with the ratio."""
    return [
        record(case, ours, None, goal),
        *(record(case, peer, ours, wanted) for peer, wanted in peers),
    ]


def record(case: str, entry: Entry, ours: Entry | None, goal: Goal | None = None) -> Record:
    """Medians over the rounds; a ratio is our rate divided by theirs in the same round."""
    made: Record = {"case": case, "who": entry.who}
    if entry.skipped is not None:
        return made | {"skipped": entry.skipped}
    rates = [turn.rate for turn in entry.turns]
    made |= {
        "per_second": round(statistics.median(rates), 1 if max(rates) < 1000 else None),
        "spread": [round(min(rates)), round(max(rates))],
        "rounds": len(rates),
        "count": entry.turns[0].count,
    }
    if entry.turns[0].taken:
        made |= {
            f"p{percent}_ms": _median_ms(entry.turns, percent / 100) for percent in (50, 95, 99)
        }
    if any(turn.burnt for turn in entry.turns):
        burnt = statistics.median(turn.burnt / turn.count for turn in entry.turns)
        made["cpu_us"] = round(burnt * 1e6, 1)
    made |= entry.turns[-1].facts
    if ours is not None and ours.skipped is None:
        pairs = zip(ours.turns, entry.turns, strict=True)
        quotients = [our.rate / their.rate for our, their in pairs]
        made |= {
            "ratio": round(statistics.median(quotients), 3),
            "ratio_spread": [round(min(quotients), 3), round(max(quotients), 3)],
        }
    elif goal is not None and goal.ratio is not None:
        goal = None
    return made | (goal.judged(made) if goal is not None else {})


def _median_ms(turns: Sequence[Turn], part: float) -> float:
    """The median over the rounds of one quantile of each."""
    found = [sorted(turn.taken)[min(len(turn.taken) - 1, int(len(turn.taken) * part))]
             for turn in turns]  # fmt: skip
    return round(statistics.median(found) * 1e3, 3)
