"""``ergon flows``: list flows, show one as a tree, cancel, retry, skip, signal or purge it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_client import StoreUrl, json_value, opened, status_named
from ergon_framework.cli.output import printable, show_list, show_one
from ergon_framework.errors import JobError

if TYPE_CHECKING:
    from ergon_framework.ports.flow import Flow

app = typer.Typer()

FlowId = Annotated[str, typer.Argument(metavar="ID", help="The id of a flow.")]
_COLUMNS = ["id", "name", "status", "steps", "completed", "failed", "unfinished", "created_at"]
_NO_NUMBERS = ("NaN", "Infinity")
MAX_STEPS = 1_000
"""Steps of a flow whose states are shown in its tree."""


@app.callback(invoke_without_command=True)
def flows(
    context: typer.Context,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List flows; show, cancel, retry, skip, signal or purge one. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_flows(None, 50, config, url, as_json)


@app.command("list")
def list_flows(
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help=(
                "Only flows with this status: running, held, failing, cancelling, completed, "
                "failed or cancelled; may be repeated."
            ),
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 50,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List flows, the newest first.

    Example: ergon flows list --status held
    """
    from ergon_framework.core.flow import FlowStatus
    from ergon_framework.jobs.flow_client import flows_of
    from ergon_framework.jobs.flow_why import flow_view

    statuses = [status_named(FlowStatus, word) for word in status or ()]
    with opened(config, url, reads=True) as client:
        found = flows_of(client.store).search(statuses, limit)
        show_list([flow_view(each) for each in found], _COLUMNS, as_json=as_json)


@app.command()
def show(
    flow: FlowId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Show a flow as a tree, with the state of each step.

    Example: ergon flows show FLOW
    """
    from ergon_framework.jobs.flow_client import found_flow, steps_of
    from ergon_framework.jobs.flow_why import flow_view, total, tree_of

    with opened(config, url, reads=True) as client:
        found = found_flow(client.store, flow)
        # Of a larger flow only the tree and its counts are shown: to read all steps would take
        # long.
        is_small = total(found) <= MAX_STEPS
        steps = list(steps_of(client.store, flow)) if is_small else []
    if as_json:
        listed = [
            {"id": job.id, "status": job.status.value, "handler": job.handler} for job in steps
        ]
        plan = json.loads(found.plan).get("tree")
        show_one({**flow_view(found), "tree": plan, "jobs": listed}, as_json=True)
        return
    show_one(flow_view(found), as_json=False)
    for line in tree_of(found, steps):
        print(printable(line))


@app.command()
def cancel(
    flow: FlowId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Cancel the steps that wait. Steps that run go on.

    Example: ergon flows cancel FLOW
    """
    from ergon_framework.core.flow import CancelFlow

    _decide(flow, CancelFlow(), config, url, as_json)


@app.command()
def retry(
    flow: FlowId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Run steps again that failed or were cancelled.

    Example: ergon flows retry FLOW
    """
    from ergon_framework.core.flow import RetryFlow

    _decide(flow, RetryFlow(), config, url, as_json)


@app.command()
def skip(
    flow: FlowId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Continue a flow without the steps that failed.

    Example: ergon flows skip FLOW
    """
    from ergon_framework.core.flow import SkipFailed

    _decide(flow, SkipFailed(), config, url, as_json)


@app.command()
def purge(
    flow: FlowId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Delete a flow that has ended, with its steps.

    Example: ergon flows purge FLOW
    """
    from ergon_framework.jobs.flow_client import found_flow, purge_flow
    from ergon_framework.jobs.flow_why import flow_view

    with opened(config, url) as client:
        view = flow_view(found_flow(client.store, flow))
        purge_flow(client.store, flow)
        show_one({**view, "status": "purged"}, as_json=as_json)


@app.command()
def signal(
    flow: FlowId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal that a step waits for.")],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The result of the step, as JSON or plain text.")
    ] = "null",
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Complete the step that waits for a signal.

    A signal is a message by name, such as an approval.

    Example: ergon flows signal FLOW approved true
    """
    from ergon_framework.jobs.flow_client import found_flow, send_signal
    from ergon_framework.jobs.flow_why import flow_view

    with opened(config, url) as client:
        limit = client.settings.max_payload
        send_signal(client.store, flow, name, _value(value), max_payload=limit)
        show_one(flow_view(found_flow(client.store, flow)), as_json=as_json)


def _decide(flow: str, event: Any, config: Any, url: str | None, as_json: bool) -> None:
    from ergon_framework.jobs.flow_client import decide
    from ergon_framework.jobs.flow_why import flow_view

    with opened(config, url) as client:
        changed: Flow = decide(client.store, flow, event)
        show_one(flow_view(changed), as_json=as_json)


def _value(text: str) -> Any:
    """What was typed: JSON where it is JSON, and plain text otherwise.

    The first value of a signal holds, so a text that begins like JSON is taken for a slip.
    """
    try:
        return json_value("VALUE", text)
    except JobError:
        if text.startswith(("{", "[", '"')) or text.strip("-") in _NO_NUMBERS:
            raise
        return text
