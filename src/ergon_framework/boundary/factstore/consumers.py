"""How a consumer's cursor, its lease and its quarantine may change, and the errors that refuse a
change.

Deciding only: a store reads the record before, and writes it afterwards. A program that grows onto
another store meets with the same answers there.
"""

from __future__ import annotations

from typing import Protocol

from ergon_framework.errors import BoundaryError, BoundaryNotFoundError, ConsumerHeldError
from ergon_framework.ports.factstore import ConsumerInfo, LogPage, NewFact, Quarantined


class ConsumerView(Protocol):
    """What of a consumer is looked at."""

    @property
    def name(self) -> str:
        """Under which it reads."""

    @property
    def log(self) -> str:
        """The log that the consumer reads."""

    @property
    def to_zone(self) -> str | None:
        """Whose facts it reads; None: everybody's."""

    @property
    def cursor(self) -> int:
        """The offset up to which the consumer has confirmed."""

    @property
    def served(self) -> int:
        """The offset up to which the consumer was served facts."""


# ---- whose name it is ---------------------------------------------------------------------------


def unknown(name: str) -> BoundaryNotFoundError:
    """The error for a consumer that does not exist."""
    return BoundaryNotFoundError(
        f"there is no consumer {name!r}",
        reason="consumer_not_found",
        remedy="create it first",
        details={"consumer_name": name},
    )


def refuse_other(one: ConsumerView, log: str, to_zone: str | None) -> None:
    """Refuse a consumer's name that is in use for another log or another view of it."""
    if (one.log, one.to_zone) != (log, to_zone):
        view = "" if one.to_zone is None else f" to the zone {one.to_zone!r}"
        raise BoundaryError(
            f"there is a consumer {one.name!r} already, which reads {one.log}{view}",
            code="already_exists",
            reason="consumer_exists",
            remedy="take another name, or delete that one first",
            details={"consumer_name": one.name, "log": one.log, "to_zone": one.to_zone},
        )


def refuse_held(info: ConsumerInfo, holder: str | None, now: float) -> None:
    """Refuse everybody but the holder of a lease."""
    if info.holder == holder or not info.is_held(now):
        return
    raise ConsumerHeldError(
        f"the consumer {info.name!r} is in use by {info.holder!r}",
        remedy="use another name, or wait until the other one stops",
        details={"consumer_name": info.name, "holder": info.holder},
        retry_after=info.held_until - now,
    )


def refuse_late(info: ConsumerInfo, holder: str | None, now: float) -> None:
    """Refuse a former holder, which lost the lease to another process or to a seek.

    A holder that was merely slow may finish, as long as no other has taken its place.
    """
    refuse_held(info, holder, now)
    if holder is not None and holder != info.holder:
        raise ConsumerHeldError(
            f"{holder!r} no longer holds the consumer {info.name!r}",
            remedy="fetch again",
            details={"consumer_name": info.name, "holder": info.holder},
            retry_after=0.0,
        )


# ---- where it may go ----------------------------------------------------------------------------


def refuse_unserved(one: ConsumerView, offset: int) -> None:
    """Refuse to confirm facts that were not served."""
    # A cursor may lie above what was served: it began at the end of the log, or an operator set it.
    if offset > max(one.served, one.cursor):
        raise BoundaryError(
            f"{offset} was never given to the consumer {one.name!r}, which has seen up to"
            f" {one.served}",
            code="failed_precondition",
            reason="not_served",
            remedy="fetch first, and confirm what was fetched",
            details={"consumer_name": one.name, "served": one.served, "cursor": one.cursor},
        )


def refuse_truncated(one: ConsumerView, lost: tuple[int, int] | None) -> None:
    """Refuse to serve past facts that were dropped unread and that no gap explains."""
    if lost is not None:
        raise BoundaryError(
            f"facts {lost[0]} to {lost[1]} of {one.log} are no longer kept",
            code="out_of_range",
            reason="truncated",
            remedy="seek behind them when they can be done without",
            details={
                "consumer_name": one.name,
                "log": one.log,
                "first_lost": lost[0],
                "last_lost": lost[1],
            },
        )


def refuse_outside(one: ConsumerView, offset: int, first: int, head: int) -> None:
    """A cursor stays within its log, of which ``first`` to ``head`` are kept."""
    if offset > head:
        raise BoundaryError(
            f"{one.log} ends at {head}, and {offset} lies beyond",
            code="out_of_range",
            reason="beyond_head",
            remedy=f"seek to {head} to read only what comes from now on",
            details={"consumer_name": one.name, "head_offset": head},
        )
    refuse_truncated(one, (offset + 1, first - 1) if offset + 1 < first else None)


def not_next(one: ConsumerView, offset: int, following: int | None) -> BoundaryError:
    """The error for quarantining another fact than the next one of the view, or a released one."""
    return BoundaryError(
        f"{offset} is not the next fact of the consumer {one.name!r}, nor a released one",
        code="failed_precondition",
        reason="not_next",
        remedy="fetch again, and set aside the first fact of the page",
        details={"consumer_name": one.name, "cursor": one.cursor, "next_offset": following},
    )


# ---- what is not there --------------------------------------------------------------------------


def no_fact(from_zone: str, message_id: str) -> BoundaryNotFoundError:
    """An id that was never appended."""
    return BoundaryNotFoundError(
        f"no fact with the message_id {message_id!r} of zone {from_zone!r} is here",
        reason="fact_not_found",
        remedy="append it, if it is to be here: an acknowledged fact is always found",
        details={"from_zone": from_zone, "message_id": message_id},
    )


def no_object(bucket: str, key: str) -> BoundaryNotFoundError:
    """A name that stands for nothing."""
    return BoundaryNotFoundError(
        f"there is no object {bucket}/{key}",
        reason="object_not_found",
        remedy="check bucket and key, or put it first",
        details={"bucket": bucket, "key": key},
    )


# ---- ids ----------------------------------------------------------------------------------------


def conflicting(peer: str, log: str, fact: NewFact, now: float) -> Quarantined:
    """The quarantined item of a fact whose id has other content here."""
    return Quarantined(
        id=0,
        consumer=f"pull:{peer}",
        log=log,
        offset=fact.source_offset or 0,
        reason="conflicting_duplicate",
        message=f"message id {fact.message_id!r} of {fact.from_zone!r} stands for other content",
        attempts=1,
        at=now,
        envelope=fact.envelope,
        fact=fact.fact,
    )


class ConsumerCursor(Protocol):
    """What of a consumer's record these functions read and change."""

    name: str
    log: str
    cursor: int
    to_zone: str | None
    served: int
    deliveries: int
    holder: str | None
    held_until: float
    lease: float


def move(one: ConsumerCursor, cursor: int) -> None:
    """Move a cursor forward; the next fact has not been delivered yet."""
    if cursor != one.cursor:
        one.cursor, one.deliveries = cursor, 0


def pass_by(one: ConsumerCursor, offset: int) -> None:
    """Set a cursor behind a fact that was set aside."""
    one.cursor, one.deliveries = offset, 0
    one.served = max(one.served, offset)


def give(one: ConsumerCursor, page: LogPage, holder: str | None) -> None:
    """Note that a page after the cursor goes out to a holder."""
    one.served = max(one.served, page.through)
    # Counted once for each holder: one that fetches the page again has not failed with it, and one
    # that died is followed by a holder of another name.
    is_next = holder != one.holder or not one.deliveries
    one.deliveries += bool(page.facts and holder and is_next)


def hold(one: ConsumerCursor, holder: str | None, lease: float, now: float) -> None:
    """Lease the consumer to a caller that names itself."""
    if holder is not None:
        one.holder, one.lease, one.held_until = holder, lease, now + lease


def let_go(one: ConsumerCursor) -> None:
    """End the lease."""
    one.holder, one.held_until, one.deliveries = None, 0.0, 0


def sought(one: ConsumerView, offset: int, reason: str) -> str:
    """What is written down when an operator sets a cursor."""
    return f"{one.name} from {one.cursor} to {offset} of {one.log}: {reason}"


def deleted(one: ConsumerView) -> str:
    """What is written down when a consumer is deleted."""
    return f"{one.name}, which had confirmed {one.log} up to {one.cursor}"


def seek(one: ConsumerCursor, offset: int, first: int, head: int) -> None:
    """Set a cursor anywhere within its log, of which ``first`` to ``head`` are kept."""
    refuse_outside(one, offset, first, head)
    one.cursor = offset
    let_go(one)


OPEN = ("quarantined", "released")
"""The states of what is not dealt with."""
ACTIONS = {
    "quarantined": "put_back",
    "released": "release",
    "discarded": "discard",
    "settled": "settle",
}
"""What is written down when something gets a state."""
_FROM = {
    "quarantined": OPEN[1:],
    "released": OPEN[:1],
    "discarded": OPEN,
    "settled": OPEN,
}


class QuarantinedItem(Protocol):
    """The fields of a quarantined item that operators see."""

    @property
    def id(self) -> int:
        """The number of the item."""

    @property
    def consumer(self) -> str:
        """The consumer that it was set aside for."""

    @property
    def log(self) -> str:
        """Where its fact lies, …"""

    @property
    def offset(self) -> int:
        """… and at which place."""


def said_of(item: QuarantinedItem, reason: str) -> str:
    """What is written down when an operator deals with it."""
    text = f"item {item.id}, {item.log} {item.offset} of {item.consumer}"
    return f"{text}: {reason}" if reason else text


def refuse_wrong_state(number: int, state: str, wanted: str) -> None:
    """What was dealt with stays so."""
    if state not in _FROM.get(wanted, ()):
        raise BoundaryError(
            f"item {number} is {state} and cannot become {wanted}",
            code="failed_precondition",
            reason="wrong_state",
            remedy="look at the item again: somebody has dealt with it",
            details={"quarantine_id": number, "state": state},
        )


def not_there(number: int) -> BoundaryNotFoundError:
    """The error for an item number that does not exist."""
    return BoundaryNotFoundError(
        f"there is no quarantined item {number}",
        reason="item_not_found",
        remedy="list the quarantine to see the numbers",
        details={"quarantine_id": number},
    )
