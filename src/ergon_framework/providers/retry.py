"""Retries of provider calls: the policy, its use without a provider, and the retry budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ergon_framework.core.failure import Failure
from ergon_framework.core.provider_call import Guard, GuardAction, GuardEnd, GuardRule, RetryBudget
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.engine.clocks import current_clock, sleep_until
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.dice import roll
from ergon_framework.providers.decisions import DECISIONS, RETRYABLE_KINDS
from ergon_framework.providers.errors import ProviderError, ProviderTimeoutError, Reason
from ergon_framework.providers.execution import ProviderAttempt
from ergon_framework.providers.mapping.rules import canonical_or_rebuilt
from ergon_framework.providers.validation import check_seconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential waits with a cap, and a symmetric jitter that comes after the cap.

    The wait after the failed attempt ``n`` (from 1) is ``min(max_delay, base * 2**(n-1))``, times a
    number between ``1 - jitter_ratio`` and ``1 + jitter_ratio``. A provider that says when to come
    back is never called earlier, and at most ``max_retry_after_seconds`` later.

    The steps of a task have a ``RetryPolicy`` of their own, in ``ergon_framework.task``: both
    specifications give theirs this name.
    """

    max_attempts: int = 3
    base_delay_seconds: float = 0.5
    max_delay_seconds: float = 8.0
    jitter_ratio: float = 0.2
    max_retry_after_seconds: float | None = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise ConfigurationError(f"max_attempts must be an integer, not {self.max_attempts!r}")
        if self.max_attempts < 1:
            raise ConfigurationError(
                f"max_attempts must be at least 1, not {self.max_attempts}",
                remedy="1 means a single attempt without a retry",
            )
        check_seconds("base_delay_seconds", self.base_delay_seconds)
        check_seconds("max_delay_seconds", self.max_delay_seconds)
        if self.max_retry_after_seconds is not None:
            check_seconds("max_retry_after_seconds", self.max_retry_after_seconds)
        check_seconds("jitter_ratio", self.jitter_ratio)
        if self.jitter_ratio >= 1:
            raise ConfigurationError(
                f"jitter_ratio must be below 1, not {self.jitter_ratio}",
                remedy="0.2 means up to twenty per cent more or less",
            )

    def delay_seconds(self, attempt: int, dice: float | None = None) -> float:
        """The wait after the failed attempt ``attempt`` (from 1), with its jitter.

        ``dice`` in [0, 1) chooses the place in the window of the jitter; by default it is rolled.
        """
        rolled = roll() if dice is None else dice
        return self.backoff.delay(attempt - 1, rolled)

    @property
    def backoff(self) -> Backoff:
        """The policy as a ``Backoff`` of ``core``, where a cap of zero means no cap. Here it means
        no wait.
        """
        base = self.base_delay_seconds if self.max_delay_seconds else 0.0
        low, high = 1 - self.jitter_ratio, 1 + self.jitter_ratio
        return Backoff(base, 2.0, self.max_delay_seconds, low, high)

    @property
    def rule(self) -> RetryRule:
        """The policy as a ``RetryRule`` of ``core``."""
        return RetryRule(
            attempts=self.max_attempts,
            backoff=self.backoff,
            on=RETRYABLE_KINDS,
            max_retry_after=self.max_retry_after_seconds,
            asked_spread=self.jitter_ratio,
        )

    def run(self, call: Callable[[], T], *, deadline: float | None = None) -> RetryOutcome[T]:
        """Use the policy alone: call until it succeeds or is not worth it, and say how it went.

        Whatever ``call`` raises is mapped to a canonical error; only retryable ones are retried,
        and no wait begins that would reach ``deadline``, an instant of ``time.monotonic``.
        """
        return run_with_retries(self.rule, call, deadline)


@dataclass(frozen=True, slots=True)
class RetryOutcome(Generic[T]):
    """The result of a retried call, and all of its attempts."""

    value: T | None
    error: ProviderError | None
    attempts: tuple[ProviderAttempt, ...]
    stop_reason: str

    @property
    def success(self) -> bool:
        """Whether the last attempt succeeded."""
        return self.error is None

    def unwrap(self) -> T:
        """The value, or the canonical error raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def run_with_retries(
    rule: RetryRule, call: Callable[[], T], deadline: float | None = None
) -> RetryOutcome[T]:
    """Call until it succeeds, fails for good, or the rule or the deadline says stop."""
    clock = current_clock()
    began_at = clock.now()
    guard = Guard(GuardRule(rule, has_quota=False), began_at, deadline)
    log: list[ProviderAttempt] = []
    value, error = None, None
    do = guard.begun(began_at, None, began_at)
    while do is not GuardAction.END:
        if do is GuardAction.WAIT:
            sleep_until(clock, guard.until)
            now = clock.now()
            do = guard.waited(now, None, now)
            continue
        guard.admitted(None)
        started_at = clock.now()
        try:
            value, error = call(), None
            do = guard.succeeded()
        except Exception as raised:
            error = canonical_or_rebuilt(raised)
            do = guard.failed(_failure(error), clock.now(), roll())
        log.append(_attempt(guard, started_at, clock.now(), error))
    if not log:
        error = ProviderTimeoutError("the deadline passed before an attempt", never_sent=True)
    return RetryOutcome(value, error, tuple(log), (guard.stop or GuardEnd.SUCCEEDED).value)


def _failure(error: ProviderError) -> Failure:
    kind = DECISIONS[Reason(error.reason_code)].kind
    return Failure(kind, error.reason_code, "", error.retry_after_seconds)


def _attempt(
    guard: Guard, started_at: float, ended_at: float, error: ProviderError | None
) -> ProviderAttempt:
    duration = (ended_at - started_at) * 1000
    if error is None:
        return ProviderAttempt(guard.attempts, started_at, duration)
    retryable = DECISIONS[Reason(error.reason_code)].retries
    reason, status = error.reason_code, error.http_status
    return ProviderAttempt(
        guard.attempts, started_at, duration, reason, retryable, guard.delay, status
    )


class RetryBudgetTracker:
    """Counts the calls under way. Without a budget nothing is counted, and everybody may retry."""

    def __init__(self, budget: RetryBudget | None = None) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self.under_way = 0
        """Calls that have begun and not ended; 0 without a budget."""
        self._retrying: set[int] = set()
        self.unreturned_units = 0
        """Units that were to be given back when the store did not answer."""

    def renew(self) -> None:
        """After a fork, in the child: the calls under way are its parent's."""
        self._lock = threading.Lock()
        self.under_way = 0
        self._retrying = set()

    def began(self) -> None:
        """A call is under way."""
        if self._budget is not None:
            with self._lock:
                self.under_way += 1

    def may_begin(self, call: object) -> bool:
        """Whether a call may go on to another attempt; it counts from then on."""
        if self._budget is None:
            return True
        with self._lock:
            if id(call) in self._retrying:
                return True
            if not self._budget.allows(len(self._retrying), self.under_way):
                return False
            self._retrying.add(id(call))
            return True

    def ended(self, call: object) -> None:
        """A call has ended, one way or the other."""
        if self._budget is not None:
            with self._lock:
                self.under_way = max(0, self.under_way - 1)  # it may have begun before a fork
                self._retrying.discard(id(call))

    def unreturned(self, units: int) -> None:
        """A refund got lost: the store did not answer."""
        with self._lock:
            self.unreturned_units += units
