"""Every operation by its name: what it takes, who may do it, what it answers.

The four of the core service are the contract; the others stand in a service of their own, so that
the contract stays as small as it is.
"""

# ruff: noqa: ARG001 - every operation takes the same three arguments

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ergon_framework.boundary.serving import requests
from ergon_framework.boundary.serving.pages import (
    consumer_shape,
    gap_shape,
    link_shape,
    quarantine_shape,
)
from ergon_framework.boundary.serving.policy import Permit
from ergon_framework.boundary.serving.requests import Request, at_least, consumer_name, holder_name
from ergon_framework.boundary.serving.status import status
from ergon_framework.boundary.zone import PEER, Zone, check_log
from ergon_framework.errors import FactInvalidError, NotPermittedError
from ergon_framework.ports.factstore import Quarantined

REASON = 500
"""Characters of a reason that are kept."""
CORE, ADMIN = "bsfg.v1.Boundary", "bsfg.v1.BoundaryAdmin"

R = TypeVar("R", bound=Request)


class Operation(NamedTuple):
    """One operation that is answered in one go."""

    name: str
    service: str
    shape: type[Request]
    run: Callable[[Zone, Permit, Any], dict[str, Any]]


OPERATIONS: dict[str, Operation] = {}
"""By path, without the leading slash. Appends and fetches are in the application itself."""


def operation(
    service: str, shape: type[R]
) -> Callable[[Callable[[Zone, Permit, R], dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Make a function an operation of that service, under its own name in CamelCase."""

    def register(run: Callable[[Zone, Permit, R], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        name = "".join(part.capitalize() for part in run.__name__.split("_"))
        OPERATIONS[f"{service}/{name}"] = Operation(name, service, shape, run)
        return run

    return register


def demand(is_allowed: bool, permit: Permit, what: str, **details: Any) -> None:
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
    if peer in (name, to_zone):
        return to_zone
    if to_zone is None:
        return peer
    raise FactInvalidError(
        f"the consumer {name} sees facts to {peer!r} only",
        reason="range",
        details={"field": "to_zone"},
    )


def check_use(zone: Zone, permit: Permit, name: str) -> str:
    """Refuse a consumer that the caller may not use, by its name or by the log it reads."""
    demand(
        permit.may_consume(consumer_name(name)),
        permit,
        f"use the consumer {name}",
        consumer_name=name,
    )
    if not permit.logs.is_all:
        log = zone.store.consumer(name).log
        demand(permit.may_read(log), permit, f"read the log {log}", log=log)
    return name


@operation(CORE, requests.ConfirmReceipt)
def confirm_receipt(zone: Zone, permit: Permit, asked: requests.ConfirmReceipt) -> dict[str, Any]:
    """Move a cursor up; what was handled is never delivered again."""
    name = check_use(zone, permit, asked.consumer_name)
    zone.check_seal(name)
    offset = at_least("offset", asked.offset, 0)
    zone.telling.count("confirms")
    cursor = zone.store.confirm(name, offset, holder=holder_name(asked.holder))
    zone.telling.tell("receipt.confirmed", consumer=name, cursor=cursor)
    return {"cursor": cursor}


@operation(ADMIN, requests.LookupFact)
def lookup_fact(zone: Zone, permit: Permit, asked: requests.LookupFact) -> dict[str, Any]:
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


@operation(ADMIN, requests.CreateConsumer)
def create_consumer(zone: Zone, permit: Permit, asked: requests.CreateConsumer) -> dict[str, Any]:
    """Create a durable reader of a log; the same again is fine."""
    name = consumer_name(asked.consumer_name)
    demand(permit.may_consume(name), permit, f"use the consumer {name}", consumer_name=name)
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
    return consumer_shape(info, zone.clock())


@operation(ADMIN, requests.Nothing)
def list_consumers(zone: Zone, permit: Permit, asked: requests.Nothing) -> dict[str, Any]:
    """Every consumer with its cursor and its backlog."""
    now = zone.clock()
    seen = [info for info in zone.store.consumers() if permit.may_consume(info.name)]
    return {"consumers": [consumer_shape(info, now) for info in seen]}


@operation(ADMIN, requests.ConsumerOnly)
def delete_consumer(zone: Zone, permit: Permit, asked: requests.ConsumerOnly) -> dict[str, Any]:
    """Forget a consumer; retention no longer waits for it."""
    name = check_use(zone, permit, asked.consumer_name)
    zone.store.delete_consumer(name)
    zone.telling.note("consumer.deleted", f"the consumer {name} was deleted", consumer=name)
    return {}


@operation(ADMIN, requests.SeekConsumer)
def seek_consumer(zone: Zone, permit: Permit, asked: requests.SeekConsumer) -> dict[str, Any]:
    """Set a cursor by hand, also backwards; it is written down."""
    name = check_use(zone, permit, asked.consumer_name)
    return zone.seek(name, at_least("offset", asked.offset, 0), asked.reason[:REASON])


@operation(ADMIN, requests.ReleaseLease)
def release_lease(zone: Zone, permit: Permit, asked: requests.ReleaseLease) -> dict[str, Any]:
    """A holder lets go of a consumer's name."""
    zone.store.release_lease(check_use(zone, permit, asked.consumer_name), asked.holder)
    return {}


@operation(ADMIN, requests.QuarantineFact)
def quarantine_fact(zone: Zone, permit: Permit, asked: requests.QuarantineFact) -> dict[str, Any]:
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
    zone.telling.warn(
        "fact.quarantined",
        f"the fact at {item.offset} of {item.log} was set aside for {name}: {item.reason}",
        consumer=name,
        offset=item.offset,
        why=item.reason,
        attempts=item.attempts,
    )
    return quarantine_shape(item)


@operation(ADMIN, requests.ListQuarantine)
def list_quarantine(zone: Zone, permit: Permit, asked: requests.ListQuarantine) -> dict[str, Any]:
    """What was set aside."""
    state = None if asked.state == "all" else asked.state
    items = zone.store.quarantine(asked.consumer_name, state)
    seen = [item for item in items if permit.may_consume(item.consumer)]
    return {"items": [quarantine_shape(item) for item in seen]}


@operation(ADMIN, requests.QuarantineItem)
def release_quarantine(
    zone: Zone, permit: Permit, asked: requests.QuarantineItem
) -> dict[str, Any]:
    """Deliver a fact that was set aside once more."""
    item = _settled(zone, permit, asked, "released")
    zone.telling.tell("quarantine.released", id=item.id, consumer=item.consumer)
    return quarantine_shape(item)


@operation(ADMIN, requests.QuarantineItem)
def discard_quarantine(
    zone: Zone, permit: Permit, asked: requests.QuarantineItem
) -> dict[str, Any]:
    """Give a fact that was set aside up for good, for that consumer."""
    item = _settled(zone, permit, asked, "discarded")
    zone.telling.tell("quarantine.discarded", id=item.id, consumer=item.consumer)
    return quarantine_shape(item)


def _settled(zone: Zone, permit: Permit, asked: requests.QuarantineItem, state: str) -> Quarantined:
    number = at_least("id", asked.id, 1)
    for item in zone.store.quarantine(None, None):
        if item.id == number:
            demand(
                permit.may_consume(item.consumer),
                permit,
                f"use the consumer {item.consumer}",
                consumer_name=item.consumer,
            )
    return zone.store.settle(number, state, reason=asked.reason[:REASON])


@operation(ADMIN, requests.Nothing)
def list_gaps(zone: Zone, permit: Permit, asked: requests.Nothing) -> dict[str, Any]:
    """Every recorded loss."""
    return {"gaps": [gap_shape(gap) for gap in zone.store.gaps()]}


@operation(ADMIN, requests.Nothing)
def get_status(zone: Zone, permit: Permit, asked: requests.Nothing) -> dict[str, Any]:
    """How the zone stands, with everything that deserves an alert."""
    return status(zone)


@operation(ADMIN, requests.Seal)
def seal(zone: Zone, permit: Permit, asked: requests.Seal) -> dict[str, Any]:
    """Shut the link to a peer, or every link, until an operator opens it."""
    link = zone.store.seal(asked.peer or "", asked.reason[:REASON] or "no reason given")
    zone.telling.note(
        "gate.sealed",
        f"zone {zone.name} was sealed for {asked.peer or 'every peer'}",
        peer=asked.peer,
        reason=asked.reason,
    )
    return link_shape(link)


@operation(ADMIN, requests.Seal)
def open_(zone: Zone, permit: Permit, asked: requests.Seal) -> dict[str, Any]:
    """Open what was sealed."""
    link = zone.store.open(asked.peer or "")
    zone.telling.note(
        "gate.opened",
        f"zone {zone.name} was opened for {asked.peer or 'every peer'}",
        peer=asked.peer,
        reason=asked.reason,
    )
    return link_shape(link)


@operation(ADMIN, requests.AcceptEpoch)
def accept_epoch(zone: Zone, permit: Permit, asked: requests.AcceptEpoch) -> dict[str, Any]:
    """Trust a peer's store although it has changed, and pull from its start."""
    link = zone.store.accept_epoch(asked.peer, None)
    zone.telling.note(
        "link.accepted", f"the changed store of {asked.peer} was accepted", peer=asked.peer
    )
    return link_shape(link)
