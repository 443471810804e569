"""The gate of a link between two zones: open, shut, or opening again.

The mode paces the link and tells the operator how it stands. It never decides whether a fact may be
appended: producers do not notice it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


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
    """One link. Each event answers with the gate as it is from then on."""

    mode: Mode = Mode.NORMAL
    is_sealed: bool = False
    """An operator shut it; only an operator opens it."""
    failures: int = 0
    caught_up_at: float | None = None
    """Since when the backlog has been small, while reconciling."""

    def failed(self, rule: GateRule) -> Gate:
        """A pull or a probe failed."""
        failures = self.failures + 1
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
