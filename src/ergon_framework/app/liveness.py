"""Whether the work of a process goes on, judged by the notices of its engine.

A hook that runs is work, however long it takes: bound it with a timeout. Stalled means that calls
which never came back block all new work, that the event loop does not turn, or that the source has
been silent for too long while nothing was in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.ports.notice import Notice

STALL_AFTER = 120.0
"""Seconds of silence that make a stall."""


class LivenessState(StrEnum):
    """How a process is."""

    STARTING = "starting"
    HEALTHY = "healthy"
    STALLED = "stalled"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a process is at one moment."""

    state: LivenessState = LivenessState.STARTING
    reason: str = ""
    in_flight: int = 0
    abandoned: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the process is live, and must not be killed. One that drains is live."""
        return self.state not in (LivenessState.STALLED, LivenessState.STOPPED)

    @property
    def is_ready(self) -> bool:
        """Whether the process takes work."""
        return self.state is LivenessState.HEALTHY

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Snapshot:
        """The inverse of :meth:`to_dict`."""
        return cls(
            LivenessState(document["state"]),
            str(document.get("reason", "")),
            int(document.get("in_flight", 0)),
            int(document.get("abandoned", 0)),
        )


class Liveness:
    """A listener of notices that knows how this process is."""

    def __init__(
        self,
        *,
        stall_after: float = STALL_AFTER,
        is_stopping: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self._stall_after = stall_after
        self._is_stopping = is_stopping
        self._now = now
        self._lock = threading.Lock()
        self._calls = 0
        self._has_begun = False
        self._in_flight = 0
        self._abandoned = 0
        self._is_blocked = False
        self._heard_by = now()  # when the next notice was due at the earliest
        self._turned_at: float | None = None
        self._is_over = False
        self._takers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "call.began": self._call_began,
            "call.ended": self._call_ended,
            "transaction.began": self._transaction_began,
            "transaction.ended": self._transaction_ended,
            "attempt.abandoned": self._given_up,
            "attempt.late": self._came_back,
            "workers.stalled": self._stalled,
            "queue.empty": self._found_nothing,
        }

    def __call__(self, notice: Notice) -> None:
        """Note what the notice says about the process."""
        take = self._takers.get(notice.name)
        with self._lock:
            self._heard_by = self._now()
            if take is not None:
                take(notice.fields)

    def loop_turned(self) -> None:
        """The event loop is alive. Never called when there is none."""
        self._turned_at = self._now()

    def ended(self) -> None:
        """The run is over."""
        self._is_over = True

    def snapshot(self) -> Snapshot:
        """How the process is now."""
        with self._lock:
            state, reason = self._state(self._now())
            return Snapshot(state, reason, self._in_flight, self._abandoned)

    def _state(self, now: float) -> tuple[LivenessState, str]:
        if self._is_over:
            return LivenessState.STOPPED, ""
        # Before all kinds of stalls: a process that drains slowly must not be restarted for it.
        if self._is_stopping():
            return LivenessState.STOPPING, ""
        if self._is_blocked:
            return LivenessState.STALLED, "calls that never came back block all new work"
        if self._turned_at is not None and now - self._turned_at > self._stall_after:
            return LivenessState.STALLED, "the event loop is blocked"
        if not self._has_begun:
            return LivenessState.STARTING, ""
        silence = now - self._heard_by
        if self._calls and not self._in_flight and silence > self._stall_after:
            return LivenessState.STALLED, f"nothing was heard of the source for {silence:.0f} s"
        return LivenessState.HEALTHY, ""

    def _call_began(self, _fields: Mapping[str, Any]) -> None:
        self._calls += 1
        self._has_begun = True

    def _call_ended(self, _fields: Mapping[str, Any]) -> None:
        self._calls -= 1

    def _transaction_began(self, _fields: Mapping[str, Any]) -> None:
        self._in_flight += 1
        # Something begins: whatever blocked new work is gone.
        self._is_blocked = False

    def _transaction_ended(self, _fields: Mapping[str, Any]) -> None:
        self._in_flight -= 1

    def _given_up(self, _fields: Mapping[str, Any]) -> None:
        self._abandoned += 1

    def _came_back(self, _fields: Mapping[str, Any]) -> None:
        self._abandoned -= 1
        self._is_blocked = False

    def _stalled(self, _fields: Mapping[str, Any]) -> None:
        self._is_blocked = True

    def _found_nothing(self, fields: Mapping[str, Any]) -> None:
        self._heard_by += fields["delay"]  # the next fetch was announced for then


# A process that has stopped is no reason to restart the others.
_WORST_FIRST = (
    LivenessState.STALLED,
    LivenessState.STARTING,
    LivenessState.STOPPING,
    LivenessState.HEALTHY,
    LivenessState.STOPPED,
)


def combined(snapshots: Iterable[Snapshot]) -> Snapshot:
    """How several processes are as one: as the worst of them. None at all is starting."""
    known = list(snapshots)
    if not known:
        return Snapshot()
    worst = min(known, key=lambda each: _WORST_FIRST.index(each.state))
    return Snapshot(
        worst.state,
        worst.reason,
        sum(each.in_flight for each in known),
        sum(each.abandoned for each in known),
    )
