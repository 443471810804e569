"""What may become of something that was set aside."""

from __future__ import annotations

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


def may_become(state: str, wanted: str) -> bool:
    """Whether one state may follow another."""
    return state in _FROM.get(wanted, ())


def refuse_wrong_state(number: int, state: str, wanted: str) -> None:
    """What was dealt with stays so."""
    if not may_become(state, wanted):
        raise BoundaryError(
            f"item {number} is {state} and cannot become {wanted}",
            code="failed_precondition",
            reason="wrong_state",
            remedy="list the quarantine to see how things stand",
            details={"quarantine_id": number, "state": state},
        )


def not_there(number: int) -> BoundaryNotFoundError:
    """Nothing has that number."""
    return BoundaryNotFoundError(
        f"nothing in quarantine has the number {number}",
        remedy="list the quarantine",
        details={"quarantine_id": number},
    )
