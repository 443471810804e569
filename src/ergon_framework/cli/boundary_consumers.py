"""``ergon boundary consumers|quarantine``: durable readers, and facts that were set aside."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ergon_framework.cli.boundary_node import ADMIN, DataFolder, NodeClient, asks_node
from ergon_framework.cli.output import show_list, show_one
from ergon_framework.cli.session import JsonFlag

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
HELPS = {
    "handler_failed": "correct the handler, then release it",
    "crash_loop": "it may end the process that reads it: correct the handler, then release it",
    "corrupted": "run `ergon boundary verify`, then restore a backup",
    "artifact_missing": "put the artifact again at the peer, then release it",
    "artifact_mismatch": "repair the artifact at the peer, then release it",
    "artifact_denied": "let the peer's policy allow it, then release it",
    "object_conflict": "let the peer tell it under another name, then discard it",
    "object_too_large": "raise limits.object_bytes, then release it",
    "too_large": "raise what the store's server takes, then release it",
    "conflicting_duplicate": "ask who told two different things under one id, then discard one",
    "zone_not_allowed": "let the policy of this zone allow it, then release it",
    "malformed": "ask the peer's operator: it is no fact; then discard it",
    "gap": "the peer gave facts up: discard it when that is known",
}
"""What helps, by reason."""
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
    node: NodeClient, item: ItemId, data: DataFolder = None, as_json: JsonFlag = False
) -> None:
    """Tell why a fact was set aside, and what helps. Content is not shown."""
    from ergon_framework.errors import BoundaryNotFoundError

    # A node has no request for a single item.
    found = [each for each in _items(node, None, QuarantineState.ALL, data) if each["id"] == item]
    if not found:
        raise BoundaryNotFoundError(
            f"nothing was set aside under the id {item}",
            remedy="`ergon boundary quarantine list --state all` shows what was",
        )
    (view,) = found
    show_one({**view, "what_helps": help_for(view["reason"])}, as_json=as_json)


def help_for(reason: str) -> str:
    """What an operator can do about a fact that was set aside for this reason."""
    return HELPS.get(
        reason, "ask the operator of the zone it came from; then release or discard it"
    )


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
