"""``ergon check``: whether the settings fit together, found out without opening anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ergon_framework.app.diagnostics.findings import SettingsCheck, store_path
from ergon_framework.app.discovery import ZONES_FOLDER
from ergon_framework.app.factories import CONNECTORS, Factory, connector_factory, service_factory
from ergon_framework.app.imports import load
from ergon_framework.app.journal import journal_path
from ergon_framework.app.observability import check_page, find_setup
from ergon_framework.app.parts import PartRow, rows, startable
from ergon_framework.app.settings import examine_settings
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import ConnectorSettings, TaskSettings
from ergon_framework.app.settings.stores import base_of, check_folder, store_url
from ergon_framework.app.wiring import RunTarget, refuse_ambiguous_names, wire
from ergon_framework.errors import ErgonError, WiringError
from ergon_framework.storage.urls import check_kind, file_of
from ergon_framework.task.mixins.plans import check_copies, check_retry_owner
from ergon_framework.telemetry.exporters import check_packages

_LEANS = {
    "jobs": ("store", (("store", "url"), ("jobs", "store"))),
    "boundary": ("node", (("zones",), ("boundary",))),
}
"""An option that a connector of our own needs, and where else the settings may say it."""


def check_options(checking: SettingsCheck, name: str, connector: ConnectorSettings) -> None:
    """Refuse options that the class does not take, and those that are missing."""
    try:
        connector_factory(name, connector, checking.settings).check()
    except WiringError as error:
        if not _is_reported_elsewhere(checking, connector, error):
            raise


def check_made(checking: SettingsCheck) -> None:
    """Note which connectors of our own types would be refused when they are made."""
    for name, connector in checking.settings.connectors.items():
        if connector.type not in CONNECTORS or checking.has_problem("connectors", name):
            continue
        if connector.type == "boundary" and _needs_a_faulty_part(checking, connector):
            continue  # the files of its zone are looked at when it is made
        with checking.collect("connectors", name):
            try:
                _try(connector_factory(name, connector, checking.settings), connector)
            except ErgonError as error:
                if not _is_reported_elsewhere(checking, connector, error):
                    raise


def check_attempts(checking: SettingsCheck, name: str, task: TaskSettings) -> None:
    """Refuse attempts that multiply, although something else of the task or connector is wrong."""
    if checking.has_problem("tasks", name, "consumer") or checking.has_problem(
        "tasks", name, "policy"
    ):
        return
    named = checking.settings.policies.get(task.policy or "")
    policy = task.consumer or (None if named is None else named.consumer)
    if policy is None:
        return
    check_copies(policy)
    chosen = policy.steps.fetch.connector_name
    for each in (chosen,) if chosen else task.connectors[:1]:
        kind = _class_of(checking.settings.connectors.get(each))
        check_retry_owner(each, kind, policy.steps.process.retry.max_attempts)


def _class_of(connector: ConnectorSettings | None) -> Any:
    if connector is not None:
        with suppress(ErgonError):  # what cannot be imported is told where it stands
            return load(CONNECTORS.get(connector.type, connector.type))
    return None


def _is_reported_elsewhere(
    checking: SettingsCheck, connector: ConnectorSettings, error: ErgonError
) -> bool:
    """Whether something is missing for a mistake in another part."""
    is_missing = error.details.get("key") in (["store"], ["zone"])
    return is_missing and _needs_a_faulty_part(checking, connector)


def _needs_a_faulty_part(checking: SettingsCheck, connector: ConnectorSettings) -> bool:
    """Whether a part is wrong that it takes what it needs from, since it does not say so itself."""
    own, paths = _LEANS.get(connector.type, ("", ()))
    return own not in connector.options and any(checking.has_problem(*path) for path in paths)


def _try(maker: Factory, connector: ConnectorSettings) -> None:
    try:
        if connector.type == "jsonl":  # it makes its folders
            factory: Any = maker.factory
            Factory(maker.label, factory.check_options, maker.options).make()
            return
        if connector.type == "jobs" and "store" in connector.options:
            _check_store(revealed(maker.options["store"]))
        maker.make().close()
    except ErgonError as error:
        error.details = _with_key(error, maker) | error.details
        raise


def _check_store(url: str) -> None:
    from ergon_framework.jobs.store_urls import check_url

    try:
        check_url(url)
        check_folder(file_of(url))
    except ErgonError as error:
        error.details = {"key": ["store"]}
        raise


def check_webhooks(checking: SettingsCheck) -> None:
    """Note what is wrong with receivers whose target is in order."""
    from ergon_framework.app.webhooks import check_webhook

    for name, table in checking.settings.extensions["webhooks"].items():
        if checking.has_problem("webhooks", name):
            continue  # a secret that is not set is told already
        if table.connector is None and checking.has_problem("store"):
            continue
        if checking.has_problem("connectors", table.connector or ""):
            continue
        with checking.collect("webhooks", name):
            check_webhook(name, table, checking.settings)


def _with_key(error: ErgonError, maker: Factory) -> dict[str, Any]:
    """The option that the error begins with, if it does."""
    parts = error.message.removeprefix(f"{maker.label}: ").removeprefix("the ").split()
    option = parts[0].rstrip(":") if parts else ""
    return {"key": [option]} if option in maker.options else {}


def check(
    config: str | Path | None = None, environ: Mapping[str, str] | None = None
) -> list[PartRow]:
    """What would run. Raises one :class:`SettingsError` with every problem in the settings."""
    environ = os.environ if environ is None else environ
    settings, source = examine_settings(config, environ)
    checking = SettingsCheck(settings, source, environ)
    _check_parts(checking)
    _check_tasks(checking)
    extensions = settings.extensions
    if extensions.keys() & {"jobs", "executors", "schedules"}:
        from ergon_framework.app.diagnostics.jobs import check_jobs

        check_jobs(checking)
    if extensions.keys() & {"boundary", "zones"} or "server" in settings.model_fields_set:
        from ergon_framework.app.diagnostics.zones import check_places

        check_places(checking)
    _check_telemetry(checking)
    if not checking.has_problem("store"):
        with checking.collect("store", "url"):
            url = store_url(settings)
            if url:
                check_kind(url)
            check_folder(file_of(url))
        _check_script_zones(checking)
    # Last, because it builds connectors, and only those that nothing above has found wrong.
    check_made(checking)
    if "webhooks" in extensions:
        check_webhooks(checking)
    source.raise_problems()
    return list(rows(settings))


def _check_script_zones(checking: SettingsCheck) -> None:
    """Look at zones that only scripts name, if there are any; the boundary is imported for them."""
    home = base_of(checking.settings)
    if not checking.has_problem("store") and (home / ZONES_FOLDER).is_dir():
        from ergon_framework.app.diagnostics.zones import check_script_zones

        check_script_zones(checking)


def notes(config: str | Path | None = None, environ: Mapping[str, str] | None = None) -> list[str]:
    """What is worth knowing about settings in which :func:`check` found no mistake."""
    from ergon_framework.app.diagnostics.servers import unverified
    from ergon_framework.app.earlier_store import earlier_store

    settings, _ = examine_settings(config, os.environ if environ is None else environ)
    earlier = earlier_store(settings)
    lines = [] if earlier is None else [f"{earlier.found}; {earlier.remedy()}"]
    return [*unverified(settings), *lines]


def _check_telemetry(checking: SettingsCheck) -> None:
    settings = checking.settings
    if not checking.has_problem("telemetry", "journal"):
        with checking.collect("telemetry", "journal"):
            path = journal_path(settings)
            if path is not None:
                check_folder(path)
    if not checking.has_problem("telemetry", "prometheus_port"):
        with checking.collect("telemetry"):
            check_page(settings, sum(part.processes for part in startable(settings)))
    telemetry = settings.telemetry
    if not checking.has_problem("telemetry"):
        with checking.collect("telemetry"):
            check_packages(collector=telemetry.otlp, port=telemetry.prometheus_port)
        if telemetry.setup is not None:
            with checking.collect("telemetry", "setup"):
                find_setup(telemetry.setup)


# ---- what is built from the user's own classes --------------------------------------------------


def _check_parts(checking: SettingsCheck) -> None:
    for name, connector in checking.settings.connectors.items():
        with checking.collect("connectors", name):
            check_options(checking, name, connector)
    for name, service in checking.settings.services.items():
        with checking.collect("services", name):
            service_factory(name, service).check()
    if "providers" in checking.settings.extensions:
        _check_providers(checking)


def _check_providers(checking: SettingsCheck) -> None:
    from ergon_framework.app.providers import provider_factory, providers_of
    from ergon_framework.providers.store_urls import check_url

    section = checking.settings.extensions["providers"]
    for name, entry in providers_of(checking.settings).items():
        with checking.collect("providers", name):
            try:
                if entry.provider is not None:  # without a class it is for a script
                    provider_factory(name, checking.settings).check()
            except WiringError:
                if not _is_in_executor(checking, name):
                    raise
        url = store_url(checking.settings, entry.store, section.store)
        path = store_path(checking, ("providers", name, "store"), ("providers", "store"))
        if url and not checking.has_problem(*path):
            with checking.collect(*path):
                check_url(url)
                check_folder(file_of(url))


def _is_in_executor(checking: SettingsCheck, provider: str) -> bool:
    """Whether no task uses a provider, and an executor finds it in its own folder."""
    from ergon_framework.app.diagnostics.jobs import has_provider
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.jobs.pool import checked

    if any(provider in task.services for task in checking.settings.tasks.values()):
        return False
    for name, executor in setup_of(checking.settings).executors.items():
        with suppress(ErgonError):  # a command that is not there is told where it stands
            if has_provider(provider, checked(name, executor), checking.environ):
                return True
    return False


def _check_tasks(checking: SettingsCheck) -> None:
    with checking.collect("tasks"):
        refuse_ambiguous_names(checking.settings)
    for name, task in checking.settings.tasks.items():
        with checking.collect("tasks", name, "task"):
            load(task.task)
        with checking.collect("tasks", name):
            # Wired with a part that is known to be wrong, the task would report the same mistake
            # again.
            if any(checking.has_problem(*path) for path in _used(name, task)):
                check_attempts(checking, name, task)
            else:
                wiring = wire(RunTarget(name, task.task, task), checking.settings)
                wiring.check_workers(task.workers)


def _used(name: str, task: TaskSettings) -> Iterator[tuple[str, ...]]:
    yield from (("tasks", name, key) for key in TaskSettings.model_fields if key != "workers")
    yield from (("connectors", each) for each in task.connectors)
    for each in task.services:
        yield from (("services", each), ("providers", each))
    if task.policy is not None:
        yield "policies", task.policy
