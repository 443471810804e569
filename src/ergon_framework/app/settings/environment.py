"""Settings given by environment variables: ``__`` separates the names of nested tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AllowInfNan, TypeAdapter

from ergon_framework.app.settings.source import SettingsSource
from ergon_framework.ports.settings_model import Switch

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
    path = _path(source, names, variable)
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
    value = _read(text, table.get(path[-1]) if like else None)
    if value is None:
        source.add_problem(
            path, "must be a number or a switch, as it is in the file", variable=variable
        )
    table[path[-1]] = value
    source.variables[path] = variable


def _path(source: SettingsSource, names: list[str], variable: str) -> tuple[str, ...] | None:
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
        keys = _matches(table, name)
        if len(keys) > 1:
            problem = f"{name!r} may mean " + " or ".join(repr(key) for key in keys)
            source.add_problem((*path, keys[0]), problem, "rename one of them", variable)
            return None
        path = (*path, keys[0])
        table = table.get(keys[0], {})
    return path


def _matches(table: dict[str, Any], name: str) -> list[str]:
    """The keys ``name`` may stand for: variables have no case, and no hyphens."""
    if name in table:
        return [name]
    wanted = name.lower()
    return [key for key in table if key.lower().replace("-", "_") == wanted] or [wanted]


def _read(text: str, present: object) -> Any:
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
