"""The fast path: a closed circuit, no cooldown, quota in hand, one good attempt.

Nearly every call is one of these. The guard would decide each of its steps in the same way, and
would refuse every call at a gate that is known to be shut. A call that turns out otherwise goes on
as a ``GuardedCall`` from the point that it has reached: nothing is decided here alone, and a test
runs both ways side by side. Written for speed: each call of a function costs a hundredth of the
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ergon_framework.core.circuit_breaker import CircuitState, Vote
from ergon_framework.core.guard import GuardEnd
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import AttemptOutcome, AttemptRow
from ergon_framework.providers.errors import Reason
from ergon_framework.providers.execution import (
    ProviderAttempt,
    ProviderExecutionContext,
    ProviderExecutionResult,
    init_context,
)
from ergon_framework.providers.pipeline.guarded_call import (
    GuardedCall,
    budget_ms,
    quota_snapshot,
    refund,
    refusal_error,
)
from ergon_framework.providers.pipeline.lanes import Permits, ProviderLane
from ergon_framework.providers.pipeline.options import CallPolicy
from ergon_framework.providers.quota import Reservation
from ergon_framework.providers.shared_circuit import CLEAR
from ergon_framework.storage.deadlines import PROVIDER_BUDGET
from ergon_framework.storage.freeze import refuse_moved

if TYPE_CHECKING:
    from ergon_framework.providers.pipeline.runtime import ProviderRuntime


_SUCCESS = AttemptOutcome.SUCCESS.value
_SUCCEEDED = GuardEnd.SUCCEEDED.value
_CIRCUIT = (GuardEnd.CIRCUIT_OPEN, GuardEnd.CIRCUIT_OPEN.value, Reason.CIRCUIT_OPEN.value)
_QUOTA = (GuardEnd.QUOTA, GuardEnd.QUOTA.value, Reason.QUOTA_EXHAUSTED.value)
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice the time
_new_context = ProviderExecutionContext.__new__

Who = tuple[str | None, str]
"""The campaign and the operation of a call."""


class FastPathCall:
    """One call of the fast path, from its admission to its end."""

    __slots__ = (
        "_began_at",
        "_budget",
        "_deadline",
        "_given",
        "_lane",
        "_now",
        "_permits",
        "_policy",
        "_reservation",
        "_started_at",
        "_who",
        "context",
        "is_late",
    )

    def __init__(
        self,
        policy: CallPolicy,
        lane: ProviderLane,
        who: Who,
        given: ProviderExecutionContext,
        budget: float | None,
        permits: Permits,
        reservation: Reservation | None,
        now: Callable[[], float],
        began_at: float,
    ) -> None:
        self._policy = policy
        self._lane = lane
        self._who = who
        self._given = given
        self._budget = budget
        self._permits = permits
        self._reservation = reservation
        self._now = now
        self._began_at = self._started_at = began_at
        left, limit = seconds_of(given, budget), policy.attempt_timeout
        own = given.attempt_timeout_seconds
        if own is not None and (limit is None or own < limit):
            limit = own
        self._deadline = deadline = None if left is None else began_at + left
        if reservation is not None:  # the store may have taken its time
            self._started_at = started_at = now()
            if left is not None:
                left -= started_at - began_at
        self.is_late = left is not None and left <= 0
        if limit is None or (left is not None and left < limit):
            limit = left
        offset = given.attempt_offset
        self.context = context = _new_context(ProviderExecutionContext)
        init_context(
            context,
            given.correlation_id or policy.new_id(),
            given.idempotency_key,
            given.task_execution_id,
            given.task_name,
            deadline,
            given.timeout_budget_seconds,
            offset,
            given.units,
            given.traceparent,
            given.metadata,
            offset + 1,
            limit,
        )

    def succeeded(self, data: Any) -> tuple[ProviderExecutionResult, AttemptRow] | None:
        """The result and the row of a successful call; None when the guard has to decide."""
        lane, policy, given = self._lane, self._policy, self._given
        if not isinstance(data, dict) or lane.needs_report(self._permits, Vote.SUCCESS):
            return None
        ended_at, started_at, taken = self._now(), self._started_at, self._reservation
        deadline, duration = self._deadline, (ended_at - started_at) * 1000
        number, key = given.attempt_offset + 1, given.idempotency_key
        correlation_id: str = self.context.correlation_id  # type: ignore[assignment]
        tenant_id, provider_name, capability = lane.key
        row = _tuple(
            AttemptRow,
            (
                policy.new_id(),
                tenant_id,
                given.task_execution_id,
                provider_name,
                capability,
                self._who[1],
                key,
                correlation_id,
                number,
                policy.max_attempts,
                round(duration),
                None if deadline is None else budget_ms(self._began_at, deadline),
                _SUCCESS,
                None,
                False,
                None,
                policy.wall(),
                self._who[0],
            ),
        )
        result = ProviderExecutionResult(
            True,
            data,
            None,
            None,
            1,
            (ended_at - self._began_at) * 1000,
            correlation_id,
            key,
            None,
            None,
            _SUCCEEDED,
            deadline is not None and ended_at > deadline,
            False,
            CircuitState.CLOSED,
            None if taken is None else quota_snapshot(taken.account),
            (ProviderAttempt(number, started_at, duration),),
        )
        return result, row

    @property
    def seconds_left(self) -> float | None:
        """Of its time; None when it has no end."""
        return None if self._deadline is None else self._deadline - self._now()

    def to_guarded_call(self) -> GuardedCall:
        """A guarded call at the point that this call has reached: its first attempt is made."""
        call = GuardedCall(self._policy, self._lane, self._who, self._given, self._budget)
        call.take_over(
            self._began_at,
            self._started_at,
            self.context.correlation_id,
            self._permits,
            self._reservation,
        )
        return call


def seconds_of(given: ProviderExecutionContext, budget: float | None) -> float | None:
    """The smaller one of the caller's budget and the provider's, in seconds."""
    seconds = given.timeout_budget_seconds
    if seconds is not None and (budget is None or seconds < budget):
        return seconds
    return budget


def try_fast_path(
    runtime: ProviderRuntime,
    lane: ProviderLane,
    who: Who,
    given: ProviderExecutionContext,
    *,
    may_wait: bool,
    may_refuse: bool,
) -> FastPathCall | ProviderExecutionResult | GuardedCall | None:
    """A fast call if every gate is open, a refusal if one is known to be shut, None otherwise.

    With None nothing was taken or counted, and a guarded call has to ask the gates. If the store
    did not answer about the quota, the guarded call that is returned knows that, and does not wait
    again. ``may_wait`` says whether the store may be asked for quota: not on an event loop.
    """
    seconds, policy, limiter = given.timeout_budget_seconds, runtime.policy, lane.quota
    # Bounds that the caller sets for this one call are rare: the guard alone knows their rules.
    if given.deadline is not None or (seconds is not None and seconds <= 0):
        return None
    if given.max_attempts is not None:
        return None
    if given.attempt_offset >= policy.max_attempts:
        return None  # no attempt is left: the guard refuses the call
    wait = lane.peek()
    if wait != CLEAR:
        is_shut = may_refuse and wait >= 0
        return _refused(runtime, lane, given, _CIRCUIT, wait) if is_shut else None
    now = policy.clock().now
    began_at, reservation = now(), None
    if limiter is not None:
        if not may_wait or given.units > limiter.policy.limit:
            return None
        try:
            if runtime.is_local:
                reservation = limiter.reserve(given.units)
            else:
                left = seconds_of(given, runtime.options.timeout_budget_seconds)
                reservation = PROVIDER_BUDGET.run_within(
                    left, partial(limiter.reserve, given.units)
                )
        except StoreError as error:
            refuse_moved(error)
            call = runtime.new_call(lane, who, given)
            call.unanswered(began_at)
            return call
        if reservation is None:
            wait = limiter.retry_after()
            return _refused(runtime, lane, given, _QUOTA, wait) if may_refuse else None
    permits = lane.admit_cached()
    if permits is None:  # the circuit opened meanwhile: a guarded call begins, and reserves anew
        if reservation is not None:
            refund(policy, lane, reservation)
        return None
    budget = runtime.options.timeout_budget_seconds
    return FastPathCall(policy, lane, who, given, budget, permits, reservation, now, began_at)


def _refused(
    runtime: ProviderRuntime,
    lane: ProviderLane,
    given: ProviderExecutionContext,
    why: tuple[GuardEnd, str, str],
    wait: float,
) -> ProviderExecutionResult | None:
    """The refusal of a call, if it needs no row; None when a guarded call has to write one.

    A gate that is shut refuses thousands of calls a second: most of them are only counted.
    """
    stop, stop_reason, reason = why
    if not runtime.recorder.skips_refusal(lane.key, reason):
        return None
    seen = None if lane.quota is None else lane.quota.account
    return ProviderExecutionResult(
        False,
        None,
        refusal_error(stop, wait, seen, lane.key),
        reason,
        0,
        0.0,
        given.correlation_id or runtime.policy.new_id(),
        given.idempotency_key,
        None,
        wait,
        stop_reason,
        False,
        False,
        lane.state,
        None if seen is None else quota_snapshot(seen),
    )
