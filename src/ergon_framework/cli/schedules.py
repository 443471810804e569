"""``ergon schedules``: cron schedules, pausing one, running one now."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import show_list, show_one
from ergon_framework.cli.session import ConfigPath, JsonFlag
from ergon_framework.errors import JobNotFoundError

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import Schedule

app = typer.Typer()

ScheduleName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of a schedule.", autocompletion=completion.schedules
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
    fires: Annotated[int, typer.Option(min=1, max=100, help="How many next fires.")] = 1,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List the stored schedules with their next fires."""
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
def pause(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Let a schedule fire no more until it is resumed."""
    with opened(config, url) as client:
        _put(client, name, as_json, is_paused=True)


@app.command()
def resume(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Let a schedule fire again.

    What it missed in its pause is not made up for.
    """
    with opened(config, url) as client:
        _put(client, name, as_json, is_paused=False)


@app.command()
def run(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Enqueue the job of a schedule now, and print its id."""
    import msgspec

    from ergon_framework.jobs.newjob import new_id
    from ergon_framework.jobs.scheduler import job_of

    with opened(config, url) as client:
        job = job_of(_find(client, name), client.store.now())
        (added,) = client.store.add([msgspec.structs.replace(job, id=new_id())])
    if as_json:
        show_one({"id": added.id, "is_new": added.is_new}, as_json=True)
    else:
        print(added.id)


@app.command()
def remove(
    name: ScheduleName, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Remove a stored schedule.

    One in the settings comes back with the next worker.
    """
    with opened(config, url) as client:
        _find(client, name)
        is_removed = client.store.drop_schedule(name)
    show_one({"name": name, "removed": is_removed}, as_json=as_json)


def _find(client: JobClient, name: str) -> Schedule:
    known = {schedule.name: schedule for schedule in client.store.schedules()}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else "a worker stores those of its settings"
    raise JobNotFoundError(f"there is no schedule {name!r}", remedy=remedy)


def _put(client: JobClient, name: str, as_json: bool, *, is_paused: bool) -> None:
    import msgspec

    from ergon_framework.jobs.scheduler import renewed
    from ergon_framework.jobs.views import schedule_view
    from ergon_framework.telemetry.notices import emit

    old = _find(client, name)
    new = msgspec.structs.replace(old, is_paused=is_paused)
    if not is_paused:
        new = renewed(new, old, client.store.now())
    client.store.put_schedule(new)
    emit("schedule.paused" if is_paused else "schedule.resumed", schedule=name)
    show_one(schedule_view(new), as_json=as_json)
