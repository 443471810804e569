"""The span of a provider call: who was called and how it ended, and nothing private."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ergon_framework.ports.journal import SpanRecord
from ergon_framework.providers import Provider, ProviderConnectionError
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderBadRequestError, ProviderDependencyError
from ergon_framework.telemetry.propagation import outgoing_metadata
from ergon_framework.telemetry.tracing import SpanKind, span_at_edge
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import ONCE, AsyncScripted, Scripted, acall, call

pytestmark = pytest.mark.req("ONE:trace")

DOWN = ProviderDependencyError("secret", http_status=503)
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def called(colour: str, *steps: Any, options: dict[str, Any] | None = None, **context: Any) -> Any:
    """A provider that was called in a trace, and the result."""
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        if colour == "sync":
            provider = Scripted(*steps, clock=VirtualClock(), **(options or {}))
            return provider, call(provider, **context)
        provider = AsyncScripted(*steps, **(options or {}))
        return provider, asyncio.run(acall(provider, **context))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_call_is_a_span_below_its_caller(colour: str, kept: list[SpanRecord]) -> None:
    """It is what the attempt is told as its trace."""
    provider, result = called(colour, tenant_id="secret", payload={"a": "secret"})
    span, root = kept
    assert (span.name, span.parent_id, span.failure) == ("provider.call", root.span_id, "")
    assert provider.seen[0].traceparent == f"00-{span.trace_id}-{span.span_id}-01"
    assert span.attributes == {
        "ergon.provider": "scripted",
        "ergon.capability": "test",
        "ergon.operation": "fetch",
        "ergon.attempts": 1,
        "ergon.breaker_state": "closed",
        "ergon.stop_reason": "succeeded",
        "ergon.correlation_id": result.correlation_id,
        "rpc.system.name": "ergon",
        "rpc.method": "scripted/test/fetch",
    }
    assert span.unit == result.correlation_id
    assert "secret" not in repr(kept)


def test_attempts_are_siblings_below_the_call(kept: list[SpanRecord]) -> None:
    """Where there was more than one; with their reasons."""
    called("sync", DOWN)
    first, second, span, _root = kept
    assert [each.name for each in (first, second)] == ["provider.attempt"] * 2
    assert first.parent_id == second.parent_id == span.span_id
    assert [first.failure, second.failure, span.failure] == ["dependency_unavailable", "", ""]
    assert first.ended_at < second.began_at
    assert span.attributes["ergon.attempts"] == 2
    assert "http.request.resend_count" not in first.attributes
    assert second.attributes["http.request.resend_count"] == 1


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_failed_call_says_its_reason(colour: str, kept: list[SpanRecord]) -> None:
    """The code, and not the text."""
    called(colour, DOWN, options={"retry_policy": ONCE})
    span = kept[0]
    assert span.failure == span.attributes["ergon.reason_code"] == "dependency_unavailable"
    assert "secret" not in repr(kept)


def test_a_refused_call_says_which_gate(kept: list[SpanRecord]) -> None:
    """An open circuit is on the span, with no attempt."""
    breaker = CircuitBreaker(failure_threshold=1)
    provider = Scripted(DOWN, clock=VirtualClock(), retry_policy=ONCE, circuit_breaker=breaker)
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        call(provider)
        call(provider)
    refused = kept[1]
    assert refused.failure == "circuit_open"
    assert refused.attributes["ergon.attempts"] == 0
    assert refused.attributes["ergon.breaker_state"] == "open"


def test_a_call_goes_on_with_the_trace_of_its_context(kept: list[SpanRecord]) -> None:
    """As of a task that a queue delivered; without any, the journal has no span."""
    call(Scripted(clock=VirtualClock()))
    assert kept == []
    provider = Scripted(clock=VirtualClock())
    call(provider, traceparent=PARENT)
    (span,) = kept
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT[36:52])
    assert provider.seen[0].traceparent == f"00-{TRACE}-{span.span_id}-01"


def test_a_wrong_argument_is_a_failed_span(kept: list[SpanRecord]) -> None:
    """It raises as ever."""
    provider = Scripted(clock=VirtualClock())
    with (
        span_at_edge("job.enqueue", SpanKind.PRODUCER, {}),
        pytest.raises((ProviderBadRequestError, TypeError)),
    ):
        call(provider, payload="secret")
    assert kept[0].failure
    assert "secret" not in repr(kept)


def test_nobody_traces_and_the_context_is_as_it_was() -> None:
    """Without an SDK and a journal a call is made as it is asked for."""
    provider = Scripted(clock=VirtualClock())
    call(provider, traceparent=PARENT)
    assert provider.seen[0].traceparent == PARENT


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_stream_is_a_span_that_ends_with_it(colour: str, kept: list[SpanRecord]) -> None:
    """Below its caller, whoever reads it; with a failure if it broke off."""
    provider = Provider("feed", attempts=1)
    within: list[str] = []
    reading: list[str] = []

    @provider.stream
    def ticks() -> Iterator[int]:
        within.append(current_span())
        yield 1
        within.append(current_span())
        raise ConnectionResetError

    @provider.stream
    async def aticks() -> AsyncIterator[int]:
        within.append(current_span())
        yield 1
        within.append(current_span())
        raise ConnectionResetError

    async def aread() -> None:
        async for _ in aticks():
            reading.extend([current_span()])

    def read() -> None:
        reading.extend(current_span() for _ in ticks())

    outer = span_at_edge("job.enqueue", SpanKind.PRODUCER, {})
    with outer, pytest.raises(ProviderConnectionError):
        read() if colour == "sync" else asyncio.run(aread())
    span, root = kept
    assert (within, reading) == ([span.span_id] * 2, [root.span_id])
    assert (span.name, span.parent_id) == ("provider.call", root.span_id)
    assert span.failure == "connection_error"
    assert span.attributes["ergon.provider"] == "feed"
    assert span.attributes["ergon.operation"] == ("ticks" if colour == "sync" else "aticks")


def current_span() -> str:
    """The span that a request would be sent in."""
    return outgoing_metadata()["traceparent"].split("-")[2]
