from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import RFC_SUCCESS_RETRIES, Backoff, RetryRule
from ergon_framework.core.transaction_lifecycle import (
    BEGAN,
    RETURNED,
    ROUTES,
    STOPPED,
    WOKE,
    CallHook,
    Cue,
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

EVENTS: list[LifecycleEvent] = [
    BEGAN,
    RETURNED,
    WOKE,
    STOPPED,
    *(Raised(Failure(kind, "test")) for kind in Kind),
    RaisedDiscard(Failure(Kind.REJECTED, "discarded")),
    *(TimedOut(scope) for scope in TimeoutScope),
]
SYSTEM = Raised(Failure(Kind.TRANSIENT, "system"))
BUSINESS = Raised(Failure(Kind.REJECTED, "business"))
STATE = ("step", "attempt", "began_at", "step_began_at", "is_held", "failure", "end")
LATEST_ATTEMPT = 3  # a stray Woke counts up without end; a few of them are enough to look at
repeatable = settings(derandomize=True, deadline=None, max_examples=60)
instants = st.floats(0.0, 1e6)
deadlines = st.none() | instants


def rules(attempts: int = 2, base: float = 0.0, timeout: float | None = None) -> LifecycleRule:
    """The same few retries in every step, and the success step's own view of refusals."""
    retry = RetryRule(attempts, Backoff(base))
    step = StepRule(retry, timeout)
    success = StepRule(RetryRule(attempts, Backoff(base), RFC_SUCCESS_RETRIES), timeout)
    return LifecycleRule(step, success, step, 10.0)


def reached_by(rule: LifecycleRule, *events: LifecycleEvent) -> LifecycleCursor:
    """A cursor after these events, all of them at 0."""
    cursor = LifecycleCursor(0.0)
    for event in (BEGAN, *events):
        advance(rule, cursor, event, 0.0, 0.5)
    return cursor


def place(cursor: LifecycleCursor) -> object:
    """What tells two cursors apart, as far as the machine can decide anything by it."""
    kind = cursor.failure.kind if cursor.failure else None
    end = (cursor.end.how, cursor.end.handler_failure is None) if cursor.end else None
    return cursor.step, cursor.attempt, cursor.is_held, kind, end


def reachable(rule: LifecycleRule) -> Iterator[LifecycleCursor]:
    """Every cursor any events lead to, in whatever order a confused driver sends them."""
    seen: set[object] = set()
    waiting = deque([LifecycleCursor(0.0)])
    while waiting:
        cursor = waiting.popleft()
        if place(cursor) in seen or cursor.attempt > LATEST_ATTEMPT:
            continue
        seen.add(place(cursor))
        yield cursor
        for event in EVENTS:
            successor = copy.copy(cursor)
            advance(rule, successor, event, 0.0, 0.5)
            waiting.append(successor)


# ---- the table ----------------------------------------------------------------------------------


@pytest.mark.req("RFC-004:6a", "RFC-005:6a", "R0-I3")
def test_every_step_has_a_route_for_every_cue() -> None:
    """The table is total, and holds nothing else."""
    assert set(ROUTES) == {(step, cue) for step in LifecycleStep for cue in Cue}


@pytest.mark.req("RFC-004:6a", "RFC-004:6.1a", "RFC-004:6.2c", "RFC-005:6a", "RFC-005:8d", "R3-CL1")
def test_the_table_by_hand() -> None:
    """A second writing of the table, so that no edit of the first one is an accident."""
    by_hand = {
        LifecycleStep.PROCESS: (
            LifecycleStep.ON_SUCCESS,
            LifecycleStep.ON_EXCEPTION,
            LifecycleStep.ON_EXCEPTION,
            Ending.ABORTED,
        ),
        LifecycleStep.ON_SUCCESS: (
            Ending.SUCCEEDED,
            LifecycleStep.ON_EXCEPTION,
            LifecycleStep.ON_EXCEPTION,
            Ending.ABORTED,
        ),
        LifecycleStep.ON_EXCEPTION: (Ending.FAILED, Ending.FAILED, Ending.FAILED, Ending.ABORTED),
    }
    cues = (Cue.OK, Cue.FAILED, Cue.EXPIRED, Cue.STOPPED)
    for step, routes in by_hand.items():
        assert tuple(ROUTES[step, cue] for cue in cues) == routes


@pytest.mark.req("T3.4", "T3.5", "RFC-005:9f")
def test_no_route_leads_backwards() -> None:
    """Steps only follow later ones, so a lifecycle is finite and has one exception phase."""
    order = list(LifecycleStep)
    for (step, _), route in ROUTES.items():
        assert isinstance(route, Ending) or order.index(route) > order.index(step)


# ---- totality -----------------------------------------------------------------------------------


@pytest.mark.req("RFC-004:14f", "R0-I3")
@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("base", [0.0, 1.5])
def test_every_event_has_an_answer_wherever_it_arrives(attempts: int, base: float) -> None:
    """No event, not even one out of place, finds the machine without an action."""
    rule = rules(attempts, base)
    places: set[tuple[LifecycleStep, bool]] = set()
    for cursor in reachable(rule):
        places.add((cursor.step, cursor.end is None))
        for event in EVENTS:
            successor = copy.copy(cursor)
            action = advance(rule, successor, event, 1.0, 0.5)
            assert isinstance(action, CallHook | Sleep | End)
            assert (successor.end is not None) == isinstance(action, End)
    assert places == {(step, is_running) for step in LifecycleStep for is_running in (True, False)}


@pytest.mark.req("R0-I3", "RFC-005:9e", "RFC-005:9f")
def test_after_the_end_nothing_changes() -> None:
    """Whatever arrives late gets the very same end again, and the cursor stays as it was."""
    rule = replace(rules(2, 1.0), parks=True)
    endings: set[Ending] = set()
    for cursor in reachable(rule):
        if cursor.end is None:
            continue
        endings.add(cursor.end.how)
        before = [getattr(cursor, name) for name in STATE]
        for event in EVENTS:
            assert advance(rule, cursor, event, 99.0, 0.5) is cursor.end
        assert [getattr(cursor, name) for name in STATE] == before
    assert endings == set(Ending)


def test_only_the_first_step_can_discard() -> None:
    """It ends at once there; in a handler it is a failure of the handler."""
    rule, discarded = rules(2, 0.0), RaisedDiscard(Failure(Kind.REJECTED, "discarded", "pointless"))
    cursor = LifecycleCursor(0.0)
    advance(rule, cursor, BEGAN, 0.0, 0.5)
    assert advance(rule, cursor, discarded, 1.0, 0.5) == End(Ending.DISCARDED, discarded.failure)
    cursor = LifecycleCursor(0.0)
    advance(rule, cursor, RETURNED, 0.0, 0.5)
    assert cursor.step is LifecycleStep.ON_SUCCESS
    assert advance(rule, cursor, discarded, 1.0, 0.5) == CallHook(LifecycleStep.ON_SUCCESS, 1, None)


@pytest.mark.req("R3-D3", "RFC-004:14f")
def test_the_same_event_in_the_same_place_has_the_same_answer() -> None:
    """Nothing but rule, cursor, event, instant and dice decides."""
    rule = rules(3, 2.0)
    for cursor in reachable(rule):
        for event in EVENTS:
            answers = [advance(rule, copy.copy(cursor), event, 1.0, 0.3) for _ in range(2)]
            assert answers[0] == answers[1]


@pytest.mark.req("RFC-004:3a", "RFC-004:16d", "RFC-005:3a")
def test_lifecycles_share_nothing() -> None:
    """What one goes through leaves another, older or younger, as it was."""
    rule = rules()
    older = LifecycleCursor(0.0)
    reached_by(rule, SYSTEM, SYSTEM, STOPPED)
    for cursor in (older, LifecycleCursor(0.0)):
        fresh = [LifecycleStep.PROCESS, 0, 0.0, 0.0, False, None, None]
        assert [getattr(cursor, name) for name in STATE] == fresh


# ---- single transitions -------------------------------------------------------------------------


@pytest.mark.req("RFC-004:10b", "RFC-005:12e")
def test_it_begins_with_the_first_attempt_of_process() -> None:
    """The first attempt has the number 0 and the step's own time."""
    assert advance(rules(timeout=3.0), LifecycleCursor(5.0), BEGAN, 5.0, 0.5) == CallHook(
        LifecycleStep.PROCESS, 0, 3.0
    )


@pytest.mark.req("RFC-004:6b", "R3-ST1", "R3-RT1", "R3-D5")
def test_each_step_is_called_under_its_own_rule() -> None:
    """Timeouts and retries of one step are not those of another."""
    rule = LifecycleRule(
        StepRule(RetryRule(2), 1.0), StepRule(RetryRule(3), 2.0), StepRule(RetryRule(4), 3.0)
    )
    assert [rule.of(step).timeout for step in LifecycleStep] == [1.0, 2.0, 3.0]
    cursor = LifecycleCursor(0.0)
    events: list[LifecycleEvent] = [
        BEGAN,
        SYSTEM,
        RETURNED,
        SYSTEM,
        SYSTEM,
        SYSTEM,
        SYSTEM,
        SYSTEM,
        SYSTEM,
    ]
    calls: list[LifecycleAction] = [advance(rule, cursor, event, 0.0, 0.5) for event in events]
    assert calls == [
        *(CallHook(LifecycleStep.PROCESS, k, 1.0) for k in range(2)),
        *(CallHook(LifecycleStep.ON_SUCCESS, k, 2.0) for k in range(3)),
        *(CallHook(LifecycleStep.ON_EXCEPTION, k, 3.0) for k in range(4)),
    ]


@pytest.mark.req("T3.4", "RFC-004:9b", "RFC-005:16f")
@pytest.mark.parametrize("events", [(), (SYSTEM,), (RETURNED,), (RETURNED, BUSINESS)])
def test_an_expired_lifecycle_goes_to_the_exception_phase_whatever_is_left(
    events: tuple[LifecycleEvent, ...],
) -> None:
    """Unused attempts are not tried, and a timeout is what the handler is told."""
    rule = rules(attempts=5)
    cursor = reached_by(rule, *events)
    action = advance(rule, cursor, TimedOut(TimeoutScope.LIFECYCLE), 7.0, 0.5)
    assert action == CallHook(LifecycleStep.ON_EXCEPTION, 0, None)
    assert cursor.failure is not None
    assert (cursor.failure.kind, cursor.failure.code) == (Kind.TIMEOUT, "lifecycle_timeout")
    assert "lifecycle ran out of time" in cursor.failure.message
    assert cursor.step_began_at == 7.0


@pytest.mark.req("T3.4")
def test_an_expired_exception_phase_is_the_end() -> None:
    """The cause stays the outcome's failure; that the handler ran out of time stands beside it."""
    rule = rules(attempts=5)
    cursor = reached_by(rule, BUSINESS)
    end = advance(rule, cursor, TimedOut(TimeoutScope.LIFECYCLE), 20.0, 0.5)
    assert isinstance(end, End)
    assert (end.how, end.failure) == (Ending.FAILED, BUSINESS.failure)
    assert end.handler_failure is not None
    assert end.handler_failure.code == "lifecycle_timeout"


@pytest.mark.req("RFC-004:11.3a", "RFC-004:11.3b", "RFC-005:7.1e")
def test_an_expired_attempt_is_a_failure_like_any_other() -> None:
    """It is retried, and when no attempt is left the transaction has timed out."""
    rule = rules(attempts=2)
    cursor = reached_by(rule)
    assert advance(rule, cursor, TimedOut(TimeoutScope.STEP), 1.0, 0.5) == CallHook(
        LifecycleStep.PROCESS, 1, None
    )
    assert advance(rule, cursor, TimedOut(TimeoutScope.STEP), 2.0, 0.5) == CallHook(
        LifecycleStep.ON_EXCEPTION, 0, None
    )
    end = advance(rule, cursor, RETURNED, 3.0, 0.5)
    assert end == End(Ending.TIMED_OUT, cursor.failure)
    assert cursor.failure is not None
    assert (cursor.failure.kind, cursor.failure.code) == (Kind.TIMEOUT, "step_timeout")
    assert "attempt 2 ran out of time" in cursor.failure.message


@pytest.mark.req("T3.17", "R3-CL2")
@pytest.mark.parametrize("event", [TimedOut(TimeoutScope.LOOP), STOPPED])
def test_the_loop_s_end_aborts_from_anywhere(event: LifecycleEvent) -> None:
    """No handler is started any more; what led to an exception phase is still told."""
    rule = rules(3, 1.0)
    for cursor in reachable(rule):
        if cursor.end is None:
            assert advance(rule, cursor, event, 1.0, 0.5) == End(Ending.ABORTED, cursor.failure)


def test_a_success_carries_no_failure() -> None:
    """Failed attempts that were repeated with success leave nothing behind."""
    rule = rules(2)
    cursor = reached_by(rule, SYSTEM, RETURNED, SYSTEM)
    assert advance(rule, cursor, RETURNED, 1.0, 0.5) == End(Ending.SUCCEEDED)


def test_the_retry_budget_of_a_step_starts_with_the_step() -> None:
    """Time another step used up does not count."""
    budget = StepRule(RetryRule(5, budget=2.0, on=RFC_SUCCESS_RETRIES))
    rule = LifecycleRule(budget, budget, budget)
    cursor = LifecycleCursor(0.0)
    advance(rule, cursor, BEGAN, 0.0, 0.5)
    advance(rule, cursor, RETURNED, 100.0, 0.5)
    assert advance(rule, cursor, SYSTEM, 101.0, 0.5) == CallHook(LifecycleStep.ON_SUCCESS, 1, None)
    assert advance(rule, cursor, SYSTEM, 102.0, 0.5) == CallHook(
        LifecycleStep.ON_EXCEPTION, 0, None
    )
    assert advance(rule, cursor, SYSTEM, 103.0, 0.5) == CallHook(
        LifecycleStep.ON_EXCEPTION, 1, None
    )


@pytest.mark.req("R3-BO")
def test_no_wait_means_no_sleep() -> None:
    """A retry without backoff is called at once; one with backoff first sleeps, and once."""
    assert advance(rules(2), reached_by(rules(2)), SYSTEM, 0.0, 0.5) == CallHook(
        LifecycleStep.PROCESS, 1, None
    )
    waiting = rules(2, 0.25)
    cursor = reached_by(waiting)
    assert advance(waiting, cursor, SYSTEM, 0.0, 0.5) == Sleep(0.25)
    assert advance(waiting, cursor, WOKE, 0.25, 0.5) == CallHook(LifecycleStep.PROCESS, 1, None)


@pytest.mark.req("R3-BO", "RFC-004:10c", "RFC-004:14e", "RFC-005:12c", "RFC-005:16e")
def test_waits_follow_the_schedule_and_none_follows_the_last_attempt() -> None:
    """Base, factor and cap come from the step's rule, and the power from the failed attempt."""
    step = StepRule(RetryRule(4, Backoff(1.0, 2.0, 3.0)))
    rule = LifecycleRule(step, step, step)
    cursor = LifecycleCursor(0.0)
    events: list[LifecycleEvent] = [BEGAN, SYSTEM, WOKE, SYSTEM, WOKE, SYSTEM, WOKE, SYSTEM]
    actions = [advance(rule, cursor, event, 0.0, 0.5) for event in events]
    waits = [action.seconds for action in actions if isinstance(action, Sleep)]
    assert waits == [1.0, 2.0, 3.0]
    assert actions[-1] == CallHook(LifecycleStep.ON_EXCEPTION, 0, None)


def test_dice_reach_the_step_s_backoff() -> None:
    """A jittered schedule is jittered by the driver's dice, which nothing here rolls itself."""
    rule = LifecycleRule(StepRule(RetryRule(2, Backoff(8.0, low=0.0, high=1.0))))
    waits = [advance(rule, LifecycleCursor(0.0), SYSTEM, 0.0, dice) for dice in (0.25, 0.75)]
    assert waits == [Sleep(2.0), Sleep(6.0)]


# ---- deadlines ----------------------------------------------------------------------------------


@pytest.mark.req("T3.4", "RFC-004:9b", "RFC-005:11b")
@repeatable
@given(instants, st.floats(0.001, 1e6))
def test_a_lifecycle_has_one_timeout_and_its_exception_phase_a_second(
    began_at: float, timeout: float
) -> None:
    """The deadline is the same for process and success, and one timeout later for the handler."""
    rule = LifecycleRule(timeout=timeout)
    cursor = LifecycleCursor(began_at)
    at = []
    for step in LifecycleStep:
        cursor.step = step
        at.append(deadline(rule, cursor))
    assert at == [began_at + timeout, began_at + timeout, began_at + 2 * timeout]


@pytest.mark.req("T3.4", "RFC-004:9b")
def test_the_lifecycle_s_clock_runs_from_its_beginning() -> None:
    """Entering another step gives nobody more time, but for the one timeout of the handler."""
    rule = rules(1)
    cursor = LifecycleCursor(100.0)
    at = [deadline(rule, cursor)]
    for now, event in ((104.0, RETURNED), (109.0, SYSTEM)):
        advance(rule, cursor, event, now, 0.5)
        at.append(deadline(rule, cursor))
    assert cursor.step is LifecycleStep.ON_EXCEPTION
    assert at == [110.0, 110.0, 120.0]


@pytest.mark.parametrize("step", list(LifecycleStep))
def test_without_a_timeout_there_is_no_deadline(step: LifecycleStep) -> None:
    """Nothing is bounded by default."""
    cursor = LifecycleCursor(1.0)
    cursor.step = step
    assert deadline(LifecycleRule(), cursor) is None


@pytest.mark.req("RFC-004:9d")
@repeatable
@given(deadlines, deadlines)
def test_the_earlier_deadline_acts(step_at: float | None, lifecycle_at: float | None) -> None:
    """Neither scope shortens the other: whichever comes first acts, the wider one on a tie."""
    known = [
        (at, order, scope)
        for at, order, scope in (
            (lifecycle_at, 0, TimeoutScope.LIFECYCLE),
            (step_at, 1, TimeoutScope.STEP),
        )
        if at is not None
    ]
    expected = min(known)[2] if known else None
    assert first_to_expire(step_at, lifecycle_at) is expected


@pytest.mark.req("RFC-004:9d")
def test_a_tie_belongs_to_the_lifecycle() -> None:
    """Another attempt would have no time at all."""
    assert first_to_expire(5.0, 5.0) is TimeoutScope.LIFECYCLE
