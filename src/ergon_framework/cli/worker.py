"""Workers of jobs: ``ergon worker`` is one, ``ergon jobs workers`` lists them all.

``ergon executor`` is what a worker starts to run the handlers of a registry.

``ergon conform`` says whether a command is such an executor, and what it does wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    finite,
    is_supervised,
    session_of,
    tell_parent,
)
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import keep_stdout, printable, progress, show_list, show_one
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.testing.suites.executor.under_test import HandlerCall
    from ergon_framework.testing.suites.framework import CheckResult, SuiteReport


_ABOUT = ["id", "host", "pid", "app_version", "state"]
_COLUMNS = [*_ABOUT, "queues", "busy", "executors", "started_at", "seen_at"]


def worker(
    config: ConfigPath = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="Q",
            help="Take jobs from this queue only; may be repeated [default: all queues].",
            autocompletion=completion.queues,
        ),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="Run what is due until nothing is left, then exit.")
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option(
            "--no-wait",
            help="Exit with an error if the store's server cannot be reached at the start.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The worker's name in lists and logs [default: a generated one]."
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="The version of your program, for pinned queues [default: jobs.version].",
        ),
    ] = None,
    max_jobs: Annotated[
        int | None,
        typer.Option(
            "--max-jobs-per-process",
            metavar="N",
            min=1,
            help=(
                "Replace an executor process after this many jobs [default: max_jobs of the "
                "executor]."
            ),
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            "--max-memory-per-process",
            metavar="BYTES",
            min=1,
            help=(
                "Replace an executor process that uses this much memory [default: max_memory of"
                " the executor]."
            ),
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            "--max-process-age",
            metavar="SECONDS",
            min=0.001,
            callback=finite,
            help=(
                "Replace an executor process after this many seconds [default: max_age of the "
                "executor]."
            ),
        ),
    ] = None,
    url: StoreUrl = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> None:
    """Run a worker: claim jobs, have executors run them, and record how each ended.

    It needs settings with a store and at least one executor. SIGTERM or SIGINT lets running jobs
    finish within jobs.grace and gives the others back without charging an attempt. A second signal
    kills the executors and gives their jobs back; a third ends the worker at once.

    A worker waits for a server that cannot be reached, at the start too. With --no-wait, or with
    jobs.wait_for_store = false, it exits instead, and with --burst always.

    Exit code 0 after a stop that was asked for and after a burst; 1 when an executor does not
    start, or does not end when it is asked to.

    Example: ergon worker --queue mail --burst
    """
    from ergon_framework.app.earlier_store import earlier_store, warn_of_earlier_jobs
    from ergon_framework.app.jobs import job_settings
    from ergon_framework.app.observability import finish_telemetry, observed, set_up_logging
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.worker import work
    from ergon_framework.ports.job_fields import name as name_of

    set_up_logging(log_level, log_format)
    # Checked before the store is opened: its server may be waited for without end.
    for each in queue or ():
        name_of("queue", each)
    if name:  # an empty one is made up, as none is
        name_of("worker name", name)
    try:
        limits = {"max_jobs": max_jobs, "max_memory": max_memory, "max_age": max_age}
        given = {name: value for name, value in limits.items() if value is not None}
        setup = job_settings(config, url).kept().with_limits(given).with_version(version)
        view = {"executors": ",".join(setup.executors)}
        settings = load_settings(config)
        if url is None:
            warn_of_earlier_jobs(earlier_store(settings, setup.url))
        with keep_stdout(as_json), observed(settings, f"worker {name or os.getpid()}"):
            report = work(
                setup,
                queues=queue,
                burst=burst,
                name=name,
                ready=lambda: tell_parent(view),
                waits=False if no_wait else None,
            )
    finally:
        finish_telemetry()
    if not is_supervised():
        show_one(msgspec.structs.asdict(report), as_json=as_json)


def workers(config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False) -> None:
    """List workers with their executors and counters.

    Example: ergon jobs workers
    """
    from ergon_framework.jobs.views import worker_view

    with opened(config, url, reads=True) as client:
        now = client.store.now()
        rows = [worker_view(record, now) for record in client.store.workers()]
    if not as_json:
        rows = [
            {
                **row,
                "queues": row["queues"] or "all",
                "executors": [
                    _executor_text(name, pool) for name, pool in row["executors"].items()
                ],
            }
            for row in rows
        ]
    show_list(rows, _COLUMNS, as_json=as_json)


def _executor_text(name: str, pool: Any) -> str:
    """An executor in a few words."""
    from ergon_framework.jobs.totals import recycled_of

    if not isinstance(pool, dict):
        return name
    text = f"{name} {pool.get('processes', '?')}/{pool.get('pool_size', '?')}"
    recycled = recycled_of({name: pool}).get(name)
    if recycled:
        text += ", recycled " + ", ".join(
            f"{number} by {reason}" for reason, number in recycled.items()
        )
    return f"{text} does not start: {pool['reason']}" if pool.get("opens_at") else text


def executor(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Option(
            metavar="MODULE:REGISTRY",
            help="The registry with the handlers, as MODULE:NAME or FILE.py:NAME.",
        ),
    ],
) -> int:
    """Run handlers in this process, for a worker.

    Reads execution requests from the standard input and writes outcomes to the standard output. A
    worker starts this command. Started by hand, it ends with the end of its input. SIGTERM lets
    jobs that it has taken finish, a second one ends it at once.

    Example: ergon jobs executor --app shop.py:executor
    """
    from ergon_framework.executor.process import serve

    session = session_of(context)
    return serve(app, is_debug=session.is_debug, is_process=session.is_process)


_CHECK_COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def conform(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The command that starts the executor, after --."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, callback=finite, help="Seconds to wait for an answer.")
    ] = 10.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this check; may be repeated.")
    ] = None,
    required_only: Annotated[
        bool,
        typer.Option("--required-only", help="Run required checks only, not recommended ones."),
    ] = False,
    handler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The handler to call; it has to succeed [default: echo]."
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="The positional arguments for that handler: a JSON array."
        ),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The keyword arguments for that handler: a JSON object."),
    ] = None,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and start nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Check that a command speaks the Executor Protocol v1.

    The command is started and used as a worker would use it. Exit code 0 when every required check
    passes, 1 when one fails.

    Example: ergon jobs conform --required-only -- node executor.js
    """
    from ergon_framework.testing.suites.executor import chosen_checks, exercise_executor

    checks = chosen_checks(only or (), required_only=required_only)
    if list_checks:
        rows = [
            {"name": one.name, "weight": _need(one.required), "sentence": one.sentence}
            for one in checks
        ]
        show_list(rows, ["name", "weight", "sentence"], as_json=as_json)
        return 0
    if not command:
        raise ConfigurationError(
            "there is no command to try", remedy="ergon conform -- ./my-executor"
        )
    call = _handler_call(handler, args, kwargs)
    with (
        _ended_by_sigterm(),
        progress("looking for handlers", len(checks), has_text_last=True) as move,
    ):
        report = exercise_executor(
            command,
            timeout=timeout,
            progress=lambda result: move(advance=1, description=result.name),
            call=call,
            only=only or (),
            required_only=required_only,
        )
    _show_report(report, as_json=as_json)
    return 0 if report.ok else 1


def _handler_call(handler: str | None, args: str | None, kwargs: str | None) -> HandlerCall | None:
    from ergon_framework.testing.suites.executor.under_test import HandlerCall

    if handler is None:
        if args is not None or kwargs is not None:
            raise ConfigurationError(
                "--args and --kwargs are for a handler, and none is named",
                remedy="name it with --handler",
            )
        return None
    return HandlerCall(
        handler,
        _json_option("--args", args or "[]", list),
        _json_option("--kwargs", kwargs or "{}", dict),
    )


_EXAMPLES: dict[type, str] = {list: """'["a.png", 3]'""", dict: """'{"width": 3}'"""}


def _json_option(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{option} is no JSON: {error}", remedy=f"write it like {option} {_EXAMPLES[kind]}"
        ) from error
    if not isinstance(value, kind):
        wanted = "an array" if kind is list else "an object"
        raise ConfigurationError(f"{option} is not {wanted}", remedy=f"write {option} as {wanted}")
    return value


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM unwind the stack, so that an executor that ignores signals is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where Python lets nobody handle signals
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_report(report: SuiteReport, *, as_json: bool) -> None:
    counts = {
        _need(required): {
            outcome: sum(
                one.required is required and one.outcome == outcome for one in report.results
            )
            for outcome in _CHECK_COLOURS
        }
        for required in (True, False)
    }
    if as_json:
        show_one({**report.to_dict(), "counts": counts}, as_json=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    last_reason = ""
    for one in report.results:
        console.print(Text.assemble(*_check_texts(one, is_same_reason=one.reason == last_reason)))
        last_reason = one.reason
    console.print()
    for weight, numbers in counts.items():
        counted = ", ".join(f"{number} {outcome}" for outcome, number in numbers.items())
        console.print(Text(f"{weight}: {counted}"))
    if report.failed:
        console.print(Text(f"failed: {', '.join(report.failed)}"))
    verdict = "conforms" if report.ok else "does not conform"
    summary = f"{printable(report.subject)} {verdict} to the Executor Protocol v1"
    console.print(Text(summary, "green" if report.ok else "bold red"))


def _check_texts(one: CheckResult, *, is_same_reason: bool) -> Iterator[str | tuple[str, str]]:
    """A result as text: how it ended, what was checked, and why."""
    yield (f"{one.outcome:<8}", _CHECK_COLOURS.get(one.outcome, ""))
    yield f" {_need(one.required):<12} "
    yield (one.name, "bold")
    yield f": {one.sentence}"
    if one.reason and not is_same_reason:  # a row of skipped checks needs it once
        yield f"\n         {printable(one.reason)}"


def _need(required: bool) -> str:
    return "required" if required else "recommended"
