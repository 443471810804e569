"""One call on its way: what both drivers do, step by step, and what is written about it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ergon_framework.core.breaker import Vote
from ergon_framework.core.failure import Failure
from ergon_framework.core.guard import Do, Guard, Scope, Stopped, vote_of
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import AttemptRow, Outcome
from ergon_framework.providers.decisions import Decision, Spend
from ergon_framework.providers.errors import ProviderError, ProviderResponseFormatError, Reason
from ergon_framework.providers.execution import (
    ProviderExecutionContext,
    ProviderExecutionResult,
    QuotaSnapshot,
)
from ergon_framework.providers.gates.lanes import Lane, Permits
from ergon_framework.providers.hurry import hurried
from ergon_framework.providers.mapping.kinds import is_time_up
from ergon_framework.providers.pipeline.call_log import CallLog
from ergon_framework.providers.pipeline.edge import check_units
from ergon_framework.providers.pipeline.manner import (
    context_of,
    deadline_of,
    give_back,
    quota_snapshot,
    retry_after,
    whole_budget_ms,
)
from ergon_framework.providers.pipeline.options import Manner
from ergon_framework.providers.pipeline.refusals import refusal
from ergon_framework.providers.quota import Reservation


class Calling:
    """One execution. It belongs to one driver; no two of its methods run at once."""

    __slots__ = (
        "_began_at",
        "_begun",
        "_budget",
        "_data",
        "_deadline",
        "_error",
        "_guard",
        "_is_ended",
        "_is_late",
        "_is_unanswered",
        "_kept_vote",
        "_lane",
        "_log",
        "_manner",
        "_never_sent",
        "_paid_from",
        "_permits",
        "_reservations",
        "_reserved_for",
        "_rule",
        "_started_at",
        "clock",
        "context",
        "correlation_id",
        "is_handed_over",
    )

    def __init__(
        self,
        manner: Manner,
        lane: Lane,
        who: tuple[str | None, str],
        context: ProviderExecutionContext,
        budget: float | None,
    ) -> None:
        """``who`` is the campaign and the operation; ``budget`` the provider's own, in seconds."""
        self._manner = manner
        self._lane = lane
        self._log = CallLog(manner, lane.key, who, context)
        self.context = context
        self.clock = clock = manner.clock()
        self._began_at = now = clock.now()
        self._budget = budget
        self._deadline = deadline_of(context, budget, now)
        self._log.budget_ms = whole_budget_ms(context, now, self._deadline)
        self._rule = manner.rule_of(context)
        self._guard = Guard(self._rule, now, self._deadline, context.attempt_offset)
        self.correlation_id = context.correlation_id or manner.new_id()
        self._permits: Permits | None = None
        self._kept_vote = Vote.NEUTRAL
        self._reservations: list[Reservation] = []
        self._paid_from = self._reserved_for = 0  # of the reservations: the last attempt's
        self._begun = 0  # attempts, the one under way included
        self._never_sent = True
        self._started_at = now
        self._data: dict[str, Any] | None = None
        self._error: ProviderError | None = None
        self._is_late = False
        self._is_ended = False
        self._is_unanswered = False
        self.is_handed_over = False
        """Whether a thread settles it when its attempt has ended."""

    def take_over(
        self,
        began_at: float,
        started_at: float,
        correlation_id: str | None,
        permits: Permits,
        reservation: Reservation | None,
    ) -> None:
        """Stand where a call on the short way stands: its first attempt is under way."""
        self._begin_at(began_at)
        self._started_at = started_at
        guard = self._guard
        self.correlation_id = correlation_id or self.correlation_id
        guard.begun(began_at, None, began_at)
        if reservation is not None:
            self._reservations.append(reservation)
            self._reserved_for = 1
            guard.reserved(None)
        self._permits = permits
        guard.admitted(None)
        self._begun = 1

    def unanswered(self, began_at: float) -> None:
        """Begin when a call on the short way did, whose store did not say if there is quota."""
        self._begin_at(began_at)
        self._is_unanswered = True

    def _begin_at(self, began_at: float) -> None:
        self._began_at = began_at
        self._deadline = deadline = deadline_of(self.context, self._budget, began_at)
        self._log.budget_ms = whole_budget_ms(self.context, began_at, deadline)
        self._guard = Guard(self._rule, began_at, deadline, self.context.attempt_offset)

    def too_late(self) -> tuple[ProviderExecutionResult, list[AttemptRow]]:
        """The end of a call on the short way whose time was over before its attempt."""
        self._begun = self._reserved_for = 0
        self._guard.admitted(None, self.clock.now())
        return self.finish()

    # -- steps: each answers with what to do next ------------------------------------------------

    @property
    def until(self) -> float:
        """The end of the wait that was asked for."""
        return self._guard.until

    @property
    def seconds_left(self) -> float | None:
        """Of its time; None when it has no end."""
        return None if self._deadline is None else self._deadline - self.clock.now()

    @property
    def reads_store(self) -> bool:
        """Whether the next look at the gates reads the store."""
        return not self._lane.is_fresh

    @property
    def writes_success(self) -> bool:
        """Whether telling the circuit of a success writes to the store."""
        return self._permits is not None and self._lane.needs_report(self._permits, Vote.SUCCESS)

    @property
    def holds_anything(self) -> bool:
        """Whether there is quota or a place to give back."""
        return bool(self._reservations) or self._permits is not None

    def begin(self, *, looks: bool = True) -> Do:
        """Look at the gates: in the store too, if what is known is old and ``looks`` says so."""
        if self._lane.quota is not None:
            check_units(self.context.units, self._lane.quota.policy.limit)
        if self._is_unanswered:
            self._guard.begun(self._began_at, None, self._began_at)
            return self.without_quota()
        if looks:
            self._look()
        now = self._began_at
        refused, cooled = self._gates(now)
        return self._guard.begun(now, refused, cooled, random.random())  # noqa: S311 - jitter

    def reserve(self) -> Do:
        """Take quota."""
        desk = self._lane.quota
        if desk is None:  # the rule would not have asked
            return self._guard.reserved(None)
        if self._deadline is not None and self.clock.now() >= self._deadline:
            return self.without_quota()  # the store took all the time to tell of the circuit
        try:
            taken = desk.reserve(self.context.units)
        except StoreError:
            return self.without_quota()
        if taken is None:
            return self._guard.reserved(self.clock.now() + desk.retry_after())
        self._reservations.append(taken)
        return self._guard.reserved(None, self.clock.now())

    def without_quota(self) -> Do:
        """Nobody can say whether there is quota."""
        if not self._manner.fails_open:
            return self._guard.unreserved()
        return self._guard.reserved(None, self.clock.now())

    def admit_quickly(self) -> Do | None:
        """Pass the circuit, if that needs no store."""
        self._permits = self._lane.pass_quickly()
        if self._permits is None:
            return None
        self._kept_vote = Vote.NEUTRAL  # the last attempt has voted under its own
        return self._guard.admitted(None, self.clock.now())

    def admit(self) -> Do:
        """Pass the circuit."""
        answer = self._lane.admit()
        if isinstance(answer, tuple):
            self._permits = answer
            self._lane.keep(answer)
            self._kept_vote = Vote.NEUTRAL  # the last attempt has voted under its own
            return self._guard.admitted(None, self.clock.now())
        return self._guard.admitted(self.clock.now() + answer)

    def late(self) -> Do:
        """The time of the call was over before it could be asked for a place."""
        return self._guard.out_of_time()

    def attempt_context(self) -> ProviderExecutionContext:
        """The context of the attempt that begins now."""
        self._started_at = now = self.clock.now()
        self._paid_from, self._reserved_for = self._reserved_for, len(self._reservations)
        self._begun += 1
        number = self.context.attempt_offset + self._guard.attempts + 1
        limit = self._manner.attempt_timeout
        return context_of(self.context, self.correlation_id, number, limit, self._deadline, now)

    def not_begun(self) -> Do:
        """No thread was free for the attempt in its time: it was not made."""
        self._begun -= 1
        self._reserved_for = self._paid_from
        return self._guard.out_of_time()

    def succeeded(self, data: Any) -> Do:
        """The provider returned."""
        if not isinstance(data, dict):
            wrong = f"the provider returned {type(data).__name__} where a dict was agreed"
            return self.failed(ProviderResponseFormatError(wrong))
        ended_at = self.clock.now()
        self._never_sent = False
        self._data = data
        self._error = None
        self._is_late = self._deadline is not None and ended_at > self._deadline
        self._note(ended_at, None, Outcome.SUCCESS)
        do = self._guard.succeeded()
        self._report(Vote.SUCCESS)
        return do

    def failed(self, raw: Exception) -> Do:
        """The provider raised."""
        ended_at = self.clock.now()
        error = self._manner.canonical(raw)
        asked = error.retry_after_seconds
        if asked is not None:  # whoever reads it shall not wait for years; the policy has its own
            error.retry_after_seconds = min(asked, self._manner.longest_cooldown)
        decision = self._manner.table[error.reason_code]
        self._error = error
        self._never_sent = self._never_sent and error.never_sent
        if error.reason_code == Reason.RATE_LIMITED:
            self._cool(error)
        failure = Failure(decision.kind, error.reason_code, "", asked)
        time_up = is_time_up(raw)
        do = self._guard.failed(
            failure,
            ended_at,
            random.random(),  # noqa: S311 - jitter
            may_retry=not time_up and self._manner.retries.may_begin(self),
            is_time_up=time_up,
        )
        is_last = do is Do.END
        self._note(ended_at, error, Outcome.FAILED if is_last else Outcome.RETRY)
        self._kept_vote = decision.vote or Vote.NEUTRAL
        vote = vote_of(self._kept_vote, self._manner.guard.breaker_scope, is_last=is_last)
        if vote is not None:
            self._report(vote)
        if self._manner.guard.quota_unit is Scope.ATTEMPT and self._is_refundable(error, decision):
            self._refund(self._reservations[self._paid_from : self._reserved_for])
        return do

    def waited(self, *, looks: bool = True) -> Do:
        """A wait is over."""
        if looks:
            self._look()
        now = self.clock.now()
        refused, cooled = self._gates(now)
        return self._guard.waited(now, refused, cooled, random.random())  # noqa: S311 - jitter

    # -- ends ------------------------------------------------------------------------------------

    def abandon(self) -> list[AttemptRow]:
        """The call will not be finished: what it holds is given back. The rows of its attempts.

        An attempt that is cut short counts as not made; what paid for one that was sent is spent.
        """
        self._report(Vote.NEUTRAL)
        self._refund(self._reservations[self._first_unspent() :])
        self._end()
        return self._log.given_up()

    def _first_unspent(self) -> int:
        if self._guard.stop is Stopped.SUCCEEDED:
            return self._reserved_for
        if self._manner.guard.quota_unit is Scope.ATTEMPT:
            is_cut_short = self._begun > self._guard.attempts
            return self._paid_from if is_cut_short else self._reserved_for
        error = self._error
        if error is None or self._is_refundable(error, self._manner.table[error.reason_code]):
            return 0
        return self._reserved_for

    def finish(self) -> tuple[ProviderExecutionResult, list[AttemptRow]]:
        """The result, and the rows that tell of it."""
        self._end()
        self._report(self._kept_vote)  # of a permit for all attempts, when a gate ended it
        error = self._final_error()
        if error is not None:
            self._settle_quota(error)
            self._log.failed(self.correlation_id, error)
        return self._result(error), self._log.rows

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._manner.retries.ended(self)

    def _result(self, error: ProviderError | None) -> ProviderExecutionResult:
        ended_at = self.clock.now()
        last = self._log.attempts[-1] if self._log.attempts else None
        return ProviderExecutionResult(
            error is None,
            None if error is not None else self._data,
            error,
            None if error is None else error.reason_code,
            self._guard.attempts,
            (ended_at - self._began_at) * 1000,
            self.correlation_id,
            self.context.idempotency_key,
            last.http_status if last is not None and error is not None else None,
            retry_after(error, self._guard.until, ended_at),
            (self._guard.stop or Stopped.SUCCEEDED).value,
            self._is_late,
            False,
            self._lane.state,
            self._quota(),
            tuple(self._log.attempts),
        )

    def _final_error(self) -> ProviderError | None:
        stop = self._guard.stop
        if stop is Stopped.SUCCEEDED:
            return None
        if self._error is not None:
            return self._error  # a gate that refused later does not hide what happened
        account = None if self._lane.quota is None else self._lane.quota.account
        wait = max(0.0, self._guard.until - self.clock.now())
        return refusal(stop, wait, account, self._lane.key)

    def _settle_quota(self, error: ProviderError) -> None:
        # Taken, and then a gate refused: that much was not used, whatever came before.
        self._refund(self._reservations[self._reserved_for :])
        decision = self._manner.table[error.reason_code]
        is_one_unit = self._manner.guard.quota_unit is Scope.EXECUTION
        if is_one_unit and self._guard.attempts and self._is_refundable(error, decision):
            self._refund(self._reservations)

    def _is_refundable(self, error: ProviderError, decision: Decision) -> bool:
        if decision.quota is Spend.REFUND_IF_NEVER_SENT:
            is_per_attempt = self._manner.guard.quota_unit is Scope.ATTEMPT
            return error.never_sent if is_per_attempt else self._never_sent
        return decision.quota is Spend.REFUND

    def _refund(self, reservations: Sequence[Reservation]) -> None:
        for each in reservations:
            give_back(self._manner, self._lane, each)

    def _report(self, vote: Vote) -> None:
        permits = self._permits
        if permits is not None and self._lane.needs_report(permits, vote):
            self._lane.report(permits, vote, self._log.last_failure)
        self._permits = None  # not before: who is interrupted gives them back again

    # -- gates -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Bring the view of the circuits up to date, in half of the time it has left."""
        if not self._lane.is_fresh:
            left = self.seconds_left
            hurried(None if left is None else left / 2, self._lane.refresh)

    def _gates(self, now: float) -> tuple[float | None, float]:
        wait = self._lane.refused_for()
        cooled = self._lane.cooldown(self._manner.longest_cooldown)
        return None if wait is None else now + wait, now + cooled

    def _cool(self, error: ProviderError) -> None:
        asked = error.retry_after_seconds
        seconds = self._manner.default_cooldown if asked is None else asked
        if seconds > 0:
            self._lane.cool(min(seconds, self._manner.longest_cooldown))

    def _note(self, ended_at: float, error: ProviderError | None, outcome: Outcome) -> None:
        times = (self._started_at, ended_at)
        self._log.attempted(self.correlation_id, times, error, outcome, self._guard.delay)

    def _quota(self) -> QuotaSnapshot | None:
        account = self._reservations[-1].account if self._reservations else None
        if account is None and self._lane.quota is not None:
            account = self._lane.quota.account
        return None if account is None else quota_snapshot(account)
