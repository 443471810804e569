"""A retry policy used alone: no quota, no circuit, only attempts and waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ergon_framework.core.failure import Failure
from ergon_framework.core.guard import Do, Guard, GuardRule, Stopped
from ergon_framework.core.retry import RetryRule
from ergon_framework.engine.clocks import current_clock, sleep_until
from ergon_framework.providers.decisions import DECISIONS
from ergon_framework.providers.errors import ProviderError, ProviderTimeoutError, Reason
from ergon_framework.providers.execution import ProviderAttempt
from ergon_framework.providers.mapping.tidying import tidy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryOutcome(Generic[T]):
    """How it ended, and every attempt on the way."""

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
    while do is not Do.END:
        if do is Do.WAIT:
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
            error = tidy(raised)
            do = guard.failed(_failure(error), clock.now(), random.random())  # noqa: S311 - jitter
        log.append(_attempt(guard, started_at, clock.now(), error))
    if not log:
        error = ProviderTimeoutError("the deadline passed before an attempt", never_sent=True)
    return RetryOutcome(value, error, tuple(log), (guard.stop or Stopped.SUCCEEDED).value)


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
