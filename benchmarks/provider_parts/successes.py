"""Calls that are let through: at once, and after two failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from comparison import Contestant, Record, RunOptions, Turn, race

from ergon_framework.engine.clocks import SystemClock
from ergon_framework.providers.base import ProviderBase
from provider_parts import peers
from provider_parts.calls import (
    ANSWER,
    PLENTY,
    AsyncNoop,
    Noop,
    async_call,
    expect_end,
    sync_call,
    timed_async_turns,
    timed_turns,
)
from provider_parts.costs import CostTarget, contestant, records

STACK = "tenacity + pybreaker + limits"
ROWS = 50_000
"""What a store in memory is handed before it has to work rows off: less for a first turn."""


class SkippingClock(SystemClock):
    """Real time, but a wait is over at once and moves the clock ahead."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Monotonic seconds."""
        return SystemClock.now() + self._ahead

    def signal(self, lock: threading.Lock) -> Any:
        """Whoever waits on it is served at once."""
        return self

    def wait(self, until: float | None) -> None:
        """Let so much time pass."""
        self._ahead += max(0.0, (until or 0.0) - self.now())


class Flaky(ProviderBase):
    """Fails twice, then answers."""

    provider_name = "flaky"
    capability = "send"

    def _execute_impl(self, **call: Any) -> dict[str, Any]:
        if call["context"].attempt < 3:
            raise ConnectionError
        return ANSWER


def success(options: RunOptions) -> Iterator[Record]:
    """Quota, circuit, retry loop, row; nothing goes wrong."""
    provider = Noop(quota=PLENTY)
    expect_end(sync_call(provider)(), "succeeded")
    ours = contestant("Ergon", lambda: timed_turns(sync_call(provider), options.seconds))
    _fill(provider)
    first = Contestant("Ergon, the first calls of a process", partial(_first, options.seconds))
    alone = contestant(
        "Ergon without quota", lambda: timed_turns(sync_call(Noop()), options.seconds)
    )
    stack = contestant(STACK, lambda: timed_turns(peers.retry_breaker_limiter(), options.seconds))
    restack = contestant(
        f"{STACK}, reused",
        lambda: timed_turns(peers.reused_retry_breaker_limiter(), options.seconds),
    )
    stamina = contestant("stamina", lambda: timed_turns(peers.stamina(), options.seconds))
    plain = contestant("plain call", lambda: timed_turns(peers.plain(), options.seconds))
    race([ours, first, alone, stack, restack, stamina, plain], options.rounds)
    rivals = [(first, None), (alone, None), (stack, CostTarget(most=0.25)), (restack, None)]
    yield from records(
        "success", ours, [*rivals, (stamina, None), (plain, None)], CostTarget(us=10.0)
    )


def success_async(options: RunOptions) -> Iterator[Record]:
    """The same in an event loop."""
    provider = AsyncNoop(quota=PLENTY)
    ours = contestant("Ergon", lambda: timed_async_turns(async_call(provider), options.seconds))
    _fill(provider)
    stack = contestant(
        "tenacity + aiobreaker",
        lambda: timed_async_turns(peers.async_retry_breaker(is_limited=False), options.seconds),
    )
    limited = contestant(
        "tenacity + aiobreaker + limits",
        lambda: timed_async_turns(peers.async_retry_breaker(is_limited=True), options.seconds),
    )
    race([ours, stack, limited], options.rounds)
    yield from records("success-async", ours, [(stack, CostTarget(most=0.25)), (limited, None)])


def retries(options: RunOptions) -> Iterator[Record]:
    """Two failures that may pass, then success; nobody sleeps."""
    provider = Flaky(quota=PLENTY, clock=SkippingClock())
    expect_end(sync_call(provider)(), "succeeded", 3)
    ours = contestant("Ergon", lambda: timed_turns(sync_call(provider), options.seconds))
    stack = contestant(
        STACK, lambda: timed_turns(peers.retry_breaker_limiter(_flaky()), options.seconds)
    )
    restack = contestant(
        f"{STACK}, reused",
        lambda: timed_turns(peers.reused_retry_breaker_limiter(_flaky()), options.seconds),
    )
    race([ours, stack, restack], options.rounds)
    yield from records("retries", ours, [(stack, None), (restack, None)], CostTarget(us=25.0))


def _fill(provider: ProviderBase) -> None:
    """Let the steady state begin, in which each row in displaces an old one."""
    call = sync_call(Noop(quota=PLENTY, store=provider.store))
    for _ in range(ROWS):
        call()


def _first(seconds: float) -> Turn:
    """Calls whose rows nobody has read yet; a provider of its own for each turn."""
    return timed_turns(sync_call(Noop(quota=PLENTY)), seconds, most=ROWS - 10_000)()


def _flaky() -> Callable[[dict[str, Any]], dict[str, Any]]:
    failures = 0

    def work(_payload: dict[str, Any]) -> dict[str, Any]:
        nonlocal failures
        failures = (failures + 1) % 3
        if failures:
            raise ConnectionError
        return ANSWER

    return work
