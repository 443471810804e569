"""``ergon enqueue``: one job from the command line, or many from lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag, expanded, finite
from ergon_framework.cli.job_client import StoreUrl, json_value, opened
from ergon_framework.cli.job_filters import pairs
from ergon_framework.cli.output import (
    json_text,
    progress,
    show_error,
    show_list,
    show_one,
    standard_input,
    waiting,
)
from ergon_framework.errors import ConfigurationError, ErgonError, JobError

if TYPE_CHECKING:
    from ergon_framework.jobs.client import EnqueuedJob, JobClient

MAX_WAIT = 86_400.0
LINES_PER_COMMIT = 1000
"""Lines of one commit."""
_STDIN = "-"
_TABLES = ("retry", "trace_context")
"""Options that are JSON objects."""


def _job_options(
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="Q", help="The queue that the job waits in.", autocompletion=completion.queues
        ),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help=(
                "The id of the job [default: a new one]. An id that a job has already is refused."
            ),
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many attempts the job has, the first included."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds that each attempt may take.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds to wait before the job may run.")
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The time from which the job may run: 2030-01-31T12:00:00Z."
        ),
    ] = None,
    expires_in: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Fail the job if it was not started within this many seconds."
        ),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Fail the job if it was not started by this time."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="Jobs of a higher priority run first.")
    ] = None,
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="How often a worker may claim the job without reporting how it ended."
        ),
    ] = None,
    retry: Annotated[
        str | None, typer.Option(metavar="JSON", help="The job's own retry policy: a JSON object.")
    ] = None,
    limit_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Jobs with this key share a limit on how many run at once."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="How many jobs with --limit-key may run at once [default: 1]."
        ),
    ] = None,
    result_ttl: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Seconds that the result is kept after the job has completed."
        ),
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The id of what the job belongs to, for example an order."),
    ] = None,
    trace_context: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="The W3C trace context that the job continues: a JSON object."
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="A word to find the job by; may be repeated."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A word to find the job by; may be repeated."),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Store the job only if no unfinished job has this key."),
    ] = None,
    unique_by: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help=(
                "Like --unique, with a key made of args, of the handler, or of named arguments:"
                " customer,order.id."
            ),
        ),
    ] = None,
    unique_for: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds for which the job holds its unique key, even if it completes earlier.",
        ),
    ] = None,
    unique_states: Annotated[
        str | None,
        typer.Option(
            metavar="STATES",
            help=(
                "The states in which the job holds its unique key: pending, or a list of states."
            ),
        ),
    ] = None,
    on_duplicate: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help=(
                "What to do when another job holds the key: existing (the default: print that "
                "job's id), reject, replace or extend."
            ),
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="The id of a job that must end first; may be repeated.",
            autocompletion=completion.job_ids,
        ),
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help=(
                "What to do when a job of --after fails: cancel (the default), continue or hold."
            ),
        ),
    ] = None,
) -> dict[str, Any]:
    """The options of a job that were given; those of ``_TABLES`` as text."""
    options = {
        "id": job_id,
        "queue": queue,
        "max_attempts": max_attempts,
        "timeout": timeout,
        "delay": delay,
        "run_at": run_at,
        "expires_in": expires_in,
        "expires_at": expires_at,
        "priority": priority,
        "unique": _unique(unique, unique_by, unique_for, unique_states),
        "on_duplicate": on_duplicate,
        "after": after or None,
        "on_failure": on_failure,
        "max_deliveries": max_deliveries,
        "limit_key": limit_key,
        "limit": limit,
        "result_ttl": result_ttl,
        "correlation_id": correlation_id,
        "retry": retry,
        "trace_context": trace_context,
        "tags": tags or None,
        "metadata": pairs(metadata) or None,
    }
    return {name: value for name, value in options.items() if value is not None}


@expanded(options=_job_options)
def enqueue(
    *,
    handler: Annotated[
        str | None,
        typer.Argument(
            metavar="HANDLER",
            help=(
                "The name of the handler that runs the job, NAME or EXECUTOR#NAME; - with --stdin."
            ),
            autocompletion=completion.handlers,
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The positional arguments of the handler: a JSON array."),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The named arguments of the handler: a JSON object."),
    ] = None,
    options: dict[str, Any],
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.0,
            max=MAX_WAIT,
            callback=finite,
            help="Wait up to this many seconds for the result, and print it.",
        ),
    ] = None,
    stdin: Annotated[
        bool,
        typer.Option("--stdin", help="Read jobs from the standard input, one JSON value per line."),
    ] = False,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Enqueue a job and print its id. When the command returns, the job is stored.

    With --stdin each line is an object with handler, args, kwargs and options, or an array of
    arguments for HANDLER. Every 1,000 lines are one commit.

    Example: ergon enqueue resize --args '["a.png"]' --kwargs '{"width": 3}'
    """
    is_many = stdin or handler == _STDIN
    _check_use(handler, args, kwargs, options.get("id"), wait, is_many=is_many)
    try:
        options |= {name: _object(name, options[name]) for name in _TABLES if name in options}
        with opened(config, url) as client:
            if is_many:
                return _many(client, None if handler == _STDIN else handler, options, as_json)
            job = client.enqueue(handler or "", json_list(args), json_table(kwargs), **options)
            return _one(job, wait, as_json)
    except JobError as error:
        # A subclass is an error of the store or of another job, and has the exit code of that.
        # JobError itself says that what was typed is wrong.
        if type(error) is not JobError:
            raise
        show_error(error, as_json=as_json)
        return 2


def _unique(
    key: str | None, by: str | None, period: float | None, states: str | None
) -> str | dict[str, Any] | None:
    """What makes jobs the same, as a client takes it."""
    if by is None and period is None and states is None:
        return key
    from ergon_framework.ports.unique import BY  # late: a command starts without it

    rule: dict[str, Any] = {"key": key, "period": period}
    if by is not None:
        rule |= {"by": by} if by in BY else {"fields": by.split(",")}
    return rule | {"states": None if states is None else states.split(",")}


def _check_use(
    handler: str | None,
    args: str | None,
    kwargs: str | None,
    job_id: str | None,
    wait: float | None,
    *,
    is_many: bool,
) -> None:
    if not is_many and handler is None:
        raise ConfigurationError("no handler is named", remedy="write ergon enqueue HANDLER")
    if is_many and (args, kwargs, job_id, wait) != (None, None, None, None):
        raise ConfigurationError(
            "--args, --kwargs, --id and --wait are for one job",
            remedy="write them into the lines, or leave out --stdin",
        )


def _one(job: EnqueuedJob, wait: float | None, as_json: bool) -> int:
    view = _view(job)
    # Before the wait: a user who interrupts it has the id.
    if not as_json:
        _print_id(job)
    if wait is not None:
        with waiting("waiting for the result"):
            view["result"] = job.result(timeout=wait)
        if not as_json:
            print(json_text(view["result"]), flush=True)
    if as_json:
        show_one(view, as_json=True)
    return 0


def _print_id(job: EnqueuedJob) -> None:
    """When the id cannot be printed, say on the error stream that the job exists."""
    try:
        print(job, flush=True)
    except OSError:
        print(f"job {job} is stored", file=sys.stderr, flush=True)
        raise


def _view(job: EnqueuedJob) -> dict[str, Any]:
    return {"id": job.id, "is_new": job.is_new, "replaced": job.replaced}


def _many(client: JobClient, handler: str | None, options: Mapping[str, Any], as_json: bool) -> int:
    """Commit by commit. For people, ids are printed as soon as their jobs are stored."""
    lines = _Lines(standard_input(), handler)
    rows: list[dict[str, Any]] = []
    stored_to = 0
    with progress("enqueued") as move:
        try:
            while jobs := client.enqueue_many(islice(lines, LINES_PER_COMMIT), **options):
                rows += map(_view, jobs)
                stored_to = lines.number
                move(len(rows))
                if not as_json:
                    print(*jobs, sep="\n", flush=True)
        except ErgonError as error:
            error.details["stored"] = len(rows)
            # The client refuses a job without knowing its line; _Lines has named the line itself.
            if type(error) is JobError and not error.message.startswith("line "):
                error.message = f"line {lines.number}: {error.message}"
            _say_what_is_stored(error, stored_to)
            raise
        # Of the standard output: the jobs are stored although their ids cannot be printed.
        except OSError:
            print(f"{len(rows):,} jobs are stored", file=sys.stderr, flush=True)
            raise
    if as_json:
        show_list(rows, ["id"], as_json=True)
    return 0


def _say_what_is_stored(error: ErgonError, stored_to: int) -> None:
    """Report what is stored: sending the whole file again would enqueue those jobs twice."""
    error.details["next_line"] = stored_to + 1
    if not stored_to:
        error.message += "; no job is stored"
        return
    error.message += f"; the jobs of lines 1 to {stored_to} are stored, no others"
    error.remedy = f"{error.remedy}; then send what begins with line {stored_to + 1}"


class _Lines:
    """Jobs from lines of JSON; ``number`` is that of the line read last."""

    def __init__(self, source: Iterable[str], handler: str | None) -> None:
        self._source = iter(source)
        self._handler = handler
        self.number = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._source:
            self.number += 1
            if line.strip():
                yield self._spec(line)

    def _spec(self, line: str) -> dict[str, Any]:
        value = json_value(f"line {self.number}", line)
        if isinstance(value, list):
            value = {"args": value}
        if not isinstance(value, dict):
            raise JobError(
                f"line {self.number} is neither an object nor an array", remedy="write one of them"
            )
        if self._handler is not None:
            value.setdefault("handler", self._handler)
        return value


def json_list(text: str | None) -> list[Any]:
    """What was given as ``--args``."""
    value = [] if text is None else json_value("--args", text)
    if not isinstance(value, list):
        raise JobError("--args is no JSON array", remedy="""write it like --args '["a.png", 3]'""")
    return value


def json_table(text: str | None) -> dict[str, Any]:
    """What was given as ``--kwargs``."""
    value = {} if text is None else json_value("--kwargs", text)
    if not isinstance(value, dict):
        raise JobError("--kwargs is no JSON object", remedy="""write --kwargs '{"width": 3}'""")
    return value


def _object(name: str, text: str) -> dict[str, Any]:
    word = f"--{name.replace('_', '-')}"
    value = json_value(word, text)
    if not isinstance(value, dict):
        raise JobError(f"{word} is no JSON object", remedy=f"write it like {word} '{{…}}'")
    return value
