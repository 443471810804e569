"""``ergon boundary status|gaps|seal|open``: how a zone stands, and its gates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ergon_framework.cli.boundary_consumers import COLUMNS as CONSUMER
from ergon_framework.cli.boundary_node import ADMIN, DataFolder, Node, asks_node
from ergon_framework.cli.output import printable, show_list, show_one
from ergon_framework.cli.session import JsonFlag
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
    str | None, typer.Option(metavar="ZONE", help="Only the link to this zone [all of them].")
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Goes into the journal.")]


@asks_node
def status(node: Node, data: DataFolder = None, as_json: JsonFlag = False) -> int:
    """Show how a zone stands. Exit code 1 when something deserves an alert.

    With --data the folder is looked at without its node; then nothing is known about links.
    """
    if data is None:
        shape = node.ask(ADMIN + "GetStatus")
    else:
        from ergon_framework.boundary.backup import looked_into
        from ergon_framework.boundary.node.status import status as status_of

        with looked_into(data) as zone:
            shape = status_of(zone)
    if as_json:
        show_one(shape, as_json=True)
    else:
        _show(shape)
    return 1 if shape["alerts"] else 0


@asks_node
def gaps(
    node: Node,
    log: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this log.")] = None,
    data: DataFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """List facts that were given up before everybody had them: what the loss alert speaks of.

    In an inbound log the loss is the peer's: source offsets are those of its outbound log.
    """
    if data is None:
        found = node.ask(ADMIN + "ListGaps")["gaps"]
    else:
        from ergon_framework.boundary.backup import looked_into
        from ergon_framework.boundary.node.wire import gap_shape

        with looked_into(data) as zone:
            found = [gap_shape(gap) for gap in zone.store.gaps()]
    shown = [_gap(each) for each in found if log in (None, each["log"])]
    show_list(shown, GAP, as_json=as_json)


def _gap(shape: dict[str, Any]) -> dict[str, Any]:
    """A gap with how many facts were lost, where that happened."""
    first = shape.get("source_first_offset", shape["first_offset"])
    last = shape.get("source_last_offset", shape["last_offset"])
    return {"source_first_offset": None, "source_last_offset": None, **shape} | {
        "facts": last - first + 1
    }


@asks_node
def seal(node: Node, peer: Peer = None, reason: Reason = "", as_json: JsonFlag = False) -> None:
    """Shut the link to a peer, or every link, until an operator opens it. Appends go on."""
    show_one(node.ask(ADMIN + "Seal", peer=_checked(peer), reason=reason), as_json=as_json)


@asks_node
def open_gate(
    node: Node,
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
    """Open what was sealed; --accept-epoch also trusts a peer whose store has changed."""
    if accept_epoch:
        if peer is None:
            raise ConfigurationError("whose epoch is to be accepted?", remedy="give --peer ZONE")
        node.ask(ADMIN + "AcceptEpoch", peer=_checked(peer))
    show_one(node.ask(ADMIN + "Open", peer=_checked(peer), reason=reason), as_json=as_json)


def _checked(peer: str | None) -> str | None:
    """An empty name, as an unset variable of a script leaves it, must not mean all of them."""
    from ergon_framework.app.zones import check_zone_name

    return None if peer is None else check_zone_name(peer)


def _show(shape: dict[str, Any]) -> None:
    main = {name: shape.get(name) for name in _MAIN}
    if main["sqlite_version"] is None:
        del main["sqlite_version"]
    expiry = shape.get("certificate_expires_unix_ms")
    if expiry is not None:
        main["certificate_expires"] = f"{datetime.fromtimestamp(expiry / 1000, UTC):%Y-%m-%d %H:%M}"
    show_one(main, as_json=False)
    for name, columns in _TABLES.items():
        rows = shape.get(name) or []
        if rows:
            print()
            used = [each for each in columns if any(row.get(each) is not None for row in rows)]
            show_list(rows, used, as_json=False)
    print()
    for alert in shape["alerts"]:
        print(f"alert: {alert['kind']}: {printable(str(alert['text']))}")
    if not shape["alerts"]:
        print("no alerts")
