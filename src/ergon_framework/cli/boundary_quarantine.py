"""``ergon boundary quarantine``: facts that were set aside so that others could pass."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ergon_framework.cli.boundary_node import ADMIN, DataFolder, Node, asks_node
from ergon_framework.cli.output import show_list, show_one
from ergon_framework.cli.session import JsonFlag

COLUMNS = ["id", "consumer_name", "log", "offset", "reason", "attempts", "state", "message"]
app = typer.Typer(help="List facts that were set aside, release or discard one.")

ItemId = Annotated[int, typer.Argument(metavar="ID", min=1, help="As the list has it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Goes into the journal.")]


class State(StrEnum):
    """Which items a list shows."""

    QUARANTINED = "quarantined"
    RELEASED = "released"
    DISCARDED = "discarded"
    SETTLED = "settled"
    ALL = "all"


@app.command("list")
@asks_node
def list_items(
    node: Node,
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of this consumer.")
    ] = None,
    state: Annotated[State, typer.Option(help="Only in this state.")] = State.QUARANTINED,
    data: DataFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """List what was set aside, the oldest first. Content is not shown."""
    if data is None:
        answer = node.ask(ADMIN + "ListQuarantine", consumer_name=consumer, state=state.value)
        items = answer["items"]
    else:
        from ergon_framework.boundary.serving.pages import quarantine_shape
        from ergon_framework.boundary.upkeep.local import looked_into

        chosen = None if state is State.ALL else state.value
        with looked_into(data) as zone:
            items = [quarantine_shape(each) for each in zone.store.quarantine(consumer, chosen)]
    show_list(items, COLUMNS, as_json=as_json)


@app.command()
@asks_node
def release(node: Node, item: ItemId, reason: Reason = "", as_json: JsonFlag = False) -> None:
    """Deliver a fact that was set aside once more."""
    show_one(node.ask(ADMIN + "ReleaseQuarantine", id=item, reason=reason), as_json=as_json)


@app.command()
@asks_node
def discard(node: Node, item: ItemId, reason: Reason = "", as_json: JsonFlag = False) -> None:
    """Give a fact that was set aside up for good, for that consumer."""
    show_one(node.ask(ADMIN + "DiscardQuarantine", id=item, reason=reason), as_json=as_json)
