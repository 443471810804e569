"""The link between two zones: its mode, and the frontier up to which everything has arrived.

The gate of a link is open, shut, or opening again. This mode sets the pace of the link and is shown
to operators. It never decides whether a fact may be appended: producers do not notice it.

A reader sees a view of a log, so the offsets it sees may have holes; each fact therefore names the
one before it in that view. A fact whose predecessor is missing is not taken: the frontier stops
there, and the reader asks again from the frontier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol


class Mode(StrEnum):
    """How a link stands."""

    NORMAL = "normal"  # facts flow as they are appended
    AUTONOMOUS = "autonomous"  # the zones live apart: appends and local reads go on
    RECONCILING = "reconciling"  # the backlog is being carried over


@dataclass(frozen=True, slots=True)
class GateRule:
    """The hysteresis of both edges."""

    failures: int = 3
    """Failures in a row that shut the gate."""
    lag: int = 100
    """Facts still to come at which the link counts as caught up …"""
    settle: float = 2.0
    """… when it has been so for this many seconds."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The state of a link. Each event returns the state that follows."""

    mode: Mode = Mode.NORMAL
    is_sealed: bool = False
    """An operator shut it; only an operator opens it."""
    failures: int = 0
    caught_up_at: float | None = None
    """Since when the backlog has been small, while reconciling."""

    def failed(self, rule: GateRule) -> Gate:
        """A pull or a probe failed."""
        failures = self.failures + 1
        # The threshold protects only a link that was fine: while it still catches up, one failure
        # shuts the gate again.
        is_shut = self.mode is not Mode.NORMAL or failures >= rule.failures
        mode = Mode.AUTONOMOUS if is_shut else self.mode
        return replace(self, mode=mode, failures=failures, caught_up_at=None)

    def pulled(self, rule: GateRule, lag: int, now: float) -> Gate:
        """A pull succeeded, and ``lag`` facts are still to come."""
        if self.is_sealed:
            return self
        if self.mode is Mode.NORMAL:
            return replace(self, failures=0)
        if lag > rule.lag:
            return replace(self, mode=Mode.RECONCILING, failures=0, caught_up_at=None)
        since = now if self.caught_up_at is None else self.caught_up_at
        if self.mode is Mode.RECONCILING and now - since >= rule.settle:
            return replace(self, mode=Mode.NORMAL, failures=0, caught_up_at=None)
        return replace(self, mode=Mode.RECONCILING, failures=0, caught_up_at=since)

    def sealed(self) -> Gate:
        """An operator seals the link."""
        return replace(self, mode=Mode.AUTONOMOUS, is_sealed=True, caught_up_at=None)

    def opened(self) -> Gate:
        """An operator opens it; what has piled up comes first."""
        if not self.is_sealed:
            return self
        return replace(self, mode=Mode.RECONCILING, is_sealed=False, failures=0)


@dataclass(frozen=True, slots=True)
class Frontier:
    """Everything of the view at or below ``offset`` is safe."""

    offset: int = 0

    def joins(self, previous: int, offset: int) -> bool:
        """Whether nothing of the view is missing between here and the fact at ``offset``."""
        return previous <= self.offset < offset

    def passed(self, offset: int) -> Frontier:
        """The frontier when everything up to ``offset`` is safe; it never goes back."""
        return Frontier(max(self.offset, offset))


class Reached(Protocol):
    """How far a peer's log was pulled, and in which epoch of the peer's store."""

    @property
    def epoch(self) -> str | None:
        """None before the first page."""

    @property
    def offset(self) -> int:
        """The offset of the frontier."""


def leads_to(kept: Reached, later: Reached) -> bool:
    """Whether a page may move a link there: forward, and to no epoch but its own.

    Another node of the zone may have been faster, or an operator accepted another epoch.
    """
    return kept.epoch in (None, later.epoch) and kept.offset <= later.offset


def contiguous(frontier: Frontier, steps: Iterable[tuple[int, int]]) -> tuple[Frontier, int]:
    """Advance the frontier over (previous, offset) pairs without a hole; returns it, and how many
    pairs fit.
    """
    taken = 0
    for previous, offset in steps:
        if not frontier.joins(previous, offset):
            break
        frontier = frontier.passed(offset)
        taken += 1
    return frontier, taken
