"""``ergon check``: everything a settings file says, looked at without connecting to anything.

The user's classes are imported, files are looked at, and names are compared. Each mistake is noted
with its place, and one error tells them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from ergon_framework.app.building import connector_maker, service_maker
from ergon_framework.app.ensemble import Row, rows
from ergon_framework.app.journal import journal_path
from ergon_framework.app.references import load
from ergon_framework.app.secret_values import masked
from ergon_framework.app.sections import Settings, TaskSettings
from ergon_framework.app.settings import examine_settings
from ergon_framework.app.source import Source
from ergon_framework.app.toml_lines import Path as KeyPath
from ergon_framework.app.wiring import Target, refuse_twins, wire
from ergon_framework.errors import ErgonError


def check(config: str | Path | None = None, environ: Mapping[str, str] | None = None) -> list[Row]:
    """What would run; a :class:`SettingsError` tells every mistake there is."""
    environ = os.environ if environ is None else environ
    settings, source = examine_settings(config, environ)
    desk = Desk(settings, source, environ)
    _check_parts(desk)
    _check_tasks(desk)
    extensions = settings.extensions
    if extensions.keys() & {"jobs", "executors", "schedules"}:
        from ergon_framework.app.checking_jobs import check_jobs

        check_jobs(desk)
    if extensions.keys() & {"boundary", "zones"} or "server" in settings.model_fields_set:
        from ergon_framework.app.checking_places import check_places

        check_places(desk)
    if not desk.is_mistaken("telemetry"):
        with desk.noting("telemetry", "journal"):
            journal_path(settings)
    source.stop_if_mistaken()
    return list(rows(settings))


class Desk:
    """What is being looked at, and where mistakes are noted."""

    def __init__(self, settings: Settings, source: Source, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.environ = environ
        self._source = source
        self._secrets = list(_secrets(settings))

    def is_mistaken(self, *path: str) -> bool:
        """Whether something there is known to be wrong: then nothing is built on it."""
        return self._source.is_mistaken(path)

    def has(self, *path: str) -> bool:
        """Whether that key is written anywhere."""
        return path in self._source.lines or path in self._source.variables

    def refuse(self, path: KeyPath, problem: str, remedy: str = "") -> None:
        """Note a mistake, without the secrets that it may quote."""
        self._source.refuse(path, masked(problem, self._secrets), masked(remedy, self._secrets))

    @contextmanager
    def noting(self, *path: str) -> Iterator[None]:
        """What is raised meanwhile is a mistake at ``path``, or at the key below that it names."""
        try:
            yield
        except ErgonError as error:
            below, problem = _key_in(error.message, ".".join(path))
            below += error.details.get("key", ())
            self.refuse((*path, *below), problem, error.remedy)


def _key_in(message: str, path: str) -> tuple[list[str], str]:
    """The key below ``path`` that a message begins with, and the rest of the message."""
    key, colon, rest = message.partition(": ")
    if not colon or not f"{key}.".startswith(f"{path}."):
        return [], message
    return [each for each in key[len(path) + 1 :].split(".") if each], rest


def _secrets(settings: Settings) -> Iterator[Any]:
    for named in (settings.connectors, settings.services):
        yield from (entry.options for entry in named.values())
    providers = settings.extensions.get("providers")
    if providers is not None:
        yield from (entry.options for entry in providers.named.values())
    for part in (settings.store, settings.server, *settings.extensions.values()):
        if isinstance(part, BaseModel):
            yield from (each for _, each in part if isinstance(each, SecretStr))


# ---- what is built from the user's own classes --------------------------------------------------


def _check_parts(desk: Desk) -> None:
    for name, connector in desk.settings.connectors.items():
        with desk.noting("connectors", name):
            connector_maker(name, connector, desk.settings).check()
    for name, service in desk.settings.services.items():
        with desk.noting("services", name):
            service_maker(name, service).check()
    if "providers" in desk.settings.extensions:
        _check_providers(desk)


def _check_providers(desk: Desk) -> None:
    from ergon_framework.app.providers import provider_maker, providers_of
    from ergon_framework.app.store_urls import store_url
    from ergon_framework.providers.stores.opening import check_url

    section = desk.settings.extensions["providers"]
    for name, entry in providers_of(desk.settings).items():
        with desk.noting("providers", name):
            provider_maker(name, desk.settings).check()
        url = store_url(desk.settings, entry.store, section.store)
        path = store_path(desk, ("providers", name, "store"), ("providers", "store"))
        if url and not desk.is_mistaken(*path):
            with desk.noting(*path):
                check_url(url)


def store_path(desk: Desk, *paths: tuple[str, ...]) -> tuple[str, ...]:
    """Where the store of a part is written: the first of these, else in ``[store]``."""
    return next((path for path in paths if desk.has(*path)), ("store", "url"))


def _check_tasks(desk: Desk) -> None:
    with desk.noting("tasks"):
        refuse_twins(desk.settings)
    for name, task in desk.settings.tasks.items():
        with desk.noting("tasks", name, "task"):
            load(task.task)
        if not any(desk.is_mistaken(*path) for path in _used(name, task)):
            with desk.noting("tasks", name):
                wiring = wire(Target(name, task.task, task), desk.settings)
                wiring.check_workers(task.workers)


def _used(name: str, task: TaskSettings) -> Iterator[tuple[str, ...]]:
    yield "tasks", name
    yield from (("connectors", each) for each in task.connectors)
    for each in task.services:
        yield from (("services", each), ("providers", each))
    if task.policy is not None:
        yield "policies", task.policy
