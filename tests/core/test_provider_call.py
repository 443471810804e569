"""The machine of one guarded call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.core.circuit_breaker import Vote
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.provider_call import (
    Guard,
    GuardAction,
    GuardEnd,
    GuardRule,
    RetryBudget,
    Scope,
    vote_of,
)
from ergon_framework.core.retry import Backoff, RetryRule

RETRY = RetryRule(attempts=3, backoff=Backoff(base=1.0), on=frozenset({Kind.TRANSIENT}))
DOWN = Failure(Kind.TRANSIENT, "connection_error")
WRONG = Failure(Kind.REJECTED, "bad_request")


def guard(deadline: float | None = None, offset: int = 0, **rule: object) -> Guard:
    """A call that began at 0."""
    return Guard(GuardRule(RETRY, **rule), 0.0, deadline, offset)  # type: ignore[arg-type]


@pytest.mark.req("PEF:B-6", "PROVIDERS:pipeline")
def test_the_order_is_look_reserve_pass_attempt() -> None:
    """Each step answers with the next one."""
    call = guard()
    assert call.begun(0.0, None, 0.0) is GuardAction.RESERVE
    assert call.reserved(None) is GuardAction.ADMIT
    assert call.admitted(None) is GuardAction.ATTEMPT
    assert call.succeeded() is GuardAction.END
    assert (call.stop, call.attempts) == (GuardEnd.SUCCEEDED, 1)


@pytest.mark.req("PEF:A-5")
def test_an_open_circuit_ends_the_call_before_quota_is_touched() -> None:
    """The refusal says when to come back."""
    call = guard()
    assert call.begun(0.0, 7.0, 0.0) is GuardAction.END
    assert (call.stop, call.until, call.attempts) == (GuardEnd.CIRCUIT_OPEN, 7.0, 0)


@pytest.mark.req("PEF:B-7", "PEF:B-8")
def test_a_gate_that_refuses_costs_no_attempt() -> None:
    """Quota, circuit, a store that does not answer."""
    call = guard()
    call.begun(0.0, None, 0.0)
    assert call.reserved(60.0) is GuardAction.END
    assert (call.stop, call.until) == (GuardEnd.QUOTA, 60.0)
    call = guard()
    call.begun(0.0, None, 0.0)
    assert call.unreserved() is GuardAction.END
    assert call.stop is GuardEnd.STORE
    call = guard(has_quota=False)
    assert call.begun(0.0, None, 0.0) is GuardAction.ADMIT
    assert call.admitted(3.0) is GuardAction.END
    assert (call.stop, call.until, call.attempts) == (GuardEnd.CIRCUIT_OPEN, 3.0, 0)


@pytest.mark.req("PEF:A-9")
def test_a_cooldown_is_sat_out_only_when_the_budget_allows() -> None:
    """Without a deadline nobody waits for it."""
    call = guard(deadline=10.0)
    assert call.begun(0.0, None, 4.0) is GuardAction.WAIT
    assert call.until == 4.0
    assert call.waited(4.0, None, 4.0) is GuardAction.RESERVE
    for deadline in (4.0, None):
        call = guard(deadline=deadline)
        assert call.begun(0.0, None, 4.0) is GuardAction.END
        assert (call.stop, call.until) == (GuardEnd.COOLDOWN, 4.0)


@pytest.mark.req("PEF:R-5", "PEF:A-7")
def test_no_wait_reaches_the_deadline_and_no_attempt_begins_after_it() -> None:
    """The wait of one second would end exactly at the deadline."""
    call = guard(deadline=1.5, has_quota=False)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(DOWN, 0.5, 0.5) is GuardAction.END
    assert (call.stop, call.failure) == (GuardEnd.BUDGET_SPENT, DOWN)
    late = guard(deadline=1.5)
    assert late.begun(1.5, None, 0.0) is GuardAction.END
    assert late.stop is GuardEnd.BUDGET_SPENT
    overslept = guard(deadline=5.0, has_quota=False)
    overslept.begun(0.0, None, 0.0)
    overslept.admitted(None)
    assert overslept.failed(DOWN, 0.5, 0.5) is GuardAction.WAIT
    assert overslept.waited(5.0, None, 0.0) is GuardAction.END


@pytest.mark.req("PEF:A-4")
def test_a_circuit_that_opens_meanwhile_ends_it_with_the_real_failure() -> None:
    """The upstream error stays, the stop says why there is no further attempt."""
    call = guard(has_quota=False)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(DOWN, 0.1, 0.5) is GuardAction.WAIT
    assert call.waited(1.1, 30.0, 0.0) is GuardAction.END
    assert (call.stop, call.failure, call.attempts) == (GuardEnd.CIRCUIT_OPEN, DOWN, 1)


@pytest.mark.req("PEF:A-4")
def test_with_the_scope_of_an_execution_the_circuit_is_passed_once() -> None:
    """The literal drawing: the permit is kept for all attempts, and the last one votes."""
    call = guard(has_quota=False, breaker_scope=Scope.EXECUTION)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(DOWN, 0.1, 0.5) is GuardAction.WAIT
    assert call.waited(1.1, 30.0, 0.0) is GuardAction.ATTEMPT
    assert vote_of(Vote.FAILURE, Scope.EXECUTION, is_last=False) is None
    assert vote_of(Vote.FAILURE, Scope.EXECUTION, is_last=True) is Vote.FAILURE
    assert vote_of(Vote.FAILURE, Scope.ATTEMPT, is_last=False) is Vote.FAILURE


@pytest.mark.req("PEF:A-11")
def test_a_unit_pays_for_the_execution_or_for_each_attempt() -> None:
    """By default once."""
    for unit, step in ((Scope.EXECUTION, GuardAction.ADMIT), (Scope.ATTEMPT, GuardAction.RESERVE)):
        call = guard(quota_unit=unit)
        call.begun(0.0, None, 0.0)
        call.reserved(None)
        call.admitted(None)
        call.failed(DOWN, 0.1, 0.5)
        assert call.waited(1.1, None, 0.0) is step


@pytest.mark.req("PEF:R-4", "PEF:R-7")
def test_what_is_not_retryable_and_what_was_tried_before_ends_it() -> None:
    """Attempts of an earlier task count."""
    call = guard(has_quota=False)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(WRONG, 0.1, 0.5) is GuardAction.END
    assert call.stop is GuardEnd.NOT_RETRYABLE
    call = guard(has_quota=False, offset=2)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(DOWN, 0.1, 0.5) is GuardAction.END
    assert call.stop is GuardEnd.ATTEMPTS_SPENT


@pytest.mark.req("PROVIDERS:pipeline")
def test_the_retry_budget_stops_a_storm() -> None:
    """A fifth of the calls under way may retry, and always three."""
    budget = RetryBudget()
    assert budget.allows(2, 4)
    assert not budget.allows(3, 4)
    assert budget.allows(19, 100)
    assert not budget.allows(20, 100)
    call = guard(has_quota=False)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(DOWN, 0.1, 0.5, may_retry=False) is GuardAction.END
    assert call.stop is GuardEnd.RETRY_BUDGET


def test_a_call_whose_runner_ends_it_has_spent_its_time() -> None:
    """Whoever runs the call has no time for another attempt; the retry budget is not to blame."""
    call = guard(has_quota=False)
    call.begun(0.0, None, 0.0)
    call.admitted(None)
    assert call.failed(DOWN, 0.1, 0.5, may_retry=False, is_time_up=True) is GuardAction.END
    assert call.stop is GuardEnd.BUDGET_SPENT


GATE = st.one_of(st.none(), st.floats(0.1, 5.0))


@given(
    data=st.data(),
    deadline=st.one_of(st.none(), st.floats(0.1, 30.0)),
    attempts=st.integers(1, 5),
    offset=st.integers(0, 3),
    has_quota=st.booleans(),
    unit=st.sampled_from(Scope),
    scope=st.sampled_from(Scope),
)
def test_whatever_happens_a_call_ends_once_within_its_bounds(
    data: st.DataObject,
    deadline: float | None,
    attempts: int,
    offset: int,
    has_quota: bool,
    unit: Scope,
    scope: Scope,
) -> None:
    """No attempt beyond the rule or the deadline, no attempt without quota and a permit."""
    retry = RetryRule(attempts=attempts, backoff=Backoff(base=0.5), on=RETRY.on)
    call = Guard(GuardRule(retry, has_quota, unit, scope), 0.0, deadline, offset)
    now, made, reserved, permits, steps = 0.0, 0, 0, 0, 0

    def gate() -> float | None:
        wait = data.draw(GATE)
        return None if wait is None else now + wait

    do = call.begun(now, gate(), now + (data.draw(GATE) or 0.0))
    while do is not GuardAction.END:
        steps += 1
        assert steps < 100
        match do:
            case GuardAction.RESERVE:
                refused = gate()
                reserved += refused is None
                do = call.reserved(refused)
            case GuardAction.ADMIT:
                refused = gate()
                permits += refused is None
                do = call.admitted(refused)
            case GuardAction.ATTEMPT:
                made += 1
                assert deadline is None or now < deadline
                assert permits >= (made if scope is Scope.ATTEMPT else 1)
                assert not has_quota or reserved >= (made if unit is Scope.ATTEMPT else 1)
                now += data.draw(st.floats(0.0, 3.0))
                failure = data.draw(st.sampled_from([None, DOWN, WRONG]))
                do = call.succeeded() if failure is None else call.failed(failure, now, 0.5)
            case _:
                assert call.until >= now
                assert deadline is None or call.until < deadline
                now = call.until
                do = call.waited(now, gate(), now)
    assert call.attempts == made
    assert made <= max(1, attempts - offset)
    assert (call.stop is GuardEnd.SUCCEEDED) == (made > 0 and call.failure is None)
