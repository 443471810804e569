"""Measuring side by side: check every runner, size its work, then take turns and compare."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from comparison import exclusion

from engine_parts.noop import CountingHooks, Hooks, Run


@dataclass(frozen=True)
class Runner:
    """Someone who can run no-op transactions. ``prepare(hooks, count)`` is not timed."""

    name: str
    prepare: Callable[[Hooks, int], Run]
    skipped: str | None = None


@dataclass(frozen=True)
class RatioTarget:
    """What the first runner's rate divided by ``peer``'s must reach."""

    peer: str
    ratio: float
    text: str
    spans: int = 0  # and how many spans it must leave per transaction


@dataclass(frozen=True)
class Case:
    """One line-up. The first runner is the one that ratios are formed with."""

    name: str
    runners: tuple[Runner, ...]
    targets: tuple[RatioTarget, ...] = ()


@dataclass
class RunnerTurns:
    """A runner's part in a case: how many transactions a turn has, and what came out."""

    case: Case
    runner: Runner
    skipped: str | None
    count: int = 0
    rates: list[float] = field(default_factory=list)
    cpu_time: list[float] = field(default_factory=list)  # seconds of CPU per transaction
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineOptions:
    """How long to measure: turns per runner and seconds per turn, or a fixed count."""

    rounds: int
    seconds: float
    count: int | None = None


class Instrumentation:
    """What is recorded of a runner before the race, and what is done between two turns."""

    def run_and_count(self, work: Callable[[], None], count: int) -> dict[str, Any]:
        """Run the work of ``count`` transactions; return figures to print beside the rates."""
        work()
        return {}

    def before_turn(self) -> None:
        """Called before each turn, outside of the measured time."""
        gc.collect()


def race(
    cases: list[Case], options: EngineOptions, instrumentation: Instrumentation
) -> Iterator[dict[str, Any]]:
    """Measure all cases interleaved and yield one record per case and runner."""
    all_results = [
        [_prepare(case, one, options, instrumentation) for one in case.runners] for case in cases
    ]
    gc.collect()
    gc.freeze()  # what stays for all rounds shall not be walked in anybody's turn
    for turn in range(options.rounds):
        for results in all_results:
            for result in _order(results, turn):
                if result.skipped is None:
                    _take_turn(result, instrumentation)
    for results in all_results:
        yield from (_record(result, results[0]) for result in results)


def _prepare(
    case: Case, one: Runner, options: EngineOptions, instrumentation: Instrumentation
) -> RunnerTurns:
    result = RunnerTurns(case, one, one.skipped or exclusion(one.name))
    if result.skipped is None:
        try:
            result.extra = instrumentation.run_and_count(lambda: _check(one), CHECKED)
            result.count = options.count or _turn_size(one, options.seconds)
        except Exception as error:  # a runner that fails must not stop the others
            result.skipped = f"failed: {type(error).__name__}: {error}"
    return result


CHECKED = 250
"""Transactions of the check before the race."""


def _check(one: Runner) -> None:
    """Run with counting hooks: every transaction is processed and finished exactly once."""
    hooks = CountingHooks()
    said = one.prepare(hooks, CHECKED)()
    seen = (said, len(set(hooks.processed)), len(hooks.processed), len(hooks.succeeded))
    if seen != (CHECKED,) * 4:
        raise RuntimeError(f"(told, distinct, processed, succeeded) = {seen}, not {CHECKED} each")


def _turn_size(one: Runner, seconds: float) -> int:
    """How many transactions take about ``seconds``."""
    count = 500
    while True:
        elapsed, _ = _timed(one, count)
        if elapsed >= seconds / 3 or count >= 1_000_000:
            return max(200, int(count * seconds / elapsed))
        count *= 3


def _timed(one: Runner, count: int) -> tuple[float, float]:
    """Seconds that passed and seconds of CPU that were used."""
    run = one.prepare(Hooks(), count)
    began, cpu_time = time.perf_counter(), time.process_time()
    done = run()
    elapsed, cpu_time = time.perf_counter() - began, time.process_time() - cpu_time
    if done != count:
        raise RuntimeError(f"{done} of {count} transactions ended well")
    return elapsed, cpu_time


def _take_turn(result: RunnerTurns, instrumentation: Instrumentation) -> None:
    instrumentation.before_turn()
    try:
        elapsed, cpu_time = _timed(result.runner, result.count)
        result.rates.append(result.count / elapsed)
        result.cpu_time.append(cpu_time / result.count)
    except Exception as error:
        result.skipped = f"failed: {type(error).__name__}: {error}"


def _order(results: list[RunnerTurns], turn: int) -> list[RunnerTurns]:
    """Each turn somebody else begins, and every other turn runs backwards."""
    shift = turn % len(results)
    rotated = results[shift:] + results[:shift]
    return rotated[::-1] if turn % 2 else rotated


def _record(result: RunnerTurns, first: RunnerTurns) -> dict[str, Any]:
    record: dict[str, Any] = {"case": result.case.name, "who": result.runner.name}
    if result.skipped is not None:
        return record | {"skipped": result.skipped}
    record |= {
        "per_second": round(statistics.median(result.rates)),
        "spread": [round(min(result.rates)), round(max(result.rates))],
        "rounds": len(result.rates),
        "count": result.count,
        "cpu_us": round(statistics.median(result.cpu_time) * 1e6, 2),
        **result.extra,
    }
    if result is first or first.skipped is not None:
        return record
    # Turns of one round ran next to each other, so their quotient feels a noisy machine least.
    quotients = [ours / theirs for ours, theirs in zip(first.rates, result.rates, strict=True)]
    ratio = statistics.median(quotients)
    spread = [round(min(quotients), 3), round(max(quotients), 3)]
    record |= {"ratio": round(ratio, 3), "ratio_spread": spread}
    for target in result.case.targets:
        if target.peer == result.runner.name:
            complete = first.extra.get("spans_per_transaction", 0) >= target.spans
            record |= {"target": target.text, "met": ratio >= target.ratio and complete}
    return record
