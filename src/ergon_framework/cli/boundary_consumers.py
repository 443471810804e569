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

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a consumer.")]


class Start(StrEnum):
    """Where a new consumer begins."""

    START = "start"
    END = "end"


@consumers_app.command("list")
@asks_node
def list_consumers(node: NodeClient, as_json: JsonFlag = False) -> None:
    """List consumers with their cursors and what waits for them."""
    show_list(node.ask(ADMIN + "ListConsumers")["consumers"], CONSUMER_COLUMNS, as_json=as_json)


@consumers_app.command()
@asks_node
def create(
    node: NodeClient,
    name: Name,
    log: Annotated[
        str, typer.Option(metavar="LOG", help="outbound, or inbound:ZONE of a peer.")
    ] = "outbound",
    start: Annotated[Start, typer.Option("--from", help="The oldest kept fact, or what comes.")] = (
        Start.START
    ),
    to_zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Only facts to this zone [all].")
    ] = None,
    optional: Annotated[
        bool, typer.Option("--optional", help="Retention does not wait for it.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create a consumer; the same again is fine."""
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
    """Forget a consumer, its cursor and its quarantine.

    Retention no longer waits for it.
    """
    node.ask(ADMIN + "DeleteConsumer", consumer_name=name)
    show_one({"consumer_name": name, "deleted": True}, as_json=as_json)


@consumers_app.command()
@asks_node
def seek(
    node: NodeClient,
    name: Name,
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="The last handled one; 0 is the start.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Goes into the journal.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Set a cursor by hand, also backwards.

    It is written down with the reason.
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

ItemId = Annotated[int, typer.Argument(metavar="ID", min=1, help="As the list has it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Goes into the journal.")]


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
        str | None, typer.Option(metavar="NAME", help="Only of this consumer.")
    ] = None,
    state: Annotated[
        QuarantineState, typer.Option(help="Only in this state.")
    ] = QuarantineState.QUARANTINED,
    data: DataFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """List what was set aside, the oldest first. Content is not shown."""
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
        bool, typer.Option("--content", help="Show the fact, too; needs --data.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Tell why a fact was set aside, and what helps. Content is shown on request."""
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
    """Deliver a fact that was set aside once more."""
    show_one(node.ask(ADMIN + "ReleaseQuarantine", id=item, reason=reason), as_json=as_json)


@quarantine_app.command()
@asks_node
def discard(node: NodeClient, item: ItemId, reason: Reason = "", as_json: JsonFlag = False) -> None:
    """Give a fact that was set aside up for good, for that consumer."""
    show_one(node.ask(ADMIN + "DiscardQuarantine", id=item, reason=reason), as_json=as_json)
