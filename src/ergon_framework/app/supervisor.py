"""The supervisor: which processes run, in which order they start and stop, and what follows an end.

Nothing here starts a process or sends a signal by itself: events come in, and what is to be done
goes to :mod:`ergon_framework.app.processes`.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

from ergon_framework.app.console import ExitCode, of_signal
from ergon_framework.app.liveness import LivenessState, Snapshot, combined
from ergon_framework.app.outcome import error_shape
from ergon_framework.app.signals import FORCE_AFTER
from ergon_framework.core.process_restart import Restart, RestartRule, StopAll, after_exit
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ErgonError

LATER = math.inf
"""The start of a process that waits for others."""


class Child(Protocol):
    """A process under supervision."""

    def send(self, number: int) -> None:
        """Send a signal to the process."""

    def kill(self) -> None:
        """Kill the process and everything it started."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process that the supervisor keeps running: started again when it dies."""

    name: str
    target: str = ""
    """What the process runs, if that differs between processes."""
    number: int = 0
    of: int = 1
    """How many equal processes there are; ``number`` is which of them this is."""
    start_rank: int = 0
    """Processes of lower rank are started first, and must be ready before the next rank starts."""
    stop_rank: int = 0
    """Processes of lower rank are stopped first, and must have ended before the next rank stops."""
    is_endless: bool = False
    """Whether the process runs until it is stopped, so that any other end is a crash."""


def worker_specs(workers: int) -> list[ProcessSpec]:
    """The specifications of ``workers`` equal workers."""
    return [ProcessSpec(f"worker {n}", number=n, of=workers) for n in range(workers)]


@dataclass(slots=True)
class Slot:
    """The state of one process through all its restarts."""

    post: ProcessSpec
    worker: int
    child: Child | None = None
    start_at: float | None = None
    is_ready: bool = False
    is_asked: bool = False
    """Whether the current process was asked to stop."""
    deaths: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    snapshot: Snapshot = field(default_factory=Snapshot)
    last_received_at: float = 0.0
    code: int | None = None
    outcomes: list[Mapping[str, Any]] = field(default_factory=list)
    error: Mapping[str, Any] | None = None
    """The error of the last process that ended. Errors of earlier ones were overcome by a restart.
    """

    @property
    def is_over(self) -> bool:
        """Whether no process runs in this slot, and none will be started."""
        return self.child is None and self.start_at is None


def next_to_start(slots: Sequence[Slot], *, is_late: bool) -> list[Slot]:
    """The waiting slots of the lowest rank, once all slots of lower ranks are ready or over. With
    ``is_late`` they are started even if those are not.
    """
    waiting = [slot for slot in slots if slot.start_at == LATER]
    if not waiting:
        return []
    rank = min(slot.post.start_rank for slot in waiting)
    before = (slot for slot in slots if slot.post.start_rank < rank)
    # Ranks keep a producer from starting before the zone that it publishes to; a part that never
    # gets ready must not keep the rest from working.
    if not is_late and not all(slot.is_ready or slot.is_over for slot in before):
        return []
    return [slot for slot in waiting if slot.post.start_rank == rank]


def next_to_stop(slots: Sequence[Slot]) -> list[Slot]:
    """The slots of the lowest rank that still runs, unless they were asked to stop already."""
    running = [slot for slot in slots if slot.child is not None]
    # The other way round at the end: what others need stops last.
    rank = min((slot.post.stop_rank for slot in running), default=0)
    return [slot for slot in running if slot.post.stop_rank == rank and not slot.is_asked]


MAX_SHOWN_ENDS = 5
"""The most ends of a worker that the error lists when it is given up."""


class WorkerDeathsError(ErgonError):
    """The supervisor gave up, because a worker died too often or refused to start."""

    code = "worker_deaths"


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker is gone, with its exit code and what it said last."""

    worker: int
    code: int
    outcome: Mapping[str, Any] | None = None

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error that the worker reported at its end, if any."""
        return (self.outcome or {}).get("error")

    @property
    def cause(self) -> str:
        """The signal or the exit code."""
        return f"by signal {-self.code}" if self.code < 0 else f"with code {self.code}"

    @property
    def how(self) -> str:
        """How the process ended, with the error that it reported."""
        return f"{self.cause} ({self.error['message']})" if self.error else self.cause


def reason_for(
    end: WorkerEnded, slot: Slot, rule: RestartRule, everyone: str
) -> WorkerDeathsError | None:
    """Why the supervisor gives up after this end; None if the worker's own error says it."""
    details = {"worker": end.worker, "ends": list(slot.ends)}
    if slot.post.target:
        details["part"] = slot.post.name
    # Any code but that of a refusal may pass, so it was counted; a refusal is the same at every
    # start.
    if end.code != ExitCode.REFUSED:
        return WorkerDeathsError(
            f"{slot.post.name} died more than {rule.limit} times within {rule.window:g} s, "
            f"at last {end.cause}; {everyone} were stopped",
            remedy="the log tells how each of them ended",
            details=details,
        )
    if end.error:
        return None
    return WorkerDeathsError(
        f"{slot.post.name} ended with code 2, as if its configuration were wrong; "
        f"{everyone} were stopped",
        remedy="let the task end with another code when it may be started again",
        details=details,
    )


logger = logging.getLogger("ergon.supervisor")

SILENT_AFTER = 30.0
"""Seconds without a heartbeat after which a worker counts as stalled."""
LATE_AFTER = 15.0
"""Seconds for the processes of a rank to be ready. After that the next rank starts anyway."""
KILL_AFTER = FORCE_AFTER + 1.0
"""Seconds after the second signal until processes are killed. A worker ends itself before, unless
it hangs.
"""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The parent itself got a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker reported its state."""

    worker: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A process reported that it is ready."""

    worker: int
    told: str = ""


SupervisorEvent: TypeAlias = SignalReceived | Heartbeat | WorkerReady | WorkerEnded
Events: TypeAlias = "SimpleQueue[SupervisorEvent]"

StartProcess: TypeAlias = Callable[[int], Child]
"""Starts the process with this number. Its end and its reports arrive as events."""
Tell: TypeAlias = Callable[[str], object]
"""Called with one line for each event of a process."""


class Supervisor:
    """Starts, watches and restarts the processes of all parts until all have ended for good."""

    def __init__(
        self,
        start: StartProcess,
        posts: Sequence[ProcessSpec],
        events: Events,
        *,
        rule: RestartRule | None = None,
        has_beats: bool = False,
        tell: Tell | None = None,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        """With ``tell``, each start and end is reported to it, and a second signal kills. Without
        it, workers handle the first two signals themselves, and the third kills.
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
            self.start_due()
            self._kill_due()
            event = self._next()
            if event is not None:
                self.take(event)
        return self._exit_code()

    def snapshot(self) -> Snapshot:
        """The liveness of all workers together. Any thread may call."""
        if self._stops:
            return Snapshot(LivenessState.STOPPING)
        now = self._now()
        return combined([self._snapshot(slot, now) for slot in self.slots])

    @property
    def restarts(self) -> int:
        """How many restarts there were."""
        return sum(len(slot.deaths) for slot in self.slots)

    # -- doing -------------------------------------------------------------------------------

    def _next(self) -> SupervisorEvent | None:
        instants = [self._kill_at, self._late_at, *(slot.start_at for slot in self.slots)]
        # ``LATER`` waits for an event, not for an instant.
        due = [instant for instant in instants if instant is not None and instant != LATER]
        # None waits until something happens: nothing is polled.
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

    def start_due(self) -> None:
        """Start every process whose start is due."""
        now = self._now()
        is_late = self._late_at is not None and now >= self._late_at
        self._let_start(next_to_start(self.slots, is_late=is_late))
        for slot in self.slots:
            if slot.start_at is None or slot.start_at > now:
                continue
            # Before the start: a process that ends at once gets its next start from ``_ended``.
            slot.start_at = None
            slot.snapshot, slot.last_received_at = Snapshot(), now
            try:
                slot.child = self._start(slot.worker)
            except OSError as error:  # out of processes or memory, which may pass
                # Treated as the end of a process, so that the same rule decides when it is tried
                # again.
                logger.warning("%s cannot be started: %s", slot.post.name, error)
                outcome = {"report": None, "error": error_shape(error)}
                self._ended(slot, WorkerEnded(slot.worker, ExitCode.FAILED, outcome))

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
        # Nothing that waits for its backoff is started any more.
        for slot in self.slots:
            if slot.child is not None:
                slot.child.kill()

    # -- deciding ----------------------------------------------------------------------------

    def take(self, event: SupervisorEvent) -> None:
        """Handle one event. Nothing here waits."""
        if isinstance(event, SignalReceived):
            self._signalled(event.number)
            return
        slot = self.slots[event.worker]
        if isinstance(event, Heartbeat):
            slot.snapshot, slot.last_received_at = event.snapshot, self._now()
        elif isinstance(event, WorkerReady):
            slot.is_ready = True
            if self._tell is not None:
                self._tell(f"ready {slot.post.name} {event.told}".rstrip())
        else:
            # First, because ``is_over`` and the ranks below look at it.
            slot.child = None
            self._ended(slot, event)
            if self._stops == 1:  # those of one rank are over: then the next may go
                self._send(next_to_stop(self.slots), self._number)

    def _signalled(self, number: int) -> None:
        if self._verdict is None:
            self._verdict = of_signal(number)
        self._signals += 1
        is_known = self._stops > 0 and self._tell is not None
        # A first Ctrl-C during a stop of our own would otherwise count as the second signal.
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

    def _ended(self, slot: Slot, end: WorkerEnded) -> None:
        outcome = end.outcome
        slot.code, slot.error = end.code, end.error
        if outcome is not None:
            slot.outcomes.append(outcome)
        slot.ends = [*slot.ends, end.how][-MAX_SHOWN_ENDS:]
        # The verdict is of the first signal or failure; what processes end with after that is a
        # consequence.
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
            # A part that should run for ever has died even if it ended with 0.
            is_done=not slot.post.is_endless and (end.code == ExitCode.DONE or is_complete),
        )
        if isinstance(decision, Restart):
            slot.deaths.append(now)
            slot.start_at = now + decision.delay
            slot.snapshot = Snapshot()
            self._report(slot, logging.WARNING, f"; started again in {decision.delay:.3g} s")
        elif isinstance(decision, StopAll):
            self._report(slot, logging.ERROR, f"; {self._all} are stopped")
            # Before the others are stopped: their ends must not be taken for failures of their own.
            self._verdict = ExitCode.REFUSED if decision.is_refused else ExitCode.FAILED
            self.reason = reason_for(end, slot, self._rule, self._all)
            self._stop(signal.SIGTERM)
        else:
            slot.snapshot = Snapshot(LivenessState.STOPPED)
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
        is_silent = slot.child is not None and now - slot.last_received_at > SILENT_AFTER
        if self._has_beats and is_silent:
            return Snapshot(LivenessState.STALLED, f"{slot.post.name} is silent")
        return slot.snapshot
