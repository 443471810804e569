"""Small records as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")

LAST = (1 << 63) - 1
"""An offset that no fact has."""
UNWRITTEN = {"is_written": False}
"""What marks a field that is worked out and not kept."""


@dataclass(slots=True)
class Tally:
    """What is counted in one place."""

    items: int = 0
    """The highest number of anything set aside."""
    notes: int = 0
    objects: int = 0
    object_bytes: int = 0
    logs: int = 0
    """The highest number of a log."""


@dataclass(slots=True)
class Reader:
    """What is kept of a consumer beside what everybody may know."""

    name: str
    log: str
    cursor: int
    to_zone: str | None = None
    is_required: bool = True
    served: int = 0
    deliveries: int = 0
    holder: str | None = None
    held_until: float = 0.0
    lease: float = 0.0
    created_at: float = 0.0
    is_gone: bool = False
    """It was deleted. Its name is kept for the sake of the following."""
    items_above: int = 0
    """Items up to this number were forgotten with an earlier consumer of this name."""
    nothing_released: int = -1
    """How many notes there were when nothing was released: whoever releases takes one."""
    aside_through: int = LAST
    """Nothing behind this offset was ever set aside."""


@dataclass(slots=True)
class Name:
    """A name of an object; without a digest, a fact refers to it and it is not there yet."""

    bucket: str
    key: str
    digest: bytes = b""
    size: int = 0
    at: float = 0.0
    is_referenced: bool = False


@dataclass(slots=True)
class Item:
    """Something that was set aside."""

    id: int
    consumer: str
    log: str
    offset: int
    reason: str
    message: str
    attempts: int
    at: float
    state: str = "quarantined"
    envelope: bytes = b""
    fact: bytes = b""
    is_served: bool = False
    """It was released and has gone out since."""


@dataclass(slots=True)
class ZoneRecord:
    """Which store it is."""

    zone: str
    epoch: str
    created_at: float


@dataclass(slots=True)
class Attribute:
    """A text that was written down about this very store."""

    value: str


@dataclass(slots=True)
class Mark:
    """What was written down about a move into this store."""

    data: bytes


@dataclass(slots=True)
class Note:
    """An entry of the journal."""

    at: float
    action: str
    details: str


def encode(record: Any) -> bytes:
    """A dataclass as JSON; bytes as hexadecimal digits."""
    kept = (each for each in fields(record) if each.metadata.get("is_written", True))
    values = {each.name: getattr(record, each.name) for each in kept}
    return json.dumps(values, separators=(",", ":"), default=bytes.hex).encode()


def decode(kind: type[T], data: bytes) -> T:
    """The record again; what a later version has added is left out."""
    found: dict[str, Any] = json.loads(data)
    values = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in found:
            values[each.name] = _typed(str(each.type), found[each.name])
    return kind(**values)


def _typed(kind: str, value: Any) -> Any:
    """A value of JSON as its field has it: JSON knows no bytes, and makes 1 of 1.0 for some."""
    if kind == "bytes" and isinstance(value, str):
        return bytes.fromhex(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if kind.startswith("float") and is_whole else value
