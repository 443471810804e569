"""``ergon tail``: what happens in the processes of the settings, as their journal gets it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_filters import instant_of
from ergon_framework.cli.output import printable, show_one, stop_if_unread
from ergon_framework.errors import SettingsError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from ergon_framework.ports.journal import JournalEntry, JournalQuery
    from ergon_framework.storage.journal import SqliteJournal

POLL_INTERVAL = 0.25
"""Seconds after which it looks although nothing was notified."""
PAGE = 500
_BAD = ("failed", "died", "dead_lettered", "lost", "refused", "stalled", "opened", "abandoned")

Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="NAME,...",
        help=(
            "Only these notices, by name or first part of it: job,circuit.opened; may be repeated."
        ),
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Begin this long ago (10m), or at a time (2030-01-31T12:00:00Z) [default: now].",
    ),
]


def tail(
    names: Names = None,
    unit: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Only notices about the job, transaction or fact with this id.",
            autocompletion=completion.job_ids,
        ),
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="ID", help="Only notices of the trace with this id.")
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            metavar="PREFIX",
            help="Only notices of processes whose name begins so, for example worker.",
        ),
    ] = "",
    since: Since = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    follow: Annotated[
        bool, typer.Option(help="Wait for more. --no-follow prints what is there and ends.")
    ] = True,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read this journal [default: the one of the settings]."),
    ] = None,
    config: ConfigPath = None,
    as_json: JsonFlag = False,
) -> int:
    """Follow what happens in all processes: failures, retries, circuits, workers that start and
    stop.

    It reads the journal, which leaves out what simply succeeded. Without --since it begins now;
    with --no-follow it prints everything that is kept, and ends. JSON is one object per line.

    Example: ergon tail --name job,circuit.opened --since 10m
    """
    from ergon_framework.ports.journal import JournalQuery

    path = _journal(journal, config)
    wanted = JournalQuery(
        names=tuple(each.strip() for text in names or () for each in text.split(",") if each),
        unit=unit,
        trace_id=trace.lower(),
        source=source,
        # By the clock of this machine, whose processes write the journal.
        since=None if since is None else instant_of(since, time.time()),
    )
    show = _printer(as_json=as_json)
    try:
        for number, entry in enumerate(_entries(path, wanted, is_followed=follow), 1):
            show(entry)
            if number == limit:
                break
    except KeyboardInterrupt:
        return 130
    return 0


# ---- reading -------------------------------------------------------------------------------------


def _journal(given: Path | None, config: Path | None) -> Path:
    from ergon_framework.app.journal import journal_path
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.settings.stores import without

    if given is not None:
        return given
    settings = load_settings(config)
    path = journal_path(settings)
    if path is not None:
        return path
    raise SettingsError(
        f"no journal: {without(settings, 'wants none')}",
        remedy='write journal = "sqlite:///ergon-journal.db" under [telemetry] in ergon.toml, or'
        " name a file with --journal",
    )


def _entries(path: Path, wanted: JournalQuery, *, is_followed: bool) -> Iterator[JournalEntry]:
    from ergon_framework.storage.journal import SqliteJournal

    is_new = is_followed and not path.exists()
    if is_new:
        _say(f"waiting for {path}: no process has told anything yet")
        # A subscription belongs to a journal that is there; until then only looking helps.
        pause = threading.Event()
        while not _is_made(path):
            pause.wait(POLL_INTERVAL)
            stop_if_unread()
    elif not path.exists():
        raise StoreUnavailableError(
            f"there is no journal {path}",
            remedy="the first process that has something to tell makes it",
        )
    with SqliteJournal(path, read_only=True) as journal:
        # Of a journal that was made while we waited, nothing is old.
        from_start = not is_followed or is_new or wanted.since is not None
        after = 0 if from_start else journal.last()
        if is_followed:
            yield from _follow(journal, wanted, after)
        else:
            yield from _found(journal, wanted, after)


def _is_made(path: Path) -> bool:
    """Whether the journal has its tables, which come a moment after the file."""
    from ergon_framework.app.settings.stores import file_has_table

    try:
        return file_has_table(path, "ergon_schema")
    except StoreError:
        return False


def _follow(journal: SqliteJournal, wanted: JournalQuery, after: int) -> Iterator[JournalEntry]:
    with closing(journal.subscribe()) as subscription:
        while True:
            # Asked before the entries are read: one that is written meanwhile has a greater number,
            # and is not skipped by the max() below.
            last = journal.last()
            if last < after:  # the file was removed, and a new one was begun
                after = 0
            if last > after:
                for entry in _found(journal, wanted, after):
                    after = entry.number
                    yield entry
                after = max(after, last)  # what does not match need not be looked at again
            subscription.wait(POLL_INTERVAL)
            stop_if_unread()


def _found(journal: SqliteJournal, wanted: JournalQuery, after: int) -> Iterator[JournalEntry]:
    while page := journal.read(wanted, after, PAGE):
        yield from page
        after = page[-1].number


# ---- showing -------------------------------------------------------------------------------------


def _printer(*, as_json: bool) -> Callable[[JournalEntry], None]:
    if as_json:
        return lambda entry: show_one(view(entry), as_json=True)
    if sys.stdout.isatty():
        return _show_coloured()
    return lambda entry: print("  ".join(part for part in columns(entry) if part), flush=True)


def view(entry: JournalEntry) -> dict[str, Any]:
    """An entry as programs get it."""
    from ergon_framework.core.rfc3339 import format_rfc3339

    return {
        "number": entry.number,
        "at": format_rfc3339(entry.at),
        "name": entry.name,
        "source": entry.source,
        "unit": entry.unit or None,
        "trace_id": entry.trace_id or None,
        "fields": entry.fields,
    }


def columns(entry: JournalEntry) -> tuple[str, str, str, str, str]:
    """An entry as people read it: time, name, source, subject, and the other fields."""
    from ergon_framework.app.explain.explanation import field_text

    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
    at = f"{day}.{int(entry.at % 1 * 1000):03}"
    texts = (entry.name, entry.source, entry.unit, field_text(entry.fields))
    name, source, unit, rest = map(printable, texts)
    return at, name.ljust(20), source, unit, rest


def _show_coloured() -> Callable[[JournalEntry], None]:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)

    def show(entry: JournalEntry) -> None:
        at, name, source, unit, rest = columns(entry)
        is_bad = entry.name.endswith(_BAD) or entry.fields.get("failure") is not None
        styles = ("dim", "bold red" if is_bad else "bold", "cyan", "magenta", "")
        pieces = zip((at, name, source, unit, rest), styles, strict=True)
        console.print(Text("  ").join(Text(text, style) for text, style in pieces if text))

    return show


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
