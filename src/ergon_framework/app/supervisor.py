"""The parent of several worker processes: starts them, starts them again, and stops them.

All that happens comes through one queue, so the loop decides alone and never waits for anything
else. The parent imports nothing of the user's: what breaks a worker cannot break its supervisor.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

from ergon_framework.app.exit_codes import ExitCode, of_signal
from ergon_framework.app.liveness import Snapshot, State, combined
from ergon_framework.app.outcome import error_shape
from ergon_framework.app.restarts import GiveUp, Restart, RestartRule, after_end
from ergon_framework.app.shutdown import FORCE_AFTER
from ergon_framework.app.worker_ends import MOST_ENDS, Ended, WorkerDeathsError, reason_for
from ergon_framework.engine.clocks import SYSTEM_CLOCK

logger = logging.getLogger("ergon.supervisor")

SILENT_AFTER = 30.0
"""Seconds without a word from a worker that tells how it is, after which it counts as stalled."""
KILL_AFTER = FORCE_AFTER + 1.0
"""Seconds after the second signal. A worker ends itself before, unless it cannot any more."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """The parent itself got a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker told how it is."""

    worker: int
    snapshot: Snapshot


Event: TypeAlias = Signalled | Beat | Ended
Events: TypeAlias = "SimpleQueue[Event]"


class Child(Protocol):
    """A worker process."""

    def send(self, number: int) -> None:
        """Give it a signal."""

    def kill(self) -> None:
        """End it and everything it started, at once."""


Start: TypeAlias = Callable[[int], Child]
"""Starts the worker with this number. Its end, and its beats, arrive as events."""


@dataclass(slots=True)
class Slot:
    """One worker's place, through all its restarts."""

    worker: int
    child: Child | None = None
    start_at: float | None = None
    deaths: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    snapshot: Snapshot = field(default_factory=Snapshot)
    heard_at: float = 0.0
    code: int | None = None
    outcomes: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether nothing runs here and nothing will."""
        return self.child is None and self.start_at is None


class Supervisor:
    """Looks after so many workers until all of them are over."""

    def __init__(
        self,
        start: Start,
        workers: int,
        events: Events,
        *,
        rule: RestartRule | None = None,
        has_beats: bool = False,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self._start = start
        self._events = events
        self._rule = rule or RestartRule()
        self._has_beats = has_beats
        self._now = now
        self._stops = 0
        self._kill_at: float | None = None
        self._verdict: ExitCode | None = None
        self.reason: WorkerDeathsError | None = None
        self.slots = [Slot(worker, start_at=now()) for worker in range(workers)]

    def run(self) -> ExitCode:
        """Supervise until every worker is over; the exit code of them all."""
        while not all(slot.is_over for slot in self.slots):
            self._start_due()
            self._kill_due()
            event = self._next()
            if event is not None:
                self._take(event)
        return self._exit_code()

    def snapshot(self) -> Snapshot:
        """How the workers are, as one. Safe from any thread."""
        if self._stops:
            return Snapshot(State.STOPPING)
        now = self._now()
        return combined([self._snapshot(slot, now) for slot in self.slots])

    @property
    def restarts(self) -> int:
        """How often a worker was started again."""
        return sum(len(slot.deaths) for slot in self.slots)

    # -- doing -------------------------------------------------------------------------------

    def _next(self) -> Event | None:
        instants = [self._kill_at, *(slot.start_at for slot in self.slots)]
        due = [instant for instant in instants if instant is not None]
        wait = max(0.0, min(due) - self._now()) if due else None
        try:
            return self._events.get(timeout=wait)
        except Empty:
            return None

    def _start_due(self) -> None:
        now = self._now()
        for slot in self.slots:
            if slot.start_at is None or slot.start_at > now:
                continue
            slot.start_at = None
            slot.snapshot, slot.heard_at = Snapshot(), now
            try:
                slot.child = self._start(slot.worker)
            except OSError as error:  # out of processes or memory, which may pass
                logger.warning("worker %d cannot be started: %s", slot.worker, error)
                outcome = {"report": None, "error": error_shape(error)}
                self._ended(slot, Ended(slot.worker, ExitCode.FAILED, outcome))

    def _kill_due(self) -> None:
        if self._kill_at is not None and self._now() >= self._kill_at:
            self._kill_all()

    def _send_all(self, number: int) -> None:
        for slot in self.slots:
            slot.start_at = None
            if slot.child is not None:
                slot.child.send(number)

    def _kill_all(self) -> None:
        self._kill_at = None
        for slot in self.slots:
            if slot.child is not None:
                slot.child.kill()

    # -- deciding ----------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, Signalled):
            self._signalled(event.number)
            return
        slot = self.slots[event.worker]
        if isinstance(event, Beat):
            slot.snapshot, slot.heard_at = event.snapshot, self._now()
        else:
            slot.child = None
            self._ended(slot, event)

    def _signalled(self, number: int) -> None:
        if self._verdict is None:
            self._verdict = of_signal(number)
        self._stop(number)

    def _stop(self, number: int) -> None:
        """The first stop lets workers drain, the second cuts them off, the third kills them.

        Workers tell the first two apart by themselves, as a single process does.
        """
        self._stops += 1
        if self._stops > 2:
            self._kill_all()
            return
        if self._stops == 2:
            self._kill_at = self._now() + KILL_AFTER
        self._send_all(number)

    def _ended(self, slot: Slot, end: Ended) -> None:
        outcome = end.outcome
        slot.code = end.code
        if outcome is not None:
            slot.outcomes.append(outcome)
        if self._verdict is not None:
            return  # all of them are on their way out
        now = self._now()
        is_complete = bool(outcome is not None and outcome.get("is_complete"))
        decision = after_end(
            self._rule, end.code, is_complete=is_complete, deaths=slot.deaths, now=now
        )
        slot.ends = [*slot.ends, end.how][-MOST_ENDS:]
        told = f"worker {slot.worker} ended {slot.ends[-1]}"
        if isinstance(decision, Restart):
            slot.deaths.append(now)
            slot.start_at = now + decision.delay
            slot.snapshot = Snapshot()
            logger.warning("%s; started again in %.3g s", told, decision.delay)
        elif isinstance(decision, GiveUp):
            logger.error("%s; all workers are stopped", told)
            self._verdict = decision.code
            self.reason = reason_for(end, slot.ends, self._rule)
            self._stop(signal.SIGTERM)
        else:
            slot.snapshot = Snapshot(State.STOPPED)

    def _exit_code(self) -> ExitCode:
        if self._verdict is not None:
            return self._verdict
        is_fine = all(slot.code == ExitCode.DONE for slot in self.slots)
        return ExitCode.DONE if is_fine else ExitCode.FAILED

    def _snapshot(self, slot: Slot, now: float) -> Snapshot:
        is_silent = slot.child is not None and now - slot.heard_at > SILENT_AFTER
        if self._has_beats and is_silent:
            return Snapshot(State.STALLED, f"worker {slot.worker} is silent")
        return slot.snapshot
