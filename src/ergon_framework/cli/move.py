"""``ergon move``: what a store holds, copied into another one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.command_run import CommandStoppedError, JsonFlag, stoppable
from ergon_framework.cli.output import progress, show_error, show_list, show_one
from ergon_framework.errors import ConfigurationError, ErgonError

if TYPE_CHECKING:
    from ergon_framework.app.move.endpoints import Asked
    from ergon_framework.app.move.project import ProjectOutcome, ProjectPlan
    from ergon_framework.app.move.transfer import Moved, Tell, TransferProgress

_COLUMNS = ["part", "what", "copied", "discarded", "count", "digest"]
AllowLostPayloads = Annotated[
    bool,
    typer.Option(
        "--allow-lost-payloads",
        help=(
            "Copy jobs whose payload object is missing or damaged without their payload, "
            "and name each of them."
        ),
    ),
]
_STRIDE = 10_000  # copies between two lines where there is no terminal


def move(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FROM", help="The URL of a store, the folder of a zone, or ergon.toml."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TO",
            help="The URL of an empty store or an empty folder; or an earlier copy of FROM.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Move all that ergon.toml, or a script with ergon.db, keeps: every zone, jobs"
            " and provider calls.",
        ),
    ] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move the facts of this zone, not jobs.")
    ] = None,
    objects: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="FROM TO",
            help="The folder or bucket of a zone's objects, and the one to copy them to.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be copied; write nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help=(
                "Read FROM although programs use it; with --reopen, reopen it although TO was used."
            ),
        ),
    ] = False,
    shut: Annotated[
        bool,
        typer.Option(
            "--shut",
            help=(
                "When all is copied, shut FROM: programs that open it are told where the data is."
            ),
        ),
    ] = False,
    allow_lost_payloads: AllowLostPayloads = False,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Copy nothing; undo --shut of an earlier move.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Copy what a store holds into another one.

    For a store these are jobs, schedules and provider calls; for a zone, its facts and objects.
    FROM and TO may be of different kinds: sqlite:///work.db, postgresql://host/name,
    redis://host/0, nats://host, or the folder of a zone.

    Stop every program that works with FROM before. At the end both sides are compared. Run the same
    command again to copy what is missing or has changed since, also after a move that was cut off.
    A TO that holds anything else is refused. With --shut, programs that still use FROM are refused
    and told where the data is. JSON is one object per line: the progress, and at the end one for
    each kind of record.

    ergon move ergon.toml --to URL moves every store of the settings at once, shuts the old ones,
    and prints the line to change in ergon.toml. It does not change that file.

    Example: ergon db move sqlite:///work.db postgresql://localhost/work --dry-run
    """
    from ergon_framework.app.move.endpoints import Asked
    from ergon_framework.app.store_location import StoreLocation

    if reopen and (shut or dry_run):
        raise ConfigurationError(
            "--reopen copies nothing and shuts nothing", remedy="give it alone"
        )
    if to is not None:
        _refuse_single_options(source, target, zone, objects)
        project = _planned(source, to, force, dry_run, allow_lost_payloads)
        _move_project(project, reopens=reopen, as_json=as_json)
        return
    if source is None or target is None:
        raise ConfigurationError(
            "a move needs a FROM and a TO",
            remedy="ergon move sqlite:///work.db postgresql://host/name; or, for everything that a"
            " settings file keeps, ergon move ergon.toml --to URL",
        )
    asked = Asked(
        *(StoreLocation(source), StoreLocation(target), zone, objects, force, dry_run, shut),
        allows_lost=allow_lost_payloads,
    )
    with _reporting_stops(_when_stopped(asked, is_reopening=reopen), as_json=as_json):
        if reopen:
            _reopen(asked, as_json=as_json)
        else:
            _move(asked, as_json=as_json)


def _when_stopped(asked: Asked, *, is_reopening: bool) -> str:
    """What a stopped command leaves behind; a store that it had shut is open again."""
    if is_reopening:
        return f"stopped: whether {asked.source.name} is open is told by the same command"
    if asked.is_trial:
        return "stopped: nothing was written"
    return "stopped: what was copied stays in TO, and nothing is lost"


@contextmanager
def _reporting_stops(text: str, *, as_json: bool) -> Iterator[None]:
    """Report what a stopped command leaves behind, and end with the exit code of its signal."""
    try:
        with stoppable():
            yield
    except CommandStoppedError as stopped:
        error = ErgonError(text, remedy="run the same command again: it goes on from there")
        show_error(error, as_json=as_json)
        raise typer.Exit(stopped.exit_code) from None


# ---- all that a program keeps -------------------------------------------------------------------


def _refuse_single_options(
    source: str | None, target: str | None, zone: str | None, objects: tuple[str, str] | None
) -> None:
    """With --to a program is moved, and all of it."""
    from ergon_framework.app.move.project import is_project

    if source is not None and not is_project(source):
        raise ConfigurationError(
            "--to moves what a settings file or a script keeps, and FROM is a store or a folder",
            remedy="ergon move FROM TO moves one store; ergon move ergon.toml --to URL moves all",
        )
    if target is not None or zone is not None or objects is not None:
        raise ConfigurationError(
            "--to moves every part, so there is no TO, --zone or --objects beside it",
            remedy="leave them out, or move one part: ergon move FROM TO",
        )


def _planned(
    source: str | None, to: str, force: bool, dry_run: bool, allows_lost: bool
) -> ProjectPlan:
    from ergon_framework.app.move.project import find_project, plan

    project = find_project(source)
    return plan(project, to, is_forced=force, is_trial=dry_run, allows_lost=allows_lost)


def _move_project(planned: ProjectPlan, *, reopens: bool, as_json: bool) -> None:
    from ergon_framework.app.move.project import reopen, run

    text = (
        "stopped: the old stores are open as before, unless TO is complete already; nothing is lost"
    )
    with _reporting_stops(text, as_json=as_json):
        if not reopens:
            with transfer_progress(as_json=as_json) as tell:
                outcome = run(planned, tell)
            _show_project(outcome, planned, as_json=as_json)
            return
        with transfer_progress(as_json=as_json) as tell:
            opened = reopen(planned, tell, _warn)
        if as_json:
            show_one({"reopened": opened}, as_json=True)
        else:
            print(f"can be used again: {', '.join(opened) or 'nothing was shut'}")


def _show_project(outcome: ProjectOutcome, planned: ProjectPlan, *, as_json: bool) -> None:
    is_trial = planned.is_trial
    rows = [
        {**_row(each, is_trial=is_trial), "part": title if title.startswith("facts") else each.part}
        for title, each in outcome.moved
    ]
    if as_json:
        for row in rows:
            show_one(row, as_json=True)
        show_one({"notes": outcome.notes, "change": planned.change}, as_json=True)
        return
    columns = _COLUMNS[:4] if is_trial else _COLUMNS
    show_list([_shortened(row) for row in rows], columns, as_json=False)
    for note in outcome.notes:
        print(note)
    if planned.parts:
        print(f"\n{'Then' if is_trial else 'Now'} {planned.change}")


# ---- one store ----------------------------------------------------------------------------------


def _move(asked: Asked, *, as_json: bool) -> None:
    from ergon_framework.app.move.run import run

    with transfer_progress(as_json=as_json) as tell:
        outcome = run(asked, tell)
    rows = [_row(each, is_trial=asked.is_trial) for each in outcome.moved]
    if as_json:
        for row in rows:
            show_one(row, as_json=True)
        if outcome.notes:
            show_one({"notes": outcome.notes}, as_json=True)
        return
    columns = _COLUMNS[:4] if asked.is_trial else _COLUMNS
    show_list([_shortened(row) for row in rows], columns, as_json=False)
    for note in outcome.notes:
        print(note)
    if not asked.is_trial:
        print(_shut_note(asked, is_shut=outcome.is_shut), file=sys.stderr)


def _reopen(asked: Asked, *, as_json: bool) -> None:
    from ergon_framework.app.move.run import reopen

    with transfer_progress(as_json=as_json) as tell:
        opened = reopen(asked, tell, _warn)
    if as_json:
        show_one({"store": asked.source.name, "reopened": opened}, as_json=True)
        return
    print(f"{asked.source.name} can be used again: {', '.join(opened) or 'it was not shut'}")


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _shut_note(asked: Asked, *, is_shut: bool) -> str:
    name = asked.source.name
    if is_shut:
        return f"{name} is shut: whoever works with it is told to use {asked.target.name}"
    return (
        f"{name} is still open: whoever goes on there does the same a second time;"
        " the same command with --shut refuses them"
    )


def _row(moved: Moved, *, is_trial: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "part": moved.part,
        "what": moved.kind,
        "copied": moved.copied,
        "discarded": moved.discarded,
    }
    if is_trial or moved.sum is None:
        return row
    return {**row, "count": moved.sum.count, "digest": moved.sum.digest}


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Enough of a digest for people."""
    return {**row, "digest": str(row.get("digest", ""))[:16]}


@contextmanager
def transfer_progress(*, as_json: bool) -> Iterator[Tell]:
    """A bar on a terminal, lines of JSON for a program, and a line now and then for a file."""
    if as_json:
        yield _tell_program
    elif sys.stderr.isatty():
        with progress("opening") as bar:
            yield lambda at: bar(at.done, description=at.what, total=at.total)
    else:
        yield _Lines()


def _tell_program(at: TransferProgress) -> None:
    view = {"part": at.part, "doing": at.what, "done": at.done, "total": at.total}
    show_one(view, as_json=True)


class _Lines:
    """Says when something begins, and then once in a while."""

    def __init__(self) -> None:
        self._what = ""
        self._next = 0

    def __call__(self, at: TransferProgress) -> None:
        """Print the progress, if it is worth a line."""
        if at.what == self._what and at.done < self._next:
            return
        self._what, self._next = at.what, at.done + _STRIDE
        of = "" if at.total is None else f" of {at.total}"
        print(f"{at.what}: {at.done}{of}", file=sys.stderr, flush=True)
