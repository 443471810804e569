"""An executor whose handlers call a provider; its calls are counted in a store of their own."""

from __future__ import annotations

import os
from typing import Any

from ergon_framework.executor import JobContext, Registry
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderAuthError
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy

STORE = os.environ["INSIDE_STORE"]


class Weather(ProviderBase):
    """Tells what it was told; fails when the payload says so."""

    provider_name, capability = "weather", "current"

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any]:
        if payload.get("fails"):
            raise ConnectionError("nobody answers")
        return {
            "correlation_id": context.correlation_id,
            "idempotency_key": context.idempotency_key,
            "task_name": context.task_name,
            "traceparent": context.traceparent,
            "has_deadline": context.deadline is not None,
            "seconds": context.attempt_timeout_seconds,
        }


class Limited(Weather):
    """One call in a window that does not end while a test runs, whatever the time is."""

    capability = "limited"


registry = Registry()
retry = RetryPolicy(max_attempts=3, base_delay_seconds=0.001, jitter_ratio=0.0)
weather = Weather(store=STORE, retry_policy=retry, circuit_breaker=CircuitBreaker(3, 3600.0))
limited = Limited(store=STORE, quota=QuotaPolicy(limit=1, window_seconds=1e9))


def _call(provider: Weather, payload: dict[str, Any], **context: Any) -> dict[str, Any]:
    result = provider.execute(
        tenant_id="t",
        campaign_id=None,
        operation="now",
        payload=payload,
        context=ProviderExecutionContext(**context),
    )
    return result.unwrap()


@registry.handler
def ask(city: str = "Oslo") -> dict[str, Any]:
    """One call."""
    return _call(weather, {"city": city})


@registry.handler
def ask_twice() -> list[str]:
    """Three calls, two of them alike."""
    return [_call(weather, {"city": each})["idempotency_key"] for each in ("Oslo", "Rome", "Oslo")]


@registry.handler
def ask_in_vain() -> dict[str, Any]:
    """A call that fails."""
    return _call(weather, {"fails": True})


@registry.handler
def ask_limited() -> dict[str, Any]:
    """A call of which a window has one."""
    return _call(limited, {})


@registry.handler
def ask_wrongly() -> dict[str, Any]:
    """A call that no provider could be given."""
    return _call(weather, {"x": object()})


@registry.handler
def answer() -> int:
    """No call at all."""
    return 42


class Denied(ProviderAuthError):
    """A refusal of the user's own."""


@registry.handler
def be_denied() -> None:
    """It raises a class that no settings name, of a kind that they know."""
    raise Denied("not you", retry_after_seconds=1.0)


@registry.handler
def carrier(job: JobContext) -> dict[str, str]:
    """What came along beside the job."""
    return dict(job.trace_context)
