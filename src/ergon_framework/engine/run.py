"""The mutable records of a call: a run (one transaction's lifecycle) and a worker that drives
runs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ergon_framework.core.failure import Failure
from ergon_framework.core.transaction_lifecycle import (
    End,
    Ending,
    LifecycleCursor,
    LifecycleStep,
    TimeoutScope,
    Verb,
)
from ergon_framework.errors import TransactionException
from ergon_framework.ports.context import Attempt, Call, claim_ticket
from ergon_framework.ports.transaction import Transaction

FETCH, BACKOFF, SETTLE = "fetch", "backoff", "settle"  # phases beside the lifecycle's own


class LifecycleRun(LifecycleCursor):
    """One lifecycle: the core's cursor, plus what only a driver can hold.

    On the happy path it is its own attempt, with a ticket, a deadline and a phase, since an object
    per call would be the most expensive part of a lifecycle.
    """

    result: Any = None
    exception: TransactionException | None = None  # what the exception handler is given
    handler_exception: TransactionException | None = None
    note: Any = None  # belongs to the sink
    deadline_at: float | None = None
    scope: Any = TimeoutScope.STEP
    inner: tuple[Any, ...] = ()  # calls that its hooks are making right now
    lost_in: str | None = None  # the phase in which the supervisor gave up on it
    expired = False

    def __init__(self, transaction: Transaction, began_at: float) -> None:
        self.transaction = transaction
        self.began_at = self.step_began_at = self.seen_at = began_at
        # A list and not a flag: ``list.pop`` is atomic, so that worker and supervisor claim it
        # without a lock.
        self.ticket: list[None] = [None]

    claim = claim_ticket

    @property
    def run(self) -> LifecycleRun:
        """Itself: as an attempt, it belongs to this run."""
        return self

    @property
    def phase(self) -> str:
        """The phase as an attempt: the current step."""
        return self.step.value

    @property
    def number(self) -> int:
        """The number as an attempt: 0, as only the happy path has no attempt object."""
        return self.attempt


class ProduceRun(LifecycleRun):
    """The run of a producer, whose first step has another name."""

    @property
    def phase(self) -> str:
        """The phase as an attempt: the current step."""
        return "produce" if self.step is LifecycleStep.PROCESS else self.step.value


class SettlementAttempt(Attempt):
    """One call of ack, nack or release_after, or in the phase BACKOFF the wait before the next."""

    __slots__ = ("channel", "failure", "since", "verb", "wake_at")

    def __init__(
        self, call: Call, run: LifecycleRun, verb: Verb, since: float, channel: int
    ) -> None:
        super().__init__(call, run, SETTLE, 0)
        self.verb = verb
        self.since = self.began_at = since  # when the first attempt began
        self.channel = channel  # how often a channel had been lost by then
        self.failure: Failure | None = None  # in a wait: what the attempt before it failed with
        self.wake_at = since

    def wait(self, failure: Failure, wake_at: float) -> SettlementAttempt:
        """The wait after this attempt failed."""
        nap = SettlementAttempt(self.call, self.run, self.verb, self.since, self.channel)
        nap.phase, nap.number, nap.failure, nap.wake_at = BACKOFF, self.number, failure, wake_at
        return nap

    def next(self, now: float, deadline_at: float) -> SettlementAttempt:
        """The attempt after this wait."""
        attempt = SettlementAttempt(self.call, self.run, self.verb, self.since, self.channel)
        attempt.number, attempt.began_at = self.number + 1, now
        attempt.deadline_at = deadline_at
        return attempt


InProgress: TypeAlias = Attempt | LifecycleRun
"""What a worker does right now."""


class OutcomeCounts:
    """Counts with a single writer, so that no lock is needed to count."""

    __slots__ = (
        "aborted",
        "discarded",
        "failed",
        "handler_failures",
        "parked",
        "succeeded",
        "timed_out",
    )

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.timed_out = 0
        self.aborted = 0
        self.parked = 0
        self.discarded = 0
        self.handler_failures = 0

    def count(self, end: End) -> None:
        """Count one ending."""
        if end.how is Ending.SUCCEEDED:
            self.succeeded += 1
        elif end.how is Ending.FAILED:
            self.failed += 1
        elif end.how is Ending.TIMED_OUT:
            self.timed_out += 1
        elif end.how is Ending.PARKED:
            self.parked += 1
        elif end.how is Ending.DISCARDED:
            self.discarded += 1
        else:
            self.aborted += 1
        if end.handler_failure is not None:
            self.handler_failures += 1

    def add(self, other: OutcomeCounts) -> None:
        """Add the counts of another one."""
        for name in OutcomeCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def ended(self) -> int:
        """All endings, whatever they were."""
        settled = self.succeeded + self.discarded + self.failed + self.timed_out
        return settled + self.aborted + self.parked


class EngineWorker(OutcomeCounts):
    """A long-lived thread or task that pulls transactions and drives their lifecycles."""

    __slots__ = ("attempt", "cancels", "handle", "run", "stepper")

    def __init__(self) -> None:
        super().__init__()
        self.attempt: InProgress | None = None  # what it does now; the supervisor looks here
        self.run: LifecycleRun | None = (
            None  # the lifecycle it drives, from its beginning to its outcome
        )
        self.cancels = 0  # asyncio: how often the engine itself has cancelled its task
        self.handle: Any = None  # asyncio: the task, to cancel it
        self.stepper: Any = None  # asyncio: runs its hooks
