"""Message ids that come out the same whenever the same event is told again.

The id is the key that prevents doubles, so it is made of what the event *is*: never of a clock, a
die or a counter. Parts are kept apart by a canonical array under a hash, for in plain concatenation
``"ab" + "c"`` is ``"a" + "bc"``.
"""

from __future__ import annotations

import datetime as dt
import uuid
from hashlib import sha256
from typing import Any, TypeAlias

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.errors import ConfigurationError, FactInvalidError

Part: TypeAlias = str | int
"""What an id may be made of."""

_HASHED = "ergon.message_id.1"
_NAMED = "ergon.stable_uuid.1"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ergon:stable-uuid")


def message_id(
    event_type: str,
    entity_kind: str,
    entity_id: Part,
    *,
    revision: Part | None = None,
    discriminator: Part | None = None,
    source_time: str | None = None,
    once: bool = False,
) -> str:
    """The id of one event that happened to one entity: 64 hexadecimal digits.

    An event that can happen to the same entity again needs something that tells the occasions
    apart: a ``revision``, any other ``discriminator``, or ``source_time``, a time as the source
    record has it. ``once=True`` says that it cannot happen again. ``1`` and ``"1"`` are different.
    """
    parts = [
        _part("event_type", event_type, is_text=True),
        _part("entity_kind", entity_kind, is_text=True),
        _part("entity_id", entity_id),
    ]
    given = {"revision": revision, "discriminator": discriminator, "source_time": source_time}
    occasion = {
        name: _part(name, value, is_text=name == "source_time")
        for name, value in given.items()
        if value is not None
    }
    if once is bool(occasion):
        raise _undecided(once, occasion)
    return sha256(_array(_HASHED, *parts, occasion)).hexdigest()


def stable_uuid(namespace: uuid.UUID | str, *name: Part) -> str:
    """A UUID of version 5 for the parts of a name; a namespace may be any text."""
    if not name:
        raise _refused("name", "is missing", "give at least one part")
    if isinstance(namespace, str):
        namespace = uuid.uuid5(_NAMESPACE, _part("namespace", namespace, is_text=True))
    elif not isinstance(namespace, uuid.UUID):
        raise _refused("namespace", f"is of type {type(namespace).__name__}", "give text or a UUID")
    parts = [_part(f"name[{n}]", part) for n, part in enumerate(name)]
    return str(uuid.uuid5(namespace, _array(_NAMED, *parts).decode()))


def _array(tag: str, *parts: Any) -> bytes:
    try:
        return canonical([tag, *parts], "id")
    except FactInvalidError as error:  # a lone surrogate, or an integer that JSON would bend
        raise ConfigurationError(error.message, remedy=error.remedy) from error


def _part(name: str, value: Any, *, is_text: bool = False) -> Any:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        remedy = "give source_time= the text that stands in the source record"
        raise _refused(name, "is a time, and a time that is read anew is another one", remedy)
    if isinstance(value, bool) or not isinstance(value, str if is_text else str | int):
        wanted = "text" if is_text else "text or a whole number"
        raise _refused(name, f"is of type {type(value).__name__}", f"give {wanted}")
    if value == "":
        raise _refused(name, "is empty", "give what the source record says")
    return value


def _undecided(once: bool, occasion: dict[str, Any]) -> ConfigurationError:
    if once:
        return _refused("once", f"contradicts {', '.join(occasion)}", "give one or the other")
    return ConfigurationError(
        "nothing tells this event from the next one of its type at the same entity",
        remedy="give revision=, discriminator= or source_time=, or once=True if there is no next",
        details={"field": "discriminator"},
    )


def _refused(name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{name} {problem}", remedy=remedy, details={"field": name})
