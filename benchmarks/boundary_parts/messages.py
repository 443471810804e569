"""The facts that everybody stores: the same bytes for each contestant, and made beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple

import msgspec

from ergon_framework.boundary.model import Envelope, Fact

SIZE = 500
"""Bytes of envelope and fact together, as JSON."""
FROM, TO = "plant-a", "plant-b"
PRODUCED_AT = 1_750_000_000_000

_BEFORE_ID = b'{"envelope":{"message_id":"'
_ID_LENGTH = 64

_turns = count()
_encode = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """One fact, as a producer in this process has it and as it travels."""

    envelope: Envelope
    fact: Fact
    body: bytes


def messages(number: int, size: int = SIZE) -> list[Message]:
    """Facts that nobody has seen before, with ids as random as those of a hash."""
    turn = next(_turns)
    return [_message(f"{turn}/{each}", each, size) for each in range(number)]


def split_messages(number: int, parts: int, size: int = SIZE) -> list[list[Message]]:
    """The same, dealt to so many producers."""
    made = messages(number, size)
    return [made[part::parts] for part in range(parts)]


def identifiers(prefix: str, first: int, last: int) -> Iterator[str]:
    """Ids alone."""
    return (_id(f"{prefix}/{each}") for each in range(first, last))


def message_id_in(body: bytes) -> str:
    """The id in what travels, found without reading all of it."""
    first = len(_BEFORE_ID)
    return body[first : first + _ID_LENGTH].decode()


def _id(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _message(name: str, number: int, size: int) -> Message:
    envelope = Envelope(
        message_id=_id(name),
        from_zone=FROM,
        to_zone=TO,
        produced_at_unix_ms=PRODUCED_AT + number,
        correlation_id=f"order-{number % 1000}",
    )
    lacking = size - len(_body(envelope, _fact(number, "")))
    fact = _fact(number, "n" * max(0, lacking))
    return Message(envelope, fact, _body(envelope, fact))


def _fact(number: int, note: str) -> Fact:
    what: dict[str, Any] = {
        "step": number % 40,
        "is_good": number % 50 != 0,
        "temperature": 20.5 + number % 80,
        "operators": ["first", "second"],
        "note": note,
    }
    return Fact(subject=f"batch:site/{number}", predicate="step_completed", object_json=what)


def _body(envelope: Envelope, fact: Fact) -> bytes:
    return _encode({"envelope": envelope, "fact": fact})
