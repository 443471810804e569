"""How a circuit is told, what nobody waits for, and what counts once."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import Breaker, BreakerRule, CircuitState, Permit, Vote
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import (
    ALL_TENANTS,
    LaneFailure,
    LaneHealth,
    LaneKey,
    ProviderStore,
)
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import EPOCH, LANE, ONCE, Scripted, call
from tests.providers.test_provider_circuit_breaker import DOWN, build, fail


def test_a_permit_counts_once_however_often_it_is_reported() -> None:
    """Only what its first report says."""
    breaker = CircuitBreaker(failure_threshold=2)
    permit = breaker.before_call()
    for _ in range(3):
        breaker.after_call(permit, DOWN)
    breaker.after_call(permit)
    assert (breaker.state, breaker.consecutive_failures) == (CircuitState.CLOSED, 1)
    fail(breaker)
    assert breaker.state is CircuitState.OPEN


@pytest.mark.req("PEF:C-4", "PEF:H-3")
def test_a_circuit_whose_cooldown_is_over_is_told_as_half_open(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Also if nobody calls any more; telling writes nothing, and the next call is the probe."""
    provider = build(store, *[DOWN] * 3)
    breaker = provider.circuit_breaker
    assert breaker is not None
    for _ in range(3):
        call(provider)
    assert (breaker.state, breaker.open_until) == (CircuitState.OPEN, EPOCH + 10)
    assert provider.health("t")[0].breaker_state == "open"
    clock.sleep(10)
    before = store.lane_state(LANE)
    [lane] = provider.health("t")
    assert (breaker.state, breaker.open_until) == (CircuitState.HALF_OPEN, None)
    assert (lane.breaker_state, lane.open_until, lane.consecutive_failures) == (
        "half_open",
        None,
        3,
    )
    assert store.lane_state(LANE) == before
    assert before.breaker.state is CircuitState.OPEN
    assert call(provider).success
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.req("PEF:H-3")
@pytest.mark.parametrize("has_parent", [False, True])
def test_failures_in_the_health_have_their_error(
    store: ProviderStore, has_parent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written together: nobody sees one without the other until the rows are written."""
    known: dict[str, LaneHealth] = {}

    def look(_: object) -> Exception:  # at the second attempt, before any row is written
        known.update((lane.key.tenant_id, lane) for lane in store.health("t"))
        known.update((lane.key.tenant_id, lane) for lane in store.health(ALL_TENANTS))
        return DOWN

    parent = CircuitBreaker(9) if has_parent else None
    provider = Scripted(DOWN, look, store=store, parent_breaker=parent)
    with monkeypatch.context() as patch:
        patch.setattr(store, "record", not_yet)
        call(provider)
    assert known.keys() == ({"t", ALL_TENANTS} if has_parent else {"t"})
    for lane in known.values():
        assert (lane.consecutive_failures, lane.last_error_code) == (1, DOWN.reason_code)
        assert lane.last_error_at == EPOCH


def not_yet(_: object) -> None:
    """A store that takes no rows for now."""
    raise StoreUnavailableError("not yet")


def test_a_store_that_knows_nothing_of_failures_is_told_of_circuits_all_the_same(
    clock: VirtualClock,
) -> None:
    """One that somebody wrote before there was a parameter for it."""

    class Earlier(MemoryProviderStore):
        def compare_and_set(  # type: ignore[override]
            self, key: LaneKey, version: int, breaker: Breaker
        ) -> bool:
            return super().compare_and_set(key, version, breaker)

    store = Earlier(clock.now)
    call(Scripted(DOWN, store=store, retry_policy=ONCE))
    assert store.lane_state(LANE).breaker.failures == 1


def test_a_store_in_front_of_another_tells_of_failures() -> None:
    """It has its methods from the other one, and no class says what they take."""

    class Front:
        def __init__(self, behind: MemoryProviderStore) -> None:
            self._behind = behind

        def __getattr__(self, name: str) -> Any:
            return getattr(self._behind, name)

    behind = MemoryProviderStore()
    circuit = Circuit(Front(behind), LANE, BreakerRule())
    circuit.report(Permit(0), Vote.FAILURE, LaneFailure("timeout", 5.0))
    assert behind.health(LANE.tenant_id)[0].last_error_code == "timeout"
