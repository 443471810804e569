"""``ergon top``: how everything stands, drawn anew every few seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import printable, show_one, stop_if_unread

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.web.console.rates import JobRates

MOST_QUEUES, MOST_WORKERS, MOST_CONCERNS = 20, 10, 5
"""Lines of each list. What needs an operator comes first."""
_STYLES = {"ok": "green", "run": "cyan", "wait": "dim", "warn": "yellow", "bad": "bold red"}
_MARKS = {"ok": "+", "run": ">", "wait": "o", "warn": "^", "bad": "#"}
"""States by shape, for those who see no colours."""


class Piece(NamedTuple):
    """A part of a line, in one style."""

    text: str
    style: str = ""


Line = Sequence[Piece]


def top(
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and end.")] = False,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Watch the state of jobs: problems first, then queues and workers.

    The display is updated until Ctrl-C. Without a terminal, with --once and with --json it is
    printed once. Rates are counted between two updates, so the first display has none.

    Example: ergon top --interval 5
    """
    # Without its server, which belongs to an extra: these files need none of it.
    from ergon_framework.web.console.rates import JobRates

    rates = JobRates()
    with opened(config, url, reads=True) as client:
        if as_json:
            show_one(document(client, rates), as_json=True)
        elif once or not sys.stdout.isatty():
            for line in lines_of(document(client, rates)):
                print(printable("".join(piece.text for piece in line)).rstrip())
        else:
            _watch(client, rates, interval)
    return 0


def _watch(client: JobClient, rates: JobRates, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, pause = Console(), threading.Event()

    def drawn() -> Text:
        shown = list(lines_of(document(client, rates)))[: max(1, console.size.height - 1)]
        return Text("\n").join(
            Text.assemble(*((printable(piece.text), piece.style) for piece in line))
            for line in shown
        )

    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False) as live:
            while not pause.wait(interval):
                stop_if_unread()
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return  # the way to leave


def document(client: JobClient, rates: JobRates) -> dict[str, Any]:
    """How everything stands, as plain values."""
    from ergon_framework.jobs.views import moment
    from ergon_framework.web.console.attention import TakenQueues, concerns, queue_chip
    from ergon_framework.web.console.job_look import seen_in, totals_of

    seen = seen_in(client.store, rates)
    known = rates.document()
    is_known = known["seconds"] is not None
    done, taken = known.pop("queues"), TakenQueues(seen.workers)
    for drawn in ("points", "charts", "charts_seconds"):  # for pages
        del known[drawn]
    return {
        "at": moment(seen.now),
        "attention": [each.document() for each in concerns(seen, ())],
        **totals_of(seen),
        "rates": known,
        "queues": [
            {
                **queue,
                "state": queue_chip(queue, taken)._asdict(),
                "done_per_second": done.get(queue["name"], 0.0) if is_known else None,
            }
            for queue in seen.queues
        ],
        "workers": list(seen.workers),
    }


# ---- as text -------------------------------------------------------------------------------------


def lines_of(found: Mapping[str, Any]) -> Iterator[Line]:
    """The whole screen, line by line."""
    yield from _head(found)
    yield ()
    concerns = found["attention"]
    if not concerns:
        well = "nothing needs somebody: all that was accepted has ended, runs, or waits its turn"
        yield [Piece(f"{_MARKS['ok']} ", _STYLES["ok"]), Piece(well)]
    for each in concerns[:MOST_CONCERNS]:
        mark, style = _MARKS[each["level"]], _STYLES[each["level"]]
        command = f"  {each['command']}" if each["command"] else ""
        yield [Piece(f"{mark} {each['subject']} ", style), Piece(f"{each['text']}{command}")]
    if len(concerns) > MOST_CONCERNS:
        yield [Piece(f"  and {len(concerns) - MOST_CONCERNS} more", "dim")]
    yield ()
    yield from _queues(found)
    yield ()
    yield from _workers(found["workers"])


def _head(found: Mapping[str, Any]) -> Iterator[Line]:
    from ergon_framework.web.console.formatting import clock, number, span

    counts, more, rates = found["counts"], found["more"], found["rates"]
    alive = sum(each["state"] != "silent" for each in found["workers"])
    waiting = counts["pending"] + counts["retrying"]
    yield [
        Piece("ergon top", "bold"),
        Piece(f"  {clock(found['at'])} UTC", "dim"),
        Piece(f"  {number(alive)} {'worker' if alive == 1 else 'workers'}"),
        Piece(f"  {number(rates['done'])}/s done  p95 {span(rates.get('p95'))}"),
    ]
    dead = number(counts["failed"], "failed" in more)
    gave_up = Piece(f"  {dead} gave up", "red" if counts["failed"] else "")
    yield [
        Piece(f"{number(waiting, 'pending' in more)} waiting"),
        Piece(f"  {number(counts['active'], 'active' in more)} running"),
        Piece(f"  {number(counts['completed'], 'completed' in more)} completed"),
        gave_up,
    ]


def _queues(found: Mapping[str, Any]) -> Iterator[Line]:
    from ergon_framework.web.console.formatting import number, span
    from ergon_framework.web.console.job_look import busiest_first

    queues = found["queues"]

    titles = ("QUEUE", "WAITING", "RUNNING", "OLDEST", "DONE/S", "GAVE UP", "STATE")
    rows = []
    # The busiest first: where there are many queues, those that matter are on the screen.
    for each in busiest_first(queues)[:MOST_QUEUES]:
        counts, more, state = each["counts"], each["more"], each["state"]
        cells = (
            each["name"],
            number(counts["pending"] + counts["retrying"], "pending" in more),
            number(counts["active"], "active" in more),
            span(each["oldest_due"]),
            number(each["done_per_second"]),
            number(counts["failed"], "failed" in more),
            f"{_MARKS[state['level']]} {state['text']}",
        )
        rows.append((cells, _STYLES[state["level"]]))
    if not rows:
        yield [Piece("no queue yet: the first job makes one", "dim")]
        return
    yield from _table(titles, rows)
    left = found["queues_in_all"] - MOST_QUEUES
    if left > 0:
        yield [
            Piece(f"and {number(left, found['are_more_queues'])} more queues:  ergon queues", "dim")
        ]


def _workers(workers: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    if not workers:
        yield [Piece("no worker; this starts one:  ergon worker", "dim")]
        return
    rows = []
    for each in workers[:MOST_WORKERS]:
        level = "bad" if each["state"] == "silent" else ("run" if each["busy"] else "ok")
        cells = (
            str(each["id"]),
            str(each["host"]),
            str(each["busy"]),
            ",".join(each["queues"] or ()) or "all",
            f"{_MARKS[level]} {each['state']}",
        )
        rows.append((cells, _STYLES[level]))
    yield from _table(("WORKER", "HOST", "BUSY", "QUEUES", "STATE"), rows)
    if len(workers) > MOST_WORKERS:
        yield [Piece(f"and {len(workers) - MOST_WORKERS} more:  ergon jobs workers", "dim")]


_NUMBERS = frozenset({"WAITING", "RUNNING", "OLDEST", "DONE/S", "GAVE UP", "BUSY"})


def _table(titles: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> Iterator[Line]:
    """Columns two blanks apart, numbers at the right; the last one, the state, in its colour."""
    cells = [titles, *(row for row, _ in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(titles))]

    def spread(row: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if title in _NUMBERS else cell.ljust(width)
            for cell, width, title in zip(row, widths, titles, strict=True)
        )

    yield [Piece(spread(titles), "dim")]
    for row, style in rows:
        state = row[-1]
        yield [Piece(spread([*row[:-1], ""])[: -widths[-1]]), Piece(state, style)]
