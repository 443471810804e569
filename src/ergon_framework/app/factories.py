"""Factories of connectors and services: from a section of the settings to an object.

A connector to a store or a node that other sections describe takes its options from there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import SecretStr

from ergon_framework.app.imports import load
from ergon_framework.app.settings.secrets import described, masked, revealed, sounds_secret
from ergon_framework.app.settings.sections import ConnectorSettings, ServiceSettings, Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import base_of, resolve_url, store_url
from ergon_framework.connector.broker import registry
from ergon_framework.errors import ConfigurationError, ErgonError, WiringError
from ergon_framework.storage.urls import refuse_withheld
from ergon_framework.task.base import BaseTask

_PATHS = ("outbox", "cert", "key", "ca")


def completed(
    name: str, kind: str, options: Mapping[str, Any], settings: Settings
) -> Mapping[str, Any]:
    """The options of a connector with what the settings say elsewhere."""
    if kind == "jobs":
        return _for_jobs(name, options, settings)
    if kind == "boundary":
        return _for_boundary(name, options, settings)
    return options


def broker_options(kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a connector to a broker, with those that its URL holds."""
    factory = load(registry.REFERENCES[kind])
    found = registry.complete_options(factory, revealed(dict(options)))
    # What may be a secret stays closed: the URL, and what a reference or a name says is one.
    return {
        name: SecretStr(value)
        if isinstance(value, str)
        and (sounds_secret(name) or isinstance(options.get(name), SecretStr))
        else value
        for name, value in found.items()
    }


def _for_jobs(name: str, options: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    jobs = settings.extensions.get("jobs")
    known = {} if jobs is None else {"settings": jobs}
    if "store" in options:
        url = resolve_url(str(revealed(options["store"])), base_of(settings))
    else:
        url = store_url(settings, None if jobs is None else jobs.store)
    if not url:
        raise WiringError(
            f"connectors.{name}: there is no store for its jobs",
            remedy='write url = "sqlite:///work.db" under [store], or store = and a URL here',
            details={"key": ["store"]},
        )
    return {**known, **options, "store": SecretStr(url)}  # it may hold a password


def _for_polls(options: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """The file of its cursor is relative to the settings; by default it is that of the store."""
    base, state = base_of(settings), revealed(options.get("state"))
    if state is None:
        state = store_url(settings)
    if not isinstance(state, str) or not state:
        return options
    placed = resolve_url(state, base) if "://" in state else str((base / state).absolute())
    return {**options, "state": SecretStr(placed)}  # the URL of a store may hold a password


def _for_boundary(name: str, options: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    base = base_of(settings)
    placed = {
        key: str((base / revealed(options[key])).absolute()) for key in _PATHS if options.get(key)
    }
    # zone only says whose node is meant, and is no option of the connector.
    given = {key: value for key, value in {**options, **placed}.items() if key != "zone"}
    if "node" in options:
        return given
    return {**_node_of(name, options.get("zone"), settings), **given}


def _node_of(name: str, wanted: Any, settings: Settings) -> dict[str, Any]:
    """The address of the named zone, or of the only one."""
    from ergon_framework.app.node import zone_address
    from ergon_framework.app.zones import zones_of

    zones = zones_of(settings)
    if wanted is None and len(zones) != 1:
        known = f"there are {', '.join(zones)}" if zones else "there is no [zones.NAME] either"
        raise WiringError(
            f"connectors.{name}: it says neither zone nor node, and {known}",
            remedy="write zone = and the name of one, or node = and the URL of its node",
            details={"key": ["zone"]},
        )
    zone = next(iter(zones)) if wanted is None else str(revealed(wanted))
    if zone not in zones:
        raise WiringError(
            f"connectors.{name}: there is no zone {zone!r}; {did_you_mean(zone, list(zones))}",
            remedy="write a table [zones.NAME], or node = and the URL of its node",
            details={"key": ["zone"]},
        )
    address = zone_address(zones[zone])
    found = {"node": address.url, "from_zone": zone, "expected_zone": address.expected_zone}
    return found | {key: value for key, value in address.files.items() if value is not None}


CONNECTORS = {
    **registry.REFERENCES,
    "boundary": "ergon_framework.connector.boundary:BoundaryConnector",
    "jobs": "ergon_framework.connector.jobs:JobsConnector",
    "jsonl": "ergon_framework.connector.jsonl:JsonlConnector",
    "memory": "ergon_framework.connector.memory:MemoryConnector",
}
"""The types a settings file may name without a module."""


class StartError(ErgonError):
    """A connector or a service could not be made or opened, though its settings are in order."""

    code = "start"


@dataclass(frozen=True, slots=True)
class Factory:
    """What makes one part: a class or function and its options, which may hold secrets."""

    label: str
    factory: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_exclusive(self) -> bool:
        """Whether one process at a time may have what is made, as its class declares it.

        Of a function nobody knows: it may make another one for each worker.
        """
        if not isinstance(self.factory, type):
            return False
        deciding = getattr(self.factory, "exclusive_with", ())
        is_given = any(self.options.get(name) is not None for name in deciding)
        return is_given or getattr(self.factory, "exclusive", False) is True

    def check(self) -> None:
        """Refuse options the factory does not take, without calling it."""
        if not callable(self.factory):
            raise WiringError(
                f"{self.label}: {type(self.factory).__name__} cannot be called to make it",
                remedy="name a class or a function",
            )
        try:
            parameters = inspect.signature(self.factory).parameters
        except (TypeError, ValueError):  # built-ins may have none; the call will show it
            return
        misfit = _option_problem(parameters, self.options)
        if misfit:
            option, problem, remedy = misfit
            details = {"key": [option]}
            raise WiringError(f"{self.label}: {problem}", remedy=remedy, details=details)

    def make(self) -> Any:
        """Call the factory. Nothing is connected yet, unless the factory does so by itself."""
        try:
            options = revealed(dict(self.options))
            for value in options.values():
                refuse_withheld(value)
            return self.factory(**options)
        except ErgonError as error:
            # Its class stays, since exit codes and restarts are decided by it.
            error.message = f"{self.label}: {self._masked(error.message)}"
            raise
        # These two mean that its options are wrong, which no restart repairs: a ConfigurationError.
        # Anything else may pass, and a supervisor starts the process again.
        except (TypeError, ValueError) as error:
            message = f"{self.label} was refused: {described(error, self.options)}"
            raise WiringError(message, remedy="correct its options") from error
        except Exception as error:
            message = f"{self.label} could not be made: {described(error, self.options)}"
            raise StartError(message, remedy="--debug shows where") from error

    def _masked(self, text: str) -> str:
        return masked(text, self.options)


def connector_factory(
    name: str, settings: ConnectorSettings, whole: Settings | None = None
) -> Factory:
    """The maker of ``[connectors.NAME]``, with what the ``whole`` settings say of our own parts."""
    kind = settings.type
    if ":" not in kind and kind not in CONNECTORS:
        raise WiringError(
            f"connectors.{name}: there is no connector type {kind!r}; "
            f"{did_you_mean(kind, sorted(CONNECTORS))}",
            remedy="or write module:Class for one of your own",
        )
    reference = CONNECTORS.get(kind, kind)
    label = f"connector {name!r} ({kind})"
    if kind in registry.REFERENCES:
        found = _broker_options(label, kind, settings.options, whole)
        return Factory(label, load(reference), found)
    options = settings.options if whole is None else completed(name, kind, settings.options, whole)
    return Factory(label, load(reference), options)


def url_factory(consumer: str, url: str, whole: Settings | None = None) -> Factory:
    """The maker of a connector that a consumer names by its URL; as :func:`connector_factory`."""
    label = f"the connector of the consumer {consumer!r}"
    try:
        kind = registry.type_of_url(url).name
    except ConfigurationError as error:
        raise WiringError(f"{label}: {error.message}", remedy=error.remedy) from None
    options = _broker_options(label, kind, {"url": SecretStr(url)}, whole)
    return Factory(label, load(registry.REFERENCES[kind]), options)


def _broker_options(
    label: str, kind: str, options: Mapping[str, Any], whole: Settings | None
) -> Mapping[str, Any]:
    try:
        if kind == "http-post" and isinstance(options.get("provider"), str):
            options = {**options, "provider": load(options["provider"])}
        found = broker_options(kind, options)
        return _for_polls(found, whole) if kind == "http-poll" and whole is not None else found
    except ConfigurationError as error:
        raise WiringError(
            f"{label}: {error.message}", remedy=error.remedy, details=error.details
        ) from None


def service_factory(name: str, settings: ServiceSettings) -> Factory:
    """The maker of ``[services.NAME]``."""
    label = f"service {name!r} ({settings.factory})"
    return Factory(label, load(settings.factory), settings.options)


def prototype(factory: object) -> Any:
    """An instance that was never initialised, only to be looked at; None when that is unsafe."""
    if not isinstance(factory, type):
        return None
    if getattr(factory, "__getattr__", None) not in (None, BaseTask.__getattr__):
        return None  # it would look for things that only __init__ brings
    try:
        return object.__new__(factory)
    except Exception:  # a class that derives from something built in
        return None


def _option_problem(
    parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """The option that does not fit, what is wrong with it, and what to do."""
    kinds = inspect.Parameter
    named = {
        name: each
        for name, each in parameters.items()
        if each.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    takes_all = any(each.kind is kinds.VAR_KEYWORD for each in parameters.values())
    for option in options:
        if option not in named and not takes_all:
            near = get_close_matches(option, named, 1)
            known = f"known options are {', '.join(named)}" if named else "it takes no options"
            hint = f"did you mean {near[0]!r}?" if near else known
            return option, f"unknown option {option!r}", hint
    for name, parameter in named.items():
        if parameter.default is kinds.empty and name not in options:
            return name, f"the option {name!r} is missing", "add it to its table in the settings"
    return None
