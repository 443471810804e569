"""Message ids that are the same when an event is published again, and a check that finds ids which
are not.

A producer that repeats a fact must repeat its id. ``message_id`` and ``stable_uuid`` derive the id
from what the fact is about; ``lint`` recognises random and time-based ids.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from hashlib import md5, sha1, sha256, sha384, sha512
from typing import Any, TypeAlias

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.errors import ConfigurationError, FactInvalidError

IdPart: TypeAlias = str | int
"""What an id may be made of."""

_HASHED = "ergon.message_id.1"
_NAMED = "ergon.stable_uuid.1"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ergon:stable-uuid")


def message_id(
    event_type: str,
    entity_kind: str,
    entity_id: IdPart,
    *,
    revision: IdPart | None = None,
    discriminator: IdPart | None = None,
    source_time: str | None = None,
    once: bool = False,
) -> str:
    """The id of one event that happened to one entity: 64 hexadecimal digits.

    An event that can happen to the same entity again needs something that differs between the
    occurrences: a ``revision``, any other ``discriminator``, or ``source_time``, a time as the
    source record has it. ``once=True`` says that it cannot happen again. ``1`` and ``"1"`` are
    different.
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


def stable_uuid(namespace: uuid.UUID | str, *name: IdPart) -> str:
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


UNSTABLE = "unstable_id"
"""The reason of a refusal."""

_DIGITS = "0123456789"
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_BASE62 = _DIGITS + _LOWER.upper() + _LOWER
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BEGIN, _END = 978_307_200, 4_102_444_800  # 2001 and 2100, in Unix seconds
_KSUID_EPOCH = 1_400_000_000  # from where a KSUID counts its seconds: the year 2014

_UUID = re.compile(
    r"(?:urn:uuid:|\{)?[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\}?",
    re.IGNORECASE,
)
_UUIDS = {
    "1": "a time-based UUID (version 1)",
    "2": "a time-based UUID (version 2)",
    "4": "a random UUID (version 4)",
    "6": "a time-based UUID (version 6)",
    "7": "a time-based UUID (version 7)",
}
_BARE_UUID = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?([0-9]{1,39})(\.[0-9]+)?")  # a UUID's number has up to 39 digits
_MOMENT = re.compile(
    r"[0-9]{4}-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12][0-9]|3[01])"
    r"(?:[T_-]?[0-2][0-9](?::?[0-5][0-9]){1,2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?",
    re.IGNORECASE,
)
_ULID = re.compile(rf"[0-7][{_CROCKFORD}]{{25}}", re.IGNORECASE)
_KSUID = re.compile(r"(?=.*[A-Z])(?=.*[a-z])[0-9][0-9A-Za-z]{26}")

_HASHES = {32: md5, 40: sha1, 64: sha256, 96: sha384, 128: sha512}
"""Hash functions by the number of hexadecimal digits of their digests."""

_BARE = 32
"""Hexadecimal digits of a UUID."""
_MAX_LENGTH = 64
"""No shape is longer than that."""


def lint(message_id: str) -> str | None:
    """What an id looks like that it should not be, or None."""
    if len(message_id) >= _MAX_LENGTH:
        return None
    if found := _UUID.fullmatch(message_id):
        return _UUIDS.get(found[1])
    first = message_id[:1]
    if first not in _DIGITS and first not in "+-":
        return None
    if found := _NUMBER.fullmatch(message_id):
        return _number(found[1])
    if _MOMENT.fullmatch(message_id):
        return "a point in time"
    if _ULID.fullmatch(message_id) and _is_time(_value(message_id[:10].upper(), _CROCKFORD) / 1000):
        return "a ULID, which is made of time and chance"
    if _KSUID.fullmatch(message_id) and _is_time(
        (_value(message_id, _BASE62) >> 128) + _KSUID_EPOCH
    ):
        return "a KSUID, which is made of time and chance"
    return None


def id_warning(message_id: str) -> str | None:
    """What an id may be that it should not be, or None.

    A random UUID without its dashes has the shape that one of 64 MD5 digests has: too few to pass
    over it without a word, and too many to refuse it.
    """
    if len(message_id) == _BARE and _BARE_UUID.fullmatch(message_id):
        return "a random UUID (version 4) without dashes"
    return None


def is_digest(message_id: str) -> bool:
    """Whether an id has the length of a hash; what precedes it may name the hash."""
    return len(message_id.rpartition(":")[2]) in _HASHES


def hash_of_object(message_id: str, form: bytes, raw: bytes | None = None) -> str | None:
    """Whether an id is nothing but the hash of the object in one of its spellings, or None.

    Such an id changes with every field of the object, and two equal events would have the same one.
    """
    digits = message_id.rpartition(":")[2]  # what precedes it may name the hash
    hashed = _HASHES.get(len(digits))
    if hashed is not None:
        for spelling in (form,) if raw is None else (form, raw):
            if hashed(spelling, usedforsecurity=False).hexdigest() == digits.lower():
                return "the hash of object_json"
    return None


def hash_of_python(message_id: str, value: Any) -> str | None:
    """Whether an id is nothing but the hash of what ``json.dumps`` makes of the object, or None."""
    try:
        spellings = {json.dumps(value), json.dumps(value, sort_keys=True)}
    except (TypeError, ValueError, RecursionError):
        return None  # no hash has such a text
    first, *others = (each.encode() for each in spellings)
    return hash_of_object(message_id, first, *others)


def _number(digits: str) -> str:
    for length, unit in ((10, ""), (13, "milli"), (16, "micro"), (19, "nano")):
        if len(digits) == length and _is_time(int(digits[:10])):
            return f"a time in {unit}seconds since 1970"
    if _MOMENT.fullmatch(digits):
        return "a point in time"
    return "a bare number, like those of a counter"


def _is_time(seconds: float) -> bool:
    return _BEGIN <= seconds < _END


def _value(text: str, alphabet: str) -> int:
    value = 0
    for character in text:
        value = value * len(alphabet) + alphabet.index(character)
    return value
