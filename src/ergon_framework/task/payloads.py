"""Turns a payload into the type that a consumer function declares for it.

msgspec reads structs, dataclasses, attrs classes, TypedDicts and the types of the standard library;
pydantic models read themselves. Each library is imported only for a program that uses its types. A
payload that does not fit is a business failure: no further attempt would help. Its message names
the field and the reason, and never shows a value of the payload.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import re
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from ergon_framework.errors import ExceptionType, HookError, TransactionException, describe
from ergon_framework.ports.round_trip import is_path

Converter = Callable[[Any], Any]

_ANYTHING = (Any, object)
_TEXTUAL = (
    *(str, enum.Enum, uuid.UUID, decimal.Decimal),
    *(dt.date, dt.time, dt.timedelta, PurePath),
)
"""Types that a text stands for by itself, so that it is not read as JSON."""
_BINARY = (bytes, bytearray, memoryview)
_PATH = re.compile(r"^(?P<reason>.*?) - at `(?:key` in `)?\$(?P<path>.*)`$", re.DOTALL)
_SHOWN_VALUE = re.compile(r"^(Invalid (?:enum )?value).*$", re.DOTALL)
_FIELD = "payload"


class InvalidPayloadError(TransactionException):
    """The payload of a transaction does not fit the type that its consumer declares."""

    code = "invalid_payload"
    category = ExceptionType.BUSINESS


class _RefusedError(ValueError):
    """Why a class refuses a value, in words that show nothing of it."""


def payload_converter(owner: str, hint: Any) -> Converter | None:
    """A function that makes the declared type of a payload; None where any payload will do."""
    import msgspec

    if hint in _ANYTHING:
        return None
    title = name_of_type(hint)
    try:
        # A struct with one field remembers how its type is read; a bare type is read each time.
        struct = msgspec.defstruct("Payload", [(_FIELD, hint)])
        decoder: Any = msgspec.json.Decoder(hint, dec_hook=_made)
        # Made only to refuse, now, a type that convert() could not read.
        msgspec.json.Decoder(struct, dec_hook=_made)
    except Exception as error:
        raise HookError(
            f"the consumer {owner!r} cannot take a payload of the type {title}: {describe(error)}",
            remedy="annotate it with a struct, a dataclass, an attrs class, a TypedDict, a pydantic"
            " model or a builtin type, or with Any",
        ) from error
    encoded = _encoded(hint)
    exact = hint if isinstance(hint, type) else None

    def convert(payload: Any) -> Any:
        if type(payload) is exact:
            return payload
        is_json = isinstance(payload, encoded)
        try:
            if is_json:
                return decoder.decode(payload)
            made: Any = msgspec.convert({_FIELD: payload}, struct, dec_hook=_made)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            reason = _reason(error, "" if is_json else f".{_FIELD}")
            # from None: msgspec's error may show a value of the payload.
            raise InvalidPayloadError(f"the payload is no {title}: {reason}") from None
        return made.payload

    return convert


def name_of_type(hint: Any) -> str:
    """A type as people write it: without the modules it comes from."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return re.sub(r"(?:\b\w+(?:\.<locals>)?\.)+(?=\w)", "", str(hint))


def _encoded(hint: Any) -> tuple[type, ...]:
    """Which payloads are JSON that has to be decoded first."""
    kinds = [each for each in _members(hint) if isinstance(each, type)]
    texts = [each for each in _members(hint) if isinstance(each, str)]  # of a Literal
    is_text = bool(texts) or any(issubclass(each, _TEXTUAL) or each is object for each in kinds)
    is_binary = any(issubclass(each, _BINARY) for each in kinds)
    return (*(() if is_binary else (bytes, bytearray, memoryview)), *(() if is_text else (str,)))


def _members(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _members(each)
    elif origin is typing.Annotated:
        yield from _members(typing.get_args(hint)[0])
    elif origin is typing.Literal:
        yield from typing.get_args(hint)
    elif hint is Any:
        yield object
    else:
        yield origin or hint


def _made(kind: Any, value: Any) -> Any:
    """Build a value of a type that msgspec does not know: a pydantic model, or a user's class."""
    if is_path(kind, value):
        return kind(value)
    validate = getattr(kind, "model_validate", None)
    if validate is None or isinstance(value, kind):
        if isinstance(value, kind):
            return value
        raise _RefusedError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
    try:
        return validate(value)
    except ValueError as error:
        reason = _pydantic_reason(kind, error)
    # Raised after the except: pydantic's error, as its context, would show the payload in a log.
    raise _RefusedError(reason)


def _reason(error: Exception, prefix: str) -> str:
    """The reason without any value: texts of the user's classes may show the one they refuse."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    found = _PATH.match(str(error))
    reason = found["reason"] if found else str(error)
    path = found["path"].removeprefix(prefix).lstrip(".") if found else ""
    cause = error.__cause__
    if isinstance(cause, _RefusedError):
        reason = str(cause)
    elif cause is not None:
        reason = f"refused with {type(cause).__name__}"
    else:
        reason = _SHOWN_VALUE.sub(r"\1", reason)
    return f"{path}: {reason}" if path else reason


def _pydantic_reason(kind: Any, error: Any) -> str:
    try:
        problems = error.errors(include_url=False, include_input=False)
    except Exception:  # a model_validate of another library, or one that was overridden
        return f"Not a valid `{kind.__name__}`"
    names = _names_in(kind)
    reasons = (f"{_place(each['loc'], names)}: {_problem(each)}" for each in problems[:5])
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    return "; ".join(reasons) + more


def _place(loc: tuple[Any, ...], names: frozenset[str]) -> str:
    """Where in the model: a key that no field has is part of the payload, and stays out."""
    parts = (str(each) if isinstance(each, int) or each in names else "[...]" for each in loc)
    return ".".join(parts) or "the model"


@functools.lru_cache(maxsize=256)
def _names_in(kind: Any) -> frozenset[str]:
    """The names of all fields of a model, and of the models inside of it."""

    def names(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            for each in schema.values():
                yield from names(each)
        elif isinstance(schema, list):
            for each in schema:
                yield from names(each)

    try:
        return frozenset(names(kind.model_json_schema()))
    except Exception:  # a field may have a type without a schema
        return frozenset(getattr(kind, "model_fields", ()))


def _problem(details: dict[str, Any]) -> str:
    """The text of pydantic where it comes from the type alone; else only the kind of problem."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return "refused by a validator"
    if "error" in context or "tag" in context or kind not in _kinds_of_pydantic():
        return str(kind)
    return str(details["msg"])


@functools.lru_cache(maxsize=1)
def _kinds_of_pydantic() -> frozenset[str]:
    from pydantic_core.core_schema import ErrorType

    return frozenset(typing.get_args(ErrorType))
