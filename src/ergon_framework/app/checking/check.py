"""``ergon check``: everything a settings file says, looked at without connecting to anything.

The user's classes are imported, files are looked at, and names are compared. Each mistake is noted
with its place, and one error tells them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ergon_framework.app.assembly.building import service_maker
from ergon_framework.app.assembly.wiring import Target, refuse_twins, wire
from ergon_framework.app.checking.connectors import check_attempts, check_made, check_options
from ergon_framework.app.checking.desk import Desk, store_path
from ergon_framework.app.exporting import check_page
from ergon_framework.app.imports import load
from ergon_framework.app.journal import journal_path
from ergon_framework.app.running.ensemble import Row, rows, startable
from ergon_framework.app.settings import examine_settings
from ergon_framework.app.settings.sections import TaskSettings
from ergon_framework.app.settings.stores import check_folder, check_kind, store_url
from ergon_framework.errors import ErgonError, WiringError
from ergon_framework.storage.urls import file_of
from ergon_framework.telemetry.exporting import check_packages


def check(config: str | Path | None = None, environ: Mapping[str, str] | None = None) -> list[Row]:
    """What would run; a :class:`SettingsError` tells every mistake there is."""
    environ = os.environ if environ is None else environ
    settings, source = examine_settings(config, environ)
    desk = Desk(settings, source, environ)
    _check_parts(desk)
    _check_tasks(desk)
    extensions = settings.extensions
    if extensions.keys() & {"jobs", "executors", "schedules"}:
        from ergon_framework.app.checking.jobs import check_jobs

        check_jobs(desk)
    if extensions.keys() & {"boundary", "zones"} or "server" in settings.model_fields_set:
        from ergon_framework.app.checking.places import check_places

        check_places(desk)
    _check_telemetry(desk)
    if not desk.is_mistaken("store"):
        with desk.noting("store", "url"):
            url = store_url(settings)
            if url:
                check_kind(url)
            check_folder(file_of(url))
    check_made(desk)
    source.stop_if_mistaken()
    return list(rows(settings))


def notes(config: str | Path | None = None, environ: Mapping[str, str] | None = None) -> list[str]:
    """What is worth knowing about settings in which :func:`check` found no mistake."""
    from ergon_framework.app.checking.engines import unverified

    settings, _ = examine_settings(config, os.environ if environ is None else environ)
    return list(unverified(settings))


def _check_telemetry(desk: Desk) -> None:
    settings = desk.settings
    if not desk.is_mistaken("telemetry", "journal"):
        with desk.noting("telemetry", "journal"):
            path = journal_path(settings)
            if path is not None:
                check_folder(path)
    if not desk.is_mistaken("telemetry", "prometheus_port"):
        with desk.noting("telemetry"):
            check_page(settings, sum(part.processes for part in startable(settings)))
    told = settings.telemetry
    if not desk.is_mistaken("telemetry"):
        with desk.noting("telemetry"):
            check_packages(collector=told.otlp, port=told.prometheus_port)


# ---- what is built from the user's own classes --------------------------------------------------


def _check_parts(desk: Desk) -> None:
    for name, connector in desk.settings.connectors.items():
        with desk.noting("connectors", name):
            check_options(desk, name, connector)
    for name, service in desk.settings.services.items():
        with desk.noting("services", name):
            service_maker(name, service).check()
    if "providers" in desk.settings.extensions:
        _check_providers(desk)


def _check_providers(desk: Desk) -> None:
    from ergon_framework.app.providers import provider_maker, providers_of
    from ergon_framework.providers.stores.opening import check_url

    section = desk.settings.extensions["providers"]
    for name, entry in providers_of(desk.settings).items():
        with desk.noting("providers", name):
            try:
                provider_maker(name, desk.settings).check()
            except WiringError:
                if not _is_in_executor(desk, name):
                    raise
        url = store_url(desk.settings, entry.store, section.store)
        path = store_path(desk, ("providers", name, "store"), ("providers", "store"))
        if url and not desk.is_mistaken(*path):
            with desk.noting(*path):
                check_url(url)
                check_folder(file_of(url))


def _is_in_executor(desk: Desk, provider: str) -> bool:
    """Whether no task uses a provider, and an executor finds it in its own folder."""
    from ergon_framework.app.checking.handlers import has_provider
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.jobs.commands import checked

    if any(provider in task.services for task in desk.settings.tasks.values()):
        return False
    for name, executor in setup_of(desk.settings).executors.items():
        with suppress(ErgonError):  # a command that is not there is told where it stands
            if has_provider(provider, checked(name, executor), desk.environ):
                return True
    return False


def _check_tasks(desk: Desk) -> None:
    with desk.noting("tasks"):
        refuse_twins(desk.settings)
    for name, task in desk.settings.tasks.items():
        with desk.noting("tasks", name, "task"):
            load(task.task)
        with desk.noting("tasks", name):
            if any(desk.is_mistaken(*path) for path in _used(name, task)):
                check_attempts(desk, name, task)
            else:
                wiring = wire(Target(name, task.task, task), desk.settings)
                wiring.check_workers(task.workers)


def _used(name: str, task: TaskSettings) -> Iterator[tuple[str, ...]]:
    yield from (("tasks", name, key) for key in TaskSettings.model_fields if key != "workers")
    yield from (("connectors", each) for each in task.connectors)
    for each in task.services:
        yield from (("services", each), ("providers", each))
    if task.policy is not None:
        yield "policies", task.policy
