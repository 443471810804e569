"""The requests of every operation but the appends, and how they are read.

A body is a JSON object. Names may be written in snake_case or lowerCamelCase and numbers as text:
that is how protobuf writes them.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import msgspec

from ergon_framework.errors import FactInvalidError

T = TypeVar("T", bound="Request")

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
LONGEST_LEASE = 86_400_000
"""Milliseconds."""
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request with named fields."""


class FetchFacts(Request):
    """A page for a consumer; with ``wait_ms`` it waits for facts when there are none."""

    consumer_name: str
    limit: int = 100
    wait_ms: int = 0
    max_bytes: int | None = None
    holder: str | None = None
    lease_ms: int | None = None


class ConfirmReceipt(Request):
    """Everything at or below ``offset`` is handled."""

    consumer_name: str
    offset: int
    holder: str | None = None


class LookupFact(Request):
    """Whether an id was appended."""

    from_zone: str
    message_id: str
    log: str | None = None


class CreateConsumer(Request):
    """A durable reader of one log."""

    consumer_name: str
    log: str = "outbound"
    start: Literal["start", "end"] = msgspec.field(name="from", default="start")
    to_zone: str | None = None
    required: bool = True


class ConsumerOnly(Request):
    """DeleteConsumer."""

    consumer_name: str


class SeekConsumer(Request):
    """Set a cursor, also backwards; the reason goes into the journal."""

    consumer_name: str
    offset: int
    reason: str = ""


class ReleaseLease(Request):
    """A holder lets go of a consumer's name."""

    consumer_name: str
    holder: str


class QuarantineFact(Request):
    """Set the next fact of a consumer aside."""

    consumer_name: str
    offset: int
    reason: str = "handler_failed"
    message: str = ""
    attempts: int = 1
    holder: str | None = None


class ListQuarantine(Request):
    """What was set aside; ``state`` ``all`` for everything."""

    consumer_name: str | None = None
    state: Literal["quarantined", "released", "discarded", "settled", "all"] = "quarantined"


class QuarantineItem(Request):
    """ReleaseQuarantine and DiscardQuarantine."""

    id: int
    reason: str = ""


class Seal(Request):
    """Seal or open the link to one peer, or all of them."""

    peer: str | None = None
    reason: str = ""


class AcceptEpoch(Request):
    """Trust a peer's store although it has changed."""

    peer: str


class Nothing(Request):
    """A request without fields."""


def read(body: bytes, shape: type[T]) -> T:
    """The request in a body; ``FactInvalidError`` names the field that is wrong."""
    try:
        data = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FactInvalidError(
            f"the body is not JSON: {error}",
            reason="json",
            remedy="send one JSON object as application/json",
        ) from None
    if not isinstance(data, dict):
        raise FactInvalidError(
            "the body is not a JSON object", reason="type", remedy="send one JSON object"
        )
    try:
        return msgspec.convert(
            {snake(key): value for key, value in data.items()}, shape, strict=False
        )
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None


def snake(name: str) -> str:
    """A lowerCamelCase name in snake_case."""
    return _HUMP.sub(lambda found: "_" + found[1].lower(), name)


def consumer_name(name: str) -> str:
    """A consumer's name, checked."""
    return _checked("consumer_name", name)


def holder_name(name: str | None) -> str | None:
    """A holder's name, checked."""
    return None if name is None else _checked("holder", name)


def at_least(field: str, value: int, least: int) -> int:
    """A number that is not too small, nor too large for any store."""
    if least <= value < 1 << 63:
        return value
    raise FactInvalidError(
        f"{field} must be at least {least}" if value < least else f"{field} is too large",
        reason="range",
        remedy=f"give a whole number from {least} on",
        details={"field": field},
    )


def lease_seconds(milliseconds: int) -> float:
    """How long a name is asked for: at most a day, since a lease is renewed while it is used."""
    if at_least("lease_ms", milliseconds, 1) <= LONGEST_LEASE:
        return milliseconds / 1000
    raise FactInvalidError(
        "lease_ms is longer than a day",
        reason="range",
        remedy="ask for less: a lease is renewed by each fetch",
        details={"field": "lease_ms"},
    )


def _checked(field: str, name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    raise FactInvalidError(
        f"{field} must have 1 to 255 characters, none of them a control character",
        reason="pattern",
        remedy="correct the name",
        details={"field": field},
    )


def _wrong(text: str) -> FactInvalidError:
    found = _PLACE.match(text)
    what, path = (found["what"], found["path"]) if found else (text, None)
    named = re.search(r"field `(\w+)`", what)
    details: dict[str, Any] = {"field": path or (named[1] if named else "")}
    reason = "missing" if "missing required" in what else "type"
    if "unknown field" in what:
        reason = "unknown_field"
    return FactInvalidError(
        f"{what}{f' at {path}' if path else ''}",
        reason=reason,
        remedy="see the OpenAPI document at /openapi.json",
        details=details,
    )
