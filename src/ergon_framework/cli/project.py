"""Commands about a project and its machine: new, check, tasks, doctor, live and notices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.output import keep_stdout, printable, show_list, show_one, waiting
from ergon_framework.cli.process import process
from ergon_framework.cli.session import ConfigPath, JsonFlag, finite, session_of


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the project and its folder.")],
    parent: Annotated[
        Path, typer.Option("--dir", metavar="PATH", help="Where the folder is made.")
    ] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Make a project that runs.

    A folder with a task, a job, a provider, settings and tests.
    """
    from ergon_framework.app.new_project import new_project, next_commands, origin

    project = new_project(name, parent, origin())
    commands = next_commands(project)
    if as_json:
        view = {
            "name": project.name,
            "package": project.package,
            "folder": str(project.folder),
            "files": list(project.files),
            "next": commands,
        }
        show_one(view, as_json=True)
        return
    print(f"{printable(str(project.folder))} is there. Next:\n")
    for command in commands:
        print(f"  {printable(command)}")


def check(config: ConfigPath = None, as_json: JsonFlag = False) -> None:
    """Check the settings and say what would run.

    Nothing is connected, stored or started. The classes it names are imported, also from the
    working directory: code at the top level of your modules runs, so check no settings of somebody
    whose code you would not run.

    Every mistake is told at once, with its file, its line and what to do; then the exit code is 2.
    """
    from ergon_framework.app.diagnostics.check import check as checked
    from ergon_framework.app.diagnostics.check import notes
    from ergon_framework.app.settings import settings_file

    # Importing the user's modules runs their top level, which may print.
    with keep_stdout(as_json), waiting("checking"):
        rows = checked(config)
    if not rows:
        file = settings_file(config, os.environ)
        where = "there is no settings file" if file is None else f"{file} describes nothing to run"
        text = f"note: {where}: no task, zone, executor, schedule, provider or server"
        print(printable(text), file=sys.stderr, flush=True)
    for text in notes(config):
        print(printable(f"note: {text}"), file=sys.stderr, flush=True)
    columns = ["kind", "name", "what", "where", "processes"]
    show_list((row.to_dict() for row in rows), columns, as_json=as_json)


tasks_app = typer.Typer()


@tasks_app.callback(invoke_without_command=True)
def tasks(context: typer.Context, config: ConfigPath = None, as_json: JsonFlag = False) -> None:
    """List tasks, try one transaction, probe a run. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_tasks(config, as_json)


@tasks_app.command("list")
def list_tasks(config: ConfigPath = None, as_json: JsonFlag = False) -> None:
    """List the tasks of the settings file."""
    from ergon_framework.app.settings import load_settings

    rows = [
        {
            "name": name,
            "task": task.task,
            "connectors": list(task.connectors),
            "services": list(task.services),
            "workers": task.workers,
        }
        for name, task in load_settings(config).tasks.items()
    ]
    show_list(rows, ["name", "task", "connectors", "services", "workers"], as_json=as_json)


tasks_app.command()(process)


@tasks_app.command()
def live(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The liveness file of a run.")],
    max_age: Annotated[
        float,
        typer.Option(help="Seconds after which the file is too old.", min=0.0, callback=finite),
    ] = 30.0,
    as_json: JsonFlag = False,
) -> int:
    """Probe a run by its liveness file.

    Exit code 0 when that run is live, 1 when not.
    """
    from ergon_framework.app.liveness_outputs import read_liveness

    is_live, view = read_liveness(path, max_age)
    show_one({"live": is_live, **view}, as_json=as_json)
    return 0 if is_live else 1


def doctor(
    context: typer.Context,
    config: ConfigPath = None,
    no_connect: Annotated[
        bool, typer.Option("--no-connect", help="Make and open nothing, ask no server.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds for each part and server.", min=0.1, callback=finite)
    ] = 5.0,
    as_json: JsonFlag = False,
) -> int:
    """Check this machine, and whether what the settings name can be reached.

    Exit code 1 when something will not work.
    """
    from ergon_framework.app.diagnostics.doctor import examine
    from ergon_framework.app.diagnostics.findings import FindingStatus
    from ergon_framework.app.signals import exit_within

    with keep_stdout(as_json), waiting("examining"):
        findings = list(examine(config, connects=not no_connect, timeout=timeout))
    rows = [finding.to_dict() for finding in findings]
    show_list(rows, ["check", "status", "found", "remedy"], as_json=as_json)
    code = 1 if any(finding.status is FindingStatus.BAD for finding in findings) else 0
    if session_of(context).is_process:
        exit_within(code)  # whatever did not answer may hang in a thread that has to be joined
    return code


@tasks_app.command()
def notices(as_json: JsonFlag = False) -> None:
    """List the state changes that Ergon tells."""
    from ergon_framework.ports.notice import CATALOGUE

    rows = [
        {
            "name": name,
            "part": known.part,
            "meaning": known.text,
            "fields": list(known.fields),
            "routine": known.routine.value,
        }
        for name, known in CATALOGUE.items()
    ]
    show_list(rows, ["name", "meaning", "fields", "routine"], as_json=as_json)
