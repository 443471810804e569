"""What a task asks for by name: policies, connectors, services. All of it must be defined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ergon_framework.app.reading.sections import Name, NamedPolicy, TaskSettings
from ergon_framework.app.reading.source import Source, did_you_mean
from ergon_framework.app.reading.toml_lines import Path as KeyPath
from ergon_framework.ports.settings_model import Document
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy

MODELS: Mapping[str, type[Document]] = {"consumer": ConsumerPolicy, "producer": ProducerPolicy}
_NAMED: TypeAdapter[Mapping[str, dict[str, Any]]] = TypeAdapter(Mapping[Name, dict[str, Any]])
_Policy = TypeVar("_Policy", bound=Document)
_IS_NAME = re.compile(r"(?!(?i:none|null)$)[A-Za-z0-9_][A-Za-z0-9_.-]*")


def read_policies(source: Source) -> dict[str, NamedPolicy]:
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


def apply_policies(source: Source, policies: Mapping[str, NamedPolicy]) -> None:
    """Put the named policies beneath what each task says itself."""
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


def check_names(source: Source, tasks: Mapping[str, TaskSettings]) -> None:
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
                    source.refuse(("tasks", name, kind, i), problem, remedy)
        chosen = task.consumer.steps.fetch.connector_name if task.consumer else None
        if chosen is not None and chosen not in task.connectors:
            key = ("tasks", name, "consumer", "steps", "fetch", "connector_name")
            hint = did_you_mean(chosen, task.connectors)
            source.refuse(key, f"{chosen!r} is no connector of this task; {hint}")


def provider_names(source: Source) -> Iterator[str]:
    """The providers of the raw settings: the tables in ``[providers]``."""
    for name in _names(source, "providers"):
        if isinstance(source.tables["providers"][name], dict):
            yield name


def _names(source: Source, section: str) -> list[str]:
    """The names in a section, which may be anything as long as nobody has checked it."""
    found = source.tables.get(section)
    return list(found) if isinstance(found, dict) else []


def _fitting(model: type[_Policy], table: Mapping[str, Any]) -> _Policy | None:
    try:
        return model.model_validate(table)
    except ValidationError:
        return None


def _beneath(
    source: Source, policies: Mapping[str, NamedPolicy], path: KeyPath, name: str, kind: str
) -> dict[str, Any] | None:
    """The raw table of a named policy for a consumer or a producer; None when it is wrong."""
    if name not in policies:
        if path[-1] != "policy":  # that one is looked at for itself
            _check_there(source, path, name)
        return None
    if getattr(policies[name], kind) is None:
        problem = f"the policy {name!r} does not fit a {kind}"
        source.refuse(path, problem, f"name one whose keys are those of a {MODELS[kind].__name__}")
        return None
    table: dict[str, Any] = source.tables["policies"][name]
    return table


def _check_there(source: Source, path: KeyPath, name: str) -> None:
    known = _names(source, "policies")
    if name not in known:  # one that is there and wrong has been told already
        problem = f"there is no policy {name!r}; {did_you_mean(name, known)}"
        source.refuse(path, problem, f"add a table [policies.{name}]")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, key by key; what is said above counts."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = _merged(below[key], above[key])
    return both
