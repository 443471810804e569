"""The product's one settings loader: ``ergon.toml``, overridden by ``ERGON_…`` variables.

``limit`` in the table ``[tasks.orders.consumer.loop]`` and the environment variable
``ERGON_TASKS__ORDERS__CONSUMER__LOOP__LIMIT`` are the same key; the variable wins. A variable
without ``__`` is no setting and is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter

from ergon_framework.app.environment import nested, overlay
from ergon_framework.app.secret_values import Resolver, revealed
from ergon_framework.app.sections import (
    Connectors,
    ConnectorSettings,
    ServerSettings,
    Services,
    ServiceSettings,
    Settings,
    StoreSettings,
    Tasks,
    TaskSettings,
    TelemetrySettings,
)
from ergon_framework.app.source import Source, did_you_mean, read_toml
from ergon_framework.app.toml_lines import Path as KeyPath
from ergon_framework.errors import SettingsError, WiringError

__all__ = [
    "ConnectorSettings",
    "ServerSettings",
    "ServiceSettings",
    "Settings",
    "StoreSettings",
    "TaskSettings",
    "TelemetrySettings",
    "load_settings",
    "policy_from_env",
    "policy_from_toml",
    "register_section",
    "revealed",
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


@dataclass(frozen=True, slots=True)
class _Section:
    """How a section is read. Free options have no model that knows their types."""

    shape: TypeAdapter[Any]
    has_secrets: bool = False
    has_free_options: bool = False


_OWN = {
    "store": _Section(TypeAdapter(StoreSettings), has_secrets=True),
    "tasks": _Section(TypeAdapter(Tasks)),
    "connectors": _Section(TypeAdapter(Connectors), has_secrets=True, has_free_options=True),
    "services": _Section(TypeAdapter(Services), has_secrets=True, has_free_options=True),
    "telemetry": _Section(TypeAdapter(TelemetrySettings)),
    "server": _Section(TypeAdapter(ServerSettings)),
}
_extensions: dict[str, _Section] = {}


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
    _extensions[name] = _Section(TypeAdapter(shape), has_secrets)


def load_settings(
    path: str | Path | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read, override and check everything; each mistake is told in one :class:`SettingsError`.

    Without ``path`` the file is the one ``ERGON_CONFIG`` names, or ``ergon.toml`` in the working
    directory when there is one.
    """
    environ = os.environ if environ is None else environ
    file = _file(path, environ)
    source = Source() if file is None else read_toml(file)
    _bring_parts(
        {*source.tables, *(names[0].lower() for names in nested(environ, PREFIX).values())}
    )
    sections = _OWN | _extensions
    _override(source, environ, sections)
    parts = {
        name: _part(source, name, sections, environ)
        for name in source.tables
        if _is_known(source, name, sections)
    }
    _check_names(source, parts.get("tasks") or {})
    source.stop_if_mistaken()
    own = {name: part for name, part in parts.items() if name in _OWN}
    others = {name: part for name, part in parts.items() if name not in _OWN}
    return Settings(**own, extensions=others, file=file)


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
            for section, (shape, has_secrets) in import_module(_PARTS[name]).SECTIONS.items():
                _extensions.setdefault(section, _Section(TypeAdapter(shape), has_secrets))


def _file(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    named = path or environ.get("ERGON_CONFIG")
    if named:
        return Path(named)
    return Path(FILE) if Path(FILE).exists() else None


def _override(source: Source, environ: Mapping[str, str], sections: Mapping[str, _Section]) -> None:
    for variable, names in nested(environ, PREFIX).items():
        if len(names) < 2:
            continue  # ERGON_LOG_LEVEL and its like, or the variables of somebody else
        section = sections.get(names[0].lower())
        like = section is not None and section.has_free_options
        overlay(source, variable, names, environ[variable], like=like)


def _is_known(source: Source, name: str, sections: Mapping[str, _Section]) -> bool:
    if name in sections:
        return True
    hint = did_you_mean(name, sorted({*sections, *_PARTS}))
    source.refuse((name,), f"unknown section {name!r}; {hint}")
    return False


def _part(
    source: Source, name: str, sections: Mapping[str, _Section], environ: Mapping[str, str]
) -> Any:
    section = sections[name]
    table = source.tables[name]
    if section.has_secrets:
        table = Resolver(source, environ, section.has_free_options).resolve(table, (name,))
    return source.check((name,), table, section.shape)


def _check_names(source: Source, tasks: Mapping[str, TaskSettings]) -> None:
    """What a task asks for must be defined: the tasks are right by themselves at this point."""
    for name, task in tasks.items():
        for kind in ("connectors", "services"):
            known = list(source.tables.get(kind, ()))
            for i, wanted in enumerate(getattr(task, kind)):
                if wanted not in known:
                    problem = f"there is no {kind[:-1]} {wanted!r}; {did_you_mean(wanted, known)}"
                    remedy = f"add a table [{kind}.{wanted}]"
                    source.refuse(("tasks", name, kind, i), problem, remedy)
        chosen = task.consumer.steps.fetch.connector_name if task.consumer else None
        if chosen is not None and chosen not in task.connectors:
            key = ("tasks", name, "consumer", "steps", "fetch", "connector_name")
            hint = did_you_mean(chosen, task.connectors)
            source.refuse(key, f"{chosen!r} is no connector of this task; {hint}")
