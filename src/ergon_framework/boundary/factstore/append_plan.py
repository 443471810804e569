"""What an append is: new, a duplicate, a conflict, or refused.

Decided here for every store that keeps facts outside its process. The memory store decides by
itself: it is the model that the others are compared with. Nothing here waits or writes; the store
looks things up and places facts, through an :class:`Placement`. A store whose transactions begin
anew makes a new planner for each attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from ergon_framework.boundary.factstore.hashchain import PreparedFact
from ergon_framework.ports.factstore import (
    Appended,
    AppendOutcome,
    CapacityExceeded,
    Conflict,
    MissingReference,
    NewFact,
    Reference,
)

L = TypeVar("L")

KEPT_DIGEST = 16
"""Bytes of a digest that are kept of a fact whose payload is gone."""


@dataclass(slots=True)
class Append:
    """The append of one caller."""

    log: str
    facts: list[PreparedFact]
    capacity: int | None


class Condition(Enum):
    """How the fact of a known id lies in the log."""

    GONE = "gone"
    """The payload was dropped by retention. The ledger keeps the id for ever."""
    INTACT = "sound"
    REPAIRED = "repaired"
    """The stored row was damaged, and the same fact, published again, has repaired it."""
    DAMAGED = "damaged"


class KnownFact(NamedTuple):
    """What a store has under the id of a fact that is to be appended."""

    offset: int
    digest: bytes
    """All of it, or the half that the ledger keeps."""
    condition: Condition
    envelope: bytes | None = None


class Placement(Protocol[L]):
    """One transaction of a store, as the planner sees it."""

    @property
    def fresh(self) -> Mapping[bytes, tuple[int, NewFact]]:
        """The facts that this transaction has placed, with their offsets, by key."""

    def log(self, name: str) -> L:
        """A log as it is after what was placed so far."""

    def size(self, log: L) -> int:
        """The bytes that a log keeps."""

    def known(self, log: L, fact: PreparedFact) -> KnownFact | None:
        """What lies under the id of a fact, if it was ever appended before this transaction."""

    def object(self, wanted: Reference) -> Reference | None:
        """What a name stands for."""

    def place(self, log: L, fact: PreparedFact) -> int:
        """Append a new fact to a log and mark the artifacts it refers to; returns its offset."""


class AppendPlanner(Generic[L]):
    """Decides for each fact, within one transaction: new, duplicate, conflict or refused."""

    __slots__ = ("_placement",)

    def __init__(self, placement: Placement[L]) -> None:
        self._placement = placement

    def append(
        self, log: str, facts: Sequence[PreparedFact], capacity: int | None
    ) -> list[AppendOutcome]:
        """Append the facts that are new, have their artifacts in the store, and find room."""
        placement = self._placement
        found, fresh, place = placement.log(log), placement.fresh, placement.place
        find = placement.known
        outcomes: list[AppendOutcome] = []
        for fact in facts:
            outcome: AppendOutcome | None = None
            # Placed by this transaction: the store does not find it by its id yet.
            if fact.key in fresh:
                outcome = _duplicate_in_transaction(fresh, fact)
            elif (known := find(found, fact)) is not None:
                outcome = judge_known(fact.new, known)
            if outcome is None and (capacity is not None or fact.new.references):
                outcome = self._refused(found, fact, capacity)
                if isinstance(outcome, CapacityExceeded):
                    capacity = 0  # a smaller one behind it would change the order
            outcomes.append(outcome or Appended(place(found, fact)))
        return outcomes

    def receive(self, log: str, facts: Iterable[PreparedFact]) -> list[AppendOutcome]:
        """Append those facts of a peer's page that are new, without any further check."""
        found = self._placement.log(log)
        return [self._received(found, fact) for fact in facts]

    def _received(self, log: L, fact: PreparedFact) -> AppendOutcome:
        placement = self._placement
        if fact.key in placement.fresh:
            return _duplicate_in_transaction(placement.fresh, fact)
        known = placement.known(log, fact)
        if known is None:
            return Appended(placement.place(log, fact))
        return judge_known(fact.new, known)

    def _refused(self, log: L, fact: PreparedFact, capacity: int | None) -> AppendOutcome | None:
        """What is wrong with a new fact; None when it may enter."""
        for reference in fact.new.references if fact.new.needs_artifacts else ():
            found = self._placement.object(reference)
            if found != reference:
                return MissingReference(reference, found)
        if capacity is not None:
            size = self._placement.size(log)
            if size + fact.size > capacity:
                return CapacityExceeded(size)
        return None


def judge_known(new: NewFact, known: KnownFact) -> Appended | Conflict:
    """Whether a fact with a known id is a duplicate or a conflict."""
    offset, digest, condition, envelope = known
    if condition is Condition.REPAIRED:  # which only the same content can do
        return Appended(offset, True, envelope, is_repaired=True)
    if len(digest) < KEPT_DIGEST or new.digest[: len(digest)] != digest:
        return Conflict(offset, digest)  # also when the row can no longer be read
    return Appended(offset, True, envelope, is_damaged=condition is Condition.DAMAGED)


def _duplicate_in_transaction(
    fresh: Mapping[bytes, tuple[int, NewFact]], fact: PreparedFact
) -> Appended | Conflict:
    """A duplicate of a fact that was placed in this very transaction."""
    offset, first = fresh[fact.key]
    if fact.new.digest != first.digest:
        return Conflict(offset, first.digest)
    return Appended(offset, True, first.envelope)
