"""Whether an argument arrives at its handler unchanged after a round trip through JSON.

A client turns arguments into JSON, and the types of the handler's parameters turn them back. An
object of another class with the same fields, a number that JSON does not have, or an instant whose
offset has seconds would arrive as something else without any error. What is given in JSON form,
dicts and lists of plain values, is what the handler's types are there to read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

_PLAIN = frozenset({str, int, float, bool, type(None), bytes})


def is_path(kind: Any, value: Any) -> bool:
    """Whether a declared type is one of paths, and the value the text of one."""
    from pathlib import PurePath  # a tenth of what the package of handlers takes to import

    return isinstance(value, str) and isinstance(kind, type) and issubclass(kind, PurePath)


def path_text(value: Any) -> str:
    """A path as JSON has it; ``TypeError`` for anything else."""
    from pathlib import PurePath

    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def needs_check(value: Any) -> bool:
    """Whether a value may change on its way: most arguments are plain, and cost nothing here."""
    if type(value) in _PLAIN:
        return False
    waiting = [value]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is dict:
            inside: Iterable[Any] = each.values()
        elif kind is list or kind is tuple:
            inside = each
        else:
            return True
        waiting += [one for one in inside if type(one) not in _PLAIN]
    return False


def change_told(name: str, given: Any, arrived: Any) -> str:
    """What to say of an argument that would not come back; its value is not shown."""
    kind, other = type(given).__name__, type(arrived).__name__
    return (
        f"the argument {name!r} is a {kind} and would not come back as it went in: it would arrive"
        f" as another {other}"
    )


def model_as_json(model: Any) -> Any:
    """A pydantic model, or what has its methods, in a form that its class reads again.

    That is under its aliases and without fields that it computes.
    """
    kind: Any = type(model)
    return model.model_dump(mode="json", by_alias=_reads_aliases(kind), round_trip=True)


@lru_cache(maxsize=256)
def _reads_aliases(kind: Any) -> bool:
    """Whether a class reads what it writes by alias: one that is only for writing is not read."""
    fields = getattr(kind, "model_fields", {}).values()
    written = ((getattr(each, "serialization_alias", None), each) for each in fields)
    return all(
        alias is None or alias == getattr(each, "validation_alias", None) for alias, each in written
    )


def came_back(given: Any, arrived: Any) -> bool:
    """Whether both are the same value. What a type leaves open may arrive in its JSON form."""
    if given is arrived:
        return True
    if isinstance(given, datetime) and isinstance(arrived, datetime):
        return _is_same_instant(given, arrived)
    names = _field_names(given)
    if names is not None:
        return type(given) is type(arrived) and all(
            came_back(getattr(given, name), getattr(arrived, name, None)) for name in names
        )
    if isinstance(given, Mapping) and _field_names(arrived) is not None:
        return all(
            not needs_check(value) or came_back(value, getattr(arrived, str(key), None))
            for key, value in given.items()
        )
    if isinstance(given, Mapping) and isinstance(arrived, Mapping):
        return len(given) == len(arrived) and all(
            key in arrived and came_back(value, arrived[key]) for key, value in given.items()
        )
    if isinstance(given, list | tuple) and isinstance(arrived, list | tuple):
        pairs = zip(given, arrived, strict=False)
        return len(given) == len(arrived) and all(came_back(*each) for each in pairs)
    return bool(given == arrived) or _is_json_form(given, arrived) or _is_json_form(arrived, given)


def _is_same_instant(given: datetime, arrived: datetime) -> bool:
    # Not by ==: where clocks are set back, two equal instants in different zones are unequal.
    if given.tzinfo is not None and arrived.tzinfo is not None:
        return given.timestamp() == arrived.timestamp()
    return given == arrived


def _field_names(value: Any) -> Iterable[str] | None:
    """The fields that make up the identity of an object; None if it has none."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind) if each.compare]
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return [each.name for each in attributes if each.eq]
    fields = getattr(kind, "model_fields", None)
    if isinstance(fields, Mapping):
        return [name for name, each in fields.items() if not getattr(each, "exclude", None)]
    return None


def _is_json_form(value: Any, told: Any) -> bool:
    try:
        return bool(msgspec.to_builtins(value, enc_hook=path_text) == told)
    except (TypeError, ValueError):
        return False
