"""The product's one settings loader: ``ergon.toml``, overridden by ``ERGON_…`` variables.

``limit`` in the table ``[tasks.orders.consumer.loop]`` and the environment variable
``ERGON_TASKS__ORDERS__CONSUMER__LOOP__LIMIT`` are the same key; the variable wins. A variable
without ``__`` is no setting and is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter

from ergon_framework.app.reading.environment import nested, overlay
from ergon_framework.app.reading.names import apply_policies, check_names, read_policies
from ergon_framework.app.reading.secret_values import Resolver, revealed, sounds_secret, withheld
from ergon_framework.app.reading.sections import (
    Connectors,
    ConnectorSettings,
    Policies,
    Section,
    ServerSettings,
    Services,
    ServiceSettings,
    Settings,
    StoreSettings,
    Tasks,
    TaskSettings,
    TelemetrySettings,
)
from ergon_framework.app.reading.source import Source, did_you_mean, read_toml
from ergon_framework.app.reading.toml_lines import Path as KeyPath
from ergon_framework.errors import MissingExtraError, SettingsError, WiringError
from ergon_framework.storage.urls import placeholder

__all__ = [
    "ConnectorSettings",
    "ServerSettings",
    "ServiceSettings",
    "Settings",
    "StoreSettings",
    "TaskSettings",
    "TelemetrySettings",
    "examine_settings",
    "load_settings",
    "policy_from_env",
    "policy_from_toml",
    "register_section",
    "revealed",
    "settings_file",
]

Policy = TypeVar("Policy", bound=BaseModel)

PREFIX = "ERGON_"
FILE = "ergon.toml"
_PARTS = {
    **dict.fromkeys(("executors", "jobs", "schedules"), "ergon_framework.app.jobs"),
    **dict.fromkeys(("boundary", "zones"), "ergon_framework.app.boundary"),
    "providers": "ergon_framework.app.providers",
}
"""Sections of other parts, and the module whose ``SECTIONS`` say what each may hold."""

_OWN = {
    "store": Section(StoreSettings, has_secrets=True),
    "tasks": Section(Tasks),
    "connectors": Section(Connectors, has_secrets=True, has_free_options=True),
    "services": Section(Services, has_secrets=True, has_free_options=True),
    "policies": Section(Policies),
    "telemetry": Section(TelemetrySettings),
    "server": Section(ServerSettings, has_secrets=True),
}
_PLACES = frozenset({"url", "store"})
_extensions: dict[str, Section] = {}


def register_section(name: str, shape: Any, *, has_secrets: bool = False) -> None:
    """Let ``ergon.toml`` have a section ``name``, found checked in ``settings.extensions[name]``.

    ``shape`` is a pydantic model, or any type pydantic can check, such as ``dict[str, Model]`` for
    a section of named tables. With ``has_secrets``, ``env:`` and ``file:`` references in it become
    ``SecretStr`` values before they are checked.
    """
    if name in _OWN or name in _extensions:
        raise WiringError(
            f"the settings section {name!r} is registered already",
            remedy="register each section once, where its part is imported",
        )
    _extensions[name] = Section(shape, has_secrets)


def load_settings(
    path: str | Path | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read, override and check everything; each mistake is told in one :class:`SettingsError`.

    Without ``path`` the file is the one ``ERGON_CONFIG`` names, or ``ergon.toml`` in the working
    directory when there is one.
    """
    settings, source = examine_settings(path, environ)
    source.stop_if_mistaken()
    return settings


def examine_settings(
    path: str | Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Settings, Source]:
    """The same with the mistakes noted in the source, and the settings without what is wrong."""
    environ = os.environ if environ is None else environ
    file = settings_file(path, environ)
    source = Source() if file is None else read_toml(file)
    _bring_parts(
        {*source.tables, *(names[0].lower() for names in nested(environ, PREFIX).values())}
    )
    sections = _OWN | _extensions
    _override(source, environ, sections)
    policies = read_policies(source)
    apply_policies(source, policies)
    parts = {
        name: _part(source, name, sections, environ)
        for name in source.tables
        if name != "policies" and _is_known(source, name, sections)
    }
    check_names(source, parts.get("tasks") or {})
    told = {name: part for name, part in parts.items() if part is not None}
    own = {name: part for name, part in told.items() if name in _OWN}
    others = {name: part for name, part in told.items() if name not in _OWN}
    found = Settings(
        **own,
        policies=policies,
        extensions=others,
        file=file,
        variables=frozenset(source.referred),
    )
    return found, source


def policy_from_env(
    model: type[Policy], prefix: str, environ: Mapping[str, str] | None = None
) -> Policy:
    """A policy from variables alone: with prefix ``ORDERS_``, ``ORDERS_LOOP__LIMIT`` is its limit.

    Variables with the prefix that nest nothing and resemble no key of the policy are left alone.
    """
    if not prefix:
        raise SettingsError("the prefix is empty", remedy="give one, for example ORDERS_")
    environ = os.environ if environ is None else environ
    source = Source()
    known = list(model.model_fields)
    for variable, names in nested(environ, prefix).items():
        if len(names) > 1 or get_close_matches(names[0].lower(), known, 1, 0.8):
            overlay(source, variable, names, environ[variable], like=False)
    return _checked(source, (), source.tables, model)


def policy_from_toml(model: type[Policy], path: str | Path, table: str = "") -> Policy:
    """A policy from one table of a TOML file, for example ``tasks.orders.consumer``."""
    source = read_toml(Path(path))
    value: Any = source.tables
    keys = tuple(table.split(".")) if table else ()
    for n, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            hint = did_you_mean(key, list(value) if isinstance(value, dict) else ())
            source.refuse(keys[: n + 1], f"there is no such table; {hint}")
            source.stop_if_mistaken()
        value = value[key]
    return _checked(source, keys, value, model)


def _checked(source: Source, path: KeyPath, value: object, model: type[Policy]) -> Policy:
    policy = source.check(path, value, TypeAdapter(model))
    source.stop_if_mistaken()
    return cast(Policy, policy)


def _bring_parts(names: Iterable[str]) -> None:
    for name in sorted(names):
        if name in _PARTS and name not in _extensions:
            for part, section in import_module(_PARTS[name]).SECTIONS.items():
                _extensions.setdefault(part, section)


def settings_file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file that is meant, which need not be there when it was named."""
    named = path or environ.get("ERGON_CONFIG")
    if named:
        return Path(named)
    return Path(FILE) if os.path.lexists(FILE) else None  # a link that leads nowhere was meant


def _override(source: Source, environ: Mapping[str, str], sections: Mapping[str, Section]) -> None:
    for variable, names in nested(environ, PREFIX).items():
        if len(names) < 2:
            continue  # ERGON_LOG_LEVEL and its like, or the variables of somebody else
        section = sections.get(names[0].lower())
        like = section is not None and section.has_free_options
        overlay(source, variable, names, environ[variable], like=like)
    for variable in withheld(environ) - environ.keys():
        names = variable[len(PREFIX) :].split("__")
        if not variable.upper().startswith(PREFIX) or not names[1:]:
            continue
        section, last = sections.get(names[0].lower()), names[-1].lower()
        is_option = section is not None and section.has_free_options and sounds_secret(last)
        if last in _PLACES or is_option:
            # Nothing must be kept in the place that the file names, while the worker has another.
            overlay(source, variable, names, placeholder(variable), like=False)


def _is_known(source: Source, name: str, sections: Mapping[str, Section]) -> bool:
    if name in sections:
        return True
    hint = did_you_mean(name, sorted({*sections, *_PARTS}))
    source.refuse((name,), f"unknown section {name!r}; {hint}")
    return False


def _part(
    source: Source, name: str, sections: Mapping[str, Section], environ: Mapping[str, str]
) -> Any:
    section = sections[name]
    table = source.tables[name]
    if section.has_secrets:
        table = Resolver(source, environ, section.has_free_options).resolve(table, (name,))
    return source.check((name,), table, TypeAdapter(section.shape))


def check_server_packages() -> None:
    """Raise unless FastAPI and uvicorn are there: what to install is said before anything else."""
    for name in ("fastapi", "uvicorn"):
        try:
            __import__(name)
        except ImportError as error:
            raise MissingExtraError(
                f"the server needs {name}", remedy="pip install 'ergon-framework[api]'"
            ) from error
