"""A provider that does what a test says, step by step, and the stores it is tested on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.clock import Clock
from ergon_framework.ports.providerstore import (
    AttemptRow,
    LaneKey,
    LaneState,
    ProviderStore,
    QuotaGrant,
)
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing import VirtualClock

EPOCH = 1_800_000_000.0
"""Seconds since 1970 when a virtual clock shows zero; a whole hour begins then."""

LANE = LaneKey("t", "scripted", "test")
WAIT_TIMEOUT = 50.0
"""Seconds that a test waits for what must come."""

PLAIN = RetryPolicy(jitter_ratio=0.0)
"""Three attempts, half a second and a second between them."""
ONCE = RetryPolicy(max_attempts=1)


class Scripted(ProviderBase):
    """Each attempt takes a step: data to return, an error to raise, or a function of the context
    that gives either. When there are none left, it succeeds.
    """

    provider_name, capability = "scripted", "test"

    def __init__(self, *steps: Any, **options: Any) -> None:
        self.steps = deque(steps)
        self.seen: list[ProviderExecutionContext] = []
        options.setdefault("retry_policy", PLAIN)
        store = options.get("store")
        if store is None:  # no test must mind which hour it is
            options.setdefault("wall", wall_of(options.get("clock") or current_clock()))
        elif not isinstance(store, str):
            options.setdefault("wall", store.now)
        super().__init__(**options)

    @property
    def calls(self) -> int:
        """How often it was really called."""
        return len(self.seen)

    def _execute_impl(self, *, context: ProviderExecutionContext, **_: Any) -> Any:
        self.seen.append(context)
        step = self.steps.popleft() if self.steps else {"ok": True}
        if callable(step):
            step = step(context)
        if isinstance(step, BaseException):
            raise step
        return step


class AsyncScripted(Scripted):
    """The same in the other colour; a step may be a coroutine."""

    async def _execute_impl(self, *, context: ProviderExecutionContext, **_: Any) -> Any:
        found = super()._execute_impl(context=context)
        return await found if hasattr(found, "__await__") else found


def after(clock: VirtualClock, seconds: float, then: Any) -> Callable[[object], Any]:
    """A step that takes its time first."""

    def step(_: object) -> Any:
        clock.sleep(seconds)
        return then

    return step


def asked(tenant_id: str = "t", **context: Any) -> dict[str, Any]:
    """The arguments of a call; what is not named goes into its context."""
    return {
        "tenant_id": tenant_id,
        "campaign_id": context.pop("campaign_id", None),
        "operation": context.pop("operation", "fetch"),
        "payload": context.pop("payload", {}),
        "context": ProviderExecutionContext(**context),
    }


def call(provider: ProviderBase, tenant_id: str = "t", **context: Any) -> ProviderExecutionResult:
    """Call it in this thread."""
    return provider.execute(**asked(tenant_id, **context))


async def acall(
    provider: ProviderBase, tenant_id: str = "t", **context: Any
) -> ProviderExecutionResult:
    """Call it on the event loop."""
    return await provider.aexecute(**asked(tenant_id, **context))


def rows(provider: ProviderBase, correlation_id: str) -> list[AttemptRow]:
    """What is kept of a call."""
    assert provider.flush(WAIT_TIMEOUT)
    return provider.store.attempts_of(correlation_id)


def used(provider: ProviderBase, tenant_id: str = "t") -> int:
    """Units of the running window that are taken."""
    accounts = [each.account for each in provider.health(tenant_id)]
    return sum(account.used for account in accounts if account is not None)


def lane_state(provider: ProviderBase, tenant_id: str = "t") -> Breaker:
    """The circuit of a tenant as the store has it."""
    key = LaneKey(tenant_id, provider.provider_name, provider.capability)
    return provider.store.lane_state(key).breaker


def is_whole(provider: ProviderBase, tenant_id: str = "t") -> bool:
    """Whether nobody holds a place in the circuit."""
    return not lane_state(provider, tenant_id).probes


def wall_of(clock: Clock) -> Callable[[], float]:
    """A wall clock that goes with a virtual one."""
    return lambda: EPOCH + clock.now()


@contextmanager
def new_store(kind: str, clock: Clock, folder: Path) -> Iterator[ProviderStore]:
    """A store whose clock goes with a virtual one."""
    if kind == "memory":
        yield MemoryProviderStore(clock=wall_of(clock))
        return
    store = open_store(f"sqlite:///{folder / 'work.db'}", clock=wall_of(clock))
    try:
        yield store
    finally:
        recorder_of(store).close()
        store.close()


class WatchedStore(MemoryProviderStore):
    """Counts what is asked of it, may be away, and calls ``before`` with the name of each step."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=wall_of(clock))
        self.asked: list[str] = []
        self.is_away = False
        self.before: Callable[[str], None] = lambda name: None

    @property
    def written(self) -> list[str]:
        """What was asked for that changes something."""
        return [name for name in self.asked if name != "lane_state"]

    def lane_state(self, key: LaneKey) -> LaneState:
        self._step_of("lane_state")
        return super().lane_state(key)

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        self._step_of("compare_and_set")
        return super().compare_and_set(key, version, breaker, **failed)

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        self._step_of("extend_cooldown")
        return super().extend_cooldown(key, until)

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        self._step_of("reserve")
        return super().reserve(key, window, limit, units)

    def refund(self, key: LaneKey, window: QuotaWindow, units: int) -> None:
        self._step_of("refund")
        super().refund(key, window, units)

    def _step_of(self, name: str) -> None:
        self.asked.append(name)
        self.before(name)
        if self.is_away:
            raise StoreUnavailableError("the store is away")
