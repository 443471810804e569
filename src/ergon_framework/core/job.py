"""The life of a job: what each thing that somebody saw makes of it.

Rules for editors: what may happen in which state stands in ``ALLOWED`` and nowhere else; whether a
failed attempt is repeated is decided by ``judge`` and nowhere else. ``settle`` only combines the
two. Dispatcher, rescuer, pool and operator's commands translate what they see into one event.

Theory of operation. A **delivery** is counted by the store on every claim; an **attempt** only when
a request reached an executor. A job whose deliveries run out without an outcome is poison, and is
dead-lettered. A delivery that was nobody's fault (held by a gate, given back by a stopping worker,
sent to a process that died before it read it) is *excused*: it counts for the eye, not for the
limit. A move carries no instant, only a ``delay``: the store adds its own clock when it applies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import (
    LONGEST_DELAY,
    SHORTEST_HOLD,
    GiveUpReason,
    RetryAfter,
    RetryRule,
    judge,
)

JOB_RETRIES = frozenset(Kind) - {Kind.REJECTED, Kind.CANCELLED, Kind.HELD}
"""What a durable job is tried again after."""


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
class Tally:
    """What the store knows of a job when something happens to it."""

    status: JobStatus
    attempts: int = 0  # charged before the delivery in question
    deliveries: int = 0  # the one in question included
    excused: int = 0
    is_charged: bool = False  # the store has charged the attempt of this delivery already
    is_solo: bool = False  # it is to be alone in its process


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The executor answered ``success``."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. ``is_written`` tells whether an executor was asked at all."""

    failure: Failure
    is_written: bool = True
    traceback: str | None = None  # for the history; nothing is decided by it
    output: str | None = None  # the last lines of the process that ran it, the same


@dataclass(frozen=True, slots=True)
class Held:
    """A gate refused before anything was attempted."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Died:
    """The executor's process ended with this job in its hands.

    ``is_taken`` tells whether it had read the request, ``is_alone`` whether it held no other.
    """

    is_taken: bool = True
    is_alone: bool = True
    detail: str = "the executor's process ended"
    output: str | None = None  # its last lines, for the history


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gives the job back: it stops, or lost the slot it had claimed it for."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The holder has not renewed its lease in time."""


@dataclass(frozen=True, slots=True)
class Outdated:
    """The job's expiry passed before it was started."""


@dataclass(frozen=True, slots=True)
class ExecutorMissing:
    """No worker has had the executor that the job names, for as long as a job may wait for one."""

    executor: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody no longer wants it."""


@dataclass(frozen=True, slots=True)
class RunAsked:
    """Somebody wants it to run now: it is due at once, or begins anew when it had ended."""


@dataclass(frozen=True, slots=True)
class RequeueAsked:
    """Somebody sends a dead-lettered job back with fresh counters."""


Seen: TypeAlias = (
    Succeeded
    | Failed
    | Held
    | Died
    | Released
    | LeaseExpired
    | Outdated
    | ExecutorMissing
    | CancelAsked
    | RunAsked
    | RequeueAsked
)

ALLOWED: dict[type[Seen], frozenset[JobStatus]] = {
    Succeeded: _RUNNING,
    Failed: _RUNNING,
    Held: _RUNNING,
    Died: _RUNNING,
    Released: _RUNNING,
    LeaseExpired: _RUNNING,
    Outdated: _WAITING,
    ExecutorMissing: _WAITING,
    CancelAsked: _WAITING,
    RunAsked: _WAITING | {JobStatus.FAILED, JobStatus.CANCELLED},
    RequeueAsked: frozenset({JobStatus.FAILED}),
}
"""In which states an event may happen; in any other it changes nothing."""


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of the job. ``event`` is the word its history gets."""

    status: JobStatus
    event: str
    attempts: int
    excused: int
    delay: float = 0.0
    failure: Failure | None = None
    why: str = ""  # why it waits, or why it ended
    is_solo: bool = False  # next time alone in its process
    is_reset: bool = False  # begin anew: deliveries and history of failures count no more


class Refused(Exception):
    """The event cannot happen in the job's state."""


def settle(tally: Tally, seen: Seen, rule: JobRule, dice: float = 0.5) -> Move:
    """What becomes of a job after ``seen``; raises :class:`Refused` when its state forbids it."""
    if tally.status not in ALLOWED[type(seen)]:
        raise Refused(f"{type(seen).__name__} cannot happen to a job that is {tally.status}")
    match seen:
        case Succeeded():
            return Move(JobStatus.COMPLETED, "completed", tally.attempts + 1, tally.excused)
        case Failed(failure, is_written):
            return _judged(tally, failure, rule, dice, is_charged=is_written)
        case Held(failure):
            return _held(tally, failure, rule)
        case Died():
            return _died(tally, seen, rule, dice)
        case Released():
            return _again(tally, "released", "released", excuses=True)
        case LeaseExpired():
            return _expired(tally, rule)
        case Outdated() | ExecutorMissing():
            return _waited(tally, seen)
        case CancelAsked():
            return Move(JobStatus.CANCELLED, "cancelled", tally.attempts, tally.excused)
        case RunAsked() | RequeueAsked():
            if tally.status in _WAITING:
                is_solo = tally.is_solo
                return Move(tally.status, "hurried", tally.attempts, tally.excused, is_solo=is_solo)
            return Move(JobStatus.PENDING, "requeued", 0, 0, is_reset=True)
        case _:
            assert_never(seen)


def _waited(tally: Tally, seen: Outdated | ExecutorMissing) -> Move:
    """It was not started for as long as it may wait."""
    if isinstance(seen, Outdated):
        if tally.attempts:  # it was, and keeps the failure after which it was to be tried again
            return _ended(tally.attempts, tally.excused, "expired", None, EXPIRED_RETRYING)
        failure = Failure(Kind.REJECTED, "expired", "it was not started before its expiry")
        return _ended(tally.attempts, tally.excused, "expired", failure, "expired")
    text = f"no worker has had an executor {seen.executor!r} for as long as a job may wait for one"
    failure = Failure(Kind.REJECTED, "unknown_executor", text)
    return _ended(tally.attempts, tally.excused, "unserved", failure, UNSERVED)


def _held(tally: Tally, failure: Failure, rule: JobRule) -> Move:
    asked = rule.held_delay if failure.retry_after is None else failure.retry_after
    delay = min(max(SHORTEST_HOLD, asked), LONGEST_DELAY)
    if rule.retry.max_retry_after is not None:
        delay = min(delay, rule.retry.max_retry_after)
    return _again(tally, "held", failure.code, excuses=True, delay=delay, failure=failure)


def _died(tally: Tally, seen: Died, rule: JobRule, dice: float) -> Move:
    if not seen.is_taken:
        return _again(tally, "released", "executor_not_up", excuses=True)
    failure = Failure(Kind.LOST, "executor_died", seen.detail)
    if seen.is_alone:
        return _judged(tally, failure, rule, dice, is_charged=True)
    # Nobody knows which of them it was: each is tried again alone, and none is charged.
    move = _again(tally, "lost", "executor_died", failure=failure, is_solo=True)
    return _limited(tally, move, rule)


def _expired(tally: Tally, rule: JobRule) -> Move:
    failure = Failure(Kind.LOST, "lease_expired", "its worker stopped renewing the lease")
    if not tally.is_charged:
        return _limited(tally, _again(tally, "lost", failure.code, failure=failure), rule)
    # The lease period was wait enough: a rescued job is due at once.
    return _judged(tally, failure, rule, 0.0, is_charged=True, waits=False)


def _judged(
    tally: Tally,
    failure: Failure,
    rule: JobRule,
    dice: float,
    *,
    is_charged: bool,
    waits: bool = True,
) -> Move:
    attempts = tally.attempts + is_charged
    event = "lost" if failure.kind is Kind.LOST else "failed"
    verdict = judge(rule.retry, tally.attempts, 0.0, failure, 0.0, dice)
    if isinstance(verdict, RetryAfter):
        delay = verdict.delay if waits else 0.0
        move = Move(
            JobStatus.RETRYING,
            event,
            attempts,
            tally.excused,
            delay,
            failure,
            failure.code,
            tally.is_solo,
        )
        return _limited(tally, move, rule)
    return _ended(attempts, tally.excused, event, failure, verdict.why)


def _again(
    tally: Tally,
    event: str,
    why: str,
    *,
    excuses: bool = False,
    delay: float = 0.0,
    failure: Failure | None = None,
    is_solo: bool = False,
) -> Move:
    """Back to the queue without a charge, where it stood before it was claimed."""
    status = JobStatus.RETRYING if tally.attempts else JobStatus.PENDING
    excused = tally.excused + excuses
    is_solo = is_solo or tally.is_solo
    return Move(status, event, tally.attempts, excused, delay, failure, why, is_solo)


def _limited(tally: Tally, move: Move, rule: JobRule) -> Move:
    """The same move, unless the job has been delivered as often as it may be."""
    if tally.deliveries - move.excused < rule.max_deliveries:
        return move
    return _ended(move.attempts, move.excused, move.event, move.failure, DELIVERIES_SPENT)


def _ended(attempts: int, excused: int, event: str, failure: Failure | None, why: str) -> Move:
    return Move(JobStatus.FAILED, event, attempts, excused, 0.0, failure, str(why))


DELIVERIES_SPENT = "deliveries_spent"
EXPIRED_RETRYING = "expired_retrying"
UNSERVED = "unserved"
WHY_ENDED = {
    GiveUpReason.NOT_RETRYABLE.value: "its failure is of a kind that trying again cannot mend",
    GiveUpReason.ATTEMPTS_SPENT.value: "all its attempts are spent",
    GiveUpReason.BUDGET_SPENT.value: "its time for retries is spent",
    DELIVERIES_SPENT: "it was delivered as often as it may be without coming to an end",
    "expired": "it was not started before its expiry",
    EXPIRED_RETRYING: "its expiry passed before it could be tried again",
    UNSERVED: "no worker had its executor for as long as a job may wait for one",
}
"""Why a job was dead-lettered, in words."""


def route(handler: str) -> tuple[str, str]:
    """``executor#handler`` split at the first ``#``; an empty executor means the default one."""
    executor, mark, name = handler.partition("#")
    return (executor, name) if mark else ("", executor)
