"""What a driver asks about one run, and what it tells about it. Nothing here waits."""

from __future__ import annotations

import logging
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import (
    STOPPED,
    SUCCEEDED,
    VERBS,
    Action,
    End,
    Ending,
    Event,
    Expired,
    Raised,
    Scope,
    Sleep,
    Step,
    Verb,
    advance,
    hold_of,
)
from ergon_framework.engine.classify import classify, is_a, timeout_exception, unclassified
from ergon_framework.engine.flight import Flight
from ergon_framework.engine.plan import ON_SUCCESS, PROCESS
from ergon_framework.engine.run import BACKOFF, SETTLE, Doing, Run, Settling, Worker
from ergon_framework.ports.context import CURRENT

logger = logging.getLogger("ergon.engine")


set_current = CURRENT.set
"""Called inside an attempt's private context, just before its hook."""


def arguments(run: Run, step: Step) -> tuple[Any, ...]:
    """What the hook of a step is called with."""
    if step is PROCESS:
        return (run.transaction,)
    return (run.transaction, run.result if step is ON_SUCCESS else run.exception)


def decide(flight: Flight, run: Run, event: Event) -> Action:
    """Ask the core what follows, and note what only a driver knows about it."""
    step, attempt = run.step, run.attempt
    backoff = flight.rule.of(step).retry.backoff
    dice = flight.plan.dice() if backoff.is_jittered else 0.0
    action = advance(flight.rule, run, event, flight.now(), dice)
    if isinstance(event, Expired):
        _note_timeout(run, step, action)
    if flight.sink is not None and isinstance(event, Raised | Expired):
        _tell_retry(flight, run, event, step, attempt, action)
    return action


def _note_timeout(run: Run, step: Step, action: Action) -> None:
    key = run.transaction.transaction_id
    if isinstance(action, End):
        if action.handler_failure is not None:
            run.handler_exception = timeout_exception(action.handler_failure, key)
    elif step is not Step.ON_EXCEPTION and run.step is Step.ON_EXCEPTION and run.failure:
        run.exception = timeout_exception(run.failure, key)


def _tell_retry(
    flight: Flight, run: Run, event: Raised | Expired, step: Step, attempt: int, action: Action
) -> None:
    if isinstance(action, End) or run.step is not step:
        return
    delay = action.seconds if isinstance(action, Sleep) else 0.0
    failure = event.failure if isinstance(event, Raised) else timed_out(event.scope)
    phase = flight.steps[step].phase
    flight.emit(
        "retry.scheduled", run=run, phase=phase, attempt=attempt, delay=delay, failure=failure
    )


def raised(flight: Flight, attempt: Doing, step: Step, error: BaseException) -> Event:
    """A hook raised, and the caller owns the attempt."""
    run: Run = attempt.run
    if is_a(error, KeyboardInterrupt):
        tell_attempt(flight, attempt, Failure(Kind.CANCELLED, "interrupted"), error)
        return STOPPED
    key = run.transaction.transaction_id
    try:
        failure, exception = classify(error, step, key)
    except Exception:
        logger.exception("the classifier failed", extra={"transaction_id": key})
        failure, exception = unclassified(key)
    if step is Step.ON_EXCEPTION:
        run.handler_exception = exception
    else:
        run.exception = exception
    tell_attempt(flight, attempt, failure, exception)
    return Raised(failure)


def expired(flight: Flight, attempt: Doing) -> Expired:
    """The attempt's time is over, and the caller owns it."""
    scope: Scope = attempt.scope
    if isinstance(attempt, Run):
        attempt.expired = False  # the attempts that follow have flags of their own
    tell_attempt(flight, attempt, timed_out(scope), None)
    return Expired(scope)


def timed_out(scope: Scope) -> Failure:
    """The failure of an engine deadline, for those who listen."""
    return Failure(Kind.TIMEOUT, f"{scope.value}_timeout", f"the {scope.value} ran out of time")


def tell_began(flight: Flight, run: Run) -> None:
    """Tell the sink that a lifecycle started."""
    if flight.story is None:
        flight.emit("transaction.began", run=run)
        return
    try:
        flight.story.began(flight.call, run)
    except Exception:
        logger.exception("a listener failed on transaction.began")


def tell_attempt(
    flight: Flight,
    attempt: Doing,
    failure: Failure | None,
    error: BaseException | None,
    result: Any = None,
    at: float | None = None,
) -> None:
    """Tell the sink how an attempt ended: now, or at an instant the caller has just read."""
    if flight.story is not None and not isinstance(attempt, Run):
        try:
            ended_at = flight.now() if at is None else at
            flight.story.left(attempt, ended_at, failure, error, result)
        except Exception:
            logger.exception("a listener failed on attempt.ended")
    elif flight.sink is not None:
        flight.emit(
            "attempt.ended", attempt=attempt, failure=failure, exception=error, result=result
        )


def verb_for(flight: Flight, end: End) -> Verb | None:
    """What the source is to be told now. Aborted ones are handed back when the call ends."""
    verb = VERBS[end.how]
    if flight.settlement is None or verb is Verb.RELEASE:
        return None
    return verb if verb in flight.settlement.verbs else None


def told(run: Run, verb: Verb) -> tuple[Any, ...]:
    """What the source is given with the verb."""
    if verb is Verb.NACK:
        return (run.transaction, run.exception)
    if verb is Verb.RELEASE_AFTER:
        return (run.transaction, hold_of(run.end.failure if run.end else None))
    return (run.transaction,)


def _log_handler_failure(key: str, message: str, error: BaseException | None) -> None:
    """Log it with its traceback, if that can be had: it is made by asking the user's exceptions."""
    text, extra = "the exception handler failed for transaction %s: %s", {"transaction_id": key}
    try:
        # As a tuple, for logging would ask the exception whether it is true.
        told = None if error is None else (type(error), error, error.__traceback__)
        logger.error(text, key, message, exc_info=told, extra=extra)
    except BaseException:
        logger.error(text, key, message, extra=extra)  # noqa: TRY400 - the traceback is what failed


def tell_ended(flight: Flight, run: Run, end: End) -> None:
    """Log what nobody else would mention, and tell the sink."""
    key = run.transaction.transaction_id
    if end.handler_failure is not None:
        _log_handler_failure(key, end.handler_failure.message, run.handler_exception)
    elif end.how is Ending.PARKED and end.failure is not None:
        logger.info(
            "transaction %s is parked: %s", key, end.failure.message, extra={"transaction_id": key}
        )
    elif end.failure is not None and flight.plan.hooks.exception is None:
        logger.error(
            "transaction %s failed: %s", key, end.failure.message, extra={"transaction_id": key}
        )
    if flight.plan.ended is not None:
        flight.plan.ended(run)
    if flight.story is not None:
        ending = "succeeded" if end is SUCCEEDED else end.how.value  # .value is slow
        try:
            flight.story.ended(
                flight.call, run, flight.now(), ending, end.failure, end.handler_failure
            )
        except Exception:
            logger.exception("a listener failed on transaction.ended")
    elif flight.sink is not None:
        flight.emit(
            "transaction.ended",
            run=run,
            ending=end.how.value,
            failure=end.failure,
            handler_failure=end.handler_failure,
        )


def cut_off(flight: Flight, attempt: Doing) -> None:
    """The call is aborted while this attempt runs, and the supervisor claimed it."""
    run: Run | None = attempt.run
    if run is None:
        flight.loop.fetching = False
        return
    end = run.end  # known already when it is being settled, or waits to be settled again
    if end is None:
        try:
            end = _stopped(flight, run)
        except BaseException:  # Ctrl-C may strike here, and nobody else has the run any more
            end_early(flight, run, End(Ending.ABORTED, run.failure), is_told=False)
            raise
    if not end_early(flight, run, end, is_told=False):
        return
    if isinstance(attempt, Settling):
        tell_settled(flight, attempt, Failure(Kind.CANCELLED, "aborted"))
    elif attempt.phase != BACKOFF:
        tell_attempt(flight, attempt, Failure(Kind.CANCELLED, "aborted"), None)
    tell_ended(flight, run, end)


def _stopped(flight: Flight, run: Run) -> End:
    action = advance(flight.rule, run, STOPPED, flight.instant(), 0.0)
    if isinstance(action, End):
        return action
    raise AssertionError(f"a stop led to {action}")


def tell_settled(flight: Flight, attempt: Settling, failure: Failure | None) -> None:
    """Tell the sink that the source has heard of an outcome, or will not."""
    verb, attempts = attempt.verb, attempt.number + 1
    flight.tell_settled(attempt.transaction, verb, attempt.run, attempts, attempt.since, failure)


def end_early(flight: Flight, run: Run, end: End, *, is_told: bool) -> bool:
    """Account for a run that its worker will not bring to an end. False when somebody has."""
    transaction = run.transaction
    key = transaction.transaction_id
    if flight.live.get(key) is not transaction or flight.live.pop(key, None) is None:
        return False
    if end.how is Ending.ABORTED:
        flight.returning.appendleft(transaction)  # before those that never began
    elif not is_told and verb_for(flight, end) is not None:
        # The outcome stands; only the source may not have heard of it.
        flight.settlement_failures += 1
    flight.past.count(end)
    return True


def abandon(flight: Flight, worker: Worker) -> None:
    """A worker ended, or is stuck outside of user code, and still holds a run.

    Another thread may be about to go on with it, so the run itself is not touched. That thread
    accounts for nothing any more once its transaction is gone from ``live``.
    """
    run, attempt = worker.run, worker.attempt
    if run is None:
        return
    is_settling = attempt is not None and attempt.run is run and attempt.phase == SETTLE
    is_open = attempt is not None and attempt.run is run and attempt.claim()
    end = run.end or End(Ending.ABORTED, run.failure)
    is_told = attempt is None or (is_settling and not is_open)
    if end_early(flight, run, end, is_told=is_told):
        logger.warning(
            "transaction %s lost its worker; it counts as %s",
            run.transaction.transaction_id,
            end.how.value,
            extra={"transaction_id": run.transaction.transaction_id},
        )
        tell_ended(flight, run, end)
