"""The life of a job: which transition follows each event.

Rules for editors: what may happen in which state stands in ``ALLOWED`` and nowhere else; whether a
failed attempt is repeated is decided by ``judge`` and nowhere else. ``next_transition`` only
combines the two. Dispatcher, rescue, pool and operators' commands turn what they see into events.

Theory of operation. A **delivery** is counted by the store on every claim; an **attempt** only when
a request reached an executor. A job whose deliveries run out without an outcome is poison, and is
dead-lettered. A delivery that did not run the job (held by a gate, given back by a stopping worker,
sent to a process that died before it read it) is *excused*: it is shown, but does not count for the
limit. A job that runs can only be *asked* to stop: that is noted beside it (``is_cancelling``), and
whatever happens to it next ends it as cancelled, unless it completes first.
A request that was not read in its time is not charged, and not excused either: an executor
that never reads must not keep its jobs for ever. A job whose handler its worker does not have goes
back to a *lane* of that handler, from which only workers that have it claim. A transition carries
no instant, only a ``delay``: the store adds its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import (
    MAX_DELAY,
    MIN_HOLD,
    GiveUpReason,
    RetryAfter,
    RetryRule,
    judge,
)

JOB_RETRIES = frozenset(Kind) - {Kind.REJECTED, Kind.CANCELLED, Kind.HELD}
"""The kinds of failure after which a durable job is tried again."""


class JobStatus(StrEnum):
    """Where a job stands. A parked job is PENDING with a later due time and a reason."""

    PENDING = "pending"
    ACTIVE = "active"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"  # in the dead-letter queue
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether only an operator can bring it back."""
        return self in _FINAL


_FINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
_WAITING = frozenset({JobStatus.PENDING, JobStatus.RETRYING})
_RUNNING = frozenset({JobStatus.ACTIVE})


@dataclass(frozen=True, slots=True)
class JobRule:
    """How one job is tried, and how often it may be delivered."""

    retry: RetryRule = RetryRule(attempts=5, on=JOB_RETRIES)
    max_deliveries: int = 8
    held_delay: float = 30.0  # for a gate that did not say when


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What the store knows of a job when an event happens to it."""

    status: JobStatus
    attempts: int = 0  # charged before the delivery in question
    deliveries: int = 0  # the one in question included
    excused: int = 0
    is_charged: bool = False  # the store has charged the attempt of this delivery already
    is_solo: bool = False  # it is to be alone in its process
    is_cancelling: bool = False  # it runs, and its cancellation was requested


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The executor answered ``success``."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """The signal came that a step of a flow waits for; nothing was run."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """The executor answered ``success``, and that the job was pointless."""

    message: str = ""  # for the history


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. ``is_written``: whether the request was written to an executor at all."""

    failure: Failure
    is_written: bool = True
    traceback: str | None = None  # for the history; nothing is decided by it
    output: str | None = None  # the last lines of the process that ran it, the same


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A gate refused before anything was attempted."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class ProcessDied:
    """The executor's process ended while it had this job.

    ``was_read``: whether it had read the request. ``was_alone``: whether it held no other request.
    """

    was_read: bool = True
    was_alone: bool = True
    detail: str = "the executor's process ended"
    output: str | None = None  # its last lines, for the history
    message: str | None = None  # why it ended before it had read the request, for the history


@dataclass(frozen=True, slots=True)
class Unread:
    """The attempt's time passed, and the executor's process had not read the request."""

    timeout: float


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gives the job back: it stops, or lost the slot it had claimed it for."""


@dataclass(frozen=True, slots=True)
class HandlerMissing:
    """The worker that claimed it has its executor, but that executor has no such handler.

    Another version of the program may have it: the job waits for a worker that does.
    """

    executor: str  # as the job names it; empty: left to the routes
    handler: str
    message: str = ""  # for the history


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The holder has not renewed its lease in time."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The job's expiry passed before it was started."""


@dataclass(frozen=True, slots=True)
class ExecutorMissing:
    """No worker has had the executor that the job names, for as long as a job may wait for one.

    With a ``handler``: no worker has had that handler.
    """

    executor: str
    handler: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A client or operator cancels it."""

    by: str = ""  # who, for the history
    reason: str = ""  # the same


@dataclass(frozen=True, slots=True)
class RunRequested:
    """An operator wants it to run now: it is due at once, or begins anew when it had ended."""

    by: str = ""  # who, for the history


@dataclass(frozen=True, slots=True)
class RescheduleRequested:
    """An operator wants a job that waits to run at another time: so many seconds from now."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class RequeueRequested:
    """An operator sends a dead-lettered job back with fresh counters."""

    by: str = ""  # who, for the history


@dataclass(frozen=True, slots=True)
class EditRequested:
    """An operator sends a dead-lettered job back with other arguments: as another, new job."""

    became: str  # the id of the new job, for the history
    by: str = ""  # who, the same
    reason: str = ""  # why, the same


JobEvent: TypeAlias = (
    Succeeded
    | Signalled
    | Discarded
    | Failed
    | HeldBack
    | ProcessDied
    | Unread
    | Released
    | HandlerMissing
    | LeaseExpired
    | Expired
    | ExecutorMissing
    | CancelRequested
    | RunRequested
    | RescheduleRequested
    | RequeueRequested
    | EditRequested
)

ALLOWED: dict[type[JobEvent], frozenset[JobStatus]] = {
    Succeeded: _RUNNING,
    Signalled: _WAITING,
    Discarded: _RUNNING,
    Failed: _RUNNING,
    HeldBack: _RUNNING,
    ProcessDied: _RUNNING,
    Unread: _RUNNING,
    Released: _RUNNING,
    HandlerMissing: _RUNNING,
    LeaseExpired: _RUNNING,
    Expired: _WAITING,
    ExecutorMissing: _WAITING,
    CancelRequested: _WAITING,
    RunRequested: _WAITING | {JobStatus.FAILED, JobStatus.CANCELLED},
    RescheduleRequested: _WAITING,
    RequeueRequested: frozenset({JobStatus.FAILED}),
    EditRequested: frozenset({JobStatus.FAILED}),
}
"""In which states an event may happen; in any other it changes nothing."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What becomes of the job. ``event`` is the word for it in the job's history."""

    status: JobStatus
    event: str
    attempts: int
    excused: int
    delay: float = 0.0
    failure: Failure | None = None
    why: str = ""  # why it waits, or why it ended
    is_solo: bool = False  # next time alone in its process
    is_reset: bool = False  # begin anew: deliveries and history of failures count no more
    lane: str = ""  # waits from now on for a worker with a handler, see ``handler_lane``


class InvalidTransition(Exception):
    """The event cannot happen in the job's state."""


def next_transition(
    snapshot: JobSnapshot, event: JobEvent, rule: JobRule, dice: float = 0.5
) -> Transition:
    """What becomes of a job after ``event``; :class:`InvalidTransition` where it cannot happen."""
    if snapshot.status not in ALLOWED[type(event)]:
        raise InvalidTransition(
            f"{type(event).__name__} cannot happen to a job that is {snapshot.status}"
        )
    transition = _next_transition(snapshot, event, rule, dice)
    return cancelled_instead(transition) if snapshot.is_cancelling else transition


def cancelled_instead(transition: Transition) -> Transition:
    """What becomes of a job whose cancellation was requested while it ran.

    A completion stays one. Any other end is a cancellation, and so is going back to the queue.
    """
    if transition.status is JobStatus.COMPLETED:
        return transition
    return Transition(
        JobStatus.CANCELLED,
        "cancelled",
        transition.attempts,
        transition.excused,
        why=CANCELLED_RUNNING,
    )


def _next_transition(
    snapshot: JobSnapshot, event: JobEvent, rule: JobRule, dice: float
) -> Transition:
    match event:
        case Succeeded() | Discarded() | Signalled():
            return _completed(snapshot, event)
        case Failed(failure, is_written):
            return _judged(snapshot, failure, rule, dice, is_charged=is_written)
        case HeldBack(failure):
            return _held(snapshot, failure, rule)
        case ProcessDied():
            return _died(snapshot, event, rule, dice)
        case Unread() | Released():
            return _given_back(snapshot, event, rule)
        case HandlerMissing(executor, handler):
            back = _again(snapshot, "released", HANDLER_MISSING, excuses=True)
            return replace(back, lane=handler_lane(executor, handler))
        case LeaseExpired():
            return _expired(snapshot, rule)
        case Expired() | ExecutorMissing():
            return _waited(snapshot, event)
        case CancelRequested() | EditRequested():
            return _called_off(snapshot, event)
        case RunRequested() | RescheduleRequested() | RequeueRequested():
            if snapshot.status in _WAITING:
                return _moved_in_time(snapshot, event)
            return Transition(JobStatus.PENDING, "requeued", 0, 0, is_reset=True)
        case _:
            assert_never(event)


def _moved_in_time(
    snapshot: JobSnapshot, event: RunRequested | RescheduleRequested | RequeueRequested
) -> Transition:
    """The job goes on waiting, and is due at another time."""
    word, delay = "hurried", 0.0
    if isinstance(event, RescheduleRequested):
        word, delay = "rescheduled", max(0.0, event.delay)
    attempts, excused, is_solo = snapshot.attempts, snapshot.excused, snapshot.is_solo
    return Transition(snapshot.status, word, attempts, excused, delay, is_solo=is_solo)


def _completed(snapshot: JobSnapshot, event: Succeeded | Discarded | Signalled) -> Transition:
    if isinstance(event, Signalled):
        return Transition(JobStatus.COMPLETED, "signalled", snapshot.attempts, snapshot.excused)
    attempts, excused = snapshot.attempts + 1, snapshot.excused
    if isinstance(event, Discarded):
        return Transition(JobStatus.COMPLETED, DISCARDED, attempts, excused, why=DISCARDED)
    return Transition(JobStatus.COMPLETED, "completed", attempts, excused)


def _called_off(snapshot: JobSnapshot, event: CancelRequested | EditRequested) -> Transition:
    spent = snapshot.attempts, snapshot.excused
    if isinstance(event, EditRequested):
        return Transition(JobStatus.CANCELLED, EDITED, *spent, why=EDITED)
    return Transition(JobStatus.CANCELLED, "cancelled", *spent)


def _waited(snapshot: JobSnapshot, event: Expired | ExecutorMissing) -> Transition:
    """The job was not started within the time that it may wait."""
    if isinstance(event, Expired):
        if snapshot.attempts:  # it was, and keeps the failure after which it was to be tried again
            return _ended(snapshot.attempts, snapshot.excused, "expired", None, EXPIRED_RETRYING)
        failure = Failure(Kind.REJECTED, "expired", "it was not started before its expiry")
        return _ended(snapshot.attempts, snapshot.excused, "expired", failure, EXPIRED)
    if event.handler:
        text = f"no worker has had a handler {event.handler!r} for as long as a job may wait"
        failure = Failure(Kind.REJECTED, "handler_not_found", text)
        return _ended(snapshot.attempts, snapshot.excused, "unserved", failure, UNHANDLED)
    text = f"no worker has had an executor {event.executor!r} for as long as a job may wait for one"
    failure = Failure(Kind.REJECTED, "unknown_executor", text)
    return _ended(snapshot.attempts, snapshot.excused, "unserved", failure, UNSERVED)


def _held(snapshot: JobSnapshot, failure: Failure, rule: JobRule) -> Transition:
    asked = rule.held_delay if failure.retry_after is None else failure.retry_after
    # At least a moment: a gate that answers zero and refuses again would send the job round without
    # a pause.
    delay = min(max(MIN_HOLD, asked), MAX_DELAY)
    if rule.retry.max_retry_after is not None:
        delay = min(delay, rule.retry.max_retry_after)
    return _again(snapshot, "held", failure.code, excuses=True, delay=delay, failure=failure)


def _died(snapshot: JobSnapshot, event: ProcessDied, rule: JobRule, dice: float) -> Transition:
    if not event.was_read:
        return _again(snapshot, "released", "executor_not_up", excuses=True)
    failure = Failure(Kind.LOST, "executor_died", event.detail)
    # A job that must not run twice is not repeated alone to find the culprit: it may have run.
    if event.was_alone or _ends_when_lost(rule):
        return _judged(snapshot, failure, rule, dice, is_charged=event.was_alone)
    # It is not known which of them killed it: each is tried again alone, and none is charged.
    transition = _again(snapshot, "lost", "executor_died", failure=failure, is_solo=True)
    return _limited(snapshot, transition, rule)


def _given_back(snapshot: JobSnapshot, event: Unread | Released, rule: JobRule) -> Transition:
    if isinstance(event, Released):
        return _again(snapshot, "released", "released", excuses=True)
    text = (
        f"the executor was busy, or did not work: it had not read the request"
        f" when its {event.timeout:g} s were over, and was ended"
    )
    failure = Failure(Kind.TIMEOUT, "request_unread", text)
    return _limited(snapshot, _again(snapshot, "released", failure.code, failure=failure), rule)


def _expired(snapshot: JobSnapshot, rule: JobRule) -> Transition:
    failure = Failure(Kind.LOST, "lease_expired", "its worker stopped renewing the lease")
    if not snapshot.is_charged and not _ends_when_lost(rule):
        return _limited(snapshot, _again(snapshot, "lost", failure.code, failure=failure), rule)
    # The lease period was wait enough: a rescued job is due at once.
    is_charged = snapshot.is_charged
    return _judged(snapshot, failure, rule, 0.0, is_charged=is_charged, waits=False)


def _ends_when_lost(rule: JobRule) -> bool:
    """Whether a job must not run twice: a delivery without an outcome may have run it."""
    return Kind.LOST not in rule.retry.on


def _judged(
    snapshot: JobSnapshot,
    failure: Failure,
    rule: JobRule,
    dice: float,
    *,
    is_charged: bool,
    waits: bool = True,
) -> Transition:
    attempts = snapshot.attempts + is_charged
    event = "lost" if failure.kind is Kind.LOST else "failed"
    verdict = judge(rule.retry, snapshot.attempts, 0.0, failure, 0.0, dice)
    if isinstance(verdict, RetryAfter):
        delay = verdict.delay if waits else 0.0
        transition = Transition(
            JobStatus.RETRYING,
            event,
            attempts,
            snapshot.excused,
            delay,
            failure,
            failure.code,
            snapshot.is_solo,
        )
        return _limited(snapshot, transition, rule)
    return _ended(attempts, snapshot.excused, event, failure, verdict.why)


def _again(
    snapshot: JobSnapshot,
    event: str,
    why: str,
    *,
    excuses: bool = False,
    delay: float = 0.0,
    failure: Failure | None = None,
    is_solo: bool = False,
) -> Transition:
    """Back to the queue without a charge, where it stood before it was claimed."""
    status = JobStatus.RETRYING if snapshot.attempts else JobStatus.PENDING
    excused = snapshot.excused + excuses
    is_solo = is_solo or snapshot.is_solo
    return Transition(status, event, snapshot.attempts, excused, delay, failure, why, is_solo)


def _limited(snapshot: JobSnapshot, transition: Transition, rule: JobRule) -> Transition:
    """The transition, or the end of the job if it has been delivered as often as it may be."""
    if snapshot.deliveries - transition.excused < rule.max_deliveries:
        return transition
    return _ended(
        transition.attempts,
        transition.excused,
        transition.event,
        transition.failure,
        DELIVERIES_SPENT,
    )


def _ended(
    attempts: int, excused: int, event: str, failure: Failure | None, why: str
) -> Transition:
    return Transition(JobStatus.FAILED, event, attempts, excused, 0.0, failure, str(why))


CANCELLED_RUNNING = "cancelled_running"
DELIVERIES_SPENT = "deliveries_spent"
DISCARDED = "discarded"
EDITED = "edited"
EXPIRED = "expired"
EXPIRED_RETRYING = "expired_retrying"
HANDLER_MISSING = "handler_missing"
REPLACED = "replaced"
UNHANDLED = "unhandled"
UNSERVED = "unserved"
SUPERSEDED = frozenset({EDITED, REPLACED})
"""The reasons of cancelled jobs that were replaced by a job with other arguments."""
WHY_ENDED = {
    GiveUpReason.NOT_RETRYABLE.value: "its failure is of a kind that is not tried again",
    GiveUpReason.ATTEMPTS_SPENT.value: "all its attempts are spent",
    GiveUpReason.BUDGET_SPENT.value: "its time for retries is spent",
    DELIVERIES_SPENT: "it was delivered as often as it may be without coming to an end",
    EXPIRED: "it was not started before its expiry",
    EXPIRED_RETRYING: "its expiry passed before it could be tried again",
    UNHANDLED: "no worker had its handler for as long as a job may wait for one",
    UNSERVED: "no worker had its executor for as long as a job may wait for one",
}
"""Why a job was dead-lettered, for people."""


def route(handler: str) -> tuple[str, str]:
    """``executor#handler`` split at the first ``#``; an empty executor means the default one."""
    executor, mark, name = handler.partition("#")
    return (executor, name) if mark else ("", executor)


def handler_lane(executor: str, handler: str) -> str:
    """The lane of a handler: what a job names as its executor while it waits for a worker that has
    the handler.

    No executor has such a name, so no other worker claims the job. :func:`route` takes it apart.
    """
    return f"{executor}#{handler}"
