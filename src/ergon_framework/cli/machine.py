"""Commands that look and change nothing: ``tasks``, ``live``, ``doctor``, ``notices``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.output import keep_stdout, show_list, show_one
from ergon_framework.cli.session import ConfigPath, JsonFlag, session_of


def tasks(config: ConfigPath = None, as_json: JsonFlag = False) -> None:
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


def live(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The liveness file of a run.")],
    max_age: Annotated[
        float, typer.Option(help="Seconds after which the file is too old.", min=0.0)
    ] = 30.0,
    as_json: JsonFlag = False,
) -> int:
    """Look at a liveness file: exit code 0 when that run is live, 1 when not."""
    from ergon_framework.app.liveness_outputs import read_liveness

    is_live, shape = read_liveness(path, max_age)
    show_one({"live": is_live, **shape}, as_json=as_json)
    return 0 if is_live else 1


def doctor(
    context: typer.Context,
    config: ConfigPath = None,
    no_connect: Annotated[
        bool, typer.Option("--no-connect", help="Make and open nothing, ask no server.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds for each part and server.", min=0.1)
    ] = 5.0,
    as_json: JsonFlag = False,
) -> int:
    """Look at this machine, and whether what the settings name can be reached.

    Exit code 1 when something will not work.
    """
    from ergon_framework.app.diagnostics.doctor import examine
    from ergon_framework.app.diagnostics.findings import Status
    from ergon_framework.app.signals import leave_within

    with keep_stdout(as_json):
        findings = list(examine(config, connects=not no_connect, timeout=timeout))
    rows = [finding.to_dict() for finding in findings]
    show_list(rows, ["check", "status", "found", "remedy"], as_json=as_json)
    code = 1 if any(finding.status is Status.BAD for finding in findings) else 0
    if session_of(context).is_process:
        leave_within(code)  # whatever did not answer may hang in a thread that has to be joined
    return code


def notices(as_json: JsonFlag = False) -> None:
    """List the notices: every state change that Ergon tells."""
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
