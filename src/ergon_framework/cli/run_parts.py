"""``ergon run`` for what is no task: a zone, the worker, the server, or everything at once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ergon_framework.app.console import log_line
from ergon_framework.cli import boundary_serve, serve, worker
from ergon_framework.cli.output import printable, show_error, show_one
from ergon_framework.cli.readiness import supervised_by
from ergon_framework.cli.session import Session
from ergon_framework.errors import ConfigurationError, ErgonError

if TYPE_CHECKING:
    from ergon_framework.app.outcome import Outcome
    from ergon_framework.app.parts import Part
    from ergon_framework.app.processes import WorkforceOutcome
    from ergon_framework.core.restart import RestartRule

_OF_TASKS = ("policy", "workers", "limit", "check", "liveness_file", "probe_port")
_INSTEAD = {"workers": "write it in the settings", "check": "use ergon check"}
_GIVEN = "COMMANDLINE"


def check_asked(target: str | None, everything: bool) -> None:
    """Refuse a name together with ``--all``, and neither of the two."""
    if target is None and not everything:
        raise ConfigurationError(
            "what is to run?", remedy="give a name, or --all; ergon check lists what there is"
        )
    if target is not None and everything:
        raise ConfigurationError(
            f"both {target!r} and --all were asked for", remedy="leave out one of the two"
        )


def check_options(context: typer.Context, what: str) -> None:
    """Refuse options that only mean something for one task."""
    for name in _OF_TASKS:
        source: Any = context.get_parameter_source(name)
        if source is not None and source.name == _GIVEN:
            raise ConfigurationError(
                f"--{name.replace('_', '-')} is for a task, and {what} is none",
                remedy=_INSTEAD.get(name, "leave it out"),
            )


def run_part(part: Part, given: Mapping[str, Any]) -> None:
    """Run a zone, the worker or the server in this process, as its own command does."""
    from ergon_framework.app.parts import PartKind

    if part.kind is PartKind.ZONE:
        boundary_serve.serve(zone=part.name, **given)
    elif part.kind is PartKind.WORKER:
        worker.worker(**given)
    else:
        serve.serve(**given)


def run_part_under(supervised: str, part: Part, given: Mapping[str, Any]) -> Outcome:
    """The same for a process that supervises this one."""
    from ergon_framework.app.run import parent_of, serve_under

    parent = parent_of(supervised)
    with supervised_by(parent):
        return serve_under(parent, part.full_name, lambda: run_part(part, given))


def run_everything(
    session: Session, config: Path | None, rule: RestartRule, *, as_json: bool
) -> int:
    """Start all parts, tell what happens to each, and say at the end how it went."""
    from ergon_framework.app.run import run_all
    from ergon_framework.app.settings import load_settings

    def tell(line: str) -> None:
        record = log_line(line)
        stream = sys.stderr if as_json or record is not None else sys.stdout
        with suppress(OSError):  # nobody has to listen
            print(record or printable(line), file=stream, flush=True)

    outcome = run_all(load_settings(config), session.again, tell, rule, keeps_stdout=as_json)
    if as_json:
        show_one(outcome.to_dict(), as_json=True)
    show_errors(outcome)
    return int(outcome.exit_code)


def show_errors(outcome: WorkforceOutcome) -> None:
    """Why a run in several processes did not come to a good end."""
    for error in outcome.errors if outcome.exit_code else ():
        remedy = error["details"].get("remedy", "")
        show_error(ErgonError(error["message"], remedy=remedy))
