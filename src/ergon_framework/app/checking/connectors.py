"""``ergon check`` for connectors: what their classes take, and what ours refuse when they are made.

Those of our own types connect to nothing when they are made, so they are made and closed again;
the one that makes folders is only asked. Connectors of other people are never made here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ergon_framework.app.assembly.building import CONNECTORS, Maker, connector_maker
from ergon_framework.app.checking.desk import Desk
from ergon_framework.app.imports import load
from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import ConnectorSettings, TaskSettings
from ergon_framework.app.settings.stores import check_folder
from ergon_framework.errors import ErgonError, WiringError
from ergon_framework.storage.urls import file_of
from ergon_framework.task.plans import check_copies, check_patience

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
