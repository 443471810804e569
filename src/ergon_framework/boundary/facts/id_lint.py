"""Message ids that will not come out the same when the same event is told again.

Only the shape of an id can be looked at, so only shapes are named that a random, a clock's or a
counter's id has and a derived one has not. A part of an id may look as it likes: an order that is
known by a random UUID has that UUID for ever.
"""

from __future__ import annotations

import json
import re
from hashlib import md5, sha1, sha256, sha384, sha512
from typing import Any

UNSTABLE = "unstable_id"
"""The reason of a refusal."""

_DIGITS = "0123456789"
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_BASE62 = _DIGITS + _LOWER.upper() + _LOWER
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BEGIN, _END = 978_307_200, 4_102_444_800  # 2001 and 2100, in Unix seconds
_KSUID_EPOCH = 1_400_000_000

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
"""By the number of hexadecimal digits."""

_BARE = 32
"""Hexadecimal digits of a UUID."""
_LONGEST = 64
"""No shape is longer than that."""


def lint(message_id: str) -> str | None:
    """What an id looks like that it should not be, or None."""
    if len(message_id) >= _LONGEST:
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


def doubt(message_id: str) -> str | None:
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
        return None  # then nobody has hashed that
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
