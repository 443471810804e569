"""Encodes JSON without loss: a value that would be read back changed is refused with its path.

A tuple, a date, NaN or bytes would come back as something else, so they are refused before anything
is written or sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ergon_framework.errors import PayloadError

BAD_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading JSON raises."""
_MAX_DEPTH = 200
_REMEDIES: tuple[tuple[str, str], ...] = (
    ("bytes", 'encode it as text, for example base64.b64encode(value).decode("ascii")'),
    ("bytearray", 'encode it as text, for example base64.b64encode(value).decode("ascii")'),
    ("tuple", "use a list"),
    ("set", "use a sorted list"),
    ("datetime", "use value.isoformat()"),
    ("date", "use value.isoformat()"),
    ("Decimal", "use str(value)"),
    ("UUID", "use str(value)"),
)


def encode(transaction_id: str, document: Mapping[str, Any]) -> bytes:
    """The document as JSON; a value that would be lost is named by its path in the document."""
    return _encoded(transaction_id, document, document)


def encode_value(transaction_id: str, name: str, value: Any) -> bytes:
    """The value as JSON; ``name`` is where the path of what would be lost begins."""
    return _encoded(transaction_id, value, {name: value})


def _encoded(transaction_id: str, value: Any, document: Mapping[str, Any]) -> bytes:
    try:
        text = msgspec.json.encode(value)
        is_lossless = msgspec.json.decode(text) == value
    except (*BAD_JSON, TypeError) as error:
        raise _refused(transaction_id, document) from error
    if not is_lossless:
        raise _refused(transaction_id, document)
    return text


def _refused(transaction_id: str, document: Mapping[str, Any]) -> PayloadError:
    path, what, remedy = "payload", "a value that JSON does not give back equal", ""
    for field, value in document.items():
        found = _problem_at(value, field, 0)
        if found is not None:
            path, what, remedy = found
            break
    return PayloadError(
        f"transaction {transaction_id!r} cannot be written as JSON without loss: {path} is {what}",
        remedy=remedy or "convert it to plain JSON values first",
        details={"transaction_id": transaction_id, "path": path},
    )


def _problem_at(value: Any, path: str, depth: int) -> tuple[str, str, str] | None:
    """The path of a lossy value, what it is, and what to do about it. None when there is none."""
    if depth > _MAX_DEPTH:
        what = f"nested more than {_MAX_DEPTH} levels deep, or inside itself"
        return f"{path[:40]}…", what, "flatten it"
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return path, f"an object with a key of type {type(key).__name__}", "use text keys"
            found = _problem_at(key, f"a key of {path}", depth + 1) or _problem_at(
                inner, path + _step(key), depth + 1
            )
            if found is not None:
                return found
        return None
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found = _problem_at(inner, f"{path}[{index}]", depth + 1)
            if found is not None:
                return found
        return None
    return _atom(value, path)


def _atom(value: Any, path: str) -> tuple[str, str, str] | None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return path, "text with a lone surrogate", "repair the text first"
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return path, "not a finite number", "use None"
    if value is None or isinstance(value, bool | int | float):
        return None
    name = type(value).__name__
    return path, f"of type {name}", dict(_REMEDIES).get(name, "")


def _step(key: str) -> str:
    short = key if len(key) <= 40 else f"{key[:40]}…"
    return f".{short}" if key.isidentifier() else f"[{short!r}]"
