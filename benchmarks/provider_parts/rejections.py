"""Calls that a gate refuses: an open circuit, a pause the provider asked for, no quota left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from comparison import Contestant, Record, RunOptions, race

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import LaneKey, ProviderStore, QuotaGrant, RecordBatch
from ergon_framework.providers import open_store
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderConnectionError, ProviderRateLimitError
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.stores.memory import MemoryProviderStore
from provider_parts import peers
from provider_parts.calls import Call, Noop, expect_end, sync_call, timed_turns
from provider_parts.costs import CostTarget, contestant, record, records

LONG = 3_000.0
ONE = QuotaPolicy(limit=1, window_seconds=10 * 365 * 86_400)
TARGET = CostTarget(us=4.0)


class CountingStore(MemoryProviderStore):
    """In memory, and counts what is written to it."""

    writes = 0

    def compare_and_set(self, key: LaneKey, version: int, breaker: Breaker, **failed: Any) -> bool:
        """A write."""
        self.writes += 1
        return super().compare_and_set(key, version, breaker, **failed)

    def extend_cooldown(self, key: LaneKey, until: float) -> float:
        """A write."""
        self.writes += 1
        return super().extend_cooldown(key, until)

    def reserve(self, key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        """A write."""
        self.writes += 1
        return super().reserve(key, window, limit, units)

    def record(self, batch: RecordBatch) -> None:
        """A write."""
        self.writes += 1
        super().record(batch)


class Failing(ProviderBase):
    """Fails with what it is given."""

    provider_name = "failing"
    capability = "send"
    error: Exception = ProviderConnectionError("refused")

    def _execute_impl(self, **_call: Any) -> dict[str, Any]:
        raise self.error


class Pausing(Failing):
    """Asks for a pause."""

    error = ProviderRateLimitError("slow down", retry_after_seconds=LONG)


def opened(store: ProviderStore) -> ProviderBase:
    """A provider whose circuit is open."""
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=LONG)
    provider = Failing(store=store, circuit_breaker=breaker, retry_policy=RetryPolicy(1))
    sync_call(provider)()
    expect_end(sync_call(provider)(), "circuit_open", 0)
    return provider


def cooling(store: ProviderStore) -> ProviderBase:
    """A provider that asked for a pause longer than a call may take."""
    provider = Pausing(store=store, retry_policy=RetryPolicy(1))
    sync_call(provider)()
    expect_end(sync_call(provider)(), "cooldown", 0)
    return provider


def exhausted(store: ProviderStore) -> ProviderBase:
    """A provider whose quota is used up."""
    provider = Noop(store=store, quota=ONE)
    sync_call(provider)()
    expect_end(sync_call(provider)(), "quota_exhausted", 0)
    return provider


class Gate(NamedTuple):
    """A gate that is shut, and one of somebody else."""

    make: Callable[[ProviderStore], ProviderBase]
    peer: str
    theirs: Callable[[], Call]


GATES = {
    "open": Gate(opened, "pybreaker, open", peers.open_breaker),
    "cooldown": Gate(cooling, "pybreaker, open", peers.open_breaker),
    "quota": Gate(exhausted, "limits, used up", peers.exhausted_limiter),
}


def rejection(options: RunOptions) -> Iterator[Record]:
    """What a refusal costs, in memory and beside a file."""
    for name, gate in GATES.items():
        yield from _refused(options, name, gate)


def _refused(options: RunOptions, name: str, gate: Gate) -> Iterator[Record]:
    store = CountingStore()
    provider = gate.make(store)
    store.writes = 0
    ours = Contestant("Ergon", timed_turns(sync_call(provider), options.seconds))
    other = contestant(gate.peer, lambda: timed_turns(gate.theirs(), options.seconds))
    stored = gate.make(open_store(f"sqlite:///{options.folder / name}.db"))
    filed = Contestant("Ergon on SQLite", timed_turns(sync_call(stored), options.seconds))
    race([ours, other, filed], options.rounds)
    stored.close()
    stored.store.close()
    case, calls = f"rejection-{name}", sum(turn.count for turn in ours.turns)
    first, second = records(case, ours, [(other, None)], TARGET)
    yield first | {"store_writes": store.writes, "calls": calls}
    yield second
    yield record(case, filed, None, TARGET, by="processor")
