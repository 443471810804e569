"""The lifecycle of one transaction: process, then one of two handlers, then exactly one ending.

Rules for editors: what follows what stands in ``ROUTES`` and nowhere else; whether a failed attempt
is repeated is decided by ``judge`` and nowhere else. ``advance`` only combines the two.

Theory of operation. A driver owns a :class:`LifecycleCursor` and asks ``advance`` what to do about
an event. The answer is one action: call a hook, sleep, or end. The driver does it and comes back
with the next event. Time reaches the machine only as ``now``. There are three scopes of timeout: a
*step's* is a failed attempt like any other and goes to the judge; the *lifecycle's* leads to the
one exception phase; the *loop's* aborts, because starting a handler would overrun the very bound
that passed.

A failure of the kind HELD says that nothing was attempted: a gate was closed. It costs no attempt.
A transaction whose source can keep it for a while is *parked*: it ends without an outcome and comes
back later. Any other waits where it is, and the same attempt is made again. A call that is to end
soon bounds that wait: what is to wait longer leaves the call, parked or handed back at its end.

A transaction that is *discarded* by its hook ends at once, without a handler.

Whether an ack or nack that failed is tried again is decided by ``judge_settlement``, at the end of
this file; ``engine/settlement_retry.py`` carries it out.

The lifecycle deadline lies one ``timeout`` after the beginning. The exception phase may use one
further ``timeout``, and always has one whole ``timeout`` for itself, since a transaction without an
outcome is worse than a bounded overrun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import (
    MAX_DELAY,
    MIN_HOLD,
    Backoff,
    RetryAfter,
    RetryRule,
    Verdict,
    judge,
)


class LifecycleStep(StrEnum):
    """Where a lifecycle stands. PROCESS is the producer's PRODUCE too."""

    PROCESS = "process"
    ON_SUCCESS = "success"
    ON_EXCEPTION = "exception"


class Cue(StrEnum):
    """What ends a step, after its retries."""

    OK = "ok"
    FAILED = "failed"
    EXPIRED = "expired"
    STOPPED = "stopped"


class Ending(StrEnum):
    """The one recorded outcome of a transaction; ABORTED and PARKED ones have none yet."""

    SUCCEEDED = "succeeded"
    DISCARDED = "discarded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    PARKED = "parked"


class TimeoutScope(StrEnum):
    """Whose time ran out."""

    STEP = "step"
    LIFECYCLE = "lifecycle"
    LOOP = "loop"


ROUTES: dict[tuple[LifecycleStep, Cue], LifecycleStep | Ending] = {
    (LifecycleStep.PROCESS, Cue.OK): LifecycleStep.ON_SUCCESS,
    (LifecycleStep.PROCESS, Cue.FAILED): LifecycleStep.ON_EXCEPTION,
    (LifecycleStep.PROCESS, Cue.EXPIRED): LifecycleStep.ON_EXCEPTION,
    (LifecycleStep.PROCESS, Cue.STOPPED): Ending.ABORTED,
    (LifecycleStep.ON_SUCCESS, Cue.OK): Ending.SUCCEEDED,
    # A success handler that fails makes the whole transaction a failed one: its effect is part of
    # the work.
    (LifecycleStep.ON_SUCCESS, Cue.FAILED): LifecycleStep.ON_EXCEPTION,
    (LifecycleStep.ON_SUCCESS, Cue.EXPIRED): LifecycleStep.ON_EXCEPTION,
    (LifecycleStep.ON_SUCCESS, Cue.STOPPED): Ending.ABORTED,
    # FAILED reads TIMED_OUT when the failure that led here was a timeout.
    (LifecycleStep.ON_EXCEPTION, Cue.OK): Ending.FAILED,
    (LifecycleStep.ON_EXCEPTION, Cue.FAILED): Ending.FAILED,
    (LifecycleStep.ON_EXCEPTION, Cue.EXPIRED): Ending.FAILED,
    (LifecycleStep.ON_EXCEPTION, Cue.STOPPED): Ending.ABORTED,
}

HELD_DELAY = 30.0
"""Seconds to wait for a gate that does not say when it opens."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """How one step is tried: its retries, and the time of a single attempt."""

    retry: RetryRule = RetryRule()
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """The rules of all three steps, and the time of the whole lifecycle."""

    process: StepRule = StepRule()
    success: StepRule = StepRule()
    exception: StepRule = StepRule()
    timeout: float | None = None
    parks: bool = False
    """Whether the source can keep a transaction until a gate opens."""
    max_hold: float | None = None
    """Seconds that a transaction waits for a gate where it is, at most; None: none at all where the
    source can keep it, and otherwise as long as the gate says."""

    def of(self, step: LifecycleStep) -> StepRule:
        """The rule of one step."""
        if step is LifecycleStep.PROCESS:
            return self.process
        return self.success if step is LifecycleStep.ON_SUCCESS else self.exception


@dataclass(frozen=True, slots=True)
class Began:
    """The lifecycle got its permit."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The hook returned; any value is a success, an exception object included."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The hook raised."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RaisedDiscard:
    """The hook says that there is nothing to do any more; ``failure`` has its words."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Woke:
    """The wait before the next attempt is over."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Time ran out during a call or a wait."""

    scope: TimeoutScope


@dataclass(frozen=True, slots=True)
class Stopped:
    """The whole call is being aborted."""


LifecycleEvent: TypeAlias = Began | Returned | Raised | RaisedDiscard | Woke | TimedOut | Stopped

BEGAN = Began()
RETURNED = Returned()
WOKE = Woke()
STOPPED = Stopped()


@dataclass(frozen=True, slots=True)
class CallHook:
    """Call the hook of a step; ``attempt`` counts from 0."""

    step: LifecycleStep
    attempt: int
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait, then report ``Woke``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class End:
    """The transaction has ended. ``handler_failure`` is set when the exception handler itself
    failed.
    """

    how: Ending
    failure: Failure | None = None
    handler_failure: Failure | None = None


SUCCEEDED = End(Ending.SUCCEEDED)
"""The one ending of the happy path, shared by all runs."""

LifecycleAction: TypeAlias = CallHook | Sleep | End


class LifecycleCursor:
    """Where one lifecycle stands. Mutable, owned by one driver at a time.

    What is the same at every beginning stands on the class: most lifecycles never change it.
    """

    step: LifecycleStep = LifecycleStep.PROCESS
    attempt: int = 0
    is_held: bool = False  # the wait under way is for a gate: no attempt has been made
    failure: Failure | None = None
    end: End | None = None

    def __init__(self, began_at: float) -> None:
        self.began_at = self.step_began_at = began_at


def deadline(rule: LifecycleRule, cursor: LifecycleCursor) -> float | None:
    """When the lifecycle's own time is over, seen from the step it stands in."""
    if rule.timeout is None:
        return None
    if cursor.step is not LifecycleStep.ON_EXCEPTION:
        return cursor.began_at + rule.timeout
    # Noticed late, an expiry must not cost the handler its time: then no handler would be called.
    # Twice the timeout: the exception handler has the same time again, or nothing would be done
    # about a lifecycle that ran out of it.
    return max(cursor.began_at + 2 * rule.timeout, cursor.step_began_at + rule.timeout)


def first_to_expire(step_at: float | None, lifecycle_at: float | None) -> TimeoutScope | None:
    """Which of the two deadlines acts first; the wider scope wins a tie."""
    # A tie goes to the lifecycle: a retry of the step would have no time left.
    if lifecycle_at is not None and (step_at is None or lifecycle_at <= step_at):
        return TimeoutScope.LIFECYCLE
    return None if step_at is None else TimeoutScope.STEP


def advance(
    rule: LifecycleRule, cursor: LifecycleCursor, event: LifecycleEvent, now: float, dice: float
) -> LifecycleAction:
    """What to do about ``event``. After the end, every event gets the same end again."""
    if cursor.end is not None:
        return cursor.end
    match event:
        case Began():
            return _call(rule, cursor)
        case Woke():
            # A gate that was closed made no attempt: the same one is begun again, with the same
            # number.
            cursor.attempt += not cursor.is_held
            cursor.is_held = False
            return _call(rule, cursor)
        case Returned():
            return _leave(rule, cursor, Cue.OK, None, now)
        # Before the retries: waiting for a gate spends none of them.
        case Raised(failure) if failure.kind is Kind.HELD:
            return _hold(rule, cursor, failure)
        case RaisedDiscard(failure) if cursor.step is LifecycleStep.PROCESS:
            cursor.end = End(Ending.DISCARDED, failure)
            return cursor.end
        case Raised(failure) | RaisedDiscard(failure):  # a handler has nothing to discard
            return _retry_or_leave(rule, cursor, failure, now, dice)
        case TimedOut(TimeoutScope.STEP):
            return _retry_or_leave(rule, cursor, _timeout(TimeoutScope.STEP, cursor), now, dice)
        case TimedOut(TimeoutScope.LIFECYCLE):
            failure = _timeout(TimeoutScope.LIFECYCLE, cursor)
            return _leave(rule, cursor, Cue.EXPIRED, failure, now)
        # Of the loop: the transaction has no outcome and goes back to its source.
        case TimedOut() | Stopped():
            return _leave(rule, cursor, Cue.STOPPED, cursor.failure, now)
        case _:
            assert_never(event)


def _retry_or_leave(
    rule: LifecycleRule, cursor: LifecycleCursor, failure: Failure, now: float, dice: float
) -> LifecycleAction:
    retry = rule.of(cursor.step).retry
    verdict = judge(retry, cursor.attempt, cursor.step_began_at, failure, now, dice)
    if not isinstance(verdict, RetryAfter):
        return _leave(rule, cursor, Cue.FAILED, failure, now)
    if verdict.delay > 0.0:
        return Sleep(verdict.delay)
    cursor.attempt += 1
    return _call(rule, cursor)


def _hold(rule: LifecycleRule, cursor: LifecycleCursor, failure: Failure) -> LifecycleAction:
    hold, longest = hold_of(failure), rule.max_hold
    leaves = rule.parks if longest is None else hold > longest
    # A parked transaction starts from its first step when it comes back. Once processing has
    # succeeded, that would do the work twice.
    if leaves and cursor.step is LifecycleStep.PROCESS:  # later steps cannot begin anew elsewhere
        cursor.end = End(Ending.PARKED if rule.parks else Ending.ABORTED, failure)
        return cursor.end
    cursor.is_held = True
    return Sleep(hold)


def hold_of(failure: Failure | None) -> float:
    """How long to wait for the gate that refused."""
    asked = None if failure is None else failure.retry_after
    return HELD_DELAY if asked is None else min(max(MIN_HOLD, asked), MAX_DELAY)


def _leave(
    rule: LifecycleRule, cursor: LifecycleCursor, cue: Cue, failure: Failure | None, now: float
) -> LifecycleAction:
    came_from = cursor.step
    route = ROUTES[came_from, cue]
    if isinstance(route, LifecycleStep):
        cursor.step, cursor.attempt, cursor.step_began_at = route, 0, now
        # Kept apart from the handler's own failure: the report says what the transaction failed
        # with, not what its handler did.
        if route is LifecycleStep.ON_EXCEPTION:
            cursor.failure = failure
        return _call(rule, cursor)
    cursor.end = _end(cursor, came_from, route, cue, failure)
    return cursor.end


def _end(
    cursor: LifecycleCursor,
    came_from: LifecycleStep,
    how: Ending,
    cue: Cue,
    failure: Failure | None,
) -> End:
    if came_from is not LifecycleStep.ON_EXCEPTION or how is Ending.ABORTED:
        return End(how, failure)
    if cursor.failure is not None and cursor.failure.kind is Kind.TIMEOUT:
        how = Ending.TIMED_OUT
    return End(how, cursor.failure, None if cue is Cue.OK else failure)


def _call(rule: LifecycleRule, cursor: LifecycleCursor) -> CallHook:
    return CallHook(cursor.step, cursor.attempt, rule.of(cursor.step).timeout)


def _timeout(scope: TimeoutScope, cursor: LifecycleCursor) -> Failure:
    if scope is TimeoutScope.LIFECYCLE:
        return Failure(Kind.TIMEOUT, "lifecycle_timeout", "the lifecycle ran out of time")
    message = f"attempt {cursor.attempt + 1} ran out of time"
    return Failure(Kind.TIMEOUT, "step_timeout", message)


class Verb(StrEnum):
    """How a delivery can be settled with its source."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    RELEASE_AFTER = "release_after"


VERBS: dict[Ending, Verb] = {
    Ending.SUCCEEDED: Verb.ACK,
    Ending.DISCARDED: Verb.ACK,
    Ending.FAILED: Verb.NACK,
    Ending.TIMED_OUT: Verb.NACK,
    Ending.ABORTED: Verb.RELEASE,
    Ending.PARKED: Verb.RELEASE_AFTER,
}

SETTLEMENT_RETRIES = frozenset({Kind.TRANSIENT, Kind.THROTTLED, Kind.HELD})
"""Failures that may pass. After a timeout the source may have received the settlement; on a lost
channel a delivery cannot be settled any more, and its tag may denote another one; a refusal or a
defect stays.
"""
SETTLEMENT_ATTEMPTS = 5
"""Calls of one verb for one delivery, the first included, unless the policy says otherwise."""
SETTLEMENT_BACKOFF = Backoff(base=0.1, factor=3.0, cap=5.0)
"""Short, because a worker waits meanwhile, and the lease or visibility timeout of the source runs.
"""


def settlement_rule(attempts: int = SETTLEMENT_ATTEMPTS, timeout: float = 30.0) -> RetryRule:
    """The rule of one settlement, all of whose attempts and waits share ``timeout``."""
    return RetryRule(attempts, SETTLEMENT_BACKOFF, SETTLEMENT_RETRIES, budget=timeout)


def judge_settlement(
    rule: RetryRule,
    attempt: int,
    began_at: float,
    failure: Failure,
    now: float,
    *,
    is_channel_lost: bool,
) -> Verdict:
    """What follows a failed settlement. Whatever it failed with, a lost channel ends it."""
    if is_channel_lost:
        failure = replace(failure, kind=Kind.LOST)
    return judge(rule, attempt, began_at, failure, now, 0.0)
