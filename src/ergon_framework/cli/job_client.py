"""What the commands for jobs share: opening a store, listing jobs and showing one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.output import show_list, show_one, waiting
from ergon_framework.core.text import indented
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    JobError,
    JobNotFoundError,
    StoreUnavailableError,
)
from ergon_framework.storage.urls import given_options, with_options

if TYPE_CHECKING:
    from ergon_framework.app.earlier_store import EarlierStore
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import FullJobStore, Search


S = TypeVar("S", bound=StrEnum)
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        "--url",
        metavar="URL",
        help="The URL of the store [default: the one in the settings].",
    ),
]
JobId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The id of the job.", autocompletion=completion.job_ids),
]

_JSON = (
    *("args", "kwargs", "result", "retry", "last_error", "trace_context"),
    *("cancel_requested", "metadata", "progress"),
)

COLUMNS = ["id", "status", "handler", "queue", "tries", "created_at", "why"]
"""The columns of a listing for people. JSON has every field."""


@contextmanager
def opened(
    config: Path | None, url: str | None, *, reads: bool = False, is_trial: bool = False
) -> Iterator[JobClient]:
    """A client of the store that the options or the settings name.

    One that only ``reads`` is not held up by writers, works where nobody may write, and makes no
    file where there is none. For a trial nothing is written either, but a store that would refuse
    the change is refused.
    """
    from ergon_framework.app.jobs import job_settings
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.storage.urls import file_of

    setup = job_settings(config, url).kept()
    reads = reads or is_trial
    file = file_of(setup.url)
    if reads and file is not None and not file.exists():
        found = earlier(config) if url is None else None
        hint = "" if found is None else f"; {found.found}; {found.remedy()}"
        raise StoreUnavailableError(
            f"there is no file {file}",
            remedy=f"the first job or worker makes it; or name another store with --store{hint}",
        )
    with (
        # Outermost, so that errors of opening the store get the hints as well.
        _hints_with(given_options(config, url), (lambda: earlier(config)) if url is None else None),
        nullcontext() if reads else observed_as_operator(config),
        closing(_opened(setup.url, reads=reads, is_trial=is_trial)) as store,
        JobClient(settings=setup.jobs, store=store) as client,
    ):
        yield client


def _opened(url: str, *, reads: bool, is_trial: bool) -> FullJobStore:
    from ergon_framework.jobs.store_urls import open_store, refuse_moved

    with waiting("opening the store"):
        store = open_store(url, read_only=reads)
    try:
        if is_trial:
            refuse_moved(store, url)
    except BaseException:
        store.close()
        raise
    return store


@contextmanager
def _hints_with(
    options: str, find_earlier: Callable[[], EarlierStore | None] | None
) -> Iterator[None]:
    """Let the commands that an error names find the store that this one was told of.

    A job that is not there may be in the store that was used before.
    """
    try:
        yield
    except ErgonError as error:
        error.remedy = with_options(error.remedy, options)
        if isinstance(error, JobNotFoundError) and find_earlier is not None:
            found = find_earlier()
            if found is not None:
                error.remedy += f"; {found.found}; {found.remedy()}"
        raise


def earlier(config: Path | None) -> EarlierStore | None:
    """What waits in the store of a script whose settings name another one by now."""
    from ergon_framework.app.earlier_store import earlier_store
    from ergon_framework.app.settings import load_settings

    return earlier_store(load_settings(config))


def observed_as_operator(config: Path | None) -> AbstractContextManager[object]:
    """Keep in the journal what an operator changes inside of it, and export its spans."""
    from ergon_framework.app.observability import observed_briefly
    from ergon_framework.app.settings import load_settings

    return observed_briefly(load_settings(config), "operator")


def show_jobs(client: JobClient, search: Search, limit: int, *, as_json: bool) -> None:
    """Matching jobs, the newest first: all of each for programs, one line of each for people."""
    show_list(job_rows(client, search, limit, as_json=as_json), COLUMNS, as_json=as_json)


def job_rows(
    client: JobClient, search: Search, limit: int, *, as_json: bool
) -> Iterator[dict[str, Any]]:
    """The rows of such a listing."""
    from ergon_framework.jobs.views import job_view

    workers = client.store.workers()  # they know how far running jobs are
    views = (job_view(job, client.settings, workers) for job in client.store.search(search, limit))
    return views if as_json else map(_row, views)


def _row(view: dict[str, Any]) -> dict[str, Any]:
    error = view["last_error"]
    why = error["code"] if error and view["status"] == "failed" else view["why"]
    if "progress" in view:
        from ergon_framework.jobs.views import progress_text

        why = progress_text(view["progress"])
    return {**view, "tries": f"{view['attempts']}/{view['max_attempts']}", "why": why}


def status_named(kind: type[S], word: str) -> S:
    """The status of jobs or flows that an operator named, in capitals or not."""
    try:
        return kind(word.lower())
    except ValueError:
        known = ", ".join(kind)
        raise ConfigurationError(f"{word!r} is no status", remedy=f"use {known}") from None


def show_job(view: dict[str, Any], *, as_json: bool) -> None:
    """Print one job, and its history as a second table."""
    if as_json:
        show_one(view, as_json=True)
        return
    history = view.pop("history")
    texts = {name: json.dumps(view[name], ensure_ascii=False) for name in _JSON if view.get(name)}
    known = {name: value for name, value in view.items() if value not in (None, [], {})}
    if view.get("tags"):
        texts["tags"] = ", ".join(view["tags"])
    show_one({**known, **texts}, as_json=False)
    if history:
        print()
        columns = ["at", "event", "attempt", "delivery", "worker", "code", "message", "delay"]
        used = [name for name in columns if any(entry.get(name) is not None for entry in history)]
        show_list(history, used, as_json=False)
        for name in ("traceback", "output"):
            for entry in history:
                if entry.get(name):
                    print(f"\n{name} of attempt {entry.get('attempt')}:")
                    print(indented(str(entry[name])))


def json_value(where: str, text: str) -> Any:
    """JSON that somebody typed; ``where`` names the option or the line of a mistake."""
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_with_all_names)
    except (ValueError, RecursionError) as error:
        # Only the place of the mistake: the text itself may hold secrets.
        problem = getattr(error, "msg", None) or (
            "nested too deeply" if isinstance(error, RecursionError) else str(error)
        )
        place = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        example = {"--args": """'["a.png", 3]'""", "--kwargs": """'{"width": 3}'"""}.get(where)
        remedy = "quote it for the shell" if example is None else f"write it like {where} {example}"
        if where.startswith("line "):
            remedy = "fix the line"
        raise JobError(f"{where} is not JSON: {problem}{place}", remedy=remedy) from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _with_all_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object none of whose names stands in it twice: one of the two values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found
