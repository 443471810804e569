"""The short way through the gates: a closed circuit, no cooldown, quota in hand, one good attempt.

Nearly every call is one of these, and the machine would answer each of its questions in the same
way. Whatever turns out otherwise is handed to the machine at the point that was reached, so there
is nothing that only this file decides; a test runs both ways side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ergon_framework.core.breaker import State, Vote
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import AttemptRow, Outcome
from ergon_framework.providers.calling import Calling
from ergon_framework.providers.execution import (
    ProviderAttempt,
    ProviderExecutionContext,
    ProviderExecutionResult,
)
from ergon_framework.providers.lanes import Lane, Permits
from ergon_framework.providers.manner import (
    Manner,
    budget_ms,
    deadline_of,
    give_back,
    quota_snapshot,
)
from ergon_framework.providers.quota import Reservation

if TYPE_CHECKING:
    from ergon_framework.providers.fitting import Fitted

_SUCCESS = Outcome.SUCCESS.value


class Ticket:
    """One call on the short way, between its gates and its end."""

    __slots__ = (
        "_began_at",
        "_budget",
        "_deadline",
        "_given",
        "_lane",
        "_manner",
        "_now",
        "_permits",
        "_reservation",
        "_who",
        "context",
    )

    def __init__(
        self,
        manner: Manner,
        lane: Lane,
        who: tuple[str | None, str],
        given: ProviderExecutionContext,
        budget: float | None,
        permits: Permits,
        reservation: Reservation | None,
    ) -> None:
        self._manner = manner
        self._lane = lane
        self._who = who
        self._given = given
        self._budget = budget
        self._permits = permits
        self._reservation = reservation
        self._now = now = manner.clock().now
        self._began_at = began_at = now()
        self._deadline = deadline = deadline_of(given, budget, began_at)
        limit = manner.attempt_timeout
        if deadline is not None and (limit is None or began_at + limit > deadline):
            limit = max(0.0, deadline - began_at)
        self.context = ProviderExecutionContext(
            given.correlation_id or manner.new_id(),
            given.idempotency_key,
            given.task_execution_id,
            given.task_name,
            deadline,
            given.timeout_seconds,
            given.attempt_offset,
            given.units,
            given.traceparent,
            given.metadata,
            given.attempt_offset + 1,
            limit,
        )

    def arrived(self, data: Any) -> tuple[ProviderExecutionResult, AttemptRow] | None:
        """The end of a good call; None when the machine has to judge it."""
        lane, deadline = self._lane, self._deadline
        if not isinstance(data, dict) or lane.needs_report(self._permits, Vote.SUCCESS):
            return None
        ended_at = self._now()
        duration = (ended_at - self._began_at) * 1000
        context, key, manner = self.context, lane.key, self._manner
        campaign_id, operation = self._who
        number = context.attempt
        correlation_id: str = context.correlation_id  # type: ignore[assignment]
        row = AttemptRow(
            manner.new_id(),
            key.tenant_id,
            context.task_execution_id,
            key.provider_name,
            key.capability,
            operation,
            context.idempotency_key,
            correlation_id,
            number,
            manner.max_attempts,
            round(duration),
            budget_ms(self._began_at, deadline),
            _SUCCESS,
            None,
            False,
            None,
            manner.wall(),
            campaign_id,
        )
        result = ProviderExecutionResult(
            True,
            data,
            None,
            None,
            1,
            duration,
            correlation_id,
            context.idempotency_key,
            None,
            None,
            "succeeded",
            deadline is not None and ended_at > deadline,
            False,
            State.CLOSED,
            None if self._reservation is None else quota_snapshot(self._reservation.account),
            (ProviderAttempt(number, self._began_at, duration),),
        )
        return result, row

    def machine(self) -> Calling:
        """The machine, at the point this call has reached: its first attempt has ended."""
        call = Calling(self._manner, self._lane, self._who, self._given, self._budget)
        call.take_over(
            self._began_at, self.context.correlation_id, self._permits, self._reservation
        )
        return call


def board(
    fitted: Fitted,
    lane: Lane,
    who: tuple[str | None, str],
    given: ProviderExecutionContext,
    *,
    may_wait: bool,
) -> Ticket | None:
    """A ticket, if every gate is open; None otherwise, and then nothing was taken.

    ``may_wait`` says whether the store may be asked for quota, which an event loop cannot wait for.
    """
    seconds, manner = given.timeout_seconds, fitted.manner
    if given.deadline is not None or not lane.is_clear:
        return None
    if (seconds is not None and seconds <= 0) or given.attempt_offset >= manner.max_attempts:
        return None  # no time or no attempt left: the machine says so
    reservation = None
    if lane.quota is not None:
        if not may_wait:
            return None
        try:
            reservation = lane.quota.reserve(given.units)
        except StoreError:
            return None
        if reservation is None:
            return None
    permits = lane.pass_quickly()
    if permits is None:  # it opened meanwhile; the machine begins anew, with this unit given back
        if reservation is not None:
            give_back(manner, lane, reservation)
        return None
    return Ticket(manner, lane, who, given, fitted.options.timeout_seconds, permits, reservation)
