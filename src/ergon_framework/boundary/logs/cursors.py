"""How a consumer's cursor and lease may move, for stores that keep a consumer as one record.

Deciding only: the store reads the record before, and writes it afterwards.
"""

from __future__ import annotations

from typing import Protocol

from ergon_framework.errors import BoundaryError, BoundaryNotFoundError
from ergon_framework.ports.facts import Page


class Cursor(Protocol):
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


def move(one: Cursor, cursor: int) -> None:
    """Set a cursor further; what comes next was delivered to nobody yet."""
    if cursor != one.cursor:
        one.cursor, one.deliveries = cursor, 0


def pass_by(one: Cursor, offset: int) -> None:
    """Set a cursor behind a fact that was set aside."""
    one.cursor, one.deliveries = offset, 0
    one.served = max(one.served, offset)


def give(one: Cursor, page: Page, holder: str | None) -> None:
    """Note that a page after the cursor goes out to a holder."""
    one.served = max(one.served, page.through)
    is_next = holder != one.holder or not one.deliveries
    one.deliveries += bool(page.facts and holder and is_next)


def hold(one: Cursor, holder: str | None, lease: float, now: float) -> None:
    """Lease the name to whoever asks for it under a name of its own."""
    if holder is not None:
        one.holder, one.lease, one.held_until = holder, lease, now + lease


def let_go(one: Cursor) -> None:
    """Nobody holds the name."""
    one.holder, one.held_until, one.deliveries = None, 0.0, 0


def seek(one: Cursor, offset: int, first: int, head: int) -> None:
    """Set a cursor anywhere within its log, of which ``first`` to ``head`` are kept."""
    start = first - 1
    if not start <= offset <= head:
        is_beyond = offset > head
        lost = {} if is_beyond else {"first_lost": offset + 1, "last_lost": start}
        raise BoundaryError(
            f"{offset} is not among {start} to {head}, which {one.log} has",
            code="out_of_range",
            reason="beyond_head" if is_beyond else "truncated",
            remedy=f"seek to {start} for all that is kept",
            details={"offset": offset, "head_offset": head, **lost},
        )
    one.cursor = offset
    let_go(one)


# ---- what is refused ----------------------------------------------------------------------------


def refuse_other(one: Cursor, log: str, to_zone: str | None) -> None:
    """A name stands for one view of one log."""
    if (one.log, one.to_zone) != (log, to_zone):
        raise BoundaryError(
            f"consumer {one.name!r} reads {one.log}, facts to {one.to_zone or 'every zone'}",
            code="already_exists",
            reason="consumer_exists",
            remedy="choose another name, or delete that consumer first",
            details={"consumer_name": one.name, "log": one.log, "to_zone": one.to_zone},
        )


def refuse_unserved(one: Cursor, offset: int) -> None:
    """Only what was given out can be confirmed."""
    if offset > max(one.served, one.cursor):
        raise BoundaryError(
            f"{offset} was never served to consumer {one.name!r}: {one.served} was",
            code="failed_precondition",
            reason="not_served",
            remedy="confirm what was fetched",
            details={"offset": offset, "served": one.served, "cursor": one.cursor},
        )


def refuse_dropped(one: Cursor, lost: tuple[int, int] | None, first: int) -> None:
    """Nobody passes what was dropped unread without having said so."""
    if lost is not None:
        raise BoundaryError(
            f"facts {lost[0]} to {lost[1]} of {one.log} were dropped before {one.name!r} had them",
            code="out_of_range",
            reason="truncated",
            remedy="seek to what is kept, when they can be done without",
            details={"first_lost": lost[0], "last_lost": lost[1], "first_offset": first},
        )


def unknown(name: str) -> BoundaryNotFoundError:
    """Nobody reads under that name."""
    return BoundaryNotFoundError(
        f"there is no consumer {name!r}",
        remedy="create it first",
        details={"consumer_name": name},
    )


def not_next(one: Cursor, offset: int) -> BoundaryError:
    """Only the next fact of a view, or a released one, can be set aside."""
    return BoundaryError(
        f"{offset} is not the next fact of consumer {one.name!r}",
        code="failed_precondition",
        reason="not_next",
        remedy="confirm what precedes it first",
        details={"offset": offset, "cursor": one.cursor},
    )
