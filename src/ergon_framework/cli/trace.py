"""``ergon trace``: one trace as a tree, or the latest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.output import note, printable, show_list, show_one, waiting

if TYPE_CHECKING:
    from ergon_framework.app.journal import SpanRow, Trace

_COLUMNS = ["trace_id", "began_at", "took", "name", "unit", "spans", "failed", "failure"]
MISSING = "(parent not recorded)"
LABELS = {"rrq.executor": "handler (rrq.executor)"}
"""What people read in place of a name that the executor protocol fixes."""


def trace(
    asked: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A trace id or its first digits, a traceparent, or the id of a job, fact or"
            " transaction.",
            autocompletion=completion.job_ids,
        ),
    ] = None,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Without an ID: list only those of which a span failed."),
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Without an ID: list at most so many.")
    ] = 20,
    config: ConfigPath = None,
    journal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Read this journal instead of the one of the settings; may be repeated.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what was recorded of a trace, from the first cause to the last effect.

    Without an ID, list the latest traces, the newest first.

    Example: ergon trace order-7
    """
    from ergon_framework.app.journal import journals

    if asked is None:
        with waiting("looking"), journals(config, journal or ()) as opened:
            found = opened.latest()
        rows = [row for row in found if row["failed"] or not failed]
        _list(rows[:limit], as_json=as_json)
        if not found:
            note("no trace is recorded: [telemetry] spans in the settings says whether any are")
        elif not rows:
            note("none of the latest traces has a span that failed")
        return
    with waiting("looking"), journals(config, journal or ()) as opened:
        whole = opened.find(asked)
    if as_json:
        show_one(whole.to_dict(), as_json=True)
        return
    _show(whole)


def _list(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from ergon_framework.jobs.views import moment

    told = [{**row, "began_at": moment(row["began_at"])} for row in rows]
    if not as_json:
        told = [{**row, "took": _time(row["seconds"])} for row in told]
    show_list(told, _COLUMNS, as_json=as_json)


def _show(found: Trace) -> None:
    from ergon_framework.app.journal import lines

    sources = {span.source for span in found.spans}
    failed = sum(bool(span.failure) for span in found.spans)
    counts = [
        _count(len(found.spans), "span"),
        _count(len(sources), "process", "processes"),
        _time(found.seconds),
        *([f"{failed} failed"] if failed else []),
    ]
    print(f"trace {found.trace_id}: {', '.join(counts)}")
    rows = [_row(line, found.began_at) for line in lines(found.spans)]
    columns = ["span", "at", "took", "source", "unit", "failure"]
    show_list(rows, columns if failed else columns[:-1], as_json=False)
    if found.others:
        print(printable(f"also part of: {', '.join(found.others[:10])}"))


def _row(line: SpanRow, began_at: float) -> dict[str, Any]:
    span = line.span
    if span is None:
        return {"span": line.mark + MISSING}
    return {
        "span": line.mark + LABELS.get(span.name, span.name) + (" ✗" if span.failure else ""),
        "at": f"+{_time(span.began_at - began_at)}",
        "took": _time(span.ended_at - span.began_at),
        "source": span.source,
        "unit": span.unit,
        "failure": span.failure,
    }


def _time(seconds: float) -> str:
    if abs(seconds) < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.3f} s" if abs(seconds) < 100 else f"{seconds:,.0f} s"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
