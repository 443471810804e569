"""``ergon check`` for jobs: the store, the programs, and the names that lead to them."""

from __future__ import annotations

from ergon_framework.app.checking.desk import Desk, store_path
from ergon_framework.app.checking.handlers import check_handlers
from ergon_framework.app.jobs import JobSetup, setup_of
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import check_folder
from ergon_framework.core.job import route
from ergon_framework.jobs.child import executor_environment
from ergon_framework.jobs.commands import checked
from ergon_framework.jobs.stores.opening import check_url
from ergon_framework.storage.urls import file_of


def check_jobs(desk: Desk) -> None:
    """Note what would keep a worker, or a client of its store, from starting."""
    setup = setup_of(desk.settings)
    _check_store(desk, setup)
    known: dict[str, list[str]] = {}
    for name, executor in setup.executors.items():
        with desk.noting("executors", name):
            given = executor_environment(desk.environ, executor, desk.settings.variables)
            found = check_handlers(checked(name, executor), given)
            if found is not None:
                known[name] = found
    _check_schedules(desk, setup, known)
    _check_default(desk, setup)
    for queue, wanted in setup.jobs.routes.items():
        _check_executor(desk, setup, ("jobs", "routes", queue), wanted)
    if setup.schedules and not setup.executors and not desk.is_mistaken("executors"):
        problem = "schedules need a worker, and there is no executor for one"
        desk.refuse(("schedules",), problem, "add a table [executors.NAME] with a command")


def _check_schedules(desk: Desk, setup: JobSetup, known: dict[str, list[str]]) -> None:
    """Each job of a schedule whose handler is not there would be a dead letter."""
    only = next(iter(setup.executors), "") if len(setup.executors) == 1 else ""
    default = setup.jobs.default_executor or only
    for name, schedule in setup.schedules.items():
        executor, handler = route(schedule.handler)
        executor = executor or setup.jobs.routes.get(schedule.queue) or default
        names = known.get(executor)
        if names is not None and handler not in names:
            hint = did_you_mean(handler, names)
            problem = f"the executor {executor!r} has no handler {handler!r}; {hint}"
            desk.refuse(("schedules", name, "handler"), problem, "correct the name, or write it")


def _check_store(desk: Desk, setup: JobSetup) -> None:
    path = store_path(desk, ("jobs", "store"))
    if setup.url and not desk.is_mistaken(*path):
        with desk.noting(*path):
            check_url(setup.url)
            check_folder(file_of(setup.url))
            if setup.executors:
                setup.kept()
    elif setup.executors and not setup.url and not desk.is_mistaken("store"):
        remedy = 'write url = "sqlite:///work.db" under [store]'
        desk.refuse(("executors",), "there is no store for the jobs", remedy)


def _check_default(desk: Desk, setup: JobSetup) -> None:
    name = setup.jobs.default_executor
    if name:
        _check_executor(desk, setup, ("jobs", "default_executor"), name)
    elif len(setup.executors) > 1:
        known = ", ".join(setup.executors)
        path = ("jobs",) if desk.has("jobs") else ("executors",)
        remedy = f"write default_executor under [jobs]: one of {known}"
        desk.refuse(path, "there are several executors and no default", remedy)


def _check_executor(desk: Desk, setup: JobSetup, path: tuple[str, ...], wanted: str) -> None:
    if wanted not in setup.executors and not desk.is_mistaken("executors", wanted):
        hint = did_you_mean(wanted, list(setup.executors))
        remedy = f"add a table [executors.{wanted}]"
        desk.refuse(path, f"there is no executor {wanted!r}; {hint}", remedy)
