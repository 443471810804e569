"""``ergon db``: the tables of a store, and what a store holds written to a file and back.

``upgrade``, ``current`` and ``downgrade`` are about tables. ``export`` and ``import`` write the
records of a store into a file of JSON Lines, and read them from one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import forget, move
from ergon_framework.cli.command_run import CommandStoppedError, ConfigPath, JsonFlag, stoppable
from ergon_framework.cli.distribution import version
from ergon_framework.cli.move import AllowLostPayloads, transfer_progress
from ergon_framework.cli.output import (
    StdoutBytes,
    is_stdout_closed,
    show_error,
    show_list,
    show_one,
    waiting,
)
from ergon_framework.cli.provider_stores import store_in_settings
from ergon_framework.errors import ConfigurationError, ErgonError

if TYPE_CHECKING:
    from ergon_framework.app.move.export_file import Exported, Exporting
    from ergon_framework.app.move.import_file import Imported
    from ergon_framework.app.schema import Tables
    from ergon_framework.providers.migrations.database import MigrationDatabase


app = typer.Typer(
    help=("Upgrade tables, or show their version; move, export or import a store; erase a subject.")
)


StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        "--url",
        metavar="URL",
        help="The URL of the store [default: the one in the settings].",
    ),
]


SqlFlag = Annotated[
    bool, typer.Option("--sql", help="Print the SQL instead of running it; nothing is opened.")
]


_COLUMNS = ["part", "before", "now", "latest"]


STREAM = "-"
"""The FILE that stands for the standard output or input."""


@app.command()
def upgrade(
    config: ConfigPath = None,
    store: StoreUrl = None,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="With --store: also make the tables of jobs.")
    ] = False,
    sql: SqlFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make tables, or bring them up to date.

    Those of provider calls, jobs and zones. This only adds: other tables are not touched, and
    running programs may go on. Tables of jobs and zones are made where the settings have these
    parts, and updated where they exist. In an SQLite file, the first program that opens it makes
    them.

    Example: ergon db upgrade
    """
    if sql:
        scripts = [each.script() for each in _tables(config, store, has_jobs=jobs, is_offline=True)]
        _show_sql("".join(scripts), as_json=as_json)
        return
    rows = []
    for each in _tables(config, store, has_jobs=jobs):
        with waiting(f"upgrading {each.part}"):
            before = each.upgrade()
        rows.append(_row(each.part, each.current(), each.latest, before))
    _show(rows, _COLUMNS, as_json=as_json)


@app.command()
def current(config: ConfigPath = None, store: StoreUrl = None, as_json: JsonFlag = False) -> None:
    """Show the version of a store's tables, and the latest version.

    Example: ergon db current
    """
    rows = [
        {"part": each.part, "now": each.current(), "latest": each.latest}
        for each in _tables(config, store)
    ]
    _show(rows, ["part", "now", "latest"], as_json=as_json)


@app.command()
def downgrade(
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="The revision to go back to.")
    ] = "base",
    config: ConfigPath = None,
    store: StoreUrl = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Required: confirms that the tables are deleted with all their rows."
        ),
    ] = False,
    sql: SqlFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Go back to an earlier version of the tables of provider calls.

    Without REVISION, delete them with all rows. Other tables are not touched, those of jobs
    neither.

    Example: ergon db downgrade --sql
    """
    from ergon_framework.providers.migrations import HEAD, commands

    database = _database(config, store)
    if sql:
        _show_sql(commands.downgrade_script(database.dialect, revision), as_json=as_json)
        return
    if not yes:
        raise ConfigurationError(
            f"this deletes quotas, health, metrics and dead letters in {database.name} for good",
            remedy="give --yes if that is what you want; --sql shows what would be done",
        )
    with database.connect() as connection:
        before = commands.downgrade(connection, revision)
        rows = [_row("providers", commands.current(connection), HEAD, before)]
    show_list(rows, _COLUMNS, as_json=as_json)


def _database(config: Path | None, store: str | None) -> MigrationDatabase:
    from ergon_framework.providers.migrations.database import database_of

    return database_of(store or store_in_settings(config))


def _tables(
    config: Path | None, store: str | None, *, has_jobs: bool = False, is_offline: bool = False
) -> Iterator[Tables]:
    from ergon_framework.app.schema import has_own_stores, tables_in, tables_of
    from ergon_framework.app.settings import load_settings

    if store:
        return tables_in(store, has_jobs=has_jobs, is_offline=is_offline)
    settings = load_settings(config)
    if not has_own_stores(settings):
        store_in_settings(config)  # says so when there is none
    return tables_of(settings)


def _row(part: str, now: str | None, latest: str, before: str | None) -> dict[str, Any]:
    return {"part": part, "before": before, "now": now, "latest": latest}


def _show(rows: list[dict[str, Any]], columns: list[str], *, as_json: bool) -> None:
    if rows or as_json:
        show_list(rows, columns, as_json=as_json)
    else:
        print("the stores of the settings have no tables: there is nothing to bring up to date")


def _show_sql(text: str, *, as_json: bool) -> None:
    if as_json:
        show_one({"sql": text}, as_json=True)
    else:
        print(text, end="")


@app.command()
def export(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="The URL of a store, or the folder of a zone.")
    ],
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The file to write, which must not exist; - is the standard output.",
        ),
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
        bool, typer.Option("--overwrite", help="Replace FILE if it exists.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Read a server although programs are connected to it.")
    ] = False,
    allow_lost_payloads: AllowLostPayloads = False,
    as_json: JsonFlag = False,
) -> None:
    """Write what a store holds into a file.

    For a store these are jobs, schedules and provider calls; for a zone, its facts and objects. The
    file is JSON Lines: a header, one record per line, and a trailer with counts and a digest.

    It holds payloads, results and errors as they are, with the secrets in them. Only its owner can
    read FILE; keep it that way.

    FROM is not changed. A store on SQLite may be in use meanwhile. A store on a server is read
    twice, and the export begins again if the store has changed. FILE gets its name when all of it
    is on the disk.

    Example: ergon db export sqlite:///work.db work.jsonl
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


@app.command("import")
def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A file that `ergon db export` wrote; - is the standard input."
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="The URL of an empty store, or an empty folder for a zone."
        ),
    ],
    objects: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The folder or bucket that objects go to."),
    ] = None,
    no_objects: Annotated[
        bool, typer.Option("--no-objects", help="Leave out the bytes of objects.")
    ] = False,
    cut_off: Annotated[
        bool,
        typer.Option(
            "--cut-off", help="Accept a file without a trailer, and import the records it has."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check the whole file; write nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write an exported file into an empty store.

    The store may be of another kind. FILE is read and checked before anything is written: a file
    that is cut off, was changed, or is of another version is refused. At the end both sides are
    compared; until then no program can use TO. An import that was cut off continues when the same
    command is run again. A store that holds anything else is refused.

    The content of FILE is not questioned: import only files that you trust.

    Example: ergon db import work.jsonl postgresql://localhost/work
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
    """Report what a stopped command leaves behind."""
    try:
        with stoppable():
            yield
    except CommandStoppedError as stopped:
        error = ErgonError(f"stopped: {left}", remedy="run the same command again")
        show_error(error, as_json=as_json)
        raise typer.Exit(stopped.exit_code) from None


app.command()(forget.forget)
app.command()(move.move)
