"""One guarded call: the effects behind ``core/provider_call.py``, its rows, and its result.

``core.provider_call.Guard`` decides what comes next. ``GuardedCall`` carries it out: it reserves
quota, asks the circuits, notes how each attempt ended, gives back what was not used, and builds the
result. It also makes the error of a call that a gate refused, for which the provider was not
called. The order of a call is begin, reserve, admit, attempt, and again after a wait; the drivers
in ``drivers`` run these steps on a thread or on an event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ergon_framework.core.circuit_breaker import Vote
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.provider_call import Guard, GuardAction, GuardEnd, Scope, vote_of
from ergon_framework.core.quota import QuotaUsage
from ergon_framework.errors import StoreError
from ergon_framework.ports.dice import roll
from ergon_framework.ports.providerstore import (
    ABANDONED,
    AttemptOutcome,
    AttemptRow,
    LaneFailure,
    LaneKey,
)
from ergon_framework.providers.circuit_breaker import circuit_open
from ergon_framework.providers.decisions import Decision, Spend
from ergon_framework.providers.errors import (
    ProviderDependencyError,
    ProviderError,
    ProviderQuotaExceededError,
    ProviderRateLimitError,
    ProviderResponseFormatError,
    ProviderTimeoutError,
    Reason,
    refused_by_gate,
)
from ergon_framework.providers.execution import (
    ProviderAttempt,
    ProviderExecutionContext,
    ProviderExecutionResult,
    QuotaSnapshot,
    init_context,
    quota_snapshot,
)
from ergon_framework.providers.mapping.rules import is_time_up
from ergon_framework.providers.pipeline.lanes import Permits, ProviderLane
from ergon_framework.providers.pipeline.options import CallPolicy
from ergon_framework.providers.quota import Reservation
from ergon_framework.providers.validation import check_units
from ergon_framework.storage.deadlines import PROVIDER_BUDGET
from ergon_framework.storage.freeze import refuse_moved

_MAX_BUDGET = 2**31 / 1000 - 1  # seconds: the column holds milliseconds


_new_context = ProviderExecutionContext.__new__


def seconds_of(given: ProviderExecutionContext, budget: float | None) -> float | None:
    """The smaller one of the caller's budget and the provider's, in seconds."""
    seconds = given.timeout_budget_seconds
    if seconds is not None and (budget is None or seconds < budget):
        return seconds
    return budget


def deadline_of(
    context: ProviderExecutionContext, budget: float | None, now: float
) -> float | None:
    """The earliest of what the caller, the context and the provider say."""
    deadline, seconds = context.deadline, seconds_of(context, budget)
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
    """The context of an attempt that begins now: its number, and how much time it has."""
    own = given.attempt_timeout_seconds
    if own is not None and (limit is None or own < limit):
        limit = own
    if deadline is not None:
        left = max(0.0, deadline - now)
        limit = left if limit is None else min(limit, left)
    context = _new_context(ProviderExecutionContext)
    init_context(  # every field that is given, so that no name has to be checked
        context,
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
    return context


def whole_budget_ms(
    context: ProviderExecutionContext,
    budget: float | None,
    began_at: float,
    deadline: float | None,
) -> int | None:
    """The time budget of a call, which may have begun before: a task has one for its whole run."""
    if deadline is None or deadline != context.deadline:
        return milliseconds(seconds_of(context, budget))
    if context.timeout_budget_seconds is not None:
        return milliseconds(context.timeout_budget_seconds)
    return milliseconds(deadline - began_at)


def milliseconds(seconds: float | None) -> int | None:
    """A time budget in milliseconds, cut to what the column of a row can hold."""
    return None if seconds is None else round(min(max(0.0, seconds), _MAX_BUDGET) * 1000)


def retry_after(error: ProviderError | None, until: float, now: float) -> float | None:
    """Seconds until it is worth calling again: by the gate that refused, or as the error says."""
    if error is None:
        return None
    # The later of the two: a gate that opens does not help while the provider still wants its
    # pause.
    gate = max(0.0, until - now) if until else None
    asked = error.retry_after_seconds
    return asked if gate is None or (asked is not None and asked > gate) else gate


def refund(policy: CallPolicy, lane: ProviderLane, reservation: Reservation) -> None:
    """Return unused units, and count those that the store did not accept back."""
    try:
        if lane.quota is not None and reservation.is_open:
            lane.quota.refund(reservation)
    except StoreError:
        # A call that has ended does not fail because its units cannot go back; the count tells that
        # the window is poorer than it should be.
        policy.retries.unreturned(reservation.units)


def refusal_error(
    stop: GuardEnd | None, wait: float, account: QuotaUsage | None, lane: LaneKey
) -> ProviderError:
    """Why no attempt was made, and for how many seconds that holds.

    ``account`` is the budget as last seen, if there is one.
    """
    error = _refusal(stop, wait, account)
    error.details["gate"] = f"{lane.provider_name}/{lane.capability}"
    return error


def _refusal(stop: GuardEnd | None, wait: float, account: QuotaUsage | None) -> ProviderError:
    if stop is GuardEnd.CIRCUIT_OPEN:
        return circuit_open(wait)
    if stop is GuardEnd.QUOTA:
        return _quota_error(wait, 0 if account is None else account.remaining)
    if stop is GuardEnd.COOLDOWN:
        return _cooldown_error(wait)
    if stop is GuardEnd.STORE:
        return _store_error()
    if stop is GuardEnd.ATTEMPTS_SPENT:
        return ProviderDependencyError(
            "all attempts had been made before this call; the provider was not called",
            never_sent=True,
        )
    return ProviderTimeoutError(
        "the deadline had passed before the provider could be called", never_sent=True
    )


def _quota_error(wait: float, left: int) -> ProviderQuotaExceededError:
    told = f"has only {left} left, too few for this call" if left else "is used up"
    message = f"the quota of this window {told}; the next begins in {wait:.1f} seconds"
    return refused_by_gate(ProviderQuotaExceededError, message, wait)


def _cooldown_error(wait: float) -> ProviderRateLimitError:
    message = f"the provider asked for a pause of another {wait:.1f} seconds; it was not called"
    return refused_by_gate(ProviderRateLimitError, message, wait)


def _store_error() -> ProviderDependencyError:
    return ProviderDependencyError(
        "the store that keeps the quota does not answer; the provider was not called",
        never_sent=True,
        remedy="quota_fails_open=True would call it without a reservation",
    )


class AttemptLog:
    """Records the attempts of one call as they end."""

    __slots__ = ("_context", "_key", "_policy", "_who", "attempts", "budget_ms", "rows")

    def __init__(
        self,
        policy: CallPolicy,
        key: LaneKey,
        who: tuple[str | None, str],
        context: ProviderExecutionContext,
    ) -> None:
        self._policy = policy
        self._key = key
        self._who = who
        self._context = context
        self.budget_ms: int | None = None
        self.attempts: list[ProviderAttempt] = []
        self.rows: list[AttemptRow] = []

    def attempted(
        self,
        correlation_id: str,
        times: tuple[float, float],
        error: ProviderError | None,
        outcome: AttemptOutcome,
        delay: float | None,
    ) -> None:
        """Note an attempt that has ended; ``times`` are its first and its last instant."""
        started_at, ended_at = times
        duration = (ended_at - started_at) * 1000
        number = self._context.attempt_offset + len(self.attempts) + 1
        if error is None:
            line = ProviderAttempt(number, started_at, duration)
        else:
            reason, status = error.reason_code, error.http_status
            retryable = self._policy.table[reason].retries
            line = ProviderAttempt(number, started_at, duration, reason, retryable, delay, status)
        self.attempts.append(line)
        self._add(correlation_id, line, outcome)

    @property
    def last_failure(self) -> LaneFailure | None:
        """The last attempt, if it failed, as its row will show it."""
        row = self.rows[-1] if self.rows else None
        # A stream that its reader gave up says nothing about the provider.
        if row is None or row.reason_code is None or row.reason_code == ABANDONED:
            return None
        return LaneFailure(row.reason_code, row.created_at)

    def abandoned(self) -> None:
        """Note that the last attempt, a stream, was not read to its end."""
        self.rows[-1] = self.rows[-1]._replace(reason_code=ABANDONED)

    def failed(self, correlation_id: str, error: ProviderError) -> None:
        """Note the end of a failed call; a retry that was planned does not follow."""
        # A call with attempts has rows already; only a refusal would otherwise leave no trace.
        if not self.rows:
            self._refused(correlation_id, error)
        self.given_up()

    def given_up(self) -> list[AttemptRow]:
        """The rows of a call that makes no further attempt, although one may have been planned."""
        # An attempt is written as "retry" when a wait follows it. If a gate or the deadline ends
        # the call after that wait, its last row has to say "failed", or no row would.
        if self.rows and self.rows[-1].outcome == AttemptOutcome.RETRY:
            self.rows[-1] = self.rows[-1]._replace(outcome=AttemptOutcome.FAILED.value)
            self.attempts[-1].delay_seconds = None
        return self.rows

    def _refused(self, correlation_id: str, error: ProviderError) -> None:
        """Note that a gate refused the call, which is no attempt: its number is 0."""
        retryable = self._policy.table[error.reason_code].retries
        line = ProviderAttempt(0, 0.0, 0.0, error.reason_code, retryable)
        self._add(correlation_id, line, AttemptOutcome.FAILED)

    def _add(self, correlation_id: str, line: ProviderAttempt, outcome: AttemptOutcome) -> None:
        context, key = self._context, self._key
        campaign_id, operation = self._who
        row = AttemptRow(
            self._policy.new_id(),
            key.tenant_id,
            context.task_execution_id,
            key.provider_name,
            key.capability,
            operation,
            context.idempotency_key,
            correlation_id,
            line.number,
            self._policy.attempts_of(context),
            round(line.duration_ms),
            self.budget_ms,
            outcome.value,
            line.reason_code,
            line.retryable,
            line.http_status,
            self._policy.wall(),
            campaign_id,
        )
        self.rows.append(row)


class GuardedCall:
    """One guarded execution. It belongs to one driver; no two of its methods run at once."""

    __slots__ = (
        "_began_at",
        "_begun",
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
        "_never_sent",
        "_paid_from",
        "_permits",
        "_policy",
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
        policy: CallPolicy,
        lane: ProviderLane,
        who: tuple[str | None, str],
        context: ProviderExecutionContext,
        began_at: float | None = None,
    ) -> None:
        """``who`` is the campaign and the operation; without ``began_at`` it begins now."""
        self._policy = policy
        self._lane = lane
        self._log = AttemptLog(policy, lane.key, who, context)
        self.context = context
        self.clock = clock = policy.clock()
        now = clock.now() if began_at is None else began_at
        self._rule = policy.rule_of(context)
        # The deadline is taken once: everything compares with this instant, whatever the clock of
        # the store says.
        self._begin_at(now)
        self.correlation_id = context.correlation_id or policy.new_id()
        self._permits: Permits | None = None
        self._kept_vote = Vote.NEUTRAL
        self._reservations: list[Reservation] = []
        # The reservations that pay for the last attempt are those from the first index up to the
        # second. Reservations behind that pay for an attempt that was not begun.
        self._paid_from = self._reserved_for = 0
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
        started_at: float,
        correlation_id: str | None,
        permits: Permits,
        reservation: Reservation | None,
    ) -> None:
        """Continue a call of the fast path, whose first attempt is under way."""
        self._started_at = started_at
        guard, began_at = self._guard, self._began_at
        self.correlation_id = correlation_id or self.correlation_id
        guard.begun(began_at, None, began_at)
        if reservation is not None:
            # The fast path has paid already; from here on ``finish`` is responsible for giving it
            # back.
            self._reservations.append(reservation)
            self._reserved_for = 1
            guard.reserved(None)
        self._permits = permits
        guard.admitted(None)
        self._begun = 1

    def unanswered(self, began_at: float) -> None:
        """Continue a call of the fast path, begun at ``began_at``, whose store did not answer about
        the quota.
        """
        self._begin_at(began_at)
        self._is_unanswered = True

    def _begin_at(self, began_at: float) -> None:
        context, budget = self.context, self._policy.budget
        self._began_at = began_at
        self._deadline = deadline = deadline_of(context, budget, began_at)
        self._log.budget_ms = whole_budget_ms(context, budget, began_at, deadline)
        self._guard = Guard(self._rule, began_at, deadline, self.context.attempt_offset)

    def too_late(self) -> tuple[ProviderExecutionResult, list[AttemptRow]]:
        """End a call of the fast path whose deadline passed before its attempt."""
        self._begun = self._reserved_for = 0  # nothing was sent: finish() returns what was reserved
        self._guard.admitted(None, self.clock.now())
        return self.finish()

    # -- steps: each answers with what to do next ------------------------------------------------

    @property
    def until(self) -> float:
        """The instant at which the requested wait ends."""
        return self._guard.until

    @property
    def attempt_started_at(self) -> float:
        """When the attempt under way began, by the call's clock."""
        return self._started_at

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the call's deadline; None without one."""
        return None if self._deadline is None else self._deadline - self.clock.now()

    @property
    def reads_store(self) -> bool:
        """Whether the next look at the gates reads the store."""
        return not self._lane.is_fresh

    @property
    def writes_success(self) -> bool:
        """Whether reporting a success to the circuit writes to the store."""
        return self._permits is not None and self._lane.needs_report(self._permits, Vote.SUCCESS)

    @property
    def holds_anything(self) -> bool:
        """Whether the call holds quota or a permit that must be returned."""
        return bool(self._reservations) or self._permits is not None

    def begin(self, *, looks: bool = True) -> GuardAction:
        """Ask the gates; with ``looks`` an old view of the circuits is read again before."""
        # Before anything is asked or taken: a call that costs more than a window has could never be
        # made.
        if self._lane.quota is not None:
            check_units(self.context.units, self._lane.quota.policy.limit)
        if self._is_unanswered:
            self._guard.begun(self._began_at, None, self._began_at)
            return self.without_quota()
        if looks:
            self._refresh_gates()
        now = self._began_at
        refused, cooled = self._gates(now)
        return self._guard.begun(now, refused, cooled, roll())

    def reserve(self) -> GuardAction:
        """Reserve quota for the next attempt."""
        limiter = self._lane.quota
        if limiter is None:  # the rule would not have asked
            return self._guard.reserved(None)
        # Quota that is taken for a call without time would have to be refunded at once, and others
        # would be refused meanwhile.
        if self._deadline is not None and self.clock.now() >= self._deadline:
            return self.without_quota()  # reading the circuit took all the time there was
        try:
            taken = limiter.reserve(self.context.units)
        except StoreError as error:
            # A store that was moved is no outage: calls without its quota would go on unguarded for
            # ever.
            refuse_moved(error)
            return self.without_quota()
        if taken is None:
            return self._guard.reserved(self.clock.now() + limiter.retry_after())
        # First: should the deadline end the call here, ``finish`` gives back what was taken.
        self._reservations.append(taken)
        return self._guard.reserved(None, self.clock.now())

    def without_quota(self) -> GuardAction:
        """Go on or refuse, by the rule for a store that did not answer about quota."""
        if not self._policy.fails_open:
            return self._guard.unreserved()
        return self._guard.reserved(None, self.clock.now())

    def admit_cached(self) -> GuardAction | None:
        """Pass the circuits, if that takes no write to the store; None when it does."""
        self._permits = self._lane.admit_cached()
        if self._permits is None:
            return None
        self._kept_vote = Vote.NEUTRAL  # the attempt before voted under a permit of its own
        return self._guard.admitted(None, self.clock.now())

    def admit(self) -> GuardAction:
        """Pass the circuit."""
        answer = self._lane.admit()
        if isinstance(answer, tuple):
            self._permits = answer
            # A probe holds its place by a lease, which is renewed from here on while the attempt
            # runs.
            self._lane.keep(answer)
            self._kept_vote = Vote.NEUTRAL  # the attempt before voted under a permit of its own
            # With the clock asked again: the store may have taken its time to let the call in.
            return self._guard.admitted(None, self.clock.now())
        return self._guard.admitted(self.clock.now() + answer)

    def late(self) -> GuardAction:
        """End the call: its deadline passed before the circuits were asked."""
        return self._guard.out_of_time()

    def attempt_context(self) -> ProviderExecutionContext:
        """The context of the attempt that begins now."""
        self._started_at = now = self.clock.now()
        # What was reserved since the last attempt pays for this one.
        self._paid_from, self._reserved_for = self._reserved_for, len(self._reservations)
        self._begun += 1
        number = self.context.attempt_offset + self._guard.attempts + 1
        limit = self._policy.attempt_timeout
        return context_of(self.context, self.correlation_id, number, limit, self._deadline, now)

    def not_begun(self) -> GuardAction:
        """Undo an attempt for which no thread was free in time."""
        self._begun -= 1
        self._reserved_for = self._paid_from
        return self._guard.out_of_time()

    def succeeded(self, data: Any) -> GuardAction:
        """The provider returned."""
        # Judged as a failure of the provider, with its vote and its retries, and not as a defect of
        # ours.
        if not isinstance(data, dict):
            wrong = f"the provider returned {type(data).__name__} where a dict was agreed"
            return self.failed(ProviderResponseFormatError(wrong))
        ended_at = self.clock.now()
        self._never_sent = False
        self._data = data
        self._error = None
        self._is_late = self._deadline is not None and ended_at > self._deadline
        self._log_attempt(ended_at, None, AttemptOutcome.SUCCESS)
        # Before the report, which may write to the store and fail: the call has succeeded whatever
        # becomes of that.
        do = self._guard.succeeded()
        self._report(Vote.SUCCESS)
        return do

    def abandoned(self, data: dict[str, Any]) -> GuardAction:
        """The reader of a stream has left; the provider has answered until then."""
        do = self.succeeded(data)
        self._log.abandoned()
        return do

    def failed(self, raw: Exception, *, may_retry: bool = True) -> GuardAction:
        """The provider raised. A stream that has begun may not be begun again."""
        ended_at = self.clock.now()
        error = self._policy.canonical(raw)
        asked = error.retry_after_seconds
        # Callers read the error too, and must not wait for years because a provider says so. The
        # guard is given what was asked: the retry policy has a limit of its own.
        if asked is not None:
            error.retry_after_seconds = min(asked, self._policy.longest_cooldown)
        decision = self._policy.table[error.reason_code]
        self._error = error
        self._never_sent = self._never_sent and error.never_sent
        # Before it is decided whether to retry: all callers of the lane keep the pause, this one
        # included.
        if error.reason_code == Reason.RATE_LIMITED:
            self._begin_cooldown(error)
        kind = decision.kind if may_retry else Kind.REJECTED
        failure = Failure(kind, error.reason_code, "", asked)
        time_up = is_time_up(raw)
        do = self._guard.failed(
            failure,
            ended_at,
            roll(),
            # ``may_begin`` takes a place in the retry budget, so it is asked only if a retry is
            # possible at all.
            may_retry=not time_up and self._policy.retries.may_begin(self),
            is_time_up=time_up,
        )
        is_last = do is GuardAction.END
        self._log_attempt(
            ended_at, error, AttemptOutcome.FAILED if is_last else AttemptOutcome.RETRY
        )
        self._kept_vote = decision.vote or Vote.NEUTRAL
        vote = vote_of(self._kept_vote, self._policy.guard.breaker_scope, is_last=is_last)
        if vote is not None:
            self._report(vote)
        # At once, and not at the end: another caller may use the units while this one waits.
        if self._policy.guard.quota_unit is Scope.ATTEMPT and self._is_refundable(error, decision):
            self._refund(self._reservations[self._paid_from : self._reserved_for])
        return do

    def waited(self, *, looks: bool = True) -> GuardAction:
        """A wait is over."""
        may_continue = self.context.may_continue
        # A task whose lease was lost while its call waited must not call the provider any more.
        if may_continue is not None and not may_continue():
            return self._guard.out_of_time()
        if looks:
            self._refresh_gates()
        now = self.clock.now()
        refused, cooled = self._gates(now)
        return self._guard.waited(now, refused, cooled, roll())

    # -- ends ------------------------------------------------------------------------------------

    def abandon(self) -> list[AttemptRow]:
        """Give back what a call holds that will not be finished; returns the rows of its attempts.

        An attempt that was cut short counts as not made. Units that paid for a request which was
        sent stay spent.
        """
        # Neutral: a call that was cut off says nothing about the provider, but its place as a probe
        # has to be free.
        self._report(Vote.NEUTRAL)
        self._refund(self._reservations[self._first_unspent() :])
        self._end()
        return self._log.given_up()

    def _first_unspent(self) -> int:
        """The index of the first reservation that goes back; those before it paid for a request."""
        if self._guard.stop is GuardEnd.SUCCEEDED:
            return self._reserved_for
        if self._policy.guard.quota_unit is Scope.ATTEMPT:
            is_cut_short = self._begun > self._guard.attempts
            return self._paid_from if is_cut_short else self._reserved_for
        # One unit pays for all attempts. It goes back when no attempt has ended, or when the last
        # one ended in a way that costs nothing.
        error = self._error
        if error is None or self._is_refundable(error, self._policy.table[error.reason_code]):
            return 0
        return self._reserved_for

    def finish(self) -> tuple[ProviderExecutionResult, list[AttemptRow]]:
        """The result, and the rows that record it."""
        # The place in the retry budget is freed first: what follows may write to a store that
        # hangs.
        self._end()
        # With one permit for all attempts the vote of the last attempt is kept back until here,
        # because another attempt could have followed. Otherwise there is no permit left by now.
        self._report(self._kept_vote)
        error = self._final_error()
        if error is not None:
            self._settle_quota(error)
            self._log.failed(self.correlation_id, error)
        return self._result(error), self._log.rows

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._policy.retries.ended(self)

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
            (self._guard.stop or GuardEnd.SUCCEEDED).value,
            self._is_late,
            False,
            self._lane.state,
            self._quota(),
            tuple(self._log.attempts),
        )

    def _final_error(self) -> ProviderError | None:
        stop = self._guard.stop
        if stop is GuardEnd.SUCCEEDED:
            return None
        if self._error is not None:
            # Otherwise a call that failed with an answer of the provider would be reported as a
            # refusal of our own gate.
            return self._error  # what the provider said matters more than a later refusal
        quota = self._lane.quota
        account = None if quota is None else quota.refused
        wait = max(0.0, self._guard.until - self.clock.now())
        return refusal_error(stop, wait, account, self._lane.key)

    def _settle_quota(self, error: ProviderError) -> None:
        # Reserved before a gate refused the attempt: these units were not used in any case.
        self._refund(self._reservations[self._reserved_for :])
        decision = self._policy.table[error.reason_code]
        is_one_unit = self._policy.guard.quota_unit is Scope.EXECUTION
        if is_one_unit and self._guard.attempts and self._is_refundable(error, decision):
            self._refund(self._reservations)

    def _is_refundable(self, error: ProviderError, decision: Decision) -> bool:
        if decision.quota is Spend.REFUND_IF_NEVER_SENT:
            is_per_attempt = self._policy.guard.quota_unit is Scope.ATTEMPT
            return error.never_sent if is_per_attempt else self._never_sent
        return decision.quota is Spend.REFUND

    def _refund(self, reservations: Sequence[Reservation]) -> None:
        for each in reservations:
            refund(self._policy, self._lane, each)

    def _report(self, vote: Vote) -> None:
        permits = self._permits
        if permits is not None:
            failed = self._log.last_failure if vote is Vote.FAILURE else None
            self._lane.report(permits, vote, failed)
        # Only now: if the report is interrupted, abandon() reports the permits as neutral, which
        # gives the place of a probe back.
        self._permits = None

    # -- gates -----------------------------------------------------------------------------------

    def _refresh_gates(self) -> None:
        """Refresh the view of the circuits, within half of the time left for the whole call."""
        if self._lane.is_fresh:
            return
        if self._lane.may_wait:
            left = self.seconds_left
            # Half: a store that hangs must leave enough time for the call itself.
            PROVIDER_BUDGET.run_within(None if left is None else left / 2, self._lane.refresh)
        else:
            self._lane.refresh()

    def _gates(self, now: float) -> tuple[float | None, float]:
        wait = self._lane.refused_for()
        cooled = self._lane.cooldown(self._policy.longest_cooldown)
        return None if wait is None else now + wait, now + cooled

    def _begin_cooldown(self, error: ProviderError) -> None:
        asked = error.retry_after_seconds
        seconds = self._policy.default_cooldown if asked is None else asked
        if seconds > 0:
            self._lane.extend_cooldown(min(seconds, self._policy.longest_cooldown))

    def _log_attempt(
        self, ended_at: float, error: ProviderError | None, outcome: AttemptOutcome
    ) -> None:
        times = (self._started_at, ended_at)
        self._log.attempted(self.correlation_id, times, error, outcome, self._guard.delay)

    # Of the last reservation rather than the lane: another call may have changed the lane's account
    # since.
    def _quota(self) -> QuotaSnapshot | None:
        account = self._reservations[-1].account if self._reservations else None
        quota = self._lane.quota
        if account is None and quota is not None:
            account = quota.refused if self._guard.stop is GuardEnd.QUOTA else quota.account
        return None if account is None else quota_snapshot(account)
