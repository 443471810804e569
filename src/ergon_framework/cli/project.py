"""Commands about a project and its machine: new, check, tasks, process, live, doctor and notices.

``process`` runs one transaction by hand; ``tasks`` lists where one could run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.command_run import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    PolicyPath,
    TargetName,
    finite,
    session_of,
)
from ergon_framework.cli.output import (
    keep_stdout,
    printable,
    show_error,
    show_list,
    show_one,
    standard_input,
    waiting,
)
from ergon_framework.errors import ConfigurationError


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the project and of its folder.")
    ],
    parent: Annotated[
        Path, typer.Option("--dir", metavar="PATH", help="The folder to make the project in.")
    ] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Make a project that runs.

    The new folder has a task, a job, a provider, settings and tests.

    Example: ergon new shop
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

    Nothing is connected, stored or started. The classes that the settings name are imported, also
    from the working directory, so code at the top level of these modules runs. Do not check
    settings of somebody whose code you would not run.

    All mistakes are listed at once, each with its file, its line and what to do; then the exit code
    is 2.

    Example: ergon check --config ergon.toml
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


MAX_TEXT = 64 * 1024 * 1024
"""Bytes of a payload or of metadata that are read from a file or the standard input."""


tasks_app = typer.Typer()


@tasks_app.callback(invoke_without_command=True)
def tasks(context: typer.Context, config: ConfigPath = None, as_json: JsonFlag = False) -> None:
    """List tasks, try one transaction, probe a run. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_tasks(config, as_json)


@tasks_app.command("list")
def list_tasks(config: ConfigPath = None, as_json: JsonFlag = False) -> None:
    """List the tasks of the settings file.

    Example: ergon tasks list --json
    """
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


@tasks_app.command()
def process(
    context: typer.Context,
    target: TargetName,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The payload; @FILE reads a file, - the standard input."),
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option("--id", help="The transaction's id [default: a new one].")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="The metadata; @FILE and - as above.")
    ] = None,
    by_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Have the task's connector look up the transaction with this id."
        ),
    ] = None,
    config: ConfigPath = None,
    policy: PolicyPath = None,
    shows_result: Annotated[
        bool, typer.Option("--show-result", help="Print the result itself, not only its type.")
    ] = False,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> int:
    """Run one transaction through a task, to try it.

    The task's source is not told the outcome: nothing is acknowledged or set aside.

    Example: ergon tasks process shop:charge --payload '{"amount": 4}'
    """
    from ergon_framework.app.observability import finish_telemetry, set_up_logging
    from ergon_framework.app.run_once import process_by_id, process_one, transaction_from
    from ergon_framework.app.run_parts import Run
    from ergon_framework.app.signals import Shutdown
    from ergon_framework.app.wiring import Overrides

    _check(payload, transaction_id, metadata, by_id)
    set_up_logging(log_level, log_format)
    with keep_stdout(as_json), Shutdown() as shutdown, waiting("processing"):
        wiring = Run(target, config, Overrides(policy)).wired()
        if by_id is not None:
            outcome = process_by_id(wiring, by_id, shutdown)
        else:
            texts = _read("payload", payload), _read("metadata", metadata)
            transaction = transaction_from(texts[0] or "", transaction_id, texts[1])
            outcome = process_one(wiring, transaction, shutdown)
    view = outcome.to_dict(shows_result=shows_result)
    if not as_json:
        view = {name: value for name, value in view.items() if name not in ("error", "exit_code")}
        if shows_result:
            view["result"] = outcome.result_text
    show_one(view, as_json=as_json)
    if outcome.error is not None:
        show_error(outcome.error)
    # Inside of another program its telemetry goes on.
    if session_of(context).is_process:
        finish_telemetry()
    return int(outcome.exit_code)


def _check(
    payload: str | None, transaction_id: str | None, metadata: str | None, by_id: str | None
) -> None:
    if (payload is None) == (by_id is None):
        raise ConfigurationError(
            "a transaction is needed, and only one", remedy="give either --payload or --by-id"
        )
    if by_id is not None and (transaction_id is not None or metadata is not None):
        raise ConfigurationError(
            "--by-id takes the transaction as it is", remedy="leave out --id and --metadata"
        )
    if payload == "-" and metadata == "-":
        raise ConfigurationError(
            "the standard input can be read once", remedy="give --metadata as @FILE"
        )


def _read(what: str, text: str | None) -> str | None:
    """The text itself, or what it points to."""
    if text is None or (text != "-" and not text.startswith("@")):
        return text
    try:
        if text == "-":
            content = standard_input().buffer.read(MAX_TEXT + 1)
        else:
            with Path(text[1:]).open("rb") as file:
                content = file.read(MAX_TEXT + 1)
        if len(content) > MAX_TEXT:
            raise ConfigurationError(
                f"the {what} is longer than {MAX_TEXT} bytes", remedy="give a smaller one"
            )
        return content.decode()
    except OSError as error:
        problem, remedy = f"cannot read {text[1:]!r}: {error.strerror}", "name a readable file"
        raise ConfigurationError(f"the {what}: {problem}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the {what} is not UTF-8 text", remedy="encode it so") from error


@tasks_app.command()
def live(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The file that `ergon run --liveness-file FILE` writes."
        ),
    ],
    max_age: Annotated[
        float,
        typer.Option(
            help="The run counts as dead when the file is older than this many seconds.",
            min=0.0,
            callback=finite,
        ),
    ] = 30.0,
    as_json: JsonFlag = False,
) -> int:
    """Say whether a run is alive, by the file that it writes.

    Start the run with --liveness-file FILE. Exit code 0 when it is alive, 1 when it is not.

    Example: ergon tasks live orders.live
    """
    from ergon_framework.app.liveness_outputs import read_liveness

    is_live, view = read_liveness(path, max_age)
    show_one({"live": is_live, **view}, as_json=as_json)
    return 0 if is_live else 1


def doctor(
    context: typer.Context,
    config: ConfigPath = None,
    no_connect: Annotated[
        bool,
        typer.Option(
            "--no-connect",
            help="Connect to nothing and open no file: check the settings and this machine only.",
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds to wait for each part and each server.", min=0.1, callback=finite
        ),
    ] = 5.0,
    as_json: JsonFlag = False,
) -> int:
    """Check this machine, and whether what the settings name can be reached.

    Exit code 1 when something will not work.

    Example: ergon doctor --no-connect
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
    """List every notice: what logs, metrics and the journal report.

    Example: ergon tasks notices
    """
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
