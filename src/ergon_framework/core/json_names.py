"""Names in JSON: dict keys such as ``1`` and ``"1"``, of which a reader would get only one.

Encoders write any key as text, and a reader keeps the last of two equal names. So a value that has
such keys would come back with less than was written, and has to be refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

encode_text_keys = msgspec.json.Encoder(order="deterministic").encode
"""An encoder that refuses keys other than text. To encode a value once more and throw the text away
is several times faster than a walk through it in Python. It sorts the keys."""


def repeated_name(value: Any, text: bytes | str) -> str | None:
    """A name that two keys of one object in ``value`` have in JSON; None when all names differ.

    ``text`` is the value as an encoder wrote it, with both names.
    """
    return None if has_text_keys(value) else name_written_twice(text)


def colliding_name(value: Any) -> str | None:
    """A name that two keys of one dict share as JSON; None if no dict in a value has such keys."""
    if has_text_keys(value):
        return None
    if isinstance(value, Mapping):
        names: set[str] = set()
        for key in value:
            name = _written(key)
            if name in names:
                return name
            names.add(name)
        value = value.values()
    elif not isinstance(value, list | tuple):
        return None
    found = (colliding_name(each) for each in value)
    return next((name for name in found if name is not None), None)


def name_written_twice(text: bytes | str) -> str | None:
    """A name that one object of a JSON text has twice; None if no object has."""
    found: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                found.append(name)
            names.add(name)

    json.loads(text, object_pairs_hook=members)
    return found[0] if found else None


def has_text_keys(value: Any) -> bool:
    """Whether a value can be encoded and all of its keys are text, as in nearly every value."""
    try:
        encode_text_keys(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return False
    return True


def _written(key: Any) -> str:
    """A key as it is written."""
    if isinstance(key, str):
        return str(key)
    try:
        [name] = msgspec.json.decode(msgspec.json.encode({key: None}), type=dict[str, None])
    except (TypeError, ValueError):  # msgspec's errors are ValueErrors; the encoder refuses it
        return repr(key)
    return name
