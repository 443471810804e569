"""Measuring side by side: check every contestant, size its work, then take turns and compare."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine_parts.noop import CountingHooks, Hooks, Run
from comparison import left_out


@dataclass(frozen=True)
class Contestant:
    """Someone who can run no-op transactions. ``prepare(hooks, count)`` is not timed."""

    who: str
    prepare: Callable[[Hooks, int], Run]
    skipped: str | None = None


@dataclass(frozen=True)
class Goal:
    """What the first contestant's rate divided by ``peer``'s must reach."""

    peer: str
    ratio: float
    text: str
    spans: int = 0  # and how many spans it must leave per transaction


@dataclass(frozen=True)
class Case:
    """One line-up. The first contestant is the one that ratios are formed with."""

    name: str
    contestants: tuple[Contestant, ...]
    goals: tuple[Goal, ...] = ()


@dataclass
class Entry:
    """A contestant's part in a case: how many transactions a turn has, and what came out."""

    case: Case
    contestant: Contestant
    skipped: str | None
    count: int = 0
    rates: list[float] = field(default_factory=list)
    burnt: list[float] = field(default_factory=list)  # seconds of CPU per transaction
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Effort:
    """How long to measure: turns per contestant and seconds per turn, or a fixed count."""

    rounds: int
    seconds: float
    count: int | None = None


class Watcher:
    """Looks on: facts about a contestant before the race, and tidying up between two turns."""

    def examine(self, work: Callable[[], None], count: int) -> dict[str, Any]:
        """Run the work of ``count`` transactions; answer facts to print beside the figures."""
        work()
        return {}

    def between(self) -> None:
        """Called before each turn, outside of the measured time."""
        gc.collect()


def race(cases: list[Case], effort: Effort, watcher: Watcher) -> Iterator[dict[str, Any]]:
    """Measure all cases interleaved and yield one record per case and contestant."""
    line_up = [[_enter(case, one, effort, watcher) for one in case.contestants] for case in cases]
    gc.collect()
    gc.freeze()  # what stays for all rounds shall not be walked in anybody's turn
    for turn in range(effort.rounds):
        for entries in line_up:
            for entry in _order(entries, turn):
                if entry.skipped is None:
                    _take_turn(entry, watcher)
    for entries in line_up:
        yield from (_record(entry, entries[0]) for entry in entries)


def _enter(case: Case, one: Contestant, effort: Effort, watcher: Watcher) -> Entry:
    entry = Entry(case, one, one.skipped or left_out(one.who))
    if entry.skipped is None:
        try:
            entry.facts = watcher.examine(lambda: _check(one), CHECKED)
            entry.count = effort.count or _size(one, effort.seconds)
        except Exception as error:  # a contestant that fails must not stop the others
            entry.skipped = f"failed: {type(error).__name__}: {error}"
    return entry


CHECKED = 250
"""Transactions of the check before the race."""


def _check(one: Contestant) -> None:
    """Run with counting hooks: every transaction is processed and finished exactly once."""
    hooks = CountingHooks()
    said = one.prepare(hooks, CHECKED)()
    seen = (said, len(set(hooks.processed)), len(hooks.processed), len(hooks.succeeded))
    if seen != (CHECKED,) * 4:
        raise RuntimeError(f"(told, distinct, processed, succeeded) = {seen}, not {CHECKED} each")


def _size(one: Contestant, seconds: float) -> int:
    """How many transactions take about ``seconds``."""
    count = 500
    while True:
        elapsed, _ = _clock(one, count)
        if elapsed >= seconds / 3 or count >= 1_000_000:
            return max(200, int(count * seconds / elapsed))
        count *= 3


def _clock(one: Contestant, count: int) -> tuple[float, float]:
    """Seconds that passed and seconds of CPU that were used."""
    run = one.prepare(Hooks(), count)
    began, burnt = time.perf_counter(), time.process_time()
    done = run()
    elapsed, burnt = time.perf_counter() - began, time.process_time() - burnt
    if done != count:
        raise RuntimeError(f"{done} of {count} transactions ended well")
    return elapsed, burnt


def _take_turn(entry: Entry, watcher: Watcher) -> None:
    watcher.between()
    try:
        elapsed, burnt = _clock(entry.contestant, entry.count)
        entry.rates.append(entry.count / elapsed)
        entry.burnt.append(burnt / entry.count)
    except Exception as error:
        entry.skipped = f"failed: {type(error).__name__}: {error}"


def _order(entries: list[Entry], turn: int) -> list[Entry]:
    """Each turn somebody else begins, and every other turn runs backwards."""
    shift = turn % len(entries)
    rotated = entries[shift:] + entries[:shift]
    return rotated[::-1] if turn % 2 else rotated


def _record(entry: Entry, first: Entry) -> dict[str, Any]:
    record: dict[str, Any] = {"case": entry.case.name, "who": entry.contestant.who}
    if entry.skipped is not None:
        return record | {"skipped": entry.skipped}
    record |= {
        "per_second": round(statistics.median(entry.rates)),
        "spread": [round(min(entry.rates)), round(max(entry.rates))],
        "rounds": len(entry.rates),
        "count": entry.count,
        "cpu_us": round(statistics.median(entry.burnt) * 1e6, 2),
        **entry.facts,
    }
    if entry is first or first.skipped is not None:
        return record
    # Turns of one round ran next to each other, so their quotient feels a noisy machine least.
    quotients = [ours / theirs for ours, theirs in zip(first.rates, entry.rates, strict=True)]
    ratio = statistics.median(quotients)
    spread = [round(min(quotients), 3), round(max(quotients), 3)]
    record |= {"ratio": round(ratio, 3), "ratio_spread": spread}
    for goal in entry.case.goals:
        if goal.peer == entry.contestant.who:
            complete = first.facts.get("spans_per_transaction", 0) >= goal.spans
            record |= {"target": goal.text, "met": ratio >= goal.ratio and complete}
    return record
