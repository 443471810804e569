"""The life of a flow: which event may happen when, and what the end of a step means."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ergon_framework.core.flow import (
    ALLOWED,
    CancelFlow,
    FlowChange,
    FlowEvent,
    FlowState,
    FlowStatus,
    InvalidFlowChange,
    OnFailure,
    RetryFlow,
    SkipFailed,
    StepEnded,
    StepReturned,
    StepsAdded,
    StepSkipped,
    Sweep,
    SweepEnded,
    advance,
    replace,
)
from ergon_framework.core.job import JobStatus

COMPLETED, FAILED, CANCELLED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED
ENDS = (COMPLETED, FAILED, CANCELLED)
RUNNING, HELD = FlowStatus.RUNNING, FlowStatus.HELD
EVENTS: list[FlowEvent] = [
    StepsAdded(1),
    *(StepEnded(status) for status in ENDS),
    *(StepReturned(status, counted) for status in (FAILED, CANCELLED) for counted in (True, False)),
    StepSkipped(),
    CancelFlow(),
    RetryFlow(),
    SkipFailed(),
    SweepEnded(),
]


def test_the_table_knows_every_event() -> None:
    """An event that is not in the table could not be refused."""
    assert set(ALLOWED) == set(get_args(FlowEvent)) == {type(event) for event in EVENTS}


def test_the_table_by_hand() -> None:
    """A second writing of the table, so that no edit of the first one is an accident."""
    steps = {StepsAdded, StepEnded, StepReturned, StepSkipped, SweepEnded}
    by_hand = {
        FlowStatus.RUNNING: {*steps, CancelFlow, RetryFlow},
        FlowStatus.HELD: {*steps, CancelFlow, RetryFlow, SkipFailed},
        FlowStatus.FAILING: {StepEnded, CancelFlow, RetryFlow, SkipFailed},
        FlowStatus.CANCELLING: {StepEnded, RetryFlow},
        FlowStatus.COMPLETED: {StepsAdded, StepReturned, RetryFlow},
        FlowStatus.FAILED: {RetryFlow, SkipFailed},
        FlowStatus.CANCELLED: {RetryFlow},
    }
    found = {
        status: {event for event, at in ALLOWED.items() if status in at} for status in FlowStatus
    }
    assert by_hand == found


@pytest.mark.parametrize("status", FlowStatus)
@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_every_event_in_every_state(event: FlowEvent, status: FlowStatus) -> None:
    """Whatever happens in whatever state is either applied or refused by name."""
    for policy, left in itertools.product(OnFailure, (1, 3)):
        unfinished = 0 if status.is_final else left
        state = FlowState(policy, status, unfinished, 2, failed=2, cancelled=1, uncounted=2)
        if status in ALLOWED[type(event)]:
            assert advance(state, event).state.unfinished >= 0
        else:
            with pytest.raises(InvalidFlowChange, match=rf"{type(event).__name__} .* {status}"):
                advance(state, event)


@pytest.mark.parametrize(
    ("policy", "status", "counts", "sweep"),
    [
        (OnFailure.CANCEL, FlowStatus.FAILING, False, Sweep.CANCEL),
        (OnFailure.CONTINUE, FlowStatus.RUNNING, True, None),
        (OnFailure.HOLD, FlowStatus.HELD, False, None),
    ],
)
@pytest.mark.parametrize("end", [FAILED, CANCELLED])
def test_what_a_failure_means_is_the_policy(
    policy: OnFailure, status: FlowStatus, counts: bool, sweep: Sweep | None, end: JobStatus
) -> None:
    """A step that was cancelled is as bad as one that failed."""
    change = advance(FlowState(policy, unfinished=2), StepEnded(end))
    assert (change.state.status, change.counts, change.sweep) == (status, counts, sweep)
    assert change.state.uncounted == (not counts)


@pytest.mark.parametrize("status", [each for each in FlowStatus if not each.is_final])
@pytest.mark.parametrize("policy", OnFailure)
def test_a_completed_step_always_counts(policy: OnFailure, status: FlowStatus) -> None:
    """Also in a flow that stops: when that one is retried, the step is not run again."""
    assert advance(FlowState(policy, status, unfinished=2), StepEnded(COMPLETED)).counts


def test_the_last_step_ends_the_flow() -> None:
    """As what, says where the flow stood."""
    ends = {
        FlowStatus.RUNNING: FlowStatus.COMPLETED,
        FlowStatus.FAILING: FlowStatus.FAILED,
        FlowStatus.CANCELLING: FlowStatus.CANCELLED,
    }
    for status, end in ends.items():
        state = FlowState(status=status, unfinished=1)
        assert advance(state, StepEnded(COMPLETED)).state.status is end


def test_a_held_flow_waits_for_a_decision_also_at_its_end() -> None:
    """Its last step failed: nothing is left to run, and somebody still has to decide."""
    state = advance(FlowState(OnFailure.HOLD, unfinished=1), StepEnded(FAILED)).state
    assert (state.status, state.unfinished) == (HELD, 0)
    assert advance(state, CancelFlow()).state.status is FlowStatus.CANCELLED
    skipping = advance(state, SkipFailed())
    assert skipping.sweep is Sweep.SKIP
    assert advance(skipping.state, StepSkipped()).state.status is FlowStatus.COMPLETED


def test_a_flow_without_failures_has_nothing_to_retry() -> None:
    """Neither one that runs nor one that has completed."""
    for status in (FlowStatus.RUNNING, FlowStatus.COMPLETED):
        with pytest.raises(InvalidFlowChange, match="failed or was cancelled"):
            advance(FlowState(status=status, completed=3), RetryFlow())


def test_a_retry_is_not_over_before_the_last_step_is_back() -> None:
    """Steps come back in slices: those of the first may end before the second."""
    state = FlowState(status=FlowStatus.FAILED, failed=2, uncounted=2)
    state = advance(state, RetryFlow()).state
    state = advance(state, StepReturned(FAILED, was_counted=False)).state
    state = advance(state, StepEnded(COMPLETED)).state
    assert state.status is RUNNING
    state = advance(state, StepReturned(FAILED, was_counted=False)).state
    assert advance(state, StepEnded(COMPLETED)).state.status is FlowStatus.COMPLETED


def test_what_does_not_come_back_is_a_failure_again() -> None:
    """A step whose unique key another job holds stays where it is; the flow must not hang."""
    state = FlowState(status=RUNNING, failed=1, uncounted=1, unfinished=1)
    assert advance(state, SweepEnded()).sweep is Sweep.CANCEL
    held = advance(replace(state, on_failure=OnFailure.HOLD), SweepEnded()).state
    assert held.status is HELD


class FlowMachine(RuleBasedStateMachine):
    """A flow whose steps end in any order, and an operator who meddles. Sweeps are carried out."""

    @initialize(policy=st.sampled_from(OnFailure), number=st.integers(1, 6))
    def begin(self, policy: OnFailure, number: int) -> None:
        """A flow of some steps, all of them under way."""
        self.state = advance(FlowState(policy), StepsAdded(number)).state
        self.steps: list[JobStatus | None] = [None] * number  # None: it has not ended
        self.counted = [False] * number
        self.counts = [0] * number
        self.sweep: Sweep | None = None

    def see(self, event: FlowEvent) -> FlowChange:
        """Let something happen that may."""
        change = advance(self.state, event)
        assert advance(self.state, event) == change
        self.state = change.state
        self.sweep = change.sweep or self.sweep
        return change

    def end(self, step: int, status: JobStatus) -> None:
        """A step ends, and counts if the machine says so, and has not counted before."""
        change = self.see(StepEnded(status, self.counted[step]))
        self.steps[step] = status
        if change.counts and not self.counted[step]:
            self.counted[step] = True
            self.counts[step] += 1

    @precondition(lambda self: None in self.steps and not self.state.status.is_final)
    @rule(data=st.data(), status=st.sampled_from(ENDS))
    def a_step_ends(self, data: st.DataObject, status: JobStatus) -> None:
        """Any of those under way."""
        live = [n for n, each in enumerate(self.steps) if each is None]
        self.end(data.draw(st.sampled_from(live)), status)

    @rule(event=st.sampled_from([CancelFlow(), RetryFlow(), SkipFailed()]))
    def meddle(self, event: FlowEvent) -> None:
        """An operator decides, whether or not the state allows it."""
        before = self.state
        try:
            self.see(event)
        except InvalidFlowChange:
            assert self.state == before

    @precondition(lambda self: self.sweep is not None)
    @rule(most=st.integers(0, 6))
    def go_on(self, most: int) -> None:
        """One slice of a sweep; with the last, it has ended."""
        sweep = self.sweep
        if sweep is Sweep.CANCEL:
            found = [n for n, each in enumerate(self.steps) if each is None]
        else:
            found = [n for n, each in enumerate(self.steps) if each in (FAILED, CANCELLED)]
        for step in found[:most]:
            if self.sweep is not sweep:
                return  # another one has begun
            if sweep is Sweep.CANCEL:
                self.end(step, CANCELLED)
            elif sweep is Sweep.RETRY:
                status = self.steps[step]
                assert status is not None
                self.see(StepReturned(status, self.counted[step]))
                self.steps[step] = None
            elif not self.counted[step]:
                assert self.see(StepSkipped()).counts
                self.counted[step] = True
                self.counts[step] += 1
        if len(found) <= most and self.sweep is sweep:
            self.sweep = None
            if sweep is not Sweep.CANCEL and self.state.status in ALLOWED[SweepEnded]:
                self.see(SweepEnded())

    @invariant()
    def counters_are_those_of_the_steps(self) -> None:
        """No step is forgotten, and none counts twice."""
        if not hasattr(self, "steps"):
            return
        state = self.state
        assert state.unfinished == self.steps.count(None)
        assert state.completed == self.steps.count(COMPLETED)
        assert (state.failed, state.cancelled) == (
            self.steps.count(FAILED),
            self.steps.count(CANCELLED),
        )
        bad = [n for n, each in enumerate(self.steps) if each in (FAILED, CANCELLED)]
        assert state.uncounted == sum(not self.counted[n] for n in bad)
        assert max(self.counts) <= 1
        assert all(self.counted[n] for n, each in enumerate(self.steps) if each is COMPLETED)

    @invariant()
    def the_end_is_the_end(self) -> None:
        """A flow has ended when its steps have; one that is held needs a decision."""
        if not hasattr(self, "steps"):
            return
        status = self.state.status
        if status.is_final:
            assert None not in self.steps
        elif None not in self.steps and self.sweep is None:
            assert status is HELD
            assert self.state.uncounted
        if status is FlowStatus.COMPLETED:
            assert not self.state.uncounted


def test_the_machine_holds_whatever_happens() -> None:
    """Steps end, operators meddle, sweeps go on and are replaced."""
    run_state_machine_as_test(
        FlowMachine,
        settings=settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True),
    )
