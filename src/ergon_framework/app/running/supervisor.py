"""The parent of several processes: starts them, starts them again, and stops them.

They are the workers of one task, or all the parts of a settings file, which are started and stopped
in an order.

All that happens comes through one queue, so the loop decides alone and never waits for anything
else. The parent imports nothing of the user's: what breaks a worker cannot break its supervisor.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

from ergon_framework.app.console import ExitCode, of_signal
from ergon_framework.app.running.liveness import Snapshot, State, combined
from ergon_framework.app.running.outcome import error_shape
from ergon_framework.app.running.posts import LATER, Child, Post, Slot, next_to_start, next_to_stop
from ergon_framework.app.running.shutdown import FORCE_AFTER
from ergon_framework.app.running.worker_ends import MOST_ENDS, Ended, WorkerDeathsError, reason_for
from ergon_framework.core.restart import Restart, RestartRule, StopAll, after_exit
from ergon_framework.engine.clocks import SYSTEM_CLOCK

logger = logging.getLogger("ergon.supervisor")

SILENT_AFTER = 30.0
"""Seconds without a word from a worker that tells how it is, after which it counts as stalled."""
LATE_AFTER = 15.0
"""Seconds that those of one rank have to be ready before the next are started all the same."""
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


@dataclass(frozen=True, slots=True)
class Ready:
    """A process told that it does its work from now on."""

    worker: int
    told: str = ""


Event: TypeAlias = Signalled | Beat | Ready | Ended
Events: TypeAlias = "SimpleQueue[Event]"

Start: TypeAlias = Callable[[int], Child]
"""Starts the process of this post. Its end, and what it tells, arrive as events."""
Tell: TypeAlias = Callable[[str], object]
"""Is told in one line what happened to a post."""


class Supervisor:
    """Looks after the processes of all posts until every one of them is over."""

    def __init__(
        self,
        start: Start,
        posts: Sequence[Post],
        events: Events,
        *,
        rule: RestartRule | None = None,
        has_beats: bool = False,
        tell: Tell | None = None,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        """With ``tell`` somebody watches: every start and end is told, and a second signal kills.

        Without it workers tell the first two signals apart by themselves, and the third kills.
        """
        self._start = start
        self._events = events
        self._rule = rule or RestartRule()
        self._has_beats = has_beats
        self._tell = tell
        self._now = now
        self._signals = 0
        self._stops = 0
        self._number = int(signal.SIGTERM)
        self._kill_at: float | None = None
        self._late_at: float | None = None
        self._verdict: ExitCode | None = None
        self.reason: WorkerDeathsError | None = None
        self.slots = [Slot(post, n, start_at=LATER) for n, post in enumerate(posts)]
        self._let_start(next_to_start(self.slots, is_late=False))

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
        instants = [self._kill_at, self._late_at, *(slot.start_at for slot in self.slots)]
        due = [instant for instant in instants if instant is not None and instant != LATER]
        wait = max(0.0, min(due) - self._now()) if due else None
        try:
            return self._events.get(timeout=wait)
        except Empty:
            return None

    def _let_start(self, slots: Sequence[Slot]) -> None:
        if slots:
            now = self._now()
            for slot in slots:
                slot.start_at = now
            is_last = all(slot.start_at != LATER for slot in self.slots)
            self._late_at = None if is_last else now + LATE_AFTER

    def _start_due(self) -> None:
        now = self._now()
        is_late = self._late_at is not None and now >= self._late_at
        self._let_start(next_to_start(self.slots, is_late=is_late))
        for slot in self.slots:
            if slot.start_at is None or slot.start_at > now:
                continue
            slot.start_at = None
            slot.snapshot, slot.heard_at = Snapshot(), now
            try:
                slot.child = self._start(slot.worker)
            except OSError as error:  # out of processes or memory, which may pass
                logger.warning("%s cannot be started: %s", slot.post.name, error)
                outcome = {"report": None, "error": error_shape(error)}
                self._ended(slot, Ended(slot.worker, ExitCode.FAILED, outcome))

    def _kill_due(self) -> None:
        if self._kill_at is not None and self._now() >= self._kill_at:
            self._kill_all()

    def _send(self, slots: Sequence[Slot], number: int) -> None:
        for slot in slots:
            slot.is_asked = True
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
        elif isinstance(event, Ready):
            slot.is_ready = True
            if self._tell is not None:
                self._tell(f"ready {slot.post.name} {event.told}".rstrip())
        else:
            slot.child = None
            self._ended(slot, event)
            if self._stops == 1:  # those of one rank are over: then the next may go
                self._send(next_to_stop(self.slots), self._number)

    def _signalled(self, number: int) -> None:
        if self._verdict is None:
            self._verdict = of_signal(number)
        self._signals += 1
        is_known = self._stops > 0 and self._tell is not None
        if self._signals > 1 or not is_known:  # a give-up asked for the same; nobody means a kill
            self._stop(number)

    def _stop(self, number: int) -> None:
        """The first stop lets processes drain, the second cuts them off, the third kills them."""
        self._stops += 1
        self._late_at = None
        for slot in self.slots:
            slot.start_at = None
        if self._stops > (2 if self._tell is None else 1):
            self._kill_all()
        elif self._stops == 2:
            self._kill_at = self._now() + KILL_AFTER
            self._send(self.slots, number)
        else:
            self._number = number
            self._send(next_to_stop(self.slots), number)

    def _ended(self, slot: Slot, end: Ended) -> None:
        outcome = end.outcome
        slot.code, slot.error = end.code, end.error
        if outcome is not None:
            slot.outcomes.append(outcome)
        slot.ends = [*slot.ends, end.how][-MOST_ENDS:]
        if self._verdict is not None:
            self._report(slot, logging.DEBUG)
            return  # all of them are on their way out
        now = self._now()
        is_complete = bool(outcome is not None and outcome.get("is_complete"))
        decision = after_exit(
            self._rule,
            deaths=slot.deaths,
            now=now,
            is_refused=end.code == ExitCode.REFUSED,
            is_done=not slot.post.is_endless and (end.code == ExitCode.DONE or is_complete),
        )
        if isinstance(decision, Restart):
            slot.deaths.append(now)
            slot.start_at = now + decision.delay
            slot.snapshot = Snapshot()
            self._report(slot, logging.WARNING, f"; started again in {decision.delay:.3g} s")
        elif isinstance(decision, StopAll):
            self._report(slot, logging.ERROR, f"; {self._all} are stopped")
            self._verdict = ExitCode.REFUSED if decision.is_refused else ExitCode.FAILED
            self.reason = reason_for(end, slot, self._rule, self._all)
            self._stop(signal.SIGTERM)
        else:
            slot.snapshot = Snapshot(State.STOPPED)
            self._report(slot, logging.DEBUG)

    def _report(self, slot: Slot, level: int, what_follows: str = "") -> None:
        if self._tell is not None:
            self._tell(f"ended {slot.post.name} {slot.ends[-1]}{what_follows}")
        else:
            logger.log(level, "%s ended %s%s", slot.post.name, slot.ends[-1], what_follows)

    @property
    def _all(self) -> str:
        return "all workers" if self._tell is None else "all parts"

    def _exit_code(self) -> ExitCode:
        if self._verdict is not None:
            return self._verdict
        is_fine = all(slot.code == ExitCode.DONE for slot in self.slots)
        return ExitCode.DONE if is_fine else ExitCode.FAILED

    def _snapshot(self, slot: Slot, now: float) -> Snapshot:
        is_silent = slot.child is not None and now - slot.heard_at > SILENT_AFTER
        if self._has_beats and is_silent:
            return Snapshot(State.STALLED, f"{slot.post.name} is silent")
        return slot.snapshot
