"""The span of a provider call, ``provider.call``; below it one for each attempt, if it took more.

It says who was called and how that ended: no payload, no tenant, no text of an error.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from opentelemetry.trace import Span

from ergon_framework.providers.execution import (
    Ending,
    ProviderExecutionContext,
    ProviderExecutionResult,
)
from ergon_framework.telemetry.propagation import outgoing
from ergon_framework.telemetry.tracing import SpanKind, carried, crossed, edge, end, may_begin

_NAME = "provider.call"


class Provider(Protocol):
    """What is needed of one."""

    provider_name: str
    capability: str

    def execute_until(self, ending: Ending | None, *call: Any) -> ProviderExecutionResult:
        """Make a call."""

    def aexecute_until(
        self, ending: Ending | None, *call: Any
    ) -> Coroutine[Any, Any, ProviderExecutionResult]:
        """Make a call, for asyncio."""


def execute(provider: Provider, ending: Ending | None, *call: Any) -> ProviderExecutionResult:
    """Make a call, in a span; it is tenant, campaign, operation, payload and context."""
    if _is_alone(call):
        return provider.execute_until(ending, *call)
    with _calling(provider, call) as (span, context):
        return _told(span, provider.execute_until(ending, *call[:-1], context))


async def aexecute(
    provider: Provider, ending: Ending | None, *call: Any
) -> ProviderExecutionResult:
    """The same for asyncio."""
    if _is_alone(call):
        return await provider.aexecute_until(ending, *call)
    with _calling(provider, call) as (span, context):
        return _told(span, await provider.aexecute_until(ending, *call[:-1], context))


def _is_alone(call: tuple[Any, ...]) -> bool:
    """Whether the call is part of no trace, and begins none."""
    has_own = getattr(call[-1], "traceparent", None) is not None
    return not has_own and outgoing() is None and not may_begin(_NAME)


@contextmanager
def _calling(provider: Provider, call: tuple[Any, ...]) -> Iterator[tuple[Span, Any]]:
    _tenant, _campaign, operation, _payload, context = call
    attributes = {
        "ergon.provider": str(provider.provider_name),
        "ergon.capability": str(provider.capability),
        "ergon.operation": str(operation),
    }
    given = getattr(context, "traceparent", None)
    carrier = {"traceparent": given} if isinstance(given, str) else None
    with edge(_NAME, SpanKind.CLIENT, attributes, carrier) as span:
        if span.is_recording() and isinstance(context, ProviderExecutionContext):
            context = replace(context, traceparent=carried(span)["traceparent"])
        yield span, context


def _told(span: Span, result: ProviderExecutionResult) -> ProviderExecutionResult:
    if not span.is_recording():
        return result
    attributes: dict[str, Any] = {
        "ergon.attempts": result.attempts,
        "ergon.breaker_state": str(result.breaker_state),
        "ergon.stop_reason": result.stop_reason,
        "ergon.correlation_id": result.correlation_id,
    }
    if result.reason_code is not None:
        attributes["ergon.reason_code"] = str(result.reason_code)
    if len(result.attempt_log) > 1:
        _tell_attempts(span, result)
    failure = None if result.success else str(result.reason_code or result.stop_reason)
    end(span, failure, attributes)
    return result


def _tell_attempts(span: Span, result: ProviderExecutionResult) -> None:
    carrier, last = carried(span), result.attempt_log[-1]
    over_at = last.started_at + last.duration_ms / 1000
    for each in result.attempt_log:
        seconds = each.duration_ms / 1000
        crossed(
            "provider.attempt",
            SpanKind.INTERNAL,
            carrier,
            seconds,
            {"ergon.attempt": each.number},
            each.reason_code,
            ago=over_at - each.started_at - seconds,
        )
