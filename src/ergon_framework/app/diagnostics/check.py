"""``ergon check``: whether the settings fit together, found out without opening anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ergon_framework.app.diagnostics.findings import Desk, store_path
from ergon_framework.app.factories import CONNECTORS, Maker, connector_maker, service_maker
from ergon_framework.app.imports import load
from ergon_framework.app.journal import journal_path
from ergon_framework.app.observability import check_page
from ergon_framework.app.parts import Row, rows, startable
from ergon_framework.app.settings import examine_settings
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import ConnectorSettings, TaskSettings
from ergon_framework.app.settings.stores import check_folder, check_kind, store_url
from ergon_framework.app.wiring import Target, refuse_twins, wire
from ergon_framework.errors import ErgonError, WiringError
from ergon_framework.storage.urls import file_of
from ergon_framework.task.plans import check_copies, check_patience
from ergon_framework.telemetry.exporting import check_packages

_LEANS = {
    "jobs": ("store", (("store", "url"), ("jobs", "store"))),
    "boundary": ("node", (("zones",), ("boundary",))),
}
"""An option that a connector of our own needs, and where else the settings may say it."""


def check_options(desk: Desk, name: str, connector: ConnectorSettings) -> None:
    """Refuse options that the class does not take, and those that are missing."""
    try:
        connector_maker(name, connector, desk.settings).check()
    except WiringError as error:
        if not _is_told_elsewhere(desk, connector, error):
            raise


def check_made(desk: Desk) -> None:
    """Note which connectors of our own types would be refused when they are made."""
    for name, connector in desk.settings.connectors.items():
        if connector.type not in CONNECTORS or desk.is_mistaken("connectors", name):
            continue
        if connector.type == "boundary" and _leans_on_a_mistake(desk, connector):
            continue  # the files of its zone are looked at when it is made
        with desk.noting("connectors", name):
            try:
                _try(connector_maker(name, connector, desk.settings), connector)
            except ErgonError as error:
                if not _is_told_elsewhere(desk, connector, error):
                    raise


def check_attempts(desk: Desk, name: str, task: TaskSettings) -> None:
    """Refuse attempts that multiply, although something else of the task or connector is wrong."""
    if desk.is_mistaken("tasks", name, "consumer") or desk.is_mistaken("tasks", name, "policy"):
        return
    named = desk.settings.policies.get(task.policy or "")
    policy = task.consumer or (None if named is None else named.consumer)
    if policy is None:
        return
    check_copies(policy)
    chosen = policy.steps.fetch.connector_name
    for each in (chosen,) if chosen else task.connectors[:1]:
        kind = _class_of(desk.settings.connectors.get(each))
        check_patience(each, kind, policy.steps.process.retry.max_attempts)


def _class_of(connector: ConnectorSettings | None) -> Any:
    if connector is not None:
        with suppress(ErgonError):  # what cannot be imported is told where it stands
            return load(CONNECTORS.get(connector.type, connector.type))
    return None


def _is_told_elsewhere(desk: Desk, connector: ConnectorSettings, error: ErgonError) -> bool:
    """Whether something is missing for a mistake in another part."""
    is_missing = error.details.get("key") in (["store"], ["zone"])
    return is_missing and _leans_on_a_mistake(desk, connector)


def _leans_on_a_mistake(desk: Desk, connector: ConnectorSettings) -> bool:
    """Whether a part is wrong that it takes what it needs from, since it does not say so itself."""
    own, paths = _LEANS.get(connector.type, ("", ()))
    return own not in connector.options and any(desk.is_mistaken(*path) for path in paths)


def _try(maker: Maker, connector: ConnectorSettings) -> None:
    try:
        if connector.type == "jsonl":  # it makes its folders
            factory: Any = maker.factory
            Maker(maker.label, factory.check_options, maker.options).make()
            return
        if connector.type == "jobs" and "store" in connector.options:
            _check_store(revealed(maker.options["store"]))
        maker.make().close()
    except ErgonError as error:
        error.details = _with_key(error, maker) | error.details
        raise


def _check_store(url: str) -> None:
    from ergon_framework.jobs.stores.opening import check_url

    try:
        check_url(url)
        check_folder(file_of(url))
    except ErgonError as error:
        error.details = {"key": ["store"]}
        raise


def _with_key(error: ErgonError, maker: Maker) -> dict[str, Any]:
    """The option that the error begins with, if it does."""
    words = error.message.removeprefix(f"{maker.label}: ").removeprefix("the ").split()
    option = words[0].rstrip(":") if words else ""
    return {"key": [option]} if option in maker.options else {}


def check(config: str | Path | None = None, environ: Mapping[str, str] | None = None) -> list[Row]:
    """What would run; a :class:`SettingsError` tells every mistake there is."""
    environ = os.environ if environ is None else environ
    settings, source = examine_settings(config, environ)
    desk = Desk(settings, source, environ)
    _check_parts(desk)
    _check_tasks(desk)
    extensions = settings.extensions
    if extensions.keys() & {"jobs", "executors", "schedules"}:
        from ergon_framework.app.diagnostics.jobs import check_jobs

        check_jobs(desk)
    if extensions.keys() & {"boundary", "zones"} or "server" in settings.model_fields_set:
        from ergon_framework.app.diagnostics.zones import check_places

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
    from ergon_framework.app.diagnostics.servers import unverified

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
    from ergon_framework.app.diagnostics.jobs import has_provider
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
