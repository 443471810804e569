"""What follows an event of a lifecycle. The core decides; here the instant, the jitter and the
notices are added.

Nothing here waits, and nothing knows how a driver waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.transaction_lifecycle import (
    STOPPED,
    VERBS,
    End,
    LifecycleAction,
    LifecycleEvent,
    LifecycleStep,
    Raised,
    RaisedDiscard,
    Sleep,
    TimedOut,
    TimeoutScope,
    Verb,
    advance,
    hold_of,
)
from ergon_framework.engine.classify import (
    classify,
    is_a,
    is_ctrl_c,
    timeout_exception,
    unclassified,
)
from ergon_framework.engine.instrumentation import Instrumentation
from ergon_framework.engine.plan import ON_SUCCESS, PROCESS, EnginePlan
from ergon_framework.engine.run import InProgress, LifecycleRun
from ergon_framework.errors import Discard, text_of
from ergon_framework.ports.transaction import CURRENT

logger = logging.getLogger("ergon.engine")

set_current = CURRENT.set
"""Called inside an attempt's private context, just before its hook."""


class Decider:
    """Asks the core what follows, for all runs of a call. Has no state of its own."""

    def __init__(
        self, plan: EnginePlan, now: Callable[[], float], instrumentation: Instrumentation
    ) -> None:
        self.plan = plan
        self.rule = plan.lifecycle
        self.settlement = plan.settlement
        self.phases = {each.step: each.phase for each in plan.steps()}
        self.now = now
        self.instrumentation = instrumentation

    def decide(self, run: LifecycleRun, event: LifecycleEvent) -> LifecycleAction:
        """Ask the core what follows, and note what only a driver knows about it."""
        step, attempt = run.step, run.attempt
        backoff = self.rule.of(step).retry.backoff
        dice = self.plan.dice() if backoff.is_jittered else 0.0
        action = advance(self.rule, run, event, self.now(), dice)
        if isinstance(event, TimedOut):
            _note_timeout(run, step, action)
        if self.instrumentation.sink is not None and isinstance(event, Raised | TimedOut):
            self._tell_retry(run, event, step, attempt, action)
        return action

    def _tell_retry(
        self,
        run: LifecycleRun,
        event: Raised | TimedOut,
        step: LifecycleStep,
        attempt: int,
        action: LifecycleAction,
    ) -> None:
        if isinstance(action, End) or run.step is not step:
            return
        delay = action.seconds if isinstance(action, Sleep) else 0.0
        failure = event.failure if isinstance(event, Raised) else timed_out(event.scope)
        phase = self.phases[step]
        self.instrumentation.emit(
            "retry.scheduled", run=run, phase=phase, attempt=attempt, delay=delay, failure=failure
        )

    def raised(
        self, attempt: InProgress, step: LifecycleStep, error: BaseException
    ) -> LifecycleEvent:
        """A hook raised, and the caller owns the attempt."""
        run: LifecycleRun = attempt.run
        # Ctrl-C is raised in whichever hook runs and says nothing about its transaction, which is
        # handed back.
        if is_ctrl_c(error):
            self.instrumentation.attempt_ended(
                attempt, Failure(Kind.CANCELLED, "interrupted"), error
            )
            return STOPPED
        if step is PROCESS and is_a(error, Discard):
            self.instrumentation.attempt_ended(attempt, None, None)
            text = text_of(error) or Discard.code
            return RaisedDiscard(Failure(Kind.REJECTED, Discard.code, text))
        key = run.transaction.transaction_id
        try:
            failure, exception = classify(error, step, key)
        except Exception:
            logger.exception("the classifier failed", extra={"transaction_id": key})
            failure, exception = unclassified(key)
        if is_a(error, KeyboardInterrupt):  # not of the keyboard, but it wants an end all the same
            failure = replace(failure, kind=Kind.CANCELLED)
        if step is LifecycleStep.ON_EXCEPTION:
            run.handler_exception = exception
        else:
            run.exception = exception
        self.instrumentation.attempt_ended(attempt, failure, exception)
        return Raised(failure)

    def expired(self, attempt: InProgress) -> TimedOut:
        """The attempt's time is over, and the caller owns it."""
        scope: TimeoutScope = attempt.scope
        if isinstance(attempt, LifecycleRun):
            attempt.expired = False  # the attempts that follow have flags of their own
        self.instrumentation.attempt_ended(attempt, timed_out(scope), None)
        return TimedOut(scope)

    def verb_for(self, end: End) -> Verb | None:
        """The verb to settle with. Aborted transactions have none: they are handed back when the
        call ends.
        """
        verb = VERBS[end.how]
        if self.settlement is None or verb is Verb.RELEASE:
            return None
        return verb if verb in self.settlement.verbs else None


def arguments(run: LifecycleRun, step: LifecycleStep) -> tuple[Any, ...]:
    """What the hook of a step is called with."""
    if step is PROCESS:
        return (run.transaction,)
    return (run.transaction, run.result if step is ON_SUCCESS else run.exception)


def verb_arguments(run: LifecycleRun, verb: Verb) -> tuple[Any, ...]:
    """What the source is given with the verb."""
    if verb is Verb.NACK:
        return (run.transaction, run.exception)
    if verb is Verb.RELEASE_AFTER:
        return (run.transaction, hold_of(run.end.failure if run.end else None))
    return (run.transaction,)


def timed_out(scope: TimeoutScope) -> Failure:
    """The failure of an engine deadline, for those who listen."""
    return Failure(Kind.TIMEOUT, f"{scope.value}_timeout", f"the {scope.value} ran out of time")


def _note_timeout(run: LifecycleRun, step: LifecycleStep, action: LifecycleAction) -> None:
    key = run.transaction.transaction_id
    if isinstance(action, End):
        if action.handler_failure is not None:
            run.handler_exception = timeout_exception(action.handler_failure, key)
    elif (
        step is not LifecycleStep.ON_EXCEPTION
        and run.step is LifecycleStep.ON_EXCEPTION
        and run.failure
    ):
        run.exception = timeout_exception(run.failure, key)
