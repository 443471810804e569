"""``ergon boundary verify|backup|restore``: a zone and its stores, also while its node runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.boundary_node import ZoneName
from ergon_framework.cli.job_client import progress
from ergon_framework.cli.output import printable, show_list, show_one
from ergon_framework.cli.session import ConfigPath, JsonFlag

if TYPE_CHECKING:
    from ergon_framework.boundary.zone import Zone

OfZone = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The zone's folder [default: as in the settings]."),
]


def verify(
    data: OfZone = None, config: ConfigPath = None, zone: ZoneName = None, as_json: JsonFlag = False
) -> int:
    """Walk the hash chain of every log and read every object. Exit code 1 when something is wrong.

    Nothing is changed, and the node may run meanwhile. JSON is the list of what is wrong.
    """
    from ergon_framework.boundary.verification import Finding, Progress, size_of, verified

    found: list[dict[str, Any]] = []
    done = Progress(0, 0)
    with (
        _looked_at(data, config, zone) as looked,
        progress("verified", size_of(looked)) as move,
    ):
        for told in verified(looked):
            if isinstance(told, Finding):
                found.append(told.shape())
            else:
                done = told
                move(done.facts + done.objects)
    if as_json or found:
        show_list(found, ["kind", "where", "what"], as_json=as_json)
    if not as_json:
        verdict = f"{len(found)} flaws" if found else "no flaws"
        print(f"{verdict} in {done.facts} facts and {done.objects} objects")
    return 1 if found else 0


def backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
    data: OfZone = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the bytes of objects even on the same disk.")
    ] = False,
    config: ConfigPath = None,
    zone: ZoneName = None,
    as_json: JsonFlag = False,
) -> int:
    """Copy a zone's log and objects to FOLDER while its node runs; the log must be on SQLite.

    The copy is consistent and is a zone's folder like any other. When a node opens it first, it
    begins a new epoch, so that peers notice that it went back in time. Exit code 1 when an object
    is damaged where it was, and so could not be copied.
    """
    from ergon_framework.boundary.backup import backed_up

    with _looked_at(data, config, zone) as looked, progress("objects") as move:
        made = backed_up(looked, folder, shares=not copy, report=move)
    shape = asdict(made)
    missing = shape.pop("missing")
    show_one({**shape, "missing": missing} if as_json else shape, as_json=as_json)
    if missing and not as_json:
        print(f"not whole: {printable(missing)}")
    return 1 if missing else 0


def restore(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="A folder made by `ergon boundary backup`.")
    ],
    data: OfZone = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Move the folder that is there aside; it is not removed."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            help="Read the whole backup first, and refuse it when it is damaged.",
        ),
    ] = True,
    config: ConfigPath = None,
    zone: ZoneName = None,
    as_json: JsonFlag = False,
) -> None:
    """Put a backup in the place of a zone's folder, whose node must be stopped.

    The backup stays as it is. The zone begins a new epoch with the next start of its node, so that
    peers notice that it went back in time; what remains to be done is printed.
    """
    from ergon_framework.boundary.restore import restored

    folder, objects = (data, None) if data is not None else _places_of(config, zone)
    with progress("objects") as move:
        made = restored(backup, folder, objects=objects, replace=replace, checks=check, report=move)
    show_one(asdict(made), as_json=as_json)
    if not as_json:
        print(_next_steps(made.zone, made.last_at))


def _places_of(config: Path | None, zone: str | None) -> tuple[Path, str | None]:
    """The folder of the zone's facts, and where its objects are, if that is elsewhere."""
    from ergon_framework.app.node import zone_meant
    from ergon_framework.boundary.data_folder import FILE, OBJECTS
    from ergon_framework.boundary.store_urls import fact_file, object_place
    from ergon_framework.errors import ConfigurationError

    setup = zone_meant(config, zone)
    file = fact_file(setup.settings)
    if file is None:
        raise ConfigurationError(
            f"the facts of zone {setup.name!r} are not in an SQLite file",
            remedy="restore the server with its own tools, or name a folder with --data",
        )
    if file.name != FILE:
        raise ConfigurationError(
            f"the facts of zone {setup.name!r} are in {file}, and those of a backup in {FILE}",
            remedy="restore into a new folder with --data,"
            f" and let `store` of the zone name the {FILE} in it",
        )
    objects = object_place(setup.settings)
    return file.parent, None if objects == str(file.parent / OBJECTS) else objects


def _next_steps(zone: str, last_at: float | None) -> str:
    since = "" if last_at is None else f" --since {int(last_at)}"
    return (
        "Start the node. Then tell again what was told since the backup:\n"
        f"  ergon boundary outbox resend OUTBOX{since}\n"
        "At each peer, when its epoch alert appears:\n"
        f"  ergon boundary open --peer {printable(zone)} --accept-epoch"
    )


@contextmanager
def _looked_at(data: Path | None, config: Path | None, zone: str | None) -> Iterator[Zone]:
    """The zone in a folder, or the one of the settings wherever its stores are."""
    from ergon_framework.app.node import zone_meant
    from ergon_framework.boundary.backup import looked_at, looked_into

    if data is not None:
        with looked_into(data) as found:
            yield found
        return
    setup = zone_meant(config, zone)
    with looked_at(setup.name, setup.settings) as found:
        yield found
