"""Any run of a lifecycle, with any rules, beside a model of what the engines promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import RFC_STEP_RETRIES, RFC_SUCCESS_RETRIES, Backoff, RetryRule
from ergon_framework.core.transaction_lifecycle import (
    BEGAN,
    HELD_DELAY,
    RETURNED,
    STOPPED,
    WOKE,
    CallHook,
    End,
    Ending,
    LifecycleAction,
    LifecycleCursor,
    LifecycleEvent,
    LifecycleRule,
    LifecycleStep,
    Raised,
    RaisedDiscard,
    Sleep,
    StepRule,
    TimedOut,
    TimeoutScope,
    advance,
    deadline,
    first_to_expire,
)

NEVER_RETRIED = {
    LifecycleStep.PROCESS: {Kind.REJECTED, Kind.CANCELLED},
    LifecycleStep.ON_SUCCESS: {Kind.CANCELLED},
    LifecycleStep.ON_EXCEPTION: {Kind.REJECTED, Kind.CANCELLED},
}
STEP_TIMEOUT = Failure(Kind.TIMEOUT, "step_timeout")
LIFECYCLE_TIMEOUT = Failure(Kind.TIMEOUT, "lifecycle_timeout")
passing = st.sampled_from([0.0, 0.0, 0.5, 3.0])
rolls = st.sampled_from([0.0, 0.25, 0.5, 0.999])
failures = st.builds(
    Failure,
    st.sampled_from(Kind),
    st.just("test"),
    st.just(""),
    st.sampled_from([None, None, None, 0.0, 7.0]),
)
backoffs = st.builds(
    Backoff,
    base=st.sampled_from([0.5, 2.0, 0.0]),
    factor=st.sampled_from([2.0, 3.0, 1.0]),
    cap=st.sampled_from([0.0, 4.0]),
    low=st.sampled_from([1.0, 0.5]),
    high=st.sampled_from([1.0, 1.5]),
    free=st.sampled_from([0, 0, 1]),
)
anything = st.one_of(
    st.sampled_from([BEGAN, RETURNED, WOKE, STOPPED, *map(TimedOut, TimeoutScope)]),
    failures.map(Raised),
    failures.map(RaisedDiscard),
)


def step_rules(step: LifecycleStep) -> st.SearchStrategy[StepRule]:
    """The rule of one step: up to four attempts, any waits, perhaps a timeout."""
    on = RFC_SUCCESS_RETRIES if step is LifecycleStep.ON_SUCCESS else RFC_STEP_RETRIES
    retry = st.builds(RetryRule, st.sampled_from([3, 2, 1, 4]), backoffs, st.just(on))
    return st.builds(StepRule, retry, st.sampled_from([None, 1.0, 5.0]))


def bare(failure: Failure | None) -> Failure | None:
    """Without its text, which is for people."""
    return failure and replace(failure, message="")


class LifecycleMachine(RuleBasedStateMachine):
    """A driver that does what it is told, and a user whose hooks do anything."""

    @initialize(
        process=step_rules(LifecycleStep.PROCESS),
        success=step_rules(LifecycleStep.ON_SUCCESS),
        exception=step_rules(LifecycleStep.ON_EXCEPTION),
        timeout=st.sampled_from([None, 4.0]),
        parks=st.booleans(),
        max_hold=st.sampled_from([None, 0.0, 2.0]),
        now=st.sampled_from([0.0, 1000.0]),
    )
    def begin(
        self,
        process: StepRule,
        success: StepRule,
        exception: StepRule,
        timeout: float | None,
        parks: bool,
        max_hold: float | None,
        now: float,
    ) -> None:
        """A call with its rules, and the first of its transactions."""
        self.steps = dict(zip(LifecycleStep, (process, success, exception), strict=True))
        self.rule = LifecycleRule(process, success, exception, timeout, parks, max_hold)
        self.now = now
        self.begin_one()

    def begin_one(self) -> None:
        """A transaction gets its permit."""
        self.cursor = LifecycleCursor(self.now)
        self.calls: Counter[LifecycleStep] = Counter()  # those that count as attempts
        self.path: list[LifecycleStep] = []  # the steps in the order in which they were entered
        self.ends: list[End] = []
        self.cause: Failure | None = None  # the failure that led to the exception phase
        self.action: LifecycleAction | None = None
        self.deadline_at = deadline(self.rule, self.cursor)
        self.step_began_at = self.now
        assert self.send(BEGAN, 0.0, 0.5) == CallHook(
            LifecycleStep.PROCESS, 0, self.steps[LifecycleStep.PROCESS].timeout
        )

    def send(self, event: LifecycleEvent, passed: float, roll: float) -> LifecycleAction:
        """Let time pass, ask the machine, and write down what it says."""
        self.now += passed
        before = self.path[-1] if self.path else None
        action = advance(self.rule, self.cursor, event, self.now, roll)
        self.action = action
        if isinstance(action, CallHook):
            if action.step is not before:
                self.path.append(action.step)
                self.step_began_at = self.now
            assert action == CallHook(
                action.step, self.calls[action.step], self.steps[action.step].timeout
            )
            self.calls[action.step] += 1
        elif isinstance(action, End):
            self.ends.append(action)
            return End(action.how, bare(action.failure), bare(action.handler_failure))
        return action

    @property
    def step(self) -> LifecycleStep:
        """Where the model stands."""
        return self.path[-1]

    def is_calling(self) -> bool:
        """Whether a hook runs."""
        return isinstance(self.action, CallHook)

    def is_sleeping(self) -> bool:
        """Whether the driver waits before the next attempt."""
        return isinstance(self.action, Sleep)

    def is_over(self) -> bool:
        """Whether there was an end."""
        return bool(self.ends)

    # -- what can happen -------------------------------------------------------------------------

    @precondition(is_calling)
    @rule(passed=passing)
    def hook_returns(self, passed: float) -> None:
        """Process leads to the success handler, each handler to the end."""
        step = self.step
        action = self.send(RETURNED, passed, 0.5)
        if step is LifecycleStep.PROCESS:
            assert action == CallHook(
                LifecycleStep.ON_SUCCESS, 0, self.steps[LifecycleStep.ON_SUCCESS].timeout
            )
        elif step is LifecycleStep.ON_SUCCESS:
            assert action == End(Ending.SUCCEEDED)
        else:
            assert action == End(self.failed_ending(), self.cause)

    @precondition(is_calling)
    @rule(failure=failures, passed=passing, roll=rolls)
    def hook_raises(self, failure: Failure, passed: float, roll: float) -> None:
        """A failed attempt is repeated if its kind and the number of attempts allow it."""
        step = self.step
        action = self.send(Raised(failure), passed, roll)
        if failure.kind is Kind.HELD:
            self.attempt_was_held(step, failure, action)
        else:
            self.attempt_failed(step, failure, action, roll)

    def attempt_was_held(
        self, step: LifecycleStep, failure: Failure, action: LifecycleAction
    ) -> None:
        """Nothing was attempted: the same attempt after a wait, unless the wait is too long."""
        wait = HELD_DELAY if failure.retry_after is None else max(0.1, failure.retry_after)
        longest = self.rule.max_hold
        if step is LifecycleStep.PROCESS and (
            self.rule.parks if longest is None else wait > longest
        ):
            self.cause = failure
            assert action == End(Ending.PARKED if self.rule.parks else Ending.ABORTED, failure)
            return
        assert action == Sleep(wait)
        self.calls[step] -= 1

    @precondition(is_calling)
    @rule(passed=passing, roll=rolls)
    def attempt_expires(self, passed: float, roll: float) -> None:
        """The step's own timeout is a failed attempt too."""
        step = self.step
        action = self.send(TimedOut(TimeoutScope.STEP), passed, roll)
        self.attempt_failed(step, STEP_TIMEOUT, action, roll)

    def attempt_failed(
        self, step: LifecycleStep, failure: Failure, action: LifecycleAction, roll: float
    ) -> None:
        """What must follow: a wait, another call, the exception phase or the end."""
        retry = self.steps[step].retry
        failed = self.calls[step] - (
            1 if isinstance(action, CallHook) and action.step is step else 0
        )
        if failure.kind in NEVER_RETRIED[step] or failed == retry.attempts:
            self.step_failed(step, failure, action)
            return
        wait = max(retry.backoff.delay(failed - 1, roll), failure.retry_after or 0.0)
        again = CallHook(step, failed, self.steps[step].timeout)
        assert action == (Sleep(wait) if wait else again)

    def step_failed(self, step: LifecycleStep, failure: Failure, action: LifecycleAction) -> None:
        """A step is left for good, with this failure."""
        if step is LifecycleStep.ON_EXCEPTION:
            assert action == End(self.failed_ending(), self.cause, failure)
        else:
            self.cause = failure
            assert action == CallHook(
                LifecycleStep.ON_EXCEPTION, 0, self.steps[LifecycleStep.ON_EXCEPTION].timeout
            )

    @precondition(is_sleeping)
    @rule()
    def wait_is_over(self) -> None:
        """A wait is followed by the next attempt of the same step."""
        assert isinstance(self.action, Sleep)
        step, number = self.step, self.calls[self.step]
        action = self.send(WOKE, self.action.seconds, 0.5)
        assert action == CallHook(step, number, self.steps[step].timeout)

    @precondition(lambda self: not self.is_over())
    @rule(passed=passing)
    def lifecycle_expires(self, passed: float) -> None:
        """From process and success to the exception phase, from there to the end."""
        step = self.step
        self.step_failed(
            step, LIFECYCLE_TIMEOUT, self.send(TimedOut(TimeoutScope.LIFECYCLE), passed, 0.5)
        )

    @precondition(lambda self: not self.is_over())
    @rule(event=st.sampled_from([STOPPED, TimedOut(TimeoutScope.LOOP)]), passed=passing)
    def call_is_aborted(self, event: LifecycleEvent, passed: float) -> None:
        """The end, from anywhere, and no handler is called."""
        assert self.send(event, passed, 0.5) == End(Ending.ABORTED, self.cause)

    @precondition(is_over)
    @rule(late=st.lists(anything, max_size=2), passed=passing)
    def the_next_one_begins(self, late: list[LifecycleEvent], passed: float) -> None:
        """The end stays the end, whatever arrives late; then comes another transaction."""
        self.now += passed
        for event in late:
            assert advance(self.rule, self.cursor, event, self.now, 0.5) is self.ends[0]
        self.begin_one()

    def failed_ending(self) -> Ending:
        """How a transaction ends that was not aborted in its exception phase."""
        assert self.cause is not None
        return Ending.TIMED_OUT if self.cause.kind is Kind.TIMEOUT else Ending.FAILED

    # -- what is always true ---------------------------------------------------------------------

    @invariant()
    def there_is_at_most_one_end(self) -> None:
        """And it is the one on the cursor."""
        assert self.ends == ([] if self.cursor.end is None else [self.cursor.end])

    @invariant()
    def steps_come_once_and_in_order(self) -> None:
        """One exception phase at most, and no success handler after it."""
        assert self.path == [step for step in LifecycleStep if step in self.path]
        assert self.path[0] is LifecycleStep.PROCESS
        if LifecycleStep.ON_EXCEPTION in self.path:
            assert self.cause is not None
            assert bare(self.cursor.failure) == self.cause

    @invariant()
    def no_step_is_called_too_often(self) -> None:
        """The bound of each step counts for itself."""
        for step, number in self.calls.items():
            assert number <= self.steps[step].retry.attempts

    @invariant()
    def nobody_sleeps_after_the_last_attempt(self) -> None:
        """A wait is only for an attempt that will be made."""
        if isinstance(self.action, Sleep):
            assert self.action.seconds > 0.0
            assert self.calls[self.step] < self.steps[self.step].retry.attempts

    @invariant()
    def endings_tell_the_truth(self) -> None:
        """Success without failures, a handler's failure only beside the handler's cause."""
        for end in self.ends:
            if end.how is Ending.SUCCEEDED:
                assert (end.failure, end.handler_failure) == (None, None)
                assert LifecycleStep.ON_EXCEPTION not in self.path
            if end.handler_failure is not None:
                assert self.step is LifecycleStep.ON_EXCEPTION
                assert end.how in (Ending.FAILED, Ending.TIMED_OUT)
            is_timeout = self.cause is not None and self.cause.kind is Kind.TIMEOUT
            is_aborted = end.how is Ending.ABORTED
            is_held = self.cause is not None and self.cause.kind is Kind.HELD
            assert (end.how is Ending.PARKED) == (is_held and self.rule.parks)
            assert is_aborted or not is_held or self.rule.parks
            assert (end.how is Ending.TIMED_OUT) == (is_timeout and not is_aborted)
            assert bare(end.failure) == self.cause

    @invariant()
    def time_only_goes_forward(self) -> None:
        """Beginnings stay, and no deadline ever moves closer."""
        assert self.cursor.step_began_at == self.step_began_at
        at = deadline(self.rule, self.cursor)
        assert (at is None) == (self.rule.timeout is None)
        if at is not None and self.deadline_at is not None:
            assert at >= self.deadline_at
            assert first_to_expire(at - 0.5, at) is TimeoutScope.STEP
            assert first_to_expire(at + 0.5, at) is TimeoutScope.LIFECYCLE
        self.deadline_at = at


@pytest.mark.req(
    "RFC-004:3g",
    "RFC-004:6a",
    "RFC-004:6b",
    "RFC-004:10a",
    "RFC-004:10c",
    "RFC-004:10e",
    "RFC-004:10f",
    "RFC-004:14c",
    "RFC-004:14d",
    "RFC-004:14e",
    "RFC-005:12a",
    "RFC-005:12b",
    "RFC-005:12c",
    "RFC-005:12e",
    "RFC-005:12f",
    "RFC-005:16c",
    "RFC-005:16d",
    "RFC-005:16e",
    "R0-G4",
    "R0-I3",
    "R0-I8",
    "R3-BO",
    "R3-CL1",
    "R3-CL2",
    "R3-ST1",
    "R3-ST2",
    "T3.4",
    "T3.5",
    "T3.6",
    "T3.17",
)
def test_any_run_keeps_every_promise() -> None:
    """Whatever hooks, clocks and stops do, the machine answers as the model does."""
    run_state_machine_as_test(
        LifecycleMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=60,
            stateful_step_count=30,
            phases=[Phase.generate, Phase.shrink],  # explaining a failure takes a minute
            report_multiple_bugs=False,
        ),
    )
