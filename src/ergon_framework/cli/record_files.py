"""``ergon export`` and ``ergon import``: what a store holds, as a file of records and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.distribution import version
from ergon_framework.cli.move import AllowLostPayloads, transfer_progress
from ergon_framework.cli.output import (
    StdoutBytes,
    is_stdout_closed,
    show_error,
    show_list,
    show_one,
)
from ergon_framework.cli.session import CommandStoppedError, JsonFlag, stoppable
from ergon_framework.errors import ConfigurationError, ErgonError

if TYPE_CHECKING:
    from ergon_framework.app.move.export_file import Exported, Exporting
    from ergon_framework.app.move.import_file import Imported

STREAM = "-"


def export(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A store's URL or zone's folder.")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A new file; - is the standard output.")
    ] = STREAM,
    zone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Export the facts of this zone, not jobs.")
    ] = None,
    objects: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The folder or bucket of a zone's objects."),
    ] = None,
    no_objects: Annotated[
        bool, typer.Option("--no-objects", help="Leave out the bytes of objects.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a FILE that is there.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Read a server although somebody works with it.")
    ] = False,
    allow_lost_payloads: AllowLostPayloads = False,
    as_json: JsonFlag = False,
) -> None:
    """Write what a store holds into a file.

    Jobs, schedules and provider calls, or a zone's facts and objects. The file is JSON Lines: a
    header, one record per line, and a trailer with counts and a digest. It holds payloads, results
    and errors as they are, secrets in them included: FILE is for its owner alone, and it is for you
    to keep it so. FROM is left as it is. A store on SQLite may be in use meanwhile; one on a server
    is read twice, and the export begins anew when it changed. FILE has its name when all of it is
    on the disk, and not before.
    """
    from ergon_framework.app.move.export_file import Exporting
    from ergon_framework.app.store_location import StoreLocation

    if objects is not None and no_objects:
        raise ConfigurationError(
            "--objects and --no-objects contradict each other", remedy="give one of them"
        )
    asked = Exporting(
        *(StoreLocation(source), zone, objects, not no_objects, force, version()),
        allows_lost=allow_lost_payloads,
    )
    with _reporting_stops("nothing was written", as_json=as_json):
        if file == STREAM:
            _export_to_stdout(asked, as_json=as_json)
        else:
            _export_to_file(asked, Path(file).absolute(), overwrite, as_json)


def _export_to_stdout(asked: Exporting, *, as_json: bool) -> None:
    from ergon_framework.app.move.export_file import StreamOutput, run

    if as_json or is_stdout_closed():
        raise ConfigurationError(
            "the records go to the standard output, and "
            + ("so would the summary" if as_json else "there is none"),
            remedy="name a FILE",
        )
    with transfer_progress(as_json=False) as tell:
        stdout = StdoutBytes()
        exported = run(asked, StreamOutput(stdout), tell)
        stdout.flush()
    total = exported.trailer
    print(f"exported {total.records} records, {total.digest}", file=sys.stderr)
    for note in exported.notes:
        print(note, file=sys.stderr)


def _export_to_file(asked: Exporting, path: Path, overwrite: bool, as_json: bool) -> None:
    from ergon_framework.app.move.export_file import FileOutput, run

    with (
        closing(FileOutput(path, may_replace=overwrite)) as output,
        transfer_progress(as_json=as_json) as tell,
    ):
        # Before anything is read: a target that cannot be written is an error at once.
        output.begin()
        exported = run(asked, output, tell, scratch=output.folder)
        output.commit()
    _show_exported(exported, path, as_json=as_json)


def _show_exported(exported: Exported, path: Path, *, as_json: bool) -> None:
    trailer = exported.trailer
    rows = [
        {"what": kind, "count": each.count, "digest": each.digest}
        for kind, each in trailer.kinds.items()
    ]
    if trailer.objects:
        rows.insert(0, {"what": "object_data", "count": trailer.objects, "digest": ""})
    if as_json:
        view: dict[str, Any] = {
            "file": str(path),
            "parts": list(exported.header.parts),
            "zone": exported.header.zone,
            "records": trailer.records,
            "objects": trailer.objects,
            "kinds": {row["what"]: row["count"] for row in rows},
            "digest": trailer.digest,
            "notes": exported.notes,
        }
        show_one(view, as_json=True)
        return
    short = [{**row, "digest": str(row["digest"])[:16]} for row in rows]
    show_list(short, ["what", "count", "digest"], as_json=False)
    for note in exported.notes:
        print(note)
    print(f"{path} holds {trailer.records} records, {trailer.digest}", file=sys.stderr)


def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What was exported; - is the standard input.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="An empty store's URL or zone's folder.")
    ],
    objects: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The folder or bucket that objects go to."),
    ] = None,
    no_objects: Annotated[
        bool, typer.Option("--no-objects", help="Leave out the bytes of objects.")
    ] = False,
    cut_off: Annotated[
        bool, typer.Option("--cut-off", help="Take what there is of a file that has no trailer.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the file through; write nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write what was exported into an empty store.

    It may be of another kind. FILE is read through before anything is written: one that is cut off,
    was changed or is of another version is refused. Both sides are compared at the end; until then
    nobody can work with TO. An import that was cut off goes on when it is run again. A TO that
    holds anything else is refused. What FILE says is taken as it is: import only what you trust.
    """
    from ergon_framework.app.move.import_file import Importing, run
    from ergon_framework.app.store_location import StoreLocation

    if objects is not None and no_objects:
        raise ConfigurationError(
            "--objects and --no-objects contradict each other", remedy="give one of them"
        )
    path = None if file == STREAM else Path(file).absolute()
    asked = Importing(path, StoreLocation(target), objects, not no_objects, cut_off, dry_run)
    left = "nothing was written" if dry_run else "what was imported stays in TO, nothing is lost"
    with _reporting_stops(left, as_json=as_json):
        with transfer_progress(as_json=as_json) as tell:
            imported = run(asked, tell, None if sys.stdin is None else sys.stdin.buffer)
        _show_imported(imported, is_trial=dry_run, as_json=as_json)


def _show_imported(imported: Imported, *, is_trial: bool, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "part": each.part,
            "what": each.kind,
            "written": each.copied,
            "count": None if each.sum is None else each.sum.count,
            "digest": "" if each.sum is None else each.sum.digest,
        }
        for each in imported.moved
    ]
    if as_json:
        view = {
            "parts": list(imported.header.parts),
            "zone": imported.header.zone,
            "kinds": rows,
            "digest": imported.digest,
            "notes": imported.notes,
        }
        show_one(view, as_json=True)
        return
    columns = ["part", "what", "written"] + ([] if is_trial else ["count", "digest"])
    show_list([{**row, "digest": row["digest"][:16]} for row in rows], columns, as_json=False)
    for note in imported.notes:
        print(note)


@contextmanager
def _reporting_stops(left: str, *, as_json: bool) -> Iterator[None]:
    """Say what a stopped command leaves behind."""
    try:
        with stoppable():
            yield
    except CommandStoppedError as stopped:
        error = ErgonError(f"stopped: {left}", remedy="run the same command again")
        show_error(error, as_json=as_json)
        raise typer.Exit(stopped.exit_code) from None
