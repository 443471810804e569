"""Calls that are let through: at once, and after two failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from comparison import Effort, Entry, Record, Turn, race

from ergon_framework.engine.clocks import SystemClock
from ergon_framework.providers.base import ProviderBase
from provider_parts import peers
from provider_parts.calls import (
    ANSWER,
    PLENTY,
    AsyncNoop,
    Noop,
    acalling,
    aturns,
    calling,
    sure,
    turns,
)
from provider_parts.costs import Goal, entry, records

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


def success(effort: Effort) -> Iterator[Record]:
    """Quota, circuit, retry loop, row; nothing goes wrong."""
    provider = Noop(quota=PLENTY)
    sure(calling(provider)(), "succeeded")
    ours = entry("Ergon", lambda: turns(calling(provider), effort.seconds))
    _fill(provider)
    first = Entry("Ergon, the first calls of a process", partial(_first, effort.seconds))
    alone = entry("Ergon without quota", lambda: turns(calling(Noop()), effort.seconds))
    stack = entry(STACK, lambda: turns(peers.stacked(), effort.seconds))
    restack = entry(f"{STACK}, reused", lambda: turns(peers.restacked(), effort.seconds))
    stamina = entry("stamina", lambda: turns(peers.stamina(), effort.seconds))
    plain = entry("plain call", lambda: turns(peers.plain(), effort.seconds))
    race([ours, first, alone, stack, restack, stamina, plain], effort.rounds)
    rivals = [(first, None), (alone, None), (stack, Goal(most=0.25)), (restack, None)]
    yield from records("success", ours, [*rivals, (stamina, None), (plain, None)], Goal(us=10.0))


def success_async(effort: Effort) -> Iterator[Record]:
    """The same in an event loop."""
    provider = AsyncNoop(quota=PLENTY)
    ours = entry("Ergon", lambda: aturns(acalling(provider), effort.seconds))
    _fill(provider)
    stack = entry(
        "tenacity + aiobreaker",
        lambda: aturns(peers.astacked(is_limited=False), effort.seconds),
    )
    limited = entry(
        "tenacity + aiobreaker + limits",
        lambda: aturns(peers.astacked(is_limited=True), effort.seconds),
    )
    race([ours, stack, limited], effort.rounds)
    yield from records("success-async", ours, [(stack, Goal(most=0.25)), (limited, None)])


def retries(effort: Effort) -> Iterator[Record]:
    """Two failures that may pass, then success; nobody sleeps."""
    provider = Flaky(quota=PLENTY, clock=SkippingClock())
    sure(calling(provider)(), "succeeded", 3)
    ours = entry("Ergon", lambda: turns(calling(provider), effort.seconds))
    stack = entry(STACK, lambda: turns(peers.stacked(_flaky()), effort.seconds))
    restack = entry(f"{STACK}, reused", lambda: turns(peers.restacked(_flaky()), effort.seconds))
    race([ours, stack, restack], effort.rounds)
    yield from records("retries", ours, [(stack, None), (restack, None)], Goal(us=25.0))


def _fill(provider: ProviderBase) -> None:
    """Let the steady state begin, in which each row in displaces an old one."""
    call = calling(Noop(quota=PLENTY, store=provider.store))
    for _ in range(ROWS):
        call()


def _first(seconds: float) -> Turn:
    """Calls whose rows nobody has read yet; a provider of its own for each turn."""
    return turns(calling(Noop(quota=PLENTY)), seconds, most=ROWS - 10_000)()


def _flaky() -> Callable[[dict[str, Any]], dict[str, Any]]:
    failures = 0

    def work(_payload: dict[str, Any]) -> dict[str, Any]:
        nonlocal failures
        failures = (failures + 1) % 3
        if failures:
            raise ConnectionError
        return ANSWER

    return work
