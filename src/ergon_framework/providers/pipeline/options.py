"""What a provider was given, checked, and what its calls obey."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ergon_framework.core.provider_call import GuardRule, RetryBudget
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.providerstore import (
    ProviderStore,
)
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.decisions import Decision, DecisionOptions
from ergon_framework.providers.errors import ProviderError
from ergon_framework.providers.execution import (
    ProviderExecutionContext,
)
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryBudgetTracker, RetryPolicy
from ergon_framework.providers.validation import check_above_zero, check_seconds

_KINDS = {
    "retry_policy": RetryPolicy,
    "circuit_breaker": CircuitBreaker,
    "parent_breaker": CircuitBreaker,
    "quota": QuotaPolicy,
    "retry_budget": RetryBudget,
    "decisions": DecisionOptions,
}


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What a provider was given."""

    retry_policy: RetryPolicy
    circuit_breaker: CircuitBreaker | Literal[False]
    quota: QuotaPolicy | None
    store: str | ProviderStore | None
    timeout_budget_seconds: float | None
    attempt_timeout_seconds: float | None
    isolate: bool
    durable: bool
    parent_breaker: CircuitBreaker | None
    retry_budget: RetryBudget | None
    breaker_scope: str
    quota_unit: str
    quota_fails_open: bool
    decisions: DecisionOptions
    default_cooldown_seconds: float
    max_cooldown_seconds: float
    max_lanes: int
    keep_records_seconds: float | None
    spill: str | Path | None
    clock: Clock | None
    wall: Callable[[], float]


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How one provider makes its calls: fixed when it is built."""

    guard: GuardRule
    table: dict[str, Decision]
    canonical: Callable[[Exception], ProviderError]
    clock: Callable[[], Clock]
    wall: Callable[[], float]
    max_attempts: int
    attempt_timeout: float | None
    default_cooldown: float
    longest_cooldown: float
    fails_open: bool
    retries: RetryBudgetTracker
    new_id: Callable[[], str]
    budget: float | None
    """Seconds of a whole call, if the caller gives it no fewer."""
    budget_ms: int | None
    """The budget in milliseconds, as rows have it."""
    is_stamped_by_store: bool
    """Whether ``wall`` is the clock of the store."""

    def rule_of(self, context: ProviderExecutionContext) -> GuardRule:
        """How one call is guarded: as all are, with fewer attempts if its caller says so."""
        most, retry = self.attempts_of(context), self.guard.retry
        return (
            self.guard
            if most >= retry.attempts
            else replace(self.guard, retry=replace(retry, attempts=most))
        )

    def attempts_of(self, context: ProviderExecutionContext) -> int:
        """How many attempts a call has in all, those included that others made before."""
        if context.max_attempts is None:
            return self.max_attempts
        return min(self.max_attempts, context.max_attempts + context.attempt_offset)


def check_options(options: ProviderOptions, *, is_async: bool) -> None:
    """Check the options by themselves and against each other."""
    for field, kind in _KINDS.items():
        value = getattr(options, field)
        is_off = value is None or (value is False and field == "circuit_breaker")
        if not is_off and not isinstance(value, kind):
            raise ConfigurationError(f"{field} must be a {kind.__name__}, not {value!r}")
    for field in ("timeout_budget_seconds", "attempt_timeout_seconds", "keep_records_seconds"):
        value = getattr(options, field)
        if value is not None:
            check_above_zero(field, value)
    check_seconds("default_cooldown_seconds", options.default_cooldown_seconds)
    for field in ("max_cooldown_seconds", "max_lanes"):
        check_above_zero(field, getattr(options, field))
    for field in ("breaker_scope", "quota_unit"):
        value = getattr(options, field)
        if value not in ("attempt", "execution"):
            raise ConfigurationError(f"{field} must be 'attempt' or 'execution', not {value!r}")
    has_end = (
        options.timeout_budget_seconds is not None or options.attempt_timeout_seconds is not None
    )
    if options.isolate and not has_end:
        raise ConfigurationError(
            "isolate=True needs a time after which a call is left behind",
            remedy="give timeout_budget_seconds or attempt_timeout_seconds",
        )
    if options.isolate and is_async:
        raise ConfigurationError(
            "isolate=True is for calls on threads, and this provider's _execute_impl is async",
            remedy="leave it out: an async call is cancelled when its time is over",
        )
