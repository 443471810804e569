"""``ergon queues``: what waits where, pausing, and limits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import show_list, show_one
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient

app = typer.Typer(help="List queues with their counts; pause, resume, limit or pin one.")

QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE", help="The name of the queue.", autocompletion=completion.queues
    ),
]
_NOTED = ("max_active", "rate", "burst", "key_max_active", "key_rate", "key_burst")
_COUNTS = ["pending", "active", "retrying", "completed", "failed", "cancelled"]
_LIMITS = ["max_active", "rate", "key_max_active", "key_rate", "pinned_version"]
_MISSING = ["missing_executors", "missing_handlers"]
_COLUMNS = ["name", "paused", *_COUNTS, *_LIMITS, "oldest_due_at", *_MISSING, "missing_version"]


@app.command("list")
def list_queues(config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False) -> None:
    """List queues with their counts and limits.

    Also the executors, handlers and versions that jobs wait for and no worker has.

    Example: ergon queues list
    """
    from ergon_framework.jobs.views import queue_views, unsynced

    with opened(config, url, reads=True) as client:
        store = client.store
        rows = queue_views(store.queues(), store.named(), store.workers(), store.now())
        risk = unsynced(store)
    if not as_json:
        rows = [
            {**row, **row["counts"], **{name: ", ".join(row[name]) for name in _MISSING}}
            for row in rows
        ]
    show_list(rows, _COLUMNS, as_json=as_json)
    if risk is not None:
        print(f"warning: acknowledged jobs may be lost. {risk}", file=sys.stderr)


@app.command()
def pause(
    queue: QueueName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Start no more jobs of a queue. Jobs that run go on.

    Example: ergon queues pause mail
    """
    with opened(config, url) as client:
        _change(client, queue, as_json, is_paused=True)


@app.command()
def resume(
    queue: QueueName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Start jobs of a paused queue again.

    Example: ergon queues resume mail
    """
    with opened(config, url) as client:
        _change(client, queue, as_json, is_paused=False)


@app.command()
def pin(
    queue: QueueName,
    version: Annotated[
        str,
        typer.Option(metavar="V", help="The version that workers of this queue were started with."),
    ],
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Let only workers of one version take jobs of a queue.

    Workers say their version with `ergon worker --version V` or jobs.version. Jobs that workers of
    another version run go on; another attempt of such a job is left to the pinned version.

    Example: ergon queues pin mail --version 2.1
    """
    with opened(config, url) as client:
        _change(client, queue, as_json, pinned_version=version)


@app.command()
def unpin(
    queue: QueueName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Let workers of any version take jobs of a queue again.

    Example: ergon queues unpin mail
    """
    with opened(config, url) as client:
        _change(client, queue, as_json, pinned_version=None)


@app.command()
def limit(
    queue: QueueName,
    max_active: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="How many jobs of the queue may run at once."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="R|none", help="How many jobs of the queue may start per second, on average."
        ),
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="How many jobs may start at once after a time without any."
        ),
    ] = None,
    key_max_active: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="How many jobs of each limit key may run at once."),
    ] = None,
    key_rate: Annotated[
        str | None,
        typer.Option(
            metavar="R|none",
            help="How many jobs of each limit key may start per second, on average.",
        ),
    ] = None,
    key_burst: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many jobs of a limit key may start at once after a time without any.",
        ),
    ] = None,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Limit a queue, or each limit key in it, across all workers.

    The value none removes a limit.

    Example: ergon queues limit mail --max-active 10 --rate 5
    """
    from ergon_framework.jobs.settings import QueueSettings

    own = {"max_active": max_active, "rate": rate, "burst": burst}
    of_keys = {"max_active": key_max_active, "rate": key_rate, "burst": key_burst}
    given = {name: value for name, value in own.items() if value is not None}
    per_key = {name: value for name, value in of_keys.items() if value is not None}
    if not given and not per_key:
        raise ConfigurationError(
            "which limit?",
            remedy="give --max-active, --rate or --burst, or --key-max-active, --key-rate or"
            " --key-burst",
        )
    try:
        # Read as the settings are, so that both take the same: numbers as text, and "none".
        limits = QueueSettings.model_validate({**given, "per_key": per_key}).limits()
    except ValueError as error:
        raise ConfigurationError(_problems(error), remedy='give a number, or "none"') from None
    names = [*given, *(f"key_{name}" for name in per_key)]
    with opened(config, url) as client:
        _change(client, queue, as_json, **{name: limits[name] for name in names})


def _change(client: JobClient, queue: str, as_json: bool, **changes: Any) -> None:
    from ergon_framework.jobs.views import queue_limits_view
    from ergon_framework.ports.job_fields import name
    from ergon_framework.telemetry.notices import emit

    changed = client.store.set_queue(name("queue", queue), **changes)
    if "pinned_version" in changes:
        emit("queue.pinned", queue=changed.name, version=changed.pinned_version)
    elif "is_paused" in changes:
        emit("queue.paused" if changed.is_paused else "queue.resumed", queue=changed.name)
    else:
        limits = queue_limits_view(changed)
        emit("queue.limited", queue=changed.name, **{name: limits[name] for name in _NOTED})
    show_one(queue_limits_view(changed), as_json=as_json)


def _problems(error: Any) -> str:
    from ergon_framework.ports.settings_model import explain

    return "; ".join(explain(each) for each in error.errors(include_url=False))
