"""The life of a flow: what the end of a step means for the steps that wait for it.

Rules for editors: what may happen in which state stands in ``ALLOWED`` and nowhere else; whether
the end of a step counts, and whether the rest of the flow is cancelled, is decided by ``advance``
and nowhere else. Stores keep the counters of a flow, ask ``advance``, and carry out what it says.

Theory of operation. A step is a job; its own life is the machine in ``core/job.py``. A step that
waits, waits at a **join**, which counts the predecessors that are left; the callback of a group is
such a step. Stores keep that count, and release the step when none is left: see
``jobs/stores/flow_settlement.py``, and ``lua/steps.lua`` of Redis. The end of a step **counts**
when its successors need not wait for it any more. A completed step always counts. One that failed
or was cancelled counts by the policy of its flow: ``continue`` counts it, ``cancel`` and ``hold``
do not. Ends that did not count are ``uncounted``: the steps after them can only go on when an
operator retries or skips them. A **sweep** goes through the steps of a flow to cancel, retry or
skip them, in slices: a flow may have very many.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, assert_never

import msgspec

from ergon_framework.core.job import JobStatus


class FlowStatus(StrEnum):
    """Where a flow stands."""

    RUNNING = "running"  # its steps run, or wait for others
    HELD = "held"  # a step failed, and an operator has to retry, skip or cancel
    FAILING = "failing"  # a step failed: steps that wait are cancelled, those that run end
    CANCELLING = "cancelling"  # an operator cancelled it: its steps are being cancelled
    COMPLETED = "completed"  # all steps have ended, and each of them counted
    FAILED = "failed"  # a step failed, and the others have ended
    CANCELLED = "cancelled"  # an operator cancelled it, and all steps have ended

    @property
    def is_final(self) -> bool:
        """Whether all steps have ended, and nothing is left to decide."""
        return self in _FINAL

    @property
    def is_stopping(self) -> bool:
        """Whether no step may start any more."""
        return self in _STOPPING


class OnFailure(StrEnum):
    """What becomes of a flow when one of its steps fails or is cancelled."""

    CANCEL = "cancel"  # the steps that wait are cancelled
    CONTINUE = "continue"  # its successors start, and see no result in its place
    HOLD = "hold"  # its successors wait until an operator decides


class Sweep(StrEnum):
    """What is done to the steps of a flow, slice by slice."""

    CANCEL = "cancel"  # those that wait
    RETRY = "retry"  # those that failed or were cancelled come back
    SKIP = "skip"  # those that failed count; those that the flow cancelled come back


replace = msgspec.structs.replace  # a settlement asks for each step: this is fast
_COMPLETED = JobStatus.COMPLETED  # a name, as Python 3.11 is slow to look a member up
_FINAL = frozenset({FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.CANCELLED})
_STOPPING = frozenset(
    {FlowStatus.FAILING, FlowStatus.CANCELLING, FlowStatus.FAILED, FlowStatus.CANCELLED}
)
_OPEN = frozenset({FlowStatus.RUNNING, FlowStatus.HELD})
_LIVE = _OPEN | {FlowStatus.FAILING, FlowStatus.CANCELLING}


class FlowState(msgspec.Struct, frozen=True):
    """The policy of a flow, where it stands, and how many of its steps have ended how."""

    on_failure: OnFailure = OnFailure.CANCEL
    status: FlowStatus = FlowStatus.RUNNING
    unfinished: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    uncounted: int = 0  # of the failed and cancelled ones


class StepsAdded(msgspec.Struct, frozen=True):
    """Steps were added, which have not ended."""

    number: int


class StepEnded(msgspec.Struct, frozen=True):
    """A step has completed, failed or was cancelled.

    ``has_counted``: its end counted before. The step was requeued since, and no join waits for it
    any more.
    """

    status: JobStatus
    has_counted: bool = False


class StepReturned(msgspec.Struct, frozen=True):
    """A step that had failed or was cancelled begins anew; ``was_counted``: its end counted."""

    status: JobStatus
    was_counted: bool


class StepSkipped(msgspec.Struct, frozen=True):
    """The end of a step that failed or was cancelled counts after all."""


class CancelFlow(msgspec.Struct, frozen=True):
    """An operator cancels the flow."""


class RetryFlow(msgspec.Struct, frozen=True):
    """An operator retries the steps that failed or were cancelled."""


class SkipFailed(msgspec.Struct, frozen=True):
    """An operator lets the flow go on without the steps that failed."""


class SweepEnded(msgspec.Struct, frozen=True):
    """All steps that were to come back, or to count, have done so."""


FlowEvent: TypeAlias = (
    StepsAdded
    | StepEnded
    | StepReturned
    | StepSkipped
    | CancelFlow
    | RetryFlow
    | SkipFailed
    | SweepEnded
)

ALLOWED: dict[type[FlowEvent], frozenset[FlowStatus]] = {
    StepsAdded: _OPEN | {FlowStatus.COMPLETED},
    StepEnded: _LIVE,
    StepReturned: _OPEN | {FlowStatus.COMPLETED},
    StepSkipped: _OPEN,
    CancelFlow: _OPEN | {FlowStatus.FAILING},
    RetryFlow: frozenset(FlowStatus),
    SkipFailed: frozenset({FlowStatus.HELD, FlowStatus.FAILING, FlowStatus.FAILED}),
    SweepEnded: _OPEN,
}
"""In which states an event may happen; in any other it changes nothing."""


class FlowChange(msgspec.Struct, frozen=True):
    """What becomes of a flow."""

    state: FlowState
    counts: bool = False  # the end of the step counts at its joins
    sweep: Sweep | None = None  # this begins, in the place of any other


class InvalidFlowChange(Exception):
    """The event cannot happen in the flow's state."""


def advance(state: FlowState, event: FlowEvent) -> FlowChange:
    """What becomes of a flow after an event; :class:`InvalidFlowChange` where it cannot happen."""
    if state.status not in ALLOWED[type(event)]:
        raise InvalidFlowChange(
            f"{type(event).__name__} cannot happen to a flow that is {state.status}"
        )
    match event:
        case StepsAdded(number):
            change = FlowChange(_running(replace(state, unfinished=state.unfinished + number)))
        case StepEnded():
            change = _ended(state, event)
        case StepReturned():
            change = FlowChange(_returned(state, event))
        case StepSkipped():
            skipped = replace(state, uncounted=state.uncounted - 1)
            change = FlowChange(_decided(skipped), counts=True)
        case CancelFlow():
            change = FlowChange(replace(state, status=FlowStatus.CANCELLING), sweep=Sweep.CANCEL)
        case RetryFlow():
            if not state.failed + state.cancelled and not state.status.is_stopping:
                raise InvalidFlowChange("no step of the flow has failed or was cancelled")
            change = FlowChange(replace(state, status=FlowStatus.RUNNING), sweep=Sweep.RETRY)
        case SkipFailed():
            change = FlowChange(replace(state, status=FlowStatus.RUNNING), sweep=Sweep.SKIP)
        case SweepEnded():
            change = _swept(state)
        case _:
            assert_never(event)
    # The steps come back slice by slice. Between two slices all of them may have ended, and the
    # flow would close too early.
    if change.sweep is not None and change.sweep is not Sweep.CANCEL:
        return change
    closed = _closed(change.state)
    return change if closed is change.state else replace(change, state=closed)


def _ended(state: FlowState, event: StepEnded) -> FlowChange:
    unfinished = state.unfinished - 1
    if event.status is _COMPLETED:
        completed = state.completed + 1
        return FlowChange(replace(state, unfinished=unfinished, completed=completed), True)
    state = replace(state, unfinished=unfinished)
    if event.status is JobStatus.FAILED:
        state = replace(state, failed=state.failed + 1)
    else:
        state = replace(state, cancelled=state.cancelled + 1)
    if event.has_counted:
        return FlowChange(state)
    is_stopping = state.status.is_stopping
    if state.on_failure is OnFailure.CONTINUE and not is_stopping:
        return FlowChange(state, counts=True)
    state = replace(state, uncounted=state.uncounted + 1)
    return FlowChange(state) if is_stopping else _by_policy(state)


def _by_policy(state: FlowState) -> FlowChange:
    """What follows while there is an end that did not count."""
    if state.on_failure is OnFailure.HOLD:
        return FlowChange(replace(state, status=FlowStatus.HELD))
    return FlowChange(replace(state, status=FlowStatus.FAILING), sweep=Sweep.CANCEL)


def _returned(state: FlowState, event: StepReturned) -> FlowState:
    is_failed = event.status is JobStatus.FAILED
    state = replace(
        state,
        unfinished=state.unfinished + 1,
        failed=state.failed - is_failed,
        cancelled=state.cancelled - (not is_failed),
        uncounted=state.uncounted - (not event.was_counted),
    )
    return _running(_decided(state))


def _decided(state: FlowState) -> FlowState:
    """A held flow goes on when the last failure was decided upon."""
    is_over = state.status is FlowStatus.HELD and not state.uncounted
    return replace(state, status=FlowStatus.RUNNING) if is_over else state


def _running(state: FlowState) -> FlowState:
    """A flow that had completed runs again when it gets a step that has not ended."""
    is_back = state.status is FlowStatus.COMPLETED and state.unfinished
    return replace(state, status=FlowStatus.RUNNING) if is_back else state


def _swept(state: FlowState) -> FlowChange:
    """Some steps may not have come back: others hold their unique keys, or they failed again."""
    if state.status is FlowStatus.HELD or not state.uncounted:
        return FlowChange(state)
    return _by_policy(state)


def _closed(state: FlowState) -> FlowState:
    """The same state, or the end of the flow if its last step has ended."""
    if state.unfinished:
        return state
    if state.status is FlowStatus.RUNNING and not state.uncounted:
        return replace(state, status=FlowStatus.COMPLETED)
    return replace(state, status=_ENDS.get(state.status, state.status))


_ENDS = {FlowStatus.FAILING: FlowStatus.FAILED, FlowStatus.CANCELLING: FlowStatus.CANCELLED}
