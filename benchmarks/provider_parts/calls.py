"""Our provider around nothing, and the loops that time calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import Any

from comparison import ContestantError, Turn

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy

TENANT = "0d4f2a3e-6f0b-4c59-9d0e-1f6f6f1f0001"
CORRELATION = "5b8efff7-98b2-4e0a-8f0b-7d4c2f1f0002"
KEY = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
PAYLOAD = {"to": "someone", "text": "hello", "count": 1}
ANSWER = {"id": "m-1"}
PLENTY = QuotaPolicy(limit=10**9, window_seconds=10 * 365 * 86_400)
"""A quota that never ends, in a window that does not end meanwhile."""
TRIAL = 200

Call = Callable[[], Any]
AsyncCall = Callable[[], Awaitable[Any]]


class Noop(ProviderBase):
    """Answers at once."""

    provider_name = "noop"
    capability = "send"

    def _execute_impl(self, **_call: Any) -> dict[str, Any]:
        return ANSWER


class AsyncNoop(ProviderBase):
    """Answers at once, in an event loop."""

    provider_name = "noop"
    capability = "send"

    async def _execute_impl(self, **_call: Any) -> dict[str, Any]:
        return ANSWER


def sync_call(provider: ProviderBase) -> Callable[[], ProviderExecutionResult]:
    """One call, names and all given, as the targets say."""
    context = ProviderExecutionContext(correlation_id=CORRELATION, idempotency_key=KEY)

    def call() -> ProviderExecutionResult:
        return provider.execute(
            tenant_id=TENANT, campaign_id=None, operation="send", payload=PAYLOAD, context=context
        )

    return call


def async_call(provider: ProviderBase) -> Callable[[], Awaitable[ProviderExecutionResult]]:
    """The same to be awaited."""
    context = ProviderExecutionContext(correlation_id=CORRELATION, idempotency_key=KEY)

    def call() -> Awaitable[ProviderExecutionResult]:
        return provider.aexecute(
            tenant_id=TENANT, campaign_id=None, operation="send", payload=PAYLOAD, context=context
        )

    return call


def expect_end(result: ProviderExecutionResult, stop: str, attempts: int = 1) -> None:
    """Fail when a call did not end as it should: a quick error would look good."""
    if (result.stop_reason, result.attempts) != (stop, attempts):
        raise ContestantError(f"ended as {result.stop_reason} after {result.attempts} attempts")


def timed_turns(call: Call, seconds: float, most: int = 10**9) -> Callable[[], Turn]:
    """A turn is as many calls as take about that long; how many is found out once."""
    count = min(most, _enough(call, seconds))

    def turn() -> Turn:
        cpu_time, began = time.process_time(), time.perf_counter()
        for _ in repeat(None, count):
            call()
        return Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu_time)

    return turn


def timed_async_turns(call: AsyncCall, seconds: float) -> Callable[[], Turn]:
    """The same in an event loop of its own, which is started before."""

    async def loop(count: int) -> Turn:
        cpu_time, began = time.process_time(), time.perf_counter()
        for _ in repeat(None, count):
            await call()
        return Turn(count, time.perf_counter() - began, cpu_time=time.process_time() - cpu_time)

    trial = asyncio.run(loop(TRIAL))
    count = max(TRIAL, int(seconds * trial.rate))
    return lambda: asyncio.run(loop(count))


def _enough(call: Call, seconds: float) -> int:
    for _ in repeat(None, TRIAL // 4):
        call()
    began = time.perf_counter()
    for _ in repeat(None, TRIAL):
        call()
    return max(TRIAL, int(seconds * TRIAL / (time.perf_counter() - began)))
