"""What every store of facts refuses, in the same words: a program that grows onto another store
meets with the same answers there.
"""

from __future__ import annotations

from typing import Protocol

from ergon_framework.errors import BoundaryError, BoundaryNotFoundError, ConsumerHeldError
from ergon_framework.ports.facts import ConsumerInfo, Quarantined
from ergon_framework.ports.factstore import NewFact


class Reader(Protocol):
    """What of a consumer is looked at."""

    @property
    def name(self) -> str:
        """Under which it reads."""

    @property
    def log(self) -> str:
        """What it reads."""

    @property
    def to_zone(self) -> str | None:
        """Whose facts it reads; None: everybody's."""

    @property
    def cursor(self) -> int:
        """Up to where it has confirmed."""

    @property
    def served(self) -> int:
        """Up to where it was given facts."""


# ---- whose name it is ---------------------------------------------------------------------------


def unknown(name: str) -> BoundaryNotFoundError:
    """Nobody reads under that name."""
    return BoundaryNotFoundError(
        f"there is no consumer {name!r}",
        reason="consumer_not_found",
        remedy="create it first",
        details={"consumer_name": name},
    )


def refuse_other(one: Reader, log: str, to_zone: str | None) -> None:
    """A name stands for one view of one log."""
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
    """Only who holds a leased name may use it."""
    if info.holder == holder or not info.is_held(now):
        return
    raise ConsumerHeldError(
        f"the consumer {info.name!r} is in use by {info.holder!r}",
        remedy="use another name, or wait until the other one stops",
        details={"consumer_name": info.name, "holder": info.holder},
        retry_after=info.held_until - now,
    )


def refuse_late(info: ConsumerInfo, holder: str | None, now: float) -> None:
    """Also who held the name once, and lost it to another one or to a seek, may not use it.

    Who was merely slow may finish, as long as nobody has taken its place.
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


def refuse_unserved(one: Reader, offset: int) -> None:
    """Only what was given out can be confirmed."""
    if offset > max(one.served, one.cursor):
        raise BoundaryError(
            f"{offset} was never given to the consumer {one.name!r}, which has seen up to"
            f" {one.served}",
            code="failed_precondition",
            reason="not_served",
            remedy="fetch first, and confirm what was fetched",
            details={"consumer_name": one.name, "served": one.served, "cursor": one.cursor},
        )


def refuse_truncated(one: Reader, lost: tuple[int, int] | None) -> None:
    """Nobody passes what was dropped unread without having said so."""
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


def refuse_outside(one: Reader, offset: int, first: int, head: int) -> None:
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


def not_next(one: Reader, offset: int, following: int | None) -> BoundaryError:
    """Only the next fact of a view, or a released one, can be set aside."""
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
    """The item for a fact whose id stands for other content here."""
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
