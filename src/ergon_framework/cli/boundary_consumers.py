"""``ergon boundary consumers|quarantine``: durable readers, and facts that were set aside."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ergon_framework.cli.boundary_node import ADMIN, DataFolder, NodeClient, asks_node
from ergon_framework.cli.command_run import JsonFlag
from ergon_framework.cli.output import show_list, show_one

CONSUMER_COLUMNS = ["consumer_name", "log", "cursor", "lag", "to_zone", "required", "holder"]
consumers_app = typer.Typer(help="List, create and delete consumers, or set the cursor of one.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]


class Start(StrEnum):
    """Where a new consumer begins."""

    START = "start"
    END = "end"


@consumers_app.command("list")
@asks_node
def list_consumers(node: NodeClient, as_json: JsonFlag = False) -> None:
    """List consumers with their cursors and backlogs.

    Example: ergon boundary consumers list
    """
    show_list(node.ask(ADMIN + "ListConsumers")["consumers"], CONSUMER_COLUMNS, as_json=as_json)


@consumers_app.command()
@asks_node
def create(
    node: NodeClient,
    name: Name,
    log: Annotated[
        str,
        typer.Option(
            metavar="LOG",
            help="The log it reads: outbound, or inbound:ZONE for the facts of that peer.",
        ),
    ] = "outbound",
    start: Annotated[
        Start,
        typer.Option(
            "--from", help="Begin at the oldest fact that is kept, or read only new ones."
        ),
    ] = (Start.START),
    to_zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            help="Read only facts that are addressed to this zone [default: all facts].",
        ),
    ] = None,
    optional: Annotated[
        bool,
        typer.Option(
            "--optional", help="Retention may delete facts that this consumer has not confirmed."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create a consumer. The same command again changes nothing.

    Example: ergon boundary consumers create billing --log inbound:plant
    """
    fields = {
        "consumer_name": name,
        "log": log,
        "from": start.value,
        "to_zone": to_zone,
        "required": not optional,
    }
    show_one(node.ask(ADMIN + "CreateConsumer", **fields), as_json=as_json)


@consumers_app.command()
@asks_node
def delete(node: NodeClient, name: Name, as_json: JsonFlag = False) -> None:
    """Delete a consumer with its cursor and its quarantine.

    Retention no longer waits for it.

    Example: ergon boundary consumers delete billing
    """
    node.ask(ADMIN + "DeleteConsumer", consumer_name=name)
    show_one({"consumer_name": name, "deleted": True}, as_json=as_json)


@consumers_app.command()
@asks_node
def seek(
    node: NodeClient,
    name: Name,
    offset: Annotated[
        int,
        typer.Argument(
            metavar="OFFSET",
            min=0,
            help="The offset of the last fact that counts as handled; 0 begins at the start.",
        ),
    ],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why you do this; it is kept in the zone's journal.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Set the cursor of a consumer, forwards or backwards.

    The zone's journal keeps the change and its reason.

    Example: ergon boundary consumers seek billing 0 --reason 'read again'
    """
    answer = node.ask(ADMIN + "SeekConsumer", consumer_name=name, offset=offset, reason=reason)
    show_one(answer, as_json=as_json)


QUARANTINE_COLUMNS = [
    "id",
    "consumer_name",
    "log",
    "offset",
    "reason",
    "attempts",
    "state",
    "message",
]
quarantine_app = typer.Typer(help="List facts that were set aside; release or discard one.")

ItemId = Annotated[
    int,
    typer.Argument(
        metavar="ID",
        min=1,
        help="The number in the first column of `ergon boundary quarantine list`.",
    ),
]
Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Why you do this; it is kept in the zone's journal.")
]


class QuarantineState(StrEnum):
    """Which items a list shows."""

    QUARANTINED = "quarantined"
    RELEASED = "released"
    DISCARDED = "discarded"
    SETTLED = "settled"
    ALL = "all"


@quarantine_app.command("list")
@asks_node
def list_items(
    node: NodeClient,
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only facts that this consumer set aside.")
    ] = None,
    state: Annotated[
        QuarantineState, typer.Option(help="Only facts in this state.")
    ] = QuarantineState.QUARANTINED,
    data: DataFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """List facts that were set aside, the oldest first. Their content is not shown.

    Example: ergon boundary quarantine list --consumer billing
    """
    show_list(_items(node, consumer, state, data), QUARANTINE_COLUMNS, as_json=as_json)


def _items(
    node: NodeClient, consumer: str | None, state: QuarantineState, data: Path | None
) -> list[dict[str, Any]]:
    """What was set aside, as the node or the folder has it."""
    if data is None:
        answer = node.ask(ADMIN + "ListQuarantine", consumer_name=consumer, state=state.value)
        items: list[dict[str, Any]] = answer["items"]
        return items
    from ergon_framework.boundary.backup import open_read_only
    from ergon_framework.boundary.node.wire import quarantine_view

    chosen = None if state is QuarantineState.ALL else state.value
    with open_read_only(data) as zone:
        return [quarantine_view(each) for each in zone.store.quarantine(consumer, chosen)]


@quarantine_app.command()
@asks_node
def show(
    node: NodeClient,
    item: ItemId,
    data: DataFolder = None,
    content: Annotated[
        bool, typer.Option("--content", help="Also show the content of the fact; needs --data.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Explain why a fact was set aside, and what helps.

    With --data and --content the fact is shown, too.

    Example: ergon boundary quarantine show 3
    """
    from ergon_framework.boundary.node.quarantine import help_for
    from ergon_framework.errors import BoundaryNotFoundError

    if content:
        show_one(_whole(item, data), as_json=as_json)
        return
    # A node has no request for a single item.
    found = [each for each in _items(node, None, QuarantineState.ALL, data) if each["id"] == item]
    if not found:
        raise BoundaryNotFoundError(
            f"nothing was set aside under the id {item}",
            remedy="`ergon boundary quarantine list --state all` shows what was",
        )
    (view,) = found
    show_one({**view, "what_helps": help_for(view["reason"])}, as_json=as_json)


MAX_CONTENT = 16 * 1024 * 1024
"""Bytes of a fact that are shown; none is larger."""


def _whole(item: int, data: Path | None) -> dict[str, Any]:
    """What was set aside with its content, which no node gives out."""
    from ergon_framework.boundary.backup import open_read_only
    from ergon_framework.boundary.node.quarantine import content_of, help_for
    from ergon_framework.boundary.node.wire import quarantine_view
    from ergon_framework.errors import ConfigurationError

    if data is None:
        raise ConfigurationError(
            "a node shows no content",
            remedy="this reads its folder: "
            f" ergon boundary quarantine show {item} --content --data FOLDER",
        )
    with open_read_only(data) as zone:
        found, envelope, fact = content_of(zone.store, item, MAX_CONTENT)
    return {
        **quarantine_view(found),
        "what_helps": help_for(found.reason),
        "envelope": envelope.decode("utf-8", "replace"),
        "fact": fact.decode("utf-8", "replace"),
    }


@quarantine_app.command()
@asks_node
def release(node: NodeClient, item: ItemId, reason: Reason = "", as_json: JsonFlag = False) -> None:
    """Deliver a fact that was set aside to its consumer once more.

    Example: ergon boundary quarantine release 3 --reason 'fixed the parser'
    """
    show_one(node.ask(ADMIN + "ReleaseQuarantine", id=item, reason=reason), as_json=as_json)


@quarantine_app.command()
@asks_node
def discard(node: NodeClient, item: ItemId, reason: Reason = "", as_json: JsonFlag = False) -> None:
    """Give a fact up for the consumer that set it aside, for good.

    Example: ergon boundary quarantine discard 3 --reason 'test data'
    """
    show_one(node.ask(ADMIN + "DiscardQuarantine", id=item, reason=reason), as_json=as_json)
