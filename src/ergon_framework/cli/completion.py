"""What the shell offers for the rest of a word: queues, handlers, tasks, schedules and ids.

A shell must not wait long: the store is read for less than a second, and whatever goes wrong,
nothing is offered and nothing is printed. Settings are read without being checked, for that takes
longer than the rest. Only words that no shell takes for anything else are offered.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ergon_framework.app.discovery import SETTINGS_FILE, STORE_FILE, find_project

if TYPE_CHECKING:
    from ergon_framework.ports.jobstore import FullJobStore

DEADLINE = 0.3
"""Seconds for reading, after which nothing is offered."""
MAX_NAMES = 1000
"""Queues that are offered."""
MAX_JOBS = 200
"""Jobs that are looked at, the newest."""
_PLAIN = re.compile(r"[\w.#:@/+][\w.#:@/+-]*")
_NOT_PLAIN = re.compile(r"[^\w.#:@/+*, -]+")
"""What a shell or its helpers could take for something else, also in the text beside a word."""

Offered = list[tuple[str, str]]
"""Words, each with what it is."""


def queues(context: typer.Context, incomplete: str) -> Offered:
    """The queues of the store."""
    return _from_store(
        context,
        incomplete,
        lambda store: (
            (name, "queue") for name in store.queue_names(prefix=incomplete, limit=MAX_NAMES)
        ),
    )


def schedules(context: typer.Context, incomplete: str) -> Offered:
    """The stored schedules."""
    return _from_store(
        context,
        incomplete,
        lambda store: ((each.name, each.cron) for each in store.schedules()),
    )


def handlers(context: typer.Context, incomplete: str) -> Offered:
    """The handlers of the newest jobs."""
    return _from_store(
        context, incomplete, lambda store: ((each.handler, "handler") for each in _jobs(store, ()))
    )


def job_ids(context: typer.Context, incomplete: str) -> Offered:
    """The newest jobs."""
    return _from_store(context, incomplete, lambda store: _described(store, ()))


def dead_ids(context: typer.Context, incomplete: str) -> Offered:
    """The newest jobs that are dead-lettered."""
    return _from_store(context, incomplete, lambda store: _described(store, ("failed",)))


def statuses(incomplete: str) -> Offered:
    """The states of a job."""
    from ergon_framework.core.job import JobStatus

    return [(each.value, "") for each in JobStatus if each.value.startswith(incomplete)]


def audited_actions(incomplete: str) -> Offered:
    """What the audit log tells of."""
    from ergon_framework.web.audit import AUDITED

    return [(each, "") for each in AUDITED if each.startswith(incomplete)]


def task_names(context: typer.Context, incomplete: str) -> Offered:
    """The tasks of the settings."""
    return _chosen(incomplete, lambda: [(name, "task") for name in _settings(context)["tasks"]])


def run_names(context: typer.Context, incomplete: str) -> Offered:
    """What ``ergon run`` can run: parts of the settings, and scripts in this folder."""

    def ask() -> Iterator[tuple[str, str]]:
        tables = _settings(context)
        for section in ("tasks", "zones"):
            yield from ((name, section[:-1]) for name in tables.get(section, ()))
        if "executors" in tables:
            yield "worker", "worker"
        if "server" in tables:
            yield "server", "server"

    scripts = [(each.name, "script") for each in sorted(Path().glob("*.py"))]
    return _chosen(incomplete, ask) + _chosen(incomplete, lambda: scripts)


# ---- reading -------------------------------------------------------------------------------------


def _described(store: FullJobStore, wanted: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((job.id, f"{job.status} {job.handler}") for job in _jobs(store, wanted))


def _jobs(store: FullJobStore, wanted: Iterable[str]) -> Iterator[Any]:
    from ergon_framework.core.job import JobStatus
    from ergon_framework.ports.jobstore import Search

    return store.search(Search(statuses=tuple(map(JobStatus, wanted))), MAX_JOBS)


def _from_store(
    context: typer.Context,
    incomplete: str,
    ask: Callable[[FullJobStore], Iterable[tuple[str, str]]],
) -> Offered:
    # Imported before the clock runs: on a busy machine that takes longer than to read.
    from ergon_framework.jobs.store_urls import open_store

    def read() -> list[tuple[str, str]]:
        url = _store_url(context)
        if not url:
            return []
        with closing(open_store(url, read_only=True)) as store:
            return list(ask(store))

    return _chosen(incomplete, read)


def _chosen(incomplete: str, read: Callable[[], Iterable[tuple[str, str]]]) -> Offered:
    """What was read in time and begins so, each word once."""
    found: dict[str, str] = {}

    def work() -> None:
        with suppress(Exception):
            for word, meaning in read():
                if word.startswith(incomplete) and _PLAIN.fullmatch(word):
                    found.setdefault(word, _NOT_PLAIN.sub("?", meaning))

    logging.disable(logging.CRITICAL)  # the shell would show it in the middle of the line
    # In a thread, since a store on a server may hang in a call that no time limit of ours ends.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    return list(found.items()) if not thread.is_alive() else []


def _store_url(context: typer.Context) -> str:
    """The store that an option on the line names, or the settings, or that of a script."""
    given = context.params.get("url") or context.params.get("store")
    if given:
        return str(given)
    tables, folder = _settings(context), _folder(context)
    named = tables.get("jobs", {}).get("store") or os.environ.get("ERGON_STORE__URL")
    named = named or tables.get("store", {}).get("url") or ""
    if named.startswith("env:"):
        named = os.environ.get(named.removeprefix("env:"), "")
    if not named and (folder / STORE_FILE).is_file():
        named = f"sqlite:///{STORE_FILE}"
    path = named.removeprefix("sqlite:///")
    is_relative = path != named and not path.startswith("/")
    return f"sqlite:///{(folder / path).absolute()}" if is_relative else named


def _settings(context: typer.Context) -> dict[str, Any]:
    """The tables of the settings file; none where there is no file."""
    import tomllib

    given = context.params.get("config") or os.environ.get("ERGON_CONFIG")
    file = Path(given) if given else _folder(context) / SETTINGS_FILE
    if file.is_dir():
        file /= SETTINGS_FILE
    if not file.is_file():
        return {}
    with file.open("rb") as opened:
        return tomllib.load(opened)


def _folder(context: typer.Context) -> Path:
    given = context.params.get("config") or os.environ.get("ERGON_CONFIG")
    if given:
        return Path(given) if Path(given).is_dir() else Path(given).parent
    project = find_project()
    return Path() if project is None else project.folder
