"""``ergon boundary``: a zone's node, and everything an operator does with it.

What looks after a zone is here: status, gaps, seal, open, verify, backup and restore. At the end
stands which commands there are, and which files beside this one have the others.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ergon_framework.cli import (
    boundary_consumers,
    boundary_facts,
    boundary_look,
    boundary_objects,
    boundary_outbox,
    boundary_serve,
)
from ergon_framework.cli.boundary_consumers import CONSUMER_COLUMNS as CONSUMER
from ergon_framework.cli.boundary_look import OfZone, looked_into
from ergon_framework.cli.boundary_node import ADMIN, DataFolder, NodeClient, ZoneName, asks_node
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.output import printable, progress, show_list, show_one
from ergon_framework.errors import ConfigurationError

GAP = [
    *("log", "first_offset", "last_offset", "source_first_offset", "source_last_offset"),
    *("facts", "reason", "recorded_at_unix_ms"),
]
_MAIN = ("zone", "epoch", "quarantined", "lost_facts", "is_read_only", "sqlite_version")
_TABLES = {
    "logs": ["log", "head_offset", "first_offset", "bytes", "fill_percent"],
    "consumers": CONSUMER,
    "links": ["peer", "mode", "sealed", "source_offset", "reason"],
}

Peer = Annotated[
    str | None,
    typer.Option(
        metavar="ZONE", help="Seal or open only the link to this zone [default: every link]."
    ),
]
Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Why you do this; it is kept in the zone's journal.")
]


@asks_node
def status(node: NodeClient, data: DataFolder = None, as_json: JsonFlag = False) -> int:
    """Show the state of a zone, its links and its alerts.

    Exit code 1 when something deserves an alert. With --data the folder is read without asking the
    node; then nothing is known about links.

    Example: ergon boundary status --zone plant
    """
    if data is None:
        view = node.ask(ADMIN + "GetStatus")
    else:
        from ergon_framework.boundary.backup import open_read_only
        from ergon_framework.boundary.node.status import status as status_of

        with open_read_only(data) as zone:
            view = status_of(zone)
    if as_json:
        show_one(view, as_json=True)
    else:
        _show(view)
    return 1 if view["alerts"] else 0


@asks_node
def gaps(
    node: NodeClient,
    log: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show gaps of this log only: outbound or inbound:ZONE."),
    ] = None,
    data: DataFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """List facts given up before all consumers had them.

    The loss alert refers to these facts. In an inbound log the peer
    lost them: source offsets are those of the peer's outbound log.

    Example: ergon boundary gaps --log outbound
    """
    if data is None:
        found = node.ask(ADMIN + "ListGaps")["gaps"]
    else:
        from ergon_framework.boundary.backup import open_read_only
        from ergon_framework.boundary.node.wire import gap_view

        with open_read_only(data) as zone:
            found = [gap_view(gap) for gap in zone.store.gaps()]
    shown = [_gap(each) for each in found if log in (None, each["log"])]
    show_list(shown, GAP, as_json=as_json)


def _gap(view: dict[str, Any]) -> dict[str, Any]:
    """A gap with how many facts were lost, where that happened."""
    first = view.get("source_first_offset", view["first_offset"])
    last = view.get("source_last_offset", view["last_offset"])
    return {"source_first_offset": None, "source_last_offset": None, **view} | {
        "facts": last - first + 1
    }


@asks_node
def seal(
    node: NodeClient, peer: Peer = None, reason: Reason = "", as_json: JsonFlag = False
) -> None:
    """Seal the link to a peer, or every link.

    Nothing is pulled over a sealed link until an operator opens it. Appends to the zone go on.

    Example: ergon boundary seal --peer enterprise --reason 'audit'
    """
    show_one(node.ask(ADMIN + "Seal", peer=_checked(peer), reason=reason), as_json=as_json)


@asks_node
def open_gate(
    node: NodeClient,
    peer: Peer = None,
    reason: Reason = "",
    accept_epoch: Annotated[
        bool,
        typer.Option(
            "--accept-epoch",
            help="Trust the peer's store although it is another one, or went back in time;"
            " what it has is pulled from its start, and nothing is doubled by that.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Open a sealed link, or every one.

    With --accept-epoch a peer whose store has changed is trusted again, too.

    Example: ergon boundary open --peer enterprise --reason 'audit is over'
    """
    if accept_epoch:
        if peer is None:
            raise ConfigurationError("whose epoch is to be accepted?", remedy="give --peer ZONE")
        node.ask(ADMIN + "AcceptEpoch", peer=_checked(peer))
    show_one(node.ask(ADMIN + "Open", peer=_checked(peer), reason=reason), as_json=as_json)


def _checked(peer: str | None) -> str | None:
    """An empty name, as an unset variable of a script leaves it, must not mean all of them."""
    from ergon_framework.app.zones import check_zone_name

    return None if peer is None else check_zone_name(peer)


def _show(view: dict[str, Any]) -> None:
    main = {name: view.get(name) for name in _MAIN}
    if main["sqlite_version"] is None:
        del main["sqlite_version"]
    expiry = view.get("certificate_expires_unix_ms")
    if expiry is not None:
        main["certificate_expires"] = f"{datetime.fromtimestamp(expiry / 1000, UTC):%Y-%m-%d %H:%M}"
    show_one(main, as_json=False)
    for name, columns in _TABLES.items():
        rows = view.get(name) or []
        if rows:
            print()
            # A folder that is looked at without its node knows less of links: columns without a
            # value go.
            used = [each for each in columns if any(row.get(each) is not None for row in rows)]
            show_list(rows, used, as_json=False)
    print()
    for alert in view["alerts"]:
        print(f"alert: {alert['kind']}: {printable(str(alert['text']))}")
    if not view["alerts"]:
        print("no alerts")


def verify(
    data: OfZone = None, config: ConfigPath = None, zone: ZoneName = None, as_json: JsonFlag = False
) -> int:
    """Check the hash chain of every log and every object.

    Nothing is changed, and the node may run meanwhile. Exit code 1 when something is wrong. JSON is
    the list of what is wrong.

    Example: ergon boundary verify --zone plant
    """
    from ergon_framework.boundary.verification import (
        VerificationFinding,
        VerificationProgress,
        size_of,
        verified,
    )

    found: list[dict[str, Any]] = []
    done = VerificationProgress(0, 0)
    with (
        looked_into(data, config, zone) as looked,
        progress("verified", size_of(looked)) as move,
    ):
        for step in verified(looked):
            if isinstance(step, VerificationFinding):
                found.append(step.view())
            else:
                done = step
                move(done.facts + done.objects)
    if as_json or found:
        show_list(found, ["kind", "where", "what"], as_json=as_json)
    if not as_json:
        verdict = f"{len(found)} flaws" if found else "no flaws"
        print(f"{verdict} in {done.facts} facts and {done.objects} objects")
    return 1 if found else 0


def backup(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where the copy is written: a new or empty folder."),
    ],
    data: OfZone = None,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help=(
                "Copy the bytes of objects. Without it, a backup on the same disk links to them."
            ),
        ),
    ] = False,
    config: ConfigPath = None,
    zone: ZoneName = None,
    as_json: JsonFlag = False,
) -> int:
    """Copy a zone's log and objects to a folder.

    The node may run meanwhile; the log must be on SQLite. The copy is consistent, and is a zone's
    folder like any other. The first node that opens it begins a new epoch, by which peers notice
    that the zone went back in time. Exit code 1 when an object of the zone is damaged, and so could
    not be copied.

    Example: ergon boundary backup /backup/plant --zone plant
    """
    from ergon_framework.boundary.backup import backed_up

    with looked_into(data, config, zone) as looked, progress("objects") as move:
        made = backed_up(looked, folder, shares=not copy, report=move)
    view = asdict(made)
    missing = view.pop("missing")
    show_one({**view, "missing": missing} if as_json else view, as_json=as_json)
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
        typer.Option(
            "--replace",
            help="Rename the zone's present folder instead of refusing; it is not deleted.",
        ),
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
    """Put a backup in the place of a zone's folder.

    Stop the node of the zone first. The backup is not changed. When the node starts it begins a new
    epoch, by which peers notice that the zone went back in time. The command prints what is left to
    do.

    Example: ergon boundary restore /backup/plant --zone plant --replace
    """
    from ergon_framework.boundary.restore import restored

    folder, objects = (data, None) if data is not None else _places_of(config, zone)
    with progress("objects") as move:
        made = restored(backup, folder, objects=objects, replace=replace, checks=check, report=move)
    show_one(asdict(made), as_json=as_json)
    if not as_json:
        print(_next_steps(made.zone))


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
    # Beside the facts, as in every backup, objects need no place of their own.
    return file.parent, None if objects == str(file.parent / OBJECTS) else objects


def _next_steps(zone: str) -> str:
    """What remains to be done. An outbox knows the time by its producer's clock, which may be
    behind the node's: so all that it keeps is told again, and the node recognises what it has.
    """
    return (
        "Start the node. Then let every outbox tell again what it keeps:\n"
        "  ergon boundary outbox resend OUTBOX\n"
        "At each peer, when its epoch alert appears:\n"
        f"  ergon boundary open --peer {shlex.quote(printable(zone))} --accept-epoch"
    )


app = typer.Typer(
    help="Run the node of a zone, inspect it, and send or read facts and files by hand.",
    epilog="Commands that ask a node find it by --url, or by the zone of the settings.",
)
app.command()(boundary_serve.serve)
app.command()(status)
app.command()(boundary_facts.append)
app.command()(boundary_objects.put)
app.command()(boundary_objects.get)
app.command()(boundary_facts.fetch)
app.command()(boundary_facts.confirm)
app.command()(boundary_facts.lookup)
app.add_typer(boundary_consumers.consumers_app, name="consumers")
app.add_typer(boundary_consumers.quarantine_app, name="quarantine")
app.command()(gaps)
app.command()(boundary_look.tail)
app.command()(boundary_look.objects)
app.command()(boundary_look.journal)
app.command()(boundary_look.policy)
app.command()(seal)
app.command("open")(open_gate)
app.command()(verify)
app.command()(backup)
app.command()(restore)
app.add_typer(boundary_outbox.app, name="outbox")
app.add_typer(boundary_serve.certs_app, name="certs")
