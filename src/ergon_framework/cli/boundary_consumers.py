"""``ergon boundary consumers``: the durable readers of a zone's logs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ergon_framework.cli.boundary_node import ADMIN, Node, asks_node
from ergon_framework.cli.output import show_list, show_one
from ergon_framework.cli.session import JsonFlag

COLUMNS = ["consumer_name", "log", "cursor", "lag", "to_zone", "required", "holder"]
app = typer.Typer(help="List, create and delete consumers, or set the cursor of one.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a consumer.")]


class Start(StrEnum):
    """Where a new consumer begins."""

    START = "start"
    END = "end"


@app.command("list")
@asks_node
def list_consumers(node: Node, as_json: JsonFlag = False) -> None:
    """List consumers with their cursors and what waits for them."""
    show_list(node.ask(ADMIN + "ListConsumers")["consumers"], COLUMNS, as_json=as_json)


@app.command()
@asks_node
def create(
    node: Node,
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


@app.command()
@asks_node
def delete(node: Node, name: Name, as_json: JsonFlag = False) -> None:
    """Forget a consumer, its cursor and its quarantine; retention no longer waits for it."""
    node.ask(ADMIN + "DeleteConsumer", consumer_name=name)
    show_one({"consumer_name": name, "deleted": True}, as_json=as_json)


@app.command()
@asks_node
def seek(
    node: Node,
    name: Name,
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="The last handled one; 0 is the start.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Goes into the journal.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Set a cursor by hand, also backwards; it is written down with the reason."""
    answer = node.ask(ADMIN + "SeekConsumer", consumer_name=name, offset=offset, reason=reason)
    show_one(answer, as_json=as_json)
