"""Values of records as JSON, so that a file of records can be read without Ergon, and read back.

Every value has one spelling. The same record makes the same line, whichever store it came from:

- Bytes that are UTF-8 text, as payloads are, stand there as that text; any other bytes are
  ``{"base64": "…"}``.
- Instants that a table keeps as such are ISO texts in UTC, with microseconds.
- Digests, hash chains and keys of facts' ids (:data:`HEX`) are hexadecimal.
- Fields stand in the order of their class, and keys of dictionaries in the order of their letters.
- A field that a class does not have, or one that is missing, is refused when it is read.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

HEX = frozenset({"chain", "digest", "key"})
"""Fields of bytes that are written as hexadecimal digits, even if they look like text."""

T = TypeVar("T")
Reader = Callable[[Any], Any]


# ---- out ----------------------------------------------------------------------------------------


def plain_record(record: object) -> dict[str, Any]:
    """A record with all its fields, as JSON has it."""
    kind: Any = type(record)
    found = {}
    for name, is_plain in _plain_fields(kind):
        value = getattr(record, name)
        found[name] = value if is_plain or value is None else plain(value, name)
    return found


def plain(value: Any, name: str = "") -> Any:
    """A value as JSON has it; ``name`` is that of the field it stands in."""
    sort = type(value)
    if sort is float:
        return _finite(value)
    if sort is bytes:
        return value.hex() if name in HEX else plain_bytes(value)
    if value is None or sort in (str, int, bool):
        return value
    if isinstance(value, Enum):
        return value.value
    if sort is datetime:
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, str):  # a name that SQLAlchemy made
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [plain(each, name) for each in value]
    return plain_record(value)


def plain_bytes(value: bytes) -> str | dict[str, str]:
    """Bytes as text where they are text, and otherwise in Base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# ---- in -----------------------------------------------------------------------------------------


def read(kind: type[T], value: Any) -> T:
    """A record of a class out of JSON; ``ValueError`` says what does not fit, and where."""
    found: T = _reader(cast("Any", kind), "")(value)
    return found


def read_value(kind: Any, value: Any) -> Any:
    """A value of a type out of JSON; ``ValueError`` says what does not fit."""
    return _reader(kind, "")(value)


def read_bytes(value: Any) -> bytes:
    """What :func:`plain_bytes` made of some bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            pass
    raise _unfit("a text or Base64", value)


def read_instant(value: Any) -> datetime:
    """An instant, which says its zone."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = datetime.fromisoformat(value)
            if found.tzinfo is not None:
                return found.astimezone(UTC)
    raise _unfit("an instant with a time zone", value)


@cache
def _reader(kind: Any, name: str) -> Reader:
    """What reads a value of a type; ``name`` is that of the field it stands in."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind, name)
    if origin is tuple:
        return _tuple(get_args(kind), name)
    if origin in (dict, Mapping):
        return _dictionary(get_args(kind)[1])
    if kind is bytes:
        return _hex if name in HEX else read_bytes
    if kind is float:
        return _float
    if kind is datetime:
        return read_instant
    if kind in (str, int, bool):
        return _exactly(kind)
    if kind is Any:
        return lambda value: value
    if issubclass(kind, Enum):
        return _member(kind)
    return _record(kind)


def _optional(kind: Any, name: str) -> Reader:
    [inner] = [each for each in get_args(kind) if each is not types.NoneType]
    read_inner = _reader(inner, name)
    return lambda value: None if value is None else read_inner(value)


def _tuple(kinds: tuple[Any, ...], name: str) -> Reader:
    read_inner = _reader(kinds[0], name)  # every tuple of a record has as many as it likes

    def read_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _unfit("a list", value)
        return tuple(read_inner(each) for each in value)

    return read_tuple


def _dictionary(kind: Any) -> Reader:
    read_inner = _reader(kind, "")

    def read_dictionary(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        return {key: read_inner(each) for key, each in value.items()}

    return read_dictionary


def _exactly(kind: type) -> Reader:
    def read_exactly(value: Any) -> Any:
        # Not `isinstance`: true and false are ints to Python, and no numbers to JSON.
        is_fit = type(value) is kind
        if not is_fit or (kind is int and not -_LARGE <= value < _LARGE):
            raise _unfit(_WORDS[kind], value)
        return value

    return read_exactly


def _member(kind: type[Enum]) -> Reader:
    members = {each.value: each for each in kind}

    def read_member(value: Any) -> Enum:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise _unfit(f"one of {', '.join(members)}", value)
        return found

    return read_member


def _record(kind: type) -> Reader:
    hints = get_type_hints(kind)
    fields = {name: _reader(hints[name], name) for name in _fields(kind)}

    def read_record(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _unfit("an object", value)
        if value.keys() != fields.keys():
            raise _other_fields(value, fields)
        found = {}
        for name, read_field in fields.items():
            try:
                found[name] = read_field(value[name])
            except ValueError as error:
                raise ValueError(_at(name, error)) from error
        return kind(**found)

    return read_record


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit("a number", value)
    try:
        return _finite(float(value))
    except OverflowError:
        raise _unfit("a number", value) from None


def _hex(value: Any) -> bytes:
    if isinstance(value, str) and value == value.lower():
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise _unfit("hexadecimal bytes", value)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = f"{value} is no number that JSON has"
        raise ValueError(message)
    return value


@cache
def _plain_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a class, and whether what stands in them is the same in JSON."""
    hints = get_type_hints(kind)
    same = (str, int, bool, str | None, int | None, bool | None)
    return tuple((name, hints[name] in same) for name in _fields(kind))


@cache
def _fields(kind: type) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    message = f"no record has a field of {kind.__name__}"
    raise TypeError(message)


_LARGE = 1 << 63  # the whole numbers that every store has
_WORDS = {str: "a text", int: "a whole number of 64 bits", bool: "true or false"}


def _unfit(wanted: str, value: Any) -> ValueError:
    """The error that says what was expected. The value may be secret, so only its type is shown."""
    return ValueError(f"{wanted} is wanted, not {_sort(value)}")


def _sort(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "this text", int: "this number", float: "this number", list: "a list"}
    return names.get(type(value), "an object")


def _other_fields(value: Mapping[str, Any], fields: Mapping[str, Any]) -> ValueError:
    missing, unknown = sorted(fields.keys() - value.keys()), sorted(value.keys() - fields.keys())
    problems = [f"{name} is missing" for name in missing[:3]]
    problems += [f"{name[:40]!r} is unknown" for name in unknown[:3]]
    return ValueError(", ".join(problems))


def _at(name: str, error: ValueError) -> str:
    """Where in a record something does not fit: ``job.status: …``."""
    inner = str(error)
    head, colon, rest = inner.partition(": ")
    is_path = bool(colon) and head.replace(".", "").replace("_", "").isalnum()
    return f"{name}.{head}: {rest}" if is_path else f"{name}: {inner}"
