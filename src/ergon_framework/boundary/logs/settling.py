"""What may become of something that was set aside."""

from __future__ import annotations

from typing import Protocol

from ergon_framework.errors import BoundaryError, BoundaryNotFoundError

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


class Aside(Protocol):
    """What of an item is told."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def consumer(self) -> str:
        """For whom it was set aside."""

    @property
    def log(self) -> str:
        """Where its fact lies, …"""

    @property
    def offset(self) -> int:
        """… and at which place."""


def said_of(item: Aside, reason: str) -> str:
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
    """Nothing has that number."""
    return BoundaryNotFoundError(
        f"there is no quarantined item {number}",
        reason="item_not_found",
        remedy="list the quarantine to see the numbers",
        details={"quarantine_id": number},
    )
