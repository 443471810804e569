"""Reading settings: the file, variables laid over it, named policies, and references between them.

``ergon.toml`` has one table per part. A part that is not of the core brings its sections itself
when a file names them (``register_section``). In the name of a variable ``__`` separates the names
of nested tables. All problems are collected before any is raised.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import AllowInfNan, BaseModel, TypeAdapter, ValidationError

from ergon_framework.app.discovery import SETTINGS_FILE, STORE_FILE, ZONES_FOLDER
from ergon_framework.app.settings.secrets import Resolver, sounds_secret, withheld
from ergon_framework.app.settings.sections import (
    Connectors,
    Name,
    NamedPolicy,
    Policies,
    Section,
    ServerSettings,
    Services,
    Settings,
    StoreSettings,
    Tasks,
    TaskSettings,
    TelemetrySection,
)
from ergon_framework.app.settings.source import KeyPath, SettingsSource, did_you_mean, read_toml
from ergon_framework.core.text import toml_table
from ergon_framework.errors import MissingExtraError, SettingsError, WiringError
from ergon_framework.ports.settings_model import SettingsModel, Switch
from ergon_framework.storage.urls import placeholder
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy

Policy = TypeVar("Policy", bound=BaseModel)

PREFIX = "ERGON_"
FILE = SETTINGS_FILE
_PARTS = {
    **dict.fromkeys(("executors", "jobs", "schedules"), "ergon_framework.app.jobs"),
    **dict.fromkeys(("boundary", "zones"), "ergon_framework.app.zones"),
    "providers": "ergon_framework.app.providers",
    "webhooks": "ergon_framework.app.webhooks",
}
"""Sections of other parts, and the module whose ``SECTIONS`` say what each may hold."""

_OWN = {
    "store": Section(StoreSettings, has_secrets=True),
    "tasks": Section(Tasks),
    "connectors": Section(Connectors, has_secrets=True, has_free_options=True),
    "services": Section(Services, has_secrets=True, has_free_options=True),
    "policies": Section(Policies),
    "telemetry": Section(TelemetrySection),
    "server": Section(ServerSettings, has_secrets=True),
}
_PLACES = frozenset({"url", "store"})
registered_sections: dict[str, Section] = {}


def register_section(name: str, kind: Any, *, has_secrets: bool = False) -> None:
    """Let ``ergon.toml`` have a section ``name``, found checked in ``settings.extensions[name]``.

    ``kind`` is a pydantic model, or any type pydantic can check, such as ``dict[str, Model]`` for
    a section of named tables. With ``has_secrets``, ``env:`` and ``file:`` references in it become
    ``SecretStr`` values before they are checked.
    """
    if name in _OWN or name in registered_sections:
        raise WiringError(
            f"the settings section {name!r} is registered already",
            remedy="register each section once, where its part is imported",
        )
    registered_sections[name] = Section(kind, has_secrets)


def load_settings(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
) -> Settings:
    """Read, override and check everything; each mistake is told in one :class:`SettingsError`.

    Without ``path`` the file is the one ``ERGON_CONFIG`` names, or ``ergon.toml`` in ``folder``
    when there is one; that is the working directory unless another is given. A ``path`` that is a
    folder stands for the ``ergon.toml`` in it; where it has only the store of a script, the
    settings have no file, and paths start in that folder.
    """
    settings, source = examine_settings(path, environ, folder=folder)
    source.raise_problems()
    return settings


def examine_settings(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
) -> tuple[Settings, SettingsSource]:
    """Load settings and note all mistakes in the source; the settings leave out what is wrong."""
    environ = os.environ if environ is None else environ
    file = settings_file(path, environ, folder)
    source = SettingsSource() if file is None else read_toml(file)
    # Before variables are applied: a section that only a variable names needs its model, too.
    _bring_parts(
        {*source.tables, *(names[0].lower() for names in nested(environ, PREFIX).values())}
    )
    sections = _OWN | registered_sections
    _override(source, environ, sections)
    # After the variables, which may change a named policy, and before the tasks are checked: what a
    # policy gives is checked as a part of the task.
    policies = read_policies(source)
    apply_policies(source, policies)
    parts = {
        name: _part(source, name, sections, environ)
        for name in source.tables
        if name != "policies" and _is_known(source, name, sections)
    }
    check_names(source, parts.get("tasks") or {})
    checked = {name: part for name, part in parts.items() if part is not None}
    own = {name: part for name, part in checked.items() if name in _OWN}
    others = {name: part for name, part in checked.items() if name not in _OWN}
    found = Settings(
        **own,
        policies=policies,
        extensions=others,
        file=file,
        home=_home_of(path, environ),
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
    source = SettingsSource()
    known = list(model.model_fields)
    for variable, names in nested(environ, prefix).items():
        if len(names) > 1 or get_close_matches(names[0].lower(), known, 1, 0.8):
            apply_variable(source, variable, names, environ[variable], like=False)
    return _checked(source, (), source.tables, model)


def policy_from_toml(model: type[Policy], path: str | Path, table: str = "") -> Policy:
    """A policy from one table of a TOML file, for example ``tasks.orders.consumer``."""
    source = read_toml(Path(path))
    value: Any = source.tables
    keys = tuple(table.split(".")) if table else ()
    for n, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            hint = did_you_mean(key, list(value) if isinstance(value, dict) else ())
            source.add_problem(keys[: n + 1], f"there is no such table; {hint}")
            source.raise_problems()
        value = value[key]
    return _checked(source, keys, value, model)


def _checked(source: SettingsSource, path: KeyPath, value: object, model: type[Policy]) -> Policy:
    policy = source.check(path, value, TypeAdapter(model))
    source.raise_problems()
    return cast(Policy, policy)


def _bring_parts(names: Iterable[str]) -> None:
    for name in sorted(names):
        if name in _PARTS and name not in registered_sections:
            for part, section in import_module(_PARTS[name]).SECTIONS.items():
                registered_sections.setdefault(part, section)


def settings_file(
    path: str | Path | None, environ: Mapping[str, str], folder: Path | None = None
) -> Path | None:
    """The settings file: the one that was named, whether or not it exists, or the one in a folder.

    None if nothing was named and the folder has none.
    """
    named = path or environ.get("ERGON_CONFIG")
    if named and not Path(named).is_dir():
        return Path(named)
    file = Path(named or folder or "") / FILE
    return file if os.path.lexists(file) else None  # a link that leads nowhere was meant


def _home_of(path: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """The folder that was named in place of a file."""
    named = path or environ.get("ERGON_CONFIG")
    if not named or not Path(named).is_dir():
        return None
    folder = Path(named)
    if not any(os.path.lexists(folder / name) for name in (FILE, STORE_FILE, ZONES_FOLDER)):
        raise SettingsError(
            f"the folder {folder} cannot be read as settings: it has neither {FILE} nor"
            f" {STORE_FILE}",
            remedy="name a settings file, or the folder of one",
        )
    return folder


def _override(
    source: SettingsSource, environ: Mapping[str, str], sections: Mapping[str, Section]
) -> None:
    for variable, names in nested(environ, PREFIX).items():
        if len(names) < 2:
            continue  # ERGON_LOG_LEVEL and its like, or the variables of somebody else
        section = sections.get(names[0].lower())
        like = section is not None and section.has_free_options
        apply_variable(source, variable, names, environ[variable], like=like)
    for variable in withheld(environ) - environ.keys():
        names = variable[len(PREFIX) :].split("__")
        if not variable.upper().startswith(PREFIX) or not names[1:]:
            continue
        section, last = sections.get(names[0].lower()), names[-1].lower()
        is_option = section is not None and section.has_free_options and sounds_secret(last)
        if last in _PLACES or is_option:
            # Nothing must be kept in the place that the file names, while the worker has another.
            apply_variable(source, variable, names, placeholder(variable), like=False)


def _is_known(source: SettingsSource, name: str, sections: Mapping[str, Section]) -> bool:
    if name in sections:
        return True
    hint = did_you_mean(name, sorted({*sections, *_PARTS}))
    source.add_problem((name,), f"unknown section {name!r}; {hint}")
    return False


def _part(
    source: SettingsSource, name: str, sections: Mapping[str, Section], environ: Mapping[str, str]
) -> Any:
    section = sections[name]
    table = source.tables[name]
    if section.has_secrets:
        table = Resolver(source, environ, section.has_free_options).resolve(table, (name,))
    return source.check((name,), table, TypeAdapter(section.kind))


def check_server_packages() -> None:
    """Raise unless what the server needs is there: what to install is said first of all."""
    for name in ("fastapi", "uvicorn", "jinja2"):
        try:
            __import__(name)
        except ImportError as error:
            raise MissingExtraError(
                f"the server needs {name}", remedy="pip install 'ergon-framework[api]'"
            ) from error


MODELS: Mapping[str, type[SettingsModel]] = {"consumer": ConsumerPolicy, "producer": ProducerPolicy}
_NAMED: TypeAdapter[Mapping[str, dict[str, Any]]] = TypeAdapter(Mapping[Name, dict[str, Any]])
_Policy = TypeVar("_Policy", bound=SettingsModel)
_IS_NAME = re.compile(r"(?!(?i:none|null)$)[A-Za-z0-9_][A-Za-z0-9_.-]*")


def read_policies(source: SettingsSource) -> dict[str, NamedPolicy]:
    """Every ``[policies.NAME]``, for consumers, for producers, or for both when it fits both."""
    tables = source.check(("policies",), source.tables.get("policies", {}), _NAMED) or {}
    found = {}
    for name, table in tables.items():
        consumer, producer = _fitting(ConsumerPolicy, table), _fitting(ProducerPolicy, table)
        if consumer or producer:
            found[name] = NamedPolicy(consumer=consumer, producer=producer)
        else:
            steps = table.get("steps")
            kind = "producer" if isinstance(steps, dict) and "produce" in steps else "consumer"
            source.check(("policies", name), table, TypeAdapter(MODELS[kind]))
    return found


def apply_policies(source: SettingsSource, policies: Mapping[str, NamedPolicy]) -> None:
    """Merge the named policies into each task. What the task sets itself wins."""
    tasks = source.tables.get("tasks")
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        if not isinstance(task, dict):
            continue
        wanted = task.get("policy")
        for kind in MODELS:
            own = task.get(kind)
            if isinstance(own, str) and _IS_NAME.fullmatch(own):
                path = ("tasks", name, kind)
                task[kind] = _beneath(source, policies, path, own, kind)
            elif isinstance(own, dict) and isinstance(wanted, str):
                path = ("tasks", name, "policy")
                task[kind] = _merged(_beneath(source, policies, path, wanted, kind) or {}, own)
        if isinstance(wanted, str) and wanted.strip().lower() not in ("", "none", "null"):
            _check_there(source, ("tasks", name, "policy"), wanted)


def check_names(source: SettingsSource, tasks: Mapping[str, TaskSettings]) -> None:
    """What a task asks for must be defined: the tasks are right by themselves at this point."""
    known = {
        "connectors": _names(source, "connectors"),
        "services": [*_names(source, "services"), *provider_names(source)],
    }
    for name, task in tasks.items():
        for kind, names in known.items():
            for i, wanted in enumerate(getattr(task, kind)):
                if wanted not in names:
                    problem = f"there is no {kind[:-1]} {wanted!r}; {did_you_mean(wanted, names)}"
                    remedy = f"add a table [{kind}.{wanted}]"
                    source.add_problem(("tasks", name, kind, i), problem, remedy)
        chosen = task.consumer.steps.fetch.connector_name if task.consumer else None
        if chosen is not None and chosen not in task.connectors:
            key = ("tasks", name, "consumer", "steps", "fetch", "connector_name")
            hint = did_you_mean(chosen, task.connectors)
            source.add_problem(key, f"{chosen!r} is no connector of this task; {hint}")


def provider_names(source: SettingsSource) -> Iterator[str]:
    """The providers of the raw settings: the tables in ``[providers]``."""
    for name in _names(source, "providers"):
        if isinstance(source.tables["providers"][name], dict):
            yield name


def _names(source: SettingsSource, section: str) -> list[str]:
    """The names in a section that has not been checked yet, and may be anything."""
    found = source.tables.get(section)
    return list(found) if isinstance(found, dict) else []


def _fitting(model: type[_Policy], table: Mapping[str, Any]) -> _Policy | None:
    try:
        return model.model_validate(table)
    except ValidationError:
        return None


def _beneath(
    source: SettingsSource, policies: Mapping[str, NamedPolicy], path: KeyPath, name: str, kind: str
) -> dict[str, Any] | None:
    """The raw table of a named policy for a consumer or a producer; None when it is wrong."""
    if name not in policies:
        if path[-1] != "policy":  # that one is looked at for itself
            _check_there(source, path, name)
        return None
    if getattr(policies[name], kind) is None:
        problem = f"the policy {name!r} does not fit a {kind}"
        source.add_problem(
            path, problem, f"name one whose keys are those of a {MODELS[kind].__name__}"
        )
        return None
    table: dict[str, Any] = source.tables["policies"][name]
    return table


def _check_there(source: SettingsSource, path: KeyPath, name: str) -> None:
    known = _names(source, "policies")
    if name not in known:  # one that is there and wrong has been told already
        problem = f"there is no policy {name!r}; {did_you_mean(name, known)}"
        source.add_problem(path, problem, f"add a table {toml_table('policies', name)}")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables key by key; values of ``above`` win."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = _merged(below[key], above[key])
    return both


_SWITCH: TypeAdapter[bool] = TypeAdapter(Switch)
_NUMBER: TypeAdapter[int | float] = TypeAdapter(Annotated[int | float, AllowInfNan(False)])


def nested(environ: Mapping[str, str], prefix: str) -> dict[str, list[str]]:
    """The variables that begin with ``prefix`` in any case, with the names they nest.

    Tables come before their keys, so that the more specific variable has the last word.
    """
    found = {
        name: name[len(prefix) :].split("__")
        for name in sorted(environ)
        if name.upper().startswith(prefix.upper())
    }
    return dict(sorted(found.items(), key=lambda item: len(item[1])))


def apply_variable(
    source: SettingsSource, variable: str, names: list[str], text: str, *, like: bool
) -> None:
    """Write one variable's value over the tables of ``source``, or note why it cannot be.

    With ``like``, a number or switch that is already there says how the text is to be read; the
    models behind other tables know that better.
    """
    path = _key_path(source, names, variable)
    if path is None:
        return
    # Names of variables have no case, so two of them may mean one key.
    if path in source.variables:
        other = source.variables[path]
        source.add_problem(path, f"is also set by {other}", "unset one of the two", variable)
        return
    table: dict[str, Any] = source.tables
    for key in path[:-1]:
        table = table.setdefault(key, {})
    value = _variable_value(text, table.get(path[-1]) if like else None)
    if value is None:
        source.add_problem(
            path, "must be a number or a switch, as it is in the file", variable=variable
        )
    table[path[-1]] = value
    source.variables[path] = variable


def _key_path(source: SettingsSource, names: list[str], variable: str) -> tuple[str, ...] | None:
    """The key path that ``names`` stand for, in the spelling of the keys that exist."""
    if not all(names):
        source.add_problem((), "has an empty name in it", "write SECTION__KEY", variable)
        return None
    table: Any = source.tables
    path: tuple[str, ...] = ()
    for name in names:
        if not isinstance(table, dict):
            source.add_problem(path, "is no table, so nothing can be set in it", variable=variable)
            return None
        keys = _matching_keys(table, name)
        if len(keys) > 1:
            problem = f"{name!r} may mean " + " or ".join(repr(key) for key in keys)
            source.add_problem((*path, keys[0]), problem, "rename one of them", variable)
            return None
        path = (*path, keys[0])
        table = table.get(keys[0], {})
    return path


def _matching_keys(table: dict[str, Any], name: str) -> list[str]:
    """The keys ``name`` may stand for: variables have no case, and no hyphens."""
    if name in table:
        return [name]
    wanted = name.lower()
    return [key for key in table if key.lower().replace("-", "_") == wanted] or [wanted]


def _variable_value(text: str, present: object) -> Any:
    """Tables and lists as JSON, numbers and switches like the present value, all else as text."""
    try:
        if text.lstrip()[:1] in ("{", "["):
            return json.loads(text)
        if isinstance(present, bool):
            return _SWITCH.validate_python(text)
        if isinstance(present, int | float):
            return _NUMBER.validate_python(text)
    except (ValueError, RecursionError):  # pydantic's errors are ValueErrors
        return None if isinstance(present, int | float) else text
    return text
