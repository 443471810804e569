"""How a consumer's cursor and lease may move, for stores that keep a consumer as one record.

Deciding only: the store reads the record before, and writes it afterwards.
"""

from __future__ import annotations

from typing import Protocol

from ergon_framework.boundary.logs.refusing import Reader, refuse_outside
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


def sought(one: Reader, offset: int, reason: str) -> str:
    """What is written down when an operator sets a cursor."""
    return f"{one.name} from {one.cursor} to {offset} of {one.log}: {reason}"


def deleted(one: Reader) -> str:
    """What is written down when a consumer is deleted."""
    return f"{one.name}, which had confirmed {one.log} up to {one.cursor}"


def seek(one: Cursor, offset: int, first: int, head: int) -> None:
    """Set a cursor anywhere within its log, of which ``first`` to ``head`` are kept."""
    refuse_outside(one, offset, first, head)
    one.cursor = offset
    let_go(one)
