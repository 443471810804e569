"""One guarded call to another service: gates, attempts, waits, and one end.

The machine answers every event with the next thing to do; both drivers, sync and async, do exactly
that and report back. The order is fixed: check the circuit, wait for the end of a cooldown, reserve
quota, take a permit of the circuit, attempt. A refusal by a gate costs no attempt. Only the end
says what becomes of the reserved quota.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ergon_framework.core.circuit_breaker import Vote
from ergon_framework.core.failure import Failure
from ergon_framework.core.retry import GiveUp, GiveUpReason, RetryRule, judge
from ergon_framework.errors import ConfigurationError


class GuardAction(StrEnum):
    """What the driver does next."""

    RESERVE = "reserve"  # take quota
    ADMIT = "admit"  # pass the circuit
    ATTEMPT = "attempt"  # call the provider once
    WAIT = "wait"  # until Guard.until
    END = "end"  # nothing more: Guard.stop and Guard.failure say how it went


class Scope(StrEnum):
    """What the circuit lets in and what a unit of quota pays for: an attempt, or all of them."""

    ATTEMPT = "attempt"
    EXECUTION = "execution"


class GuardEnd(StrEnum):
    """Why a call ended."""

    SUCCEEDED = "succeeded"
    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_SPENT = "attempts_spent"
    BUDGET_SPENT = "budget_spent"
    RETRY_BUDGET = "retry_budget_spent"
    CIRCUIT_OPEN = "circuit_open"
    COOLDOWN = "cooldown"
    QUOTA = "quota_exhausted"
    STORE = "store_unavailable"  # it is unknown whether there is quota left


_NEVER = float("-inf")
"""Before any deadline."""

_STOPPED_BY = {
    GiveUpReason.NOT_RETRYABLE: GuardEnd.NOT_RETRYABLE,
    GiveUpReason.ATTEMPTS_SPENT: GuardEnd.ATTEMPTS_SPENT,
    GiveUpReason.BUDGET_SPENT: GuardEnd.BUDGET_SPENT,
}


@dataclass(frozen=True, slots=True)
class GuardRule:
    """How the calls of one provider are guarded."""

    retry: RetryRule
    has_quota: bool = True
    quota_unit: Scope = Scope.EXECUTION
    breaker_scope: Scope = Scope.ATTEMPT


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many calls may be between their first and their last attempt at once.

    When everything fails, all callers retry, and the retries keep the service down: at most
    ``ratio`` of the calls under way, and always ``minimum``.
    """

    ratio: float = 0.2
    minimum: int = 3

    def __post_init__(self) -> None:
        ratio, minimum = self.ratio, self.minimum
        if type(ratio) not in {int, float} or not 0 <= ratio < math.inf:
            raise ConfigurationError(f"ratio must be a number of 0 or more, not {ratio!r}")
        if type(minimum) is not int or minimum < 0:
            raise ConfigurationError(f"minimum must be an integer of 0 or more, not {minimum!r}")

    def allows(self, retrying: int, under_way: int) -> bool:
        """Whether one more may begin to retry."""
        return retrying < max(self.minimum, self.ratio * under_way)


class Guard:
    """The state machine of one guarded call. It belongs to one driver."""

    __slots__ = (
        "_began_at",
        "_deadline",
        "_is_admitted",
        "_is_reserved",
        "_offset",
        "_rule",
        "attempts",
        "delay",
        "failure",
        "stop",
        "until",
    )

    def __init__(
        self, rule: GuardRule, began_at: float, deadline: float | None = None, offset: int = 0
    ) -> None:
        self._rule = rule
        self._began_at = began_at
        self._deadline = deadline
        self._offset = offset
        self._is_reserved = not rule.has_quota
        self._is_admitted = False
        self.attempts = 0
        """Attempts made by this call."""
        self.failure: Failure | None = None
        """The last failure of an attempt: a gate that refuses later does not hide it."""
        self.stop: GuardEnd | None = None
        self.until = 0.0
        """The end of a wait, or from when it is worth calling again."""
        self.delay: float | None = None
        """The wait before the attempt that follows."""

    # -- events --------------------------------------------------------------------------------

    def begun(
        self, now: float, refused_until: float | None, cooldown_until: float, dice: float = 0.0
    ) -> GuardAction:
        """The driver looked at the circuit and at the cooldown, and changed neither."""
        # ``_offset`` counts the attempts of earlier deliveries: a call that comes back from a queue
        # does not begin anew.
        if self._offset >= self._rule.retry.attempts:
            return self._end(GuardEnd.ATTEMPTS_SPENT)
        if self._deadline is not None and now >= self._deadline:
            return self._end(GuardEnd.BUDGET_SPENT)
        if refused_until is not None:
            return self._end(GuardEnd.CIRCUIT_OPEN, refused_until)
        return self._after_cooldown(now, cooldown_until, dice)

    def reserved(self, refused_until: float | None, now: float = _NEVER) -> GuardAction:
        """Quota was reserved, or refused until the window ends; a store may take its time."""
        if refused_until is not None:
            return self._end(GuardEnd.QUOTA, refused_until)
        if self._deadline is not None and now >= self._deadline:
            return self._end(GuardEnd.BUDGET_SPENT)
        self._is_reserved = True
        return self._enter()

    def unreserved(self) -> GuardAction:
        """The store could not be asked for quota."""
        return self._end(GuardEnd.STORE)

    def admitted(self, refused_until: float | None, now: float = _NEVER) -> GuardAction:
        """The circuit let the call in, or refused it; no attempt begins after the deadline."""
        if refused_until is not None:
            return self._end(GuardEnd.CIRCUIT_OPEN, refused_until)
        if self._deadline is not None and now >= self._deadline:
            return self._end(GuardEnd.BUDGET_SPENT)
        self._is_admitted = True
        return GuardAction.ATTEMPT

    def succeeded(self) -> GuardAction:
        """An attempt succeeded, late or not."""
        self.attempts += 1
        self.failure = None
        return self._end(GuardEnd.SUCCEEDED)

    def failed(
        self,
        failure: Failure,
        now: float,
        dice: float,
        *,
        may_retry: bool = True,
        is_time_up: bool = False,
    ) -> GuardAction:
        """An attempt failed; ``may_retry`` is the answer of the retry budget.

        ``is_time_up``: the caller ends the call now, however much time it was given.
        """
        self.attempts += 1
        self.failure = failure
        attempt = self._offset + self.attempts - 1
        verdict = judge(self._rule.retry, attempt, self._began_at, failure, now, dice)
        if isinstance(verdict, GiveUp):
            return self._end(_STOPPED_BY[verdict.why])
        if is_time_up or (self._deadline is not None and now + verdict.delay >= self._deadline):
            return self._end(GuardEnd.BUDGET_SPENT)
        if not may_retry:
            return self._end(GuardEnd.RETRY_BUDGET)
        self.delay = verdict.delay
        self.until = now + verdict.delay
        # The permit went back with the report of this failure: the circuit may be open by the next
        # attempt.
        if self._rule.breaker_scope is Scope.ATTEMPT:
            self._is_admitted = False
        if self._rule.has_quota and self._rule.quota_unit is Scope.ATTEMPT:
            self._is_reserved = False
        return GuardAction.WAIT

    def waited(
        self, now: float, refused_until: float | None, cooldown_until: float, dice: float = 0.0
    ) -> GuardAction:
        """The wait is over; the circuit and the cooldown may have changed meanwhile."""
        if self._deadline is not None and now >= self._deadline:
            return self._end(GuardEnd.BUDGET_SPENT)
        # A call that keeps its permit for all attempts was let in before the circuit opened, and
        # goes on.
        if refused_until is not None and not self._is_admitted:
            return self._end(GuardEnd.CIRCUIT_OPEN, refused_until)
        return self._after_cooldown(now, cooldown_until, dice)

    def out_of_time(self) -> GuardAction:
        """The time of the call was over before the next step could begin."""
        return self._end(GuardEnd.BUDGET_SPENT)

    # -- what follows --------------------------------------------------------------------------

    def _after_cooldown(self, now: float, cooldown_until: float, dice: float) -> GuardAction:
        if now >= cooldown_until:
            return self._enter()
        if not may_wait_for_pause(cooldown_until, self._deadline, self.attempts):
            return self._end(GuardEnd.COOLDOWN, cooldown_until)
        # Spread out: callers that all come at one instant would be told to wait again.
        spread = (cooldown_until - now) * self._rule.retry.asked_spread * dice
        until = cooldown_until + spread
        # Where the spread would outlast the deadline, the call waits without it instead of giving
        # up.
        is_in_time = self._deadline is None or until < self._deadline
        self.until = until if is_in_time else cooldown_until
        return GuardAction.WAIT

    def _enter(self) -> GuardAction:
        if not self._is_reserved:
            return GuardAction.RESERVE
        return GuardAction.ATTEMPT if self._is_admitted else GuardAction.ADMIT

    def _end(self, stop: GuardEnd, until: float = 0.0) -> GuardAction:
        self.stop = stop
        self.until = until
        self.delay = None
        return GuardAction.END


def may_wait_for_pause(cooldown_until: float, deadline: float | None, attempts: int = 0) -> bool:
    """Whether a call waits for the end of a pause that the provider asked for, or is refused."""
    if deadline is not None:
        return cooldown_until < deadline
    # Without a deadline a call waits for no pause that others were asked for; but one that was
    # told to come back does, since its own wait may end a moment before the pause.
    return attempts > 0


def vote_of(wanted: Vote, scope: Scope, *, is_last: bool) -> Vote | None:
    """What to report to the circuit after an attempt; None: the permit is kept for the next one."""
    return wanted if is_last or scope is Scope.ATTEMPT else None
