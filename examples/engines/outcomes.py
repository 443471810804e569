"""The table at the end, and whether its sums add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from stages import Stage
from tally import Tally
from troubles import ATTEMPTS, Trouble

from ergon_framework import Report

Value = Callable[[Stage, Report, Tally], object]

VALUES: dict[str, Value] = {
    "given": lambda stage, report, tally: stage.given,
    "succeeded": lambda stage, report, tally: report.succeeded,
    "failed": lambda stage, report, tally: report.failed,
    "timed out": lambda stage, report, tally: report.timed_out,
    "not finished": lambda stage, report, tally: unfinished(stage),
    "handler failures": lambda stage, report, tally: report.handler_failures,
    "retries": lambda stage, report, tally: tally.of(stage.name)["retries"],
    "abandoned": lambda stage, report, tally: report.abandoned,
    "elapsed": lambda stage, report, tally: f"{report.elapsed:.2f} s",
    "ended by": lambda stage, report, tally: report.stop_reason.value,
}
STYLES = {
    "given": "bold",
    "succeeded": "green",
    "failed": "red",
    "timed out": "magenta",
    "handler failures": "red",
    "retries": "yellow",
    "abandoned": "magenta",
}
WIDE = 60
"""Columns the table needs; where there are fewer, each engine gets a paragraph."""


def show(console: Console, stages: Sequence[Stage], tally: Tally) -> None:
    """One column per engine; an engine that never ran has dashes."""
    rows = {
        name: [_cell(value, stage, tally) for stage in stages] for name, value in VALUES.items()
    }
    if console.width < WIDE:
        for column, stage in enumerate(stages):
            line = ", ".join(f"{name} {cells[column]}" for name, cells in rows.items())
            console.print(f"{stage.kind}: {line}")
        return
    table = Table(title="Outcomes", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("")
    for stage in stages:
        table.add_column(stage.kind.replace(" ", "\n"), justify="right")
    for name, cells in rows.items():
        table.add_row(name, *cells, style=STYLES.get(name))
    console.print(table)


def _cell(value: Value, stage: Stage, tally: Tally) -> str:
    return "-" if stage.report is None else str(value(stage, stage.report, tally))


def unfinished(stage: Stage) -> int:
    """What a stop left behind: it waits in the queue again, or was never taken from the list."""
    if stage.source is not None:
        return stage.source.get_transactions_count()
    return len(stage.report.stranded) if stage.report is not None else 0


def summary(stages: Sequence[Stage], wrong: Sequence[str]) -> str:
    """The last word: whether every transaction can be accounted for."""
    if wrong:
        return "\n  ".join(["The sums do NOT add up:", *wrong])
    ran = [stage for stage in stages if stage.report is not None]
    ended = sum(int(stage.report or 0) for stage in ran)
    left = sum(unfinished(stage) for stage in ran)
    rest = f" {left} more were left where they can be found again." if left else ""
    return f"The sums add up: {ended} transactions, each with exactly one outcome.{rest}"


def problems(stages: Sequence[Stage], tally: Tally, *, is_partial: bool) -> Iterator[str]:
    """Every sum that does not add up, as a sentence."""
    for stage in stages:
        if stage.report is not None:
            yield from _outcomes(stage)
            yield from _notices(stage, tally)
            if not is_partial:
                yield from _plan(stage, tally)


def _outcomes(stage: Stage) -> Iterator[str]:
    """Each transaction has exactly one outcome, and the queue heard of the same ones."""
    report, left = stage.report, unfinished(stage)
    if report is None:
        return
    if int(report) + left != stage.given:
        yield f"{stage.name}: {int(report)} outcomes and {left} unfinished for {stage.given} given"
    if stage.source is not None and len(stage.source.dead) != report.failed + report.timed_out:
        yield f"{stage.name}: the queue set {len(stage.source.dead)} aside, the report says more"


def _notices(stage: Stage, tally: Tally) -> Iterator[str]:
    """What was told while it happened is what the report says at the end."""
    counts = tally.of(stage.name)
    for name in ("succeeded", "failed", "timed_out", "abandoned"):
        reported = getattr(stage.report, name)
        if counts[name] != reported:
            yield f"{stage.name}: {reported} {name} reported, {counts[name]} told"


def _plan(stage: Stage, tally: Tally) -> Iterator[str]:
    """Each trouble came once, and ended as it must."""
    again = ATTEMPTS - 1
    report = stage.report
    planned = {
        "failed": len((Trouble.REFUSED, Trouble.BROKEN, Trouble.CURSED)),
        "timed_out": len((Trouble.STUCK,)),
        "handler_failures": len((Trouble.CURSED,)),
        "abandoned": 0 if stage.kind.startswith("async") else ATTEMPTS,
        "stranded": (),
    }
    for name, expected in planned.items():
        if getattr(report, name) != expected:
            yield f"{stage.name}: {name} is {getattr(report, name)}, planned were {expected}"
    retries = again * len((Trouble.FLAKY, Trouble.STUCK, Trouble.BROKEN))
    if tally.of(stage.name)["retries"] != retries:
        yield f"{stage.name}: {tally.of(stage.name)['retries']} retries, planned were {retries}"
