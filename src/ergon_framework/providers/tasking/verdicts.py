"""What becomes of a task whose call failed: decided here, done elsewhere.

What a reason means is read from the one table in ``decisions.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ergon_framework.core.guard import Stopped
from ergon_framework.core.retry import Backoff
from ergon_framework.providers.decisions import Bury, Decision, Requeue
from ergon_framework.providers.execution import ProviderExecutionResult
from ergon_framework.providers.tasks import NOTHING, Carried, Gate, TaskEnd, TaskOptions

_GATE_OF_STOP = {
    Stopped.CIRCUIT_OPEN: Gate.CIRCUIT,
    Stopped.COOLDOWN: Gate.COOLDOWN,
    Stopped.QUOTA: Gate.WINDOW,
    Stopped.STORE: Gate.STORE,
}
_GATE_OF_REQUEUE = {
    Requeue.OPEN_UNTIL: Gate.CIRCUIT,
    Requeue.COOLDOWN_END: Gate.COOLDOWN,
    Requeue.WINDOW_END: Gate.WINDOW,
}

LEAST_WAIT = Backoff(base=1.0, factor=2.0, cap=60.0)
"""Between two messages of one call, however soon a gate says that it will open: behind a gate that
lets in one at a time, everybody would be back at once."""

_SAME = 1.0
"""Seconds by which two instants may differ and still be the end of one wait."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the message, and what to send along if it goes back."""

    end: TaskEnd
    seconds: float = 0.0
    gate: Gate | None = None
    carried: Carried = NOTHING


@dataclass(frozen=True, slots=True)
class Moment:
    """What a verdict needs to know beside the result."""

    carried: Carried
    """As it came."""
    now: float
    """Seconds since 1970."""
    dice: float
    """In [0, 1)."""
    may_wait: bool
    longest_wait: float


def verdict_on(
    result: ProviderExecutionResult,
    decision: Decision,
    backoff: Backoff,
    max_attempts: int,
    options: TaskOptions,
    moment: Moment,
) -> Verdict:
    """What becomes of a call that failed."""
    carried, made = moment.carried, moment.carried.attempts + result.attempts
    gate = _gate(result, decision)
    may_go_on = made < max_attempts and moment.may_wait
    is_held = gate in options.defer_on and may_go_on and options.max_deferrals > 0
    if gate is not None and is_held:
        deferred = defer(gate, result.retry_after_seconds or 0.0, made, options, moment)
        if deferred is not None:
            return deferred
    elif may_go_on and _may_requeue(result, decision, options, carried):
        wait = backoff.delay(max(0, made - 1), moment.dice)
        wait = min(max(wait, result.retry_after_seconds or 0.0), moment.longest_wait)
        sent = Carried(made, carried.deferrals, carried.requeues + 1, carried.redrive_count)
        return Verdict(TaskEnd.REQUEUE, wait, None, sent)
    # What went back to the queue was retried, and now that is exhausted, whatever its reason.
    is_exhausted = carried.requeues > 0 and _is_asked_for(result, decision, options)
    is_buried = is_held or is_exhausted or decision.bury is Bury.ON_EXHAUSTION
    is_dead = is_buried or result.reason_code in options.bury_on
    return Verdict(TaskEnd.DEAD if is_dead else TaskEnd.FAILED)


def defer(
    gate: Gate, seconds: float, attempts: int, options: TaskOptions, moment: Moment
) -> Verdict | None:
    """Put a call off; None when that was done often enough."""
    carried = moment.carried
    until = moment.now + seconds
    is_same_wait = until <= carried.waits_until + _SAME and seconds > _SAME
    deferrals = carried.deferrals if is_same_wait else carried.deferrals + 1
    if deferrals > options.max_deferrals or not moment.may_wait:
        return None
    least = LEAST_WAIT.delay(max(0, deferrals - 1))
    # A little later for each: they were all put off to one instant.
    wait = max(seconds, least) + moment.dice * min(5.0, 0.1 * max(seconds, least))
    sent = Carried(attempts, deferrals, carried.requeues, carried.redrive_count, until)
    return Verdict(TaskEnd.DEFER, min(wait, moment.longest_wait), gate, sent)


def _gate(result: ProviderExecutionResult, decision: Decision) -> Gate | None:
    at_gate = _GATE_OF_STOP.get(Stopped(result.stop_reason))
    if at_gate is not None:
        return at_gate
    # The provider said itself until when it does not want to be called.
    told = result.retry_after_seconds is not None
    return _GATE_OF_REQUEUE.get(decision.requeue) if told else None


def _may_requeue(
    result: ProviderExecutionResult, decision: Decision, options: TaskOptions, carried: Carried
) -> bool:
    if carried.requeues >= options.max_requeues:
        return False
    return decision.retries or _is_asked_for(result, decision, options)


def _is_asked_for(
    result: ProviderExecutionResult, decision: Decision, options: TaskOptions
) -> bool:
    """Whether the task wants a reason to go back that does not do so by itself."""
    return decision.requeue is Requeue.OPT_IN and result.reason_code in options.requeue_on
