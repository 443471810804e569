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


class ContestantError(Exception):
    """A contestant could not do its part, or is not here."""


@dataclass(frozen=True)
class RunOptions:
    """How much to do."""

    folder: Path
    rounds: int
    seconds: float  # the length of a turn, roughly
    is_quick: bool
    is_huge: bool


@dataclass(frozen=True)
class Turn:
    """What came of one turn: how many in how many seconds, and the seconds of each.

    ``cpu_time``: seconds of processor time, of this process or of the server where there is one.
    """

    count: int
    seconds: float
    latencies: Sequence[float] = ()
    cpu_time: float = 0.0
    extra: Record = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """How many per second."""
        return self.count / self.seconds


@dataclass
class Contestant:
    """A contestant in a case."""

    name: str
    run: Callable[[], Turn]
    turns: list[Turn] = field(default_factory=list)
    skipped: str | None = None


@dataclass(frozen=True)
class Target:
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

    def checked(self, record: Record) -> Record:
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


def exclusion(name: str) -> str | None:
    """Why a contestant does not take part, if it does not."""
    only = os.environ.get(ONLY, "")
    return None if name.startswith(only) else f"only {only} was asked for"


def race(contestants: Sequence[Contestant], rounds: int) -> None:
    """Every contestant has a turn in each round; the order changes from round to round."""
    for contestant in contestants:
        contestant.skipped = contestant.skipped or exclusion(contestant.name)
    for number in range(rounds):
        for contestant in _order(contestants, number):
            if contestant.skipped is None:
                gc.collect()
                try:
                    contestant.turns.append(contestant.run())
                except (ContestantError, OSError) as error:
                    contestant.skipped = f"{type(error).__name__}: {error}"[:300]


def _order(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    shift = number % len(contestants)
    rotated = [*contestants[shift:], *contestants[:shift]]
    return rotated[::-1] if number % 2 else rotated


def records(
    case: str,
    ours: Contestant,
    peers: Sequence[tuple[Contestant, Target | None]],
    target: Target | None = None,
) -> list[Record]:
    """One for us, with what our own figures must reach, and one for each peer with the ratio."""
    return [
        record(case, ours, None, target),
        *(record(case, peer, ours, wanted) for peer, wanted in peers),
    ]


def record(
    case: str, contestant: Contestant, ours: Contestant | None, target: Target | None = None
) -> Record:
    """Medians over the rounds; a ratio is our rate divided by theirs in the same round."""
    made: Record = {"case": case, "who": contestant.name}
    if contestant.skipped is not None:
        return made | {"skipped": contestant.skipped}
    rates = [turn.rate for turn in contestant.turns]
    made |= {
        "per_second": round(statistics.median(rates), 1 if max(rates) < 1000 else None),
        "spread": [round(min(rates)), round(max(rates))],
        "rounds": len(rates),
        "count": contestant.turns[0].count,
    }
    if contestant.turns[0].latencies:
        made |= {
            f"p{percent}_ms": _median_ms(contestant.turns, percent / 100)
            for percent in (50, 95, 99)
        }
    if any(turn.cpu_time for turn in contestant.turns):
        cpu_time = statistics.median(turn.cpu_time / turn.count for turn in contestant.turns)
        made["cpu_us"] = round(cpu_time * 1e6, 1)
    made |= contestant.turns[-1].extra
    if ours is not None and ours.skipped is None:
        pairs = zip(ours.turns, contestant.turns, strict=True)
        quotients = [our.rate / their.rate for our, their in pairs]
        made |= {
            "ratio": round(statistics.median(quotients), 3),
            "ratio_spread": [round(min(quotients), 3), round(max(quotients), 3)],
        }
    elif target is not None and target.ratio is not None:
        target = None
    return made | (target.checked(made) if target is not None else {})


def _median_ms(turns: Sequence[Turn], part: float) -> float:
    """The median over the rounds of one quantile of each."""
    found = [sorted(turn.latencies)[min(len(turn.latencies) - 1, int(len(turn.latencies) * part))]
             for turn in turns]  # fmt: skip
    return round(statistics.median(found) * 1e3, 3)
