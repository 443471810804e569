"""What follows from what a caller gave: deadlines, contexts of attempts, budgets."""

from __future__ import annotations

from ergon_framework.core.quota import Account
from ergon_framework.errors import StoreError
from ergon_framework.providers.errors import ProviderError
from ergon_framework.providers.execution import ProviderExecutionContext, QuotaSnapshot
from ergon_framework.providers.gates.lanes import Lane
from ergon_framework.providers.pipeline.options import Manner
from ergon_framework.providers.quota import Reservation

_LONGEST_BUDGET = 2**31 / 1000 - 1  # seconds: the column holds milliseconds


_new = tuple.__new__  # a NamedTuple's own constructor takes twice the time


def quota_snapshot(account: Account) -> QuotaSnapshot:
    """A budget as a result shows it."""
    window, limit, used = account
    return _new(QuotaSnapshot, (limit, used, limit - used if used < limit else 0, window.end))


def deadline_of(
    context: ProviderExecutionContext, budget: float | None, now: float
) -> float | None:
    """The earliest of what the caller, the context and the provider say."""
    deadline = context.deadline
    for seconds in (context.timeout_budget_seconds, budget):
        if seconds is not None and (deadline is None or now + seconds < deadline):
            deadline = now + seconds
    return deadline


def context_of(
    given: ProviderExecutionContext,
    correlation_id: str,
    number: int,
    limit: float | None,
    deadline: float | None,
    now: float,
) -> ProviderExecutionContext:
    """What an attempt that begins now is told: its number, and how much time it has."""
    if deadline is not None:
        left = max(0.0, deadline - now)
        limit = left if limit is None else min(limit, left)
    return ProviderExecutionContext(  # by position: a copy or keywords take twice the time
        correlation_id,
        given.idempotency_key,
        given.task_execution_id,
        given.task_name,
        deadline,
        given.timeout_budget_seconds,
        given.attempt_offset,
        given.units,
        given.traceparent,
        given.metadata,
        number,
        limit,
        given.max_attempts,
    )


def budget_ms(began_at: float, deadline: float | None) -> int | None:
    """A budget as a row has it: neither below nothing nor longer than its column holds."""
    return None if deadline is None else _milliseconds(deadline - began_at)


def whole_budget_ms(
    context: ProviderExecutionContext, began_at: float, deadline: float | None
) -> int | None:
    """The same of a call that may have begun before: a task's budget holds for its whole run."""
    if context.timeout_budget_seconds is not None and deadline == context.deadline:
        return _milliseconds(context.timeout_budget_seconds)
    return budget_ms(began_at, deadline)


def _milliseconds(seconds: float) -> int:
    return round(min(max(0.0, seconds), _LONGEST_BUDGET) * 1000)


def retry_after(error: ProviderError | None, until: float, now: float) -> float | None:
    """Seconds until it is worth calling again: by the gate that refused, or as the error says."""
    if error is None:
        return None
    gate = max(0.0, until - now) if until else None
    asked = error.retry_after_seconds
    return asked if gate is None or (asked is not None and asked > gate) else gate


def give_back(manner: Manner, lane: Lane, reservation: Reservation) -> None:
    """Return units that were not used, and count those that the store does not take."""
    try:
        if lane.quota is not None and reservation.is_open:
            lane.quota.refund(reservation)
    except StoreError:
        manner.retries.unreturned(reservation.units)
