"""What one invocation of the command line has in common, whatever the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(slots=True)
class Session:
    """How this invocation was made."""

    is_debug: bool = False
    is_process: bool = False
    """Whether the process is ours, to be ended with the command."""
    arguments: Sequence[str] = ()

    def again(self, supervised: str, part: str = "") -> list[str]:
        """The command line of a worker: this one by the same interpreter, under supervision.

        Where this one is about all parts, the other is about one of them.
        """
        first, *rest = self.arguments
        if part:
            rest = [part, *(each for each in rest if each != "--all")]
        more = ["--debug"] if self.is_debug else []
        module = [sys.executable, "-m", "ergon_framework.cli"]
        return [*module, *more, first, "--supervised", supervised, *rest]


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The settings file [default: ergon.toml]."),
]
PolicyPath = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="A TOML file with the policy of this run."),
]
LogLevel = Annotated[
    str,
    typer.Option(envvar="ERGON_LOG_LEVEL", help="debug, info, warning, error or critical."),
]
LogFormat = Annotated[str, typer.Option(envvar="ERGON_LOG_FORMAT", help="text or json.")]
TargetName = Annotated[
    str,
    typer.Argument(metavar="TASK", help="module:Class, module:instance, or a name from [tasks]."),
]


def session_of(context: typer.Context) -> Session:
    """The session of a command's context."""
    found = context.find_object(Session)
    return Session() if found is None else found
