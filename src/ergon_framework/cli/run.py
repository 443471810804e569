"""``ergon run``: an App, a task, one part of the settings, or all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ergon_framework.app.console import log_line
from ergon_framework.cli import boundary_serve, completion, serve, worker
from ergon_framework.cli.command_run import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    PolicyPath,
    Session,
    expanded,
    finite,
    session_of,
    supervised_by,
)
from ergon_framework.cli.output import (
    keep_stdout,
    print_line,
    printable,
    show_error,
    show_list,
    show_one,
    show_traceback,
)
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.storage.urls import given_options

if TYPE_CHECKING:
    from ergon_framework.app.application import App
    from ergon_framework.app.outcome import RunOutcome
    from ergon_framework.app.parts import Part
    from ergon_framework.app.processes import WorkersOutcome
    from ergon_framework.app.run_parts import Run
    from ergon_framework.core.process_restart import RestartRule


_OF_TASKS = ("policy", "workers", "limit", "check", "liveness_file", "probe_port")
_INSTEAD = {"workers": "write it in the settings", "check": "use ergon check"}
_GIVEN = "COMMANDLINE"  # by name: whose enum it is depends on the version of Typer


def check_asked(target: str | None, everything: bool, config: Path | None) -> None:
    """Refuse a name together with ``--all``, and neither of the two."""
    if target is None and not everything:
        raise ConfigurationError(
            "what is to run?",
            remedy="give a name, or --all; this lists what there is:  ergon check"
            + given_options(config, None),
        )
    if target is not None and everything:
        raise ConfigurationError(
            f"both {target!r} and --all were asked for", remedy="leave out one of the two"
        )


def check_options(context: typer.Context, what: str, allowed: str = "") -> None:
    """Refuse options that only mean something for one task, except one that is ``allowed``."""
    for name in _OF_TASKS:
        if name == allowed:
            continue
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


def run_part_under(supervised: str, part: Part, given: Mapping[str, Any]) -> RunOutcome:
    """Run one part, and report its state to the process that supervises this one."""
    from ergon_framework.app.run_parts import serve_under, supervisor_link

    parent = supervisor_link(supervised)
    with supervised_by(parent):
        return serve_under(parent, part.full_name, lambda: run_part(part, given))


def run_everything(
    session: Session, config: Path | None, rule: RestartRule, *, as_json: bool
) -> int:
    """Start all parts, print what happens to each, and the outcome at the end."""
    from ergon_framework.app.run_parts import run_all
    from ergon_framework.app.settings import load_settings

    def tell(line: str) -> None:
        record = log_line(line)
        stream = sys.stderr if as_json or record is not None else sys.stdout
        with suppress(OSError):  # nobody has to listen
            print_line(record or printable(line), stream)

    outcome = run_all(load_settings(config), session.again, tell, rule, keeps_stdout=as_json)
    if as_json:
        show_one(outcome.to_dict(), as_json=True)
    show_errors(outcome)
    return int(outcome.exit_code)


def show_errors(outcome: WorkersOutcome) -> None:
    """Why a run in several processes did not come to a good end."""
    for error in outcome.errors if outcome.exit_code else ():
        remedy = error["details"].get("remedy", "")
        show_error(ErgonError(error["message"], remedy=remedy))


MAX_SHOWN_IDS = 20
"""How many ids of a list are shown to people."""


# The two groups say Any of what they make: annotations of commands are evaluated, and these classes
# are imported only when something runs.


def _liveness(
    liveness_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="ERGON_LIVENESS_FILE",
            help="Write the state of the run into this file every five seconds.",
        ),
    ] = None,
    probe_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            envvar="ERGON_PROBE_PORT",
            help="Answer the probes /live and /ready on this port; 0 takes a free one.",
        ),
    ] = None,
    probe_host: Annotated[
        str,
        typer.Option(envvar="ERGON_PROBE_HOST", help="The address on which probes are answered."),
    ] = "127.0.0.1",
    stall_after: Annotated[
        float,
        typer.Option(
            min=1.0,
            callback=finite,
            help="Call the run stalled when its source was silent for this many seconds.",
        ),
    ] = 120.0,
) -> Any:
    from ergon_framework.app.liveness_outputs import LivenessOutputs

    return LivenessOutputs(liveness_file, probe_port, probe_host, stall_after)


def _restart_rule(
    restarts: Annotated[
        int,
        typer.Option(
            min=0, help="How often a worker may die within --restart-window before the run fails."
        ),
    ] = 5,
    restart_window: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="The window of --restarts, in seconds.")
    ] = 60.0,
) -> Any:
    from ergon_framework.core.process_restart import RestartRule

    return RestartRule(restarts, restart_window)


@expanded(liveness=_liveness, rule=_restart_rule)
def run(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="An App: module:app or script.py:app; a task: module:Class, module:instance or a"
            " name from [tasks]; or a zone, worker or server of the settings.",
            autocompletion=completion.run_names,
        ),
    ] = None,
    *,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Start every part that the settings describe: server, zones, worker and tasks.",
        ),
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a .py or .toml file changes.")
    ] = False,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst", help="With an App: run what is due until nothing is left, then exit."
        ),
    ] = False,
    config: ConfigPath = None,
    policy: PolicyPath = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="How many processes to start [default: as in the settings, or 1].",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Stop after this many transactions, in each process.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check everything, say what would run, and start nothing."),
    ] = False,
    liveness: Any,
    rule: Any,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
    supervised: Annotated[str | None, typer.Option(hidden=True)] = None,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> int:
    """Run an App, a task, or another part of the settings.

    A task runs until it is done. Everything else runs until SIGTERM or SIGINT: the first signal
    lets work in flight finish, the second ends it at once. --all starts every part.

    Example: ergon run orders --check
    """
    from ergon_framework.app.app_reference import find_app, script_in
    from ergon_framework.app.parts import PartKind, part_named
    from ergon_framework.app.reload import end_with
    from ergon_framework.app.run_parts import Run
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.wiring import Overrides

    session = session_of(context)
    check_asked(target, everything, config)
    # Before anything of the user's is imported: this process only watches, and a module that cannot
    # be imported must not end it.
    if reload:
        return _reloading(session, target, config)
    if lifeline is not None:
        end_with(lifeline)
    # Before find_app, which imports the user's module: what it logs at its top level is shown.
    is_given = _is_given(context)
    for_all = config if is_given or not script_in(target or "") else None
    _prepare_process(session, target or "", for_all, log_level, log_format)
    if everything:
        check_options(context, "--all")
        return run_everything(session, config, rule, as_json=as_json)
    with keep_stdout(as_json):  # it imports the user's module
        app = find_app(target or "")
    if app is not None:
        check_options(context, "an App", allowed="workers")
        if session.is_process and not is_given and for_all is not None:
            # An App reads the settings beside its script, wherever the command runs.
            del os.environ["ERGON_CONFIG"]
        if is_given:
            _check_config(app, config)
        return _run_app(app, workers, burst=burst, as_json=as_json)
    if burst:
        raise ConfigurationError(
            f"--burst is for an App, and {target or ''!r} is none",
            remedy="name one, module:app or script.py:app, or leave --burst out",
        )
    part = part_named(target or "", load_settings(config))
    if part.kind is not PartKind.TASK:
        check_options(context, f"the {part.kind.value} {part.name!r}")
        common = {"config": config, "log_level": log_level, "log_format": log_format}
        return _run_part(session, part, common, supervised, as_json)
    asked = Run(part.name, config, Overrides(policy, limit), liveness, rule, workers)
    if supervised is not None:
        return _end(session, asked.as_worker(supervised))
    return _check_task(asked, as_json) if check else _run_task(session, asked, as_json)


def _prepare_process(
    session: Session, target: str, config: Path | None, log_level: str, log_format: str
) -> None:
    """Set up logging, and name the settings file for code of this process that looks for it."""
    from ergon_framework.app.app_reference import script_in
    from ergon_framework.app.observability import set_up_logging, show_executors

    if session.is_process and config is not None:
        os.environ["ERGON_CONFIG"] = str(config.absolute())  # for code that looks up a provider
    if log_format == "text" and (":" in target or script_in(target)):
        show_executors()  # what the handlers of an App print is for people, whatever the level
    set_up_logging(log_level, log_format)


def _is_given(context: typer.Context) -> bool:
    """Whether the command line has ``--config``; without it, a project may have been found."""
    source: Any = context.get_parameter_source("config")
    return source is not None and source.name == _GIVEN


def _check_config(app: App, config: Path | None) -> None:
    """Refuse ``--config`` where the App reads another file: its own processes would read that."""
    if config is None:
        return
    file = app.settings.file
    asked = config / "ergon.toml" if config.is_dir() else config
    if file is None or file.resolve() != asked.resolve():
        actual = "no settings file" if file is None else str(file)
        raise ConfigurationError(
            f"--config names {config}, and the App reads {actual}",
            remedy=f'leave it out, or name the file in the script: App("{config}")',
        )


def _run_app(app: App, workers: int | None, *, burst: bool, as_json: bool) -> int:
    """Run everything that a script declared; what its own code prints is kept out of JSON."""
    if workers is not None and not app.registry.names:
        raise ConfigurationError(
            "--workers is how many processes run jobs, and this App declares none",
            remedy="leave it out; a consumer handles several messages at once with"
            " @app.consumer(..., concurrency=8)",
        )
    with keep_stdout(as_json):
        report = app.run(burst=burst, processes=workers)
    if as_json:
        consumers = {name: each.to_dict() for name, each in report.consumers.items()}
        view = {"jobs": msgspec.structs.asdict(report.jobs), "consumers": consumers}
        show_one(view, as_json=True)
        return 0
    rows = [{"part": "jobs", **msgspec.structs.asdict(report.jobs)}]
    for name, each in report.consumers.items():
        counts = {
            "completed": each.succeeded,
            "failed": each.failed + each.timed_out,
            "held": each.parked,
        }
        rows.append({"part": name, **counts, "stop_reason": each.stop_reason.value})
    columns = ["part", "completed", "failed", "retried", "held", "stop_reason"]
    show_list(rows, columns, as_json=False)
    return 0


def _reloading(session: Session, target: str | None, config: Path | None) -> int:
    """Run the same command in a process of its own, and again whenever a file changes."""
    from ergon_framework.app.app_reference import script_in
    from ergon_framework.app.reload import Reloader

    script = script_in(target or "")
    base = Path.cwd() if config is None else config if config.is_dir() else config.parent
    roots = [base.absolute()]
    if script is not None and not script.absolute().is_relative_to(roots[0]):
        roots.append(script.absolute().parent)
    first, *rest = (each for each in session.arguments if each != "--reload")
    # run_command has taken it out of the arguments.
    more = ["--debug"] if session.is_debug else []

    def command(lifeline: int) -> list[str]:
        module = [sys.executable, "-m", "ergon_framework.cli", *more]
        return [*module, first, "--lifeline", str(lifeline), *rest]

    return Reloader(command, roots).run()


def _run_part(
    session: Session, part: Part, common: Mapping[str, Any], supervised: str | None, as_json: bool
) -> int:
    if supervised is not None:
        return _end(session, run_part_under(supervised, part, common))
    run_part(part, {**common, "as_json": as_json})
    return 0


def _check_task(asked: Run, as_json: bool) -> int:
    with keep_stdout(as_json):
        plan = asked.plan()
    _show_plan(plan, as_json)
    return 0


def _run_task(session: Session, asked: Run, as_json: bool) -> int:
    if asked.worker_count() > 1:
        return _show_workers(asked.in_processes(session.again, keeps_stdout=as_json), as_json)
    with keep_stdout(as_json):
        outcome = asked.here()
    _show(outcome, as_json)
    return _end(session, outcome)


def _show_plan(plan: dict[str, Any], as_json: bool) -> None:
    if not as_json:
        changes = plan.pop("policy_changes")
        plan["policy"] = [f"{name}={value}" for name, value in changes.items()] or "as by default"
    show_one(plan, as_json=as_json, title="in order; this would run")


def _show(outcome: RunOutcome, as_json: bool) -> None:
    view = outcome.to_dict()
    if not as_json:
        view = {"task": view["task"], "exit_code": view["exit_code"], **_short(view["report"])}
    show_one(view, as_json=as_json)
    if outcome.error is not None:
        show_error(outcome.error)


def _show_workers(outcome: WorkersOutcome, as_json: bool) -> int:
    view = outcome.to_dict()
    if as_json:
        show_one(view, as_json=True)
    else:
        rows = [{**each, **_short(each["report"])} for each in view["workers"]]
        total = {"worker": "all", **{name: view[name] for name in ("exit_code", "restarts")}}
        rows.append({**total, **_short(view["report"])})
        columns = ["worker", "exit_code", "restarts", "succeeded", "failed", "timed_out"]
        columns += ["malformed", "parked", "discarded", "stop_reason", "elapsed"]
        show_list(rows, columns, as_json=False)
    show_errors(outcome)
    return int(outcome.exit_code)


def _short(report: dict[str, Any] | None) -> dict[str, Any]:
    """A report for people: of many ids only the first."""
    view = dict(report or {})
    for name in ("stranded", "duplicates"):
        ids = view.get(name, [])
        if len(ids) > MAX_SHOWN_IDS:
            view[name] = [*ids[:MAX_SHOWN_IDS], f"and {len(ids) - MAX_SHOWN_IDS} more"]
    return view


def _end(session: Session, outcome: RunOutcome) -> int:
    """Flush telemetry, and end the process even if a thread hangs in it; returns the exit code."""
    code = int(outcome.exit_code)
    if session.is_debug and outcome.error is not None:
        show_traceback(outcome.error)
    if session.is_process:
        from ergon_framework.app.observability import finish_telemetry
        from ergon_framework.app.signals import exit_within

        finish_telemetry()
        if outcome.leaves_threads:
            exit_within(code)
    return code
