"""What user code may ask about the attempt and the unit of work that it runs in.

``current_attempt`` answers for hooks. The variable is set inside a private copy of the context for
each attempt, so it never leaks from one transaction into another, and an abandoned attempt keeps
seeing its own, cancelled, state.

``current_unit`` answers for code below a hook or a job's handler: a provider call takes over the
deadline, the names and the trace of its unit of work. The engines set ``CURRENT``; an executor puts
something in ``RUNNING`` that can describe itself. Both are read only when ``current_unit`` is
called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ergon_framework.ports.transaction import CURRENT, Transaction
from ergon_framework.ports.unit_of_work import RUNNING, UnitOfWork


@dataclass(frozen=True, slots=True)
class Call:
    """One consume or produce call: what all its attempts share."""

    role: str  # "consumer" or "producer"
    task: str  # the task's class name
    call_id: str
    now: Callable[[], float]
    settings: dict[str, Any]  # the policy as plain numbers and words, for telemetry


class HasTicket(Protocol):
    """A piece of work that exactly one party may continue."""

    ticket: list[None]
    """The side that pops the one element decides what happens next: the worker whose call returned,
    or the supervisor that gave up on it. Popping is atomic, so no lock is taken.
    """


def claim_ticket(self: HasTicket) -> bool:
    """Become the owner of what follows. True for exactly one caller.

    The method ``claim`` of an attempt, and of a run that is its own attempt: they share this
    function instead of a base class, which a run would have beside its cursor.
    """
    try:
        self.ticket.pop()
    except IndexError:
        return False
    return True


class Attempt:
    """One attempt of one hook for one transaction. ``number`` counts from 0."""

    __slots__ = (
        "began_at",
        "call",
        "deadline_at",
        "expired",
        "note",
        "number",
        "phase",
        "run",
        "scope",
        "ticket",
    )

    def __init__(self, call: Call, run: Any, phase: str, number: int) -> None:
        self.call = call
        self.run = run
        self.phase = phase
        self.number = number
        self.began_at = 0.0
        self.deadline_at: float | None = None
        self.scope: Any = None  # whose time ``deadline_at`` is: the step's or the lifecycle's
        self.expired = False  # the deadline passed and the call was asked to end
        self.note: Any = None  # belongs to the sink: its span, its start time
        self.ticket: list[None] = [None]

    claim = claim_ticket

    @property
    def transaction(self) -> Transaction:
        """The transaction this attempt works on."""
        transaction: Transaction = self.run.transaction
        return transaction

    @property
    def task(self) -> str:
        """The task's class name."""
        return self.call.task

    @property
    def is_cancelled(self) -> bool:
        """Whether the engine gave up on this attempt: its result will be dropped."""
        return not self.ticket or self.expired or (self.run is not None and self.run.expired)

    def remaining(self) -> float | None:
        """Seconds until the engine gives up, or None when nothing bounds this attempt."""
        if self.deadline_at is None:
            return None
        return max(0.0, self.deadline_at - self.call.now())


def current_attempt() -> Attempt | None:
    """The attempt this code runs in, or None outside of any lifecycle.

    Long-running code looks at ``is_cancelled`` or ``remaining()`` now and then and returns early: a
    thread cannot be killed, and its work after a timeout is thrown away.
    """
    current: Any = CURRENT.get()
    if type(current) is not tuple:
        found: Attempt | None = current
        return found
    call, run, phase, number, ticket = current
    attempt = Attempt(call, run, phase, number)
    attempt.ticket = ticket
    attempt.deadline_at = run.deadline_at
    CURRENT.set(attempt)
    return attempt


def current_unit() -> UnitOfWork | None:
    """The unit this code runs in, a transaction before the job around it; None outside of any."""
    if CURRENT.get() is not None:
        attempt = current_attempt()
        return None if attempt is None or attempt.run is None else _of_attempt(attempt)
    running = RUNNING.get()
    return None if running is None else running.unit_of_work()


def _of_attempt(attempt: Attempt) -> UnitOfWork:
    transaction, call = attempt.transaction, attempt.call
    step = call.settings.get("steps", {}).get(attempt.phase, {})
    trace = {
        name: str(transaction.metadata[name])
        for name in ("traceparent", "tracestate")
        if name in transaction.metadata
    }
    return UnitOfWork(
        "transaction",
        transaction.transaction_id,
        call.task,
        attempt.number + 1,
        attempt.deadline_at,
        transaction.correlation_id,
        trace,
        bool(call.settings.get("redelivers")) or step.get("max_attempts", 1) > 1,
    )
