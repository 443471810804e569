"""``ergon schedules``: cron schedules, their last fires, and what changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import show_list, show_one

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient

app = typer.Typer()

ScheduleName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of the schedule.", autocompletion=completion.schedules
    ),
]
_COLUMNS = ["name", "cron", "zone", "handler", "paused", "next_at", "last_at", "problem"]


@app.callback(invoke_without_command=True)
def schedules(
    context: typer.Context,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Look at schedules, pause or resume one, run one now. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_schedules(1, config, url, as_json)


@app.command("list")
def list_schedules(
    fires: Annotated[int, typer.Option(min=1, max=100, help="How many next fires to show.")] = 1,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List the stored schedules with their next fires.

    Example: ergon schedules list --fires 3
    """
    from ergon_framework.jobs.scheduler import Scheduler
    from ergon_framework.jobs.views import moment, schedule_view

    with opened(config, url, reads=True) as client:
        rows = [
            {
                **schedule_view(each.schedule),
                "fires": [moment(at) for at in each.fires],
                "problem": each.problem or None,
            }
            for each in Scheduler(client.store).preview(fires)
        ]
    columns = _COLUMNS if fires == 1 else [*_COLUMNS, "fires"]
    show_list(rows, columns, as_json=as_json)


@app.command()
def show(
    name: ScheduleName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many past fires to show.")] = 10,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a schedule, and the jobs of its last fires.

    Example: ergon schedules show nightly
    """
    from ergon_framework.jobs.views import moment, schedule_view

    with opened(config, url, reads=True) as client:
        schedule = client.schedules.get(name)
        found = client.schedules.fires(name, limit)
    fires = [
        {
            "fired_at": moment(each.at),
            "job": each.job_id,
            "status": None if each.job is None else each.job.status.value,
        }
        for each in found
    ]
    if as_json:
        show_one({**schedule_view(schedule), "fires": fires}, as_json=True)
    else:
        show_one(schedule_view(schedule), as_json=False)
        show_list(fires, ["fired_at", "job", "status"], as_json=False)


@app.command()
def put(
    name: ScheduleName,
    handler: Annotated[
        str,
        typer.Argument(
            metavar="HANDLER", help="The handler that its jobs run, NAME or EXECUTOR#NAME."
        ),
    ],
    cron: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="When to fire, as a cron expression: '0 6 * * 1-5'."),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Fire at this interval, such as 90s or 1h30m."),
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="The time zone of --cron, such as Europe/Berlin.")
    ] = "UTC",
    args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The positional arguments of its jobs: a JSON array."),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The named arguments of its jobs: a JSON object."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue that its jobs wait in.")] = None,
    misfire: Annotated[
        str,
        typer.Option(
            help="What to do with missed fires: once (one for all of them), skip, or all."
        ),
    ] = "once",
    overlap: Annotated[
        bool, typer.Option(help="Fire although the job of an earlier fire has not ended.")
    ] = True,
    jitter: Annotated[
        float, typer.Option(help="Delay each job by a random time of up to this many seconds.")
    ] = 0.0,
    ends_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop firing at this time: 2030-01-31T12:00:00Z."),
    ] = None,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Store a schedule, or change one that this command stored.

    Give --cron or --every. A schedule of the settings or of an App is changed where it is written.

    Example: ergon schedules put nightly report --cron '0 2 * * *'
    """
    from ergon_framework.cli.enqueue import json_list, json_table
    from ergon_framework.jobs.views import schedule_view

    options: Any = {} if queue is None else {"queue": queue}
    with opened(config, url) as client:
        new = client.schedules.put(
            name,
            handler,
            json_list(args),
            json_table(kwargs),
            cron=cron,
            every=every,
            timezone=timezone,
            misfire=misfire,
            overlap=overlap,
            jitter=jitter,
            ends_at=ends_at,
            **options,
        )
    show_one(schedule_view(new), as_json=as_json)


@app.command()
def pause(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Stop a schedule from firing until it is resumed.

    Example: ergon schedules pause nightly
    """
    with opened(config, url) as client:
        _put(client, name, as_json, is_paused=True)


@app.command()
def resume(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Let a paused schedule fire again.

    Fires that it missed while it was paused are not made up for.

    Example: ergon schedules resume nightly
    """
    with opened(config, url) as client:
        _put(client, name, as_json, is_paused=False)


@app.command()
def run(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Enqueue the job of a schedule now, and print its id.

    Example: ergon schedules run nightly
    """
    with opened(config, url) as client:
        added = client.schedules.run(name)
    if as_json:
        show_one({"id": str(added), "is_new": added.is_new}, as_json=True)
    else:
        print(added)


@app.command()
def remove(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Remove a stored schedule.

    A schedule that the settings have comes back when the next worker starts.

    Example: ergon schedules remove nightly
    """
    with opened(config, url) as client:
        # Raises for a name that is not there; delete() would only answer False.
        client.schedules.get(name)
        is_removed = client.schedules.delete(name)
    show_one({"name": name, "removed": is_removed}, as_json=as_json)


def _put(client: JobClient, name: str, as_json: bool, *, is_paused: bool) -> None:
    from ergon_framework.jobs.views import schedule_view

    change = client.schedules.pause if is_paused else client.schedules.resume
    show_one(schedule_view(change(name)), as_json=as_json)
