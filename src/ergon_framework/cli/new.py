"""``ergon new``: a project to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.output import printable, show_one
from ergon_framework.cli.session import JsonFlag


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the project and its folder.")],
    parent: Annotated[
        Path, typer.Option("--dir", metavar="PATH", help="Where the folder is made.")
    ] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Make a folder with a project that runs: a task, a job, a provider, settings, tests."""
    from ergon_framework.app.new_project import new_project, next_commands, origin

    project = new_project(name, parent, origin())
    commands = next_commands(project)
    if as_json:
        shape = {
            "name": project.name,
            "package": project.package,
            "folder": str(project.folder),
            "files": list(project.files),
            "next": commands,
        }
        show_one(shape, as_json=True)
        return
    print(f"{printable(str(project.folder))} is there. Next:\n")
    for command in commands:
        print(f"  {printable(command)}")
