"""Workers of jobs: ``ergon worker`` is one, ``ergon jobs workers`` lists them all.

``ergon executor`` is what a worker starts to run the handlers of a registry.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer

from ergon_framework.cli import completion
from ergon_framework.cli.job_client import StoreUrl, opened
from ergon_framework.cli.output import keep_stdout, show_list, show_one
from ergon_framework.cli.session import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    finite,
    is_supervised,
    session_of,
    tell_parent,
)

_ABOUT = ["id", "host", "pid", "app_version", "state"]
_COLUMNS = [*_ABOUT, "queues", "busy", "executors", "started_at", "seen_at"]


def worker(
    config: ConfigPath = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="Q",
            help="Serve this queue; may be repeated [all].",
            autocompletion=completion.queues,
        ),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="Run what is due until nothing is left, then exit.")
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Exit when the store's server is away at the start."),
    ] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="How this worker is called [made up].")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="The version of your program, for pinned queues [jobs.version].",
        ),
    ] = None,
    max_jobs: Annotated[
        int | None,
        typer.Option(
            "--max-jobs-per-process",
            metavar="N",
            min=1,
            help="Replace a process of an executor after so many jobs [max_jobs of the executor].",
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            "--max-memory-per-process",
            metavar="BYTES",
            min=1,
            help="Replace one that has so much memory [max_memory of the executor].",
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            "--max-process-age",
            metavar="SECONDS",
            min=0.001,
            callback=finite,
            help="Replace one after so many seconds [max_age of the executor].",
        ),
    ] = None,
    url: StoreUrl = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> None:
    """Claim jobs, have the executors of the settings run them, and record how each ended.

    SIGTERM or SIGINT lets what runs finish within jobs.grace and gives back the rest without
    charging an attempt; a second signal ends it at once. Exit code 0 after a stop that was asked
    for, and after a burst; 1 when an executor does not start, or does not end when it is asked to.
    A server that is away is waited for, at the start too, unless
    jobs.wait_for_store or --no-wait says otherwise, and never by a burst.
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
    """List workers with their executors and counters."""
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
        typer.Option(metavar="MODULE:REGISTRY", help="Where the handlers are; FILE.py:NAME works."),
    ],
) -> int:
    """Run handlers for an orchestrator.

    Answers execution requests on the standard input with outcomes on the standard output. An
    orchestrator starts this; by hand, end it with the end of input. SIGTERM lets what was taken
    finish, a second one ends it at once.
    """
    from ergon_framework.executor.process import serve

    session = session_of(context)
    return serve(app, is_debug=session.is_debug, is_process=session.is_process)
