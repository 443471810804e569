"""Every operation by its name: what it takes, who may do it, what it answers.

The four of the core service are the contract; the others stand in a service of their own, so that
the contract stays as small as it is. A body is a JSON object. Names may be written in snake_case or
lowerCamelCase and numbers as text: that is how protobuf writes them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from ergon_framework.boundary.node.policy import Permissions
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.node.wire import (
    consumer_view,
    gap_view,
    link_view,
    quarantine_view,
)
from ergon_framework.boundary.zone import PEER, LocalZone, check_log
from ergon_framework.errors import BoundaryNotFoundError, FactInvalidError, NotPermittedError
from ergon_framework.ports.factstore import Quarantined

T = TypeVar("T")


class Offload(Protocol):
    """Runs something in a thread and answers with what it returned."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run it."""


RequestT = TypeVar("RequestT", bound="OperationRequest")

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
MAX_LEASE_MS = 86_400_000
"""Milliseconds."""
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")


class OperationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request with named fields."""


class FetchFacts(OperationRequest):
    """A page for a consumer; with ``wait_ms`` it waits for facts when there are none."""

    consumer_name: str
    limit: int = 100
    wait_ms: int = 0
    max_bytes: int | None = None
    holder: str | None = None
    lease_ms: int | None = None


class ConfirmReceipt(OperationRequest):
    """Everything at or below ``offset`` is handled."""

    consumer_name: str
    offset: int
    holder: str | None = None


class LookupFact(OperationRequest):
    """Whether an id was appended."""

    from_zone: str
    message_id: str
    log: str | None = None


class CreateConsumer(OperationRequest):
    """A durable reader of one log."""

    consumer_name: str
    log: str = "outbound"
    start: Literal["start", "end"] = msgspec.field(name="from", default="start")
    to_zone: str | None = None
    required: bool = True


class ConsumerOnly(OperationRequest):
    """DeleteConsumer."""

    consumer_name: str


class SeekConsumer(OperationRequest):
    """Set a cursor, also backwards; the reason goes into the journal."""

    consumer_name: str
    offset: int
    reason: str = ""


class ReleaseLease(OperationRequest):
    """A holder lets go of a consumer's name."""

    consumer_name: str
    holder: str


class QuarantineFact(OperationRequest):
    """Set the next fact of a consumer aside."""

    consumer_name: str
    offset: int
    reason: str = "handler_failed"
    message: str = ""
    attempts: int = 1
    holder: str | None = None


class ListQuarantine(OperationRequest):
    """What was set aside; ``state`` ``all`` for everything."""

    consumer_name: str | None = None
    state: Literal["quarantined", "released", "discarded", "settled", "all"] = "quarantined"


class QuarantineRequest(OperationRequest):
    """ReleaseQuarantine and DiscardQuarantine."""

    id: int
    reason: str = ""


class Seal(OperationRequest):
    """Seal or open the link to one peer, or all of them."""

    peer: str | None = None
    reason: str = ""


class AcceptEpoch(OperationRequest):
    """Trust a peer's store although it has changed."""

    peer: str


class Nothing(OperationRequest):
    """A request without fields."""


def read(body: bytes, kind: type[RequestT]) -> RequestT:
    """The request in a body; ``FactInvalidError`` names the field that is wrong."""
    try:
        # An operation without fields may be called without a body.
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
            # Not strict, and both spellings of names: clients made from the ``.proto`` send 64-bit
            # numbers as text, and names in lowerCamelCase.
            {snake(key): value for key, value in data.items()},
            kind,
            strict=False,
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
    # The upper bound is that of every store's integer column; Python would let more through and the
    # store would fail.
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
    if at_least("lease_ms", milliseconds, 1) <= MAX_LEASE_MS:
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


# ruff: noqa: ARG001 - every operation takes the same three arguments


MAX_REASON = 500
"""Characters of a reason that are kept."""
CORE, ADMIN = "bsfg.v1.Boundary", "bsfg.v1.BoundaryAdmin"

R = TypeVar("R", bound=OperationRequest)


class Operation(NamedTuple):
    """An operation that is answered with one document."""

    name: str
    service: str
    kind: type[OperationRequest]
    run: Callable[[LocalZone, Permissions, Any], dict[str, Any]]


OPERATIONS: dict[str, Operation] = {}
"""The operations by path, without the leading slash. Appends and fetches are in the application
itself.
"""


def operation(
    service: str, kind: type[R]
) -> Callable[
    [Callable[[LocalZone, Permissions, R], dict[str, Any]]], Callable[..., dict[str, Any]]
]:
    """Make a function an operation of that service, under its own name in CamelCase."""

    def register(
        run: Callable[[LocalZone, Permissions, R], dict[str, Any]],
    ) -> Callable[..., dict[str, Any]]:
        name = "".join(part.capitalize() for part in run.__name__.split("_"))
        OPERATIONS[f"{service}/{name}"] = Operation(name, service, kind, run)
        return run

    return register


def demand(is_allowed: bool, permit: Permissions, what: str, **details: Any) -> None:
    """Refuse what a caller may not do, and say what that was."""
    if is_allowed:
        return
    raise NotPermittedError(
        f"{permit.identity or 'an anonymous caller'} may not {what}",
        reason="not_allowed",
        remedy="an operator of this zone may allow it in the policy file",
        details=details,
    )


def _view(name: str, to_zone: str | None) -> str | None:
    """Whose facts a consumer sees: the consumer of a peer sees those for that peer, no others."""
    peer = name.removeprefix(PEER)
    # ``name`` without the prefix is not the consumer of a peer, and may see what it asks for.
    if peer in (name, to_zone):
        return to_zone
    if to_zone is None:
        return peer
    raise FactInvalidError(
        f"the consumer {name} sees facts to {peer!r} only",
        reason="range",
        details={"field": "to_zone"},
    )


def check_use(zone: LocalZone, permit: Permissions, name: str) -> str:
    """Refuse a consumer that the caller may not use, by its name or by the log it reads."""
    demand(
        permit.may_consume(consumer_name(name)),
        permit,
        f"use the consumer {name}",
        consumer_name=name,
    )
    # Looked up only where the policy distinguishes logs: the look-up costs a read of the store.
    if not permit.logs.is_all:
        log = zone.store.consumer(name).log
        demand(permit.may_read(log), permit, f"read the log {log}", log=log)
    return name


@operation(CORE, ConfirmReceipt)
def confirm_receipt(zone: LocalZone, permit: Permissions, asked: ConfirmReceipt) -> dict[str, Any]:
    """Move a cursor up; what was handled is never delivered again."""
    name = check_use(zone, permit, asked.consumer_name)
    # Before the cursor moves: while a link is sealed nothing crosses it, confirmations included.
    zone.check_seal(name)
    offset = at_least("offset", asked.offset, 0)
    zone.events.count("confirms")
    cursor = zone.store.confirm(name, offset, holder=holder_name(asked.holder))
    zone.events.tell("receipt.confirmed", consumer=name, cursor=cursor)
    return {"cursor": cursor}


@operation(ADMIN, LookupFact)
def lookup_fact(zone: LocalZone, permit: Permissions, asked: LookupFact) -> dict[str, Any]:
    """Whether an id was ever appended, and where."""
    demand(
        permit.may_assert(asked.from_zone) or permit.logs.is_all,
        permit,
        f"ask about facts of zone {asked.from_zone!r}",
        from_zone=asked.from_zone,
    )
    if asked.log is not None:
        check_log(asked.log, (info.name for info in zone.store.logs()))
    return zone.lookup(asked.from_zone, asked.message_id, asked.log)


@operation(ADMIN, CreateConsumer)
def create_consumer(zone: LocalZone, permit: Permissions, asked: CreateConsumer) -> dict[str, Any]:
    """Create a durable reader of a log; the same again is fine."""
    name = consumer_name(asked.consumer_name)
    demand(permit.may_consume(name), permit, f"use the consumer {name}", consumer_name=name)
    # A log that is not there yet would be created by its first reader under a mistyped name.
    log = check_log(asked.log, (info.name for info in zone.store.logs()))
    demand(permit.may_read(log), permit, f"read the log {log}", log=log)
    to_zone = _view(name, asked.to_zone)
    info = zone.store.create_consumer(
        name,
        log,
        from_end=asked.start == "end",
        to_zone=to_zone,
        is_required=asked.required,
    )
    return consumer_view(info, zone.clock())


@operation(ADMIN, Nothing)
def list_consumers(zone: LocalZone, permit: Permissions, asked: Nothing) -> dict[str, Any]:
    """Every consumer with its cursor and its backlog."""
    now = zone.clock()
    seen = [info for info in zone.store.consumers() if permit.may_consume(info.name)]
    return {"consumers": [consumer_view(info, now) for info in seen]}


@operation(ADMIN, ConsumerOnly)
def delete_consumer(zone: LocalZone, permit: Permissions, asked: ConsumerOnly) -> dict[str, Any]:
    """Forget a consumer; retention no longer waits for it."""
    name = check_use(zone, permit, asked.consumer_name)
    zone.store.delete_consumer(name)
    zone.events.note("consumer.deleted", f"the consumer {name} was deleted", consumer=name)
    return {}


@operation(ADMIN, SeekConsumer)
def seek_consumer(zone: LocalZone, permit: Permissions, asked: SeekConsumer) -> dict[str, Any]:
    """Set a cursor by hand, also backwards; it is written down."""
    name = check_use(zone, permit, asked.consumer_name)
    return zone.seek(name, at_least("offset", asked.offset, 0), asked.reason[:MAX_REASON])


@operation(ADMIN, ReleaseLease)
def release_lease(zone: LocalZone, permit: Permissions, asked: ReleaseLease) -> dict[str, Any]:
    """A holder lets go of a consumer's name."""
    zone.store.release_lease(check_use(zone, permit, asked.consumer_name), asked.holder)
    return {}


@operation(ADMIN, QuarantineFact)
def quarantine_fact(zone: LocalZone, permit: Permissions, asked: QuarantineFact) -> dict[str, Any]:
    """Set the next fact of a consumer aside, so that it can go on."""
    name = check_use(zone, permit, asked.consumer_name)
    item = zone.store.set_aside(
        name,
        at_least("offset", asked.offset, 1),
        reason=asked.reason[:64] or "handler_failed",
        message=asked.message[:2000],
        attempts=at_least("attempts", asked.attempts, 0),
        holder=holder_name(asked.holder),
    )
    zone.events.warn(
        "fact.quarantined",
        f"the fact at {item.offset} of {item.log} was set aside for {name}: {item.reason}",
        consumer=name,
        offset=item.offset,
        why=item.reason,
        attempts=item.attempts,
    )
    return quarantine_view(item)


@operation(ADMIN, ListQuarantine)
def list_quarantine(zone: LocalZone, permit: Permissions, asked: ListQuarantine) -> dict[str, Any]:
    """What was set aside."""
    state = None if asked.state == "all" else asked.state
    items = zone.store.quarantine(asked.consumer_name, state)
    seen = [item for item in items if permit.may_consume(item.consumer)]
    return {"items": [quarantine_view(item) for item in seen]}


@operation(ADMIN, QuarantineRequest)
def release_quarantine(
    zone: LocalZone, permit: Permissions, asked: QuarantineRequest
) -> dict[str, Any]:
    """Deliver a fact that was set aside once more."""
    item = _settled(zone, permit, asked, "released")
    zone.events.tell("quarantine.released", id=item.id, consumer=item.consumer)
    return quarantine_view(item)


@operation(ADMIN, QuarantineRequest)
def discard_quarantine(
    zone: LocalZone, permit: Permissions, asked: QuarantineRequest
) -> dict[str, Any]:
    """Give a fact that was set aside up for good, for that consumer."""
    item = _settled(zone, permit, asked, "discarded")
    zone.events.tell("quarantine.discarded", id=item.id, consumer=item.consumer)
    return quarantine_view(item)


def _settled(
    zone: LocalZone, permit: Permissions, asked: QuarantineRequest, state: str
) -> Quarantined:
    number = at_least("id", asked.id, 1)
    # The permission belongs to the consumer, which an id alone does not name.
    for item in zone.store.quarantine(None, None):
        if item.id == number:
            demand(
                permit.may_consume(item.consumer),
                permit,
                f"use the consumer {item.consumer}",
                consumer_name=item.consumer,
            )
    return zone.store.settle(number, state, reason=asked.reason[:MAX_REASON])


@operation(ADMIN, Nothing)
def list_gaps(zone: LocalZone, permit: Permissions, asked: Nothing) -> dict[str, Any]:
    """Every recorded loss."""
    return {"gaps": [gap_view(gap) for gap in zone.store.gaps()]}


@operation(ADMIN, Nothing)
def get_status(zone: LocalZone, permit: Permissions, asked: Nothing) -> dict[str, Any]:
    """How the zone stands, with everything that deserves an alert."""
    return status(zone)


def _check_peer(zone: LocalZone, peer: str | None) -> str:
    """A peer of the zone, or "" for all of them: a name mistyped would seal nothing, unnoticed."""
    if not peer:
        return ""
    known = {*zone.settings.peers, *(zone.settings.known_zones or ())}
    # Also peers that the settings name no longer: their links are there, and may have to be sealed.
    known |= {link.peer for link in zone.store.links()}
    known |= {one.name.removeprefix(PEER) for one in zone.store.consumers() if _is_peer(one.name)}
    if peer in known:
        return peer
    names = ", ".join(sorted(known - {""})) or "none yet"
    raise BoundaryNotFoundError(
        f"{zone.name} has no peer {peer!r}",
        reason="peer_not_found",
        remedy=f"name one of its peers: {names}",
        details={"peer": peer},
    )


def _is_peer(consumer: str) -> bool:
    return consumer.startswith(PEER)


@operation(ADMIN, Seal)
def seal(zone: LocalZone, permit: Permissions, asked: Seal) -> dict[str, Any]:
    """Shut the link to a peer, or every link, until an operator opens it."""
    peer = _check_peer(zone, asked.peer)
    link = zone.store.seal(peer, asked.reason[:MAX_REASON] or "no reason given")
    zone.events.note(
        "gate.sealed",
        f"zone {zone.name} was sealed for {asked.peer or 'every peer'}",
        peer=asked.peer,
        reason=asked.reason,
    )
    return link_view(link)


@operation(ADMIN, Seal)
def open_(zone: LocalZone, permit: Permissions, asked: Seal) -> dict[str, Any]:
    """Open what was sealed."""
    link = zone.store.open(_check_peer(zone, asked.peer))
    zone.events.note(
        "gate.opened",
        f"zone {zone.name} was opened for {asked.peer or 'every peer'}",
        peer=asked.peer,
        reason=asked.reason,
    )
    return link_view(link)


@operation(ADMIN, AcceptEpoch)
def accept_epoch(zone: LocalZone, permit: Permissions, asked: AcceptEpoch) -> dict[str, Any]:
    """Trust a peer's store although it has changed, and pull from its start."""
    link = zone.store.accept_epoch(_check_peer(zone, asked.peer), None)
    zone.events.note(
        "link.accepted", f"the changed store of {asked.peer} was accepted", peer=asked.peer
    )
    return link_view(link)
