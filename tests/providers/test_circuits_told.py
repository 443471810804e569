"""How a circuit is told, what nobody waits for, and what counts once."""

from __future__ import annotations

import pytest

from ergon_framework.core.breaker import State
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import EPOCH, LANE, call
from tests.providers.test_provider_circuit_breaker import DOWN, build, fail


def test_a_permit_counts_once_however_often_it_is_reported() -> None:
    """Only what its first report says."""
    breaker = CircuitBreaker(failure_threshold=2)
    permit = breaker.before_call()
    for _ in range(3):
        breaker.after_call(permit, DOWN)
    breaker.after_call(permit)
    assert (breaker.state, breaker.consecutive_failures) == (State.CLOSED, 1)
    fail(breaker)
    assert breaker.state is State.OPEN


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
    assert (breaker.state, breaker.open_until) == (State.OPEN, EPOCH + 10)
    assert provider.health("t")[0].breaker_state == "open"
    clock.sleep(10)
    before = store.standing(LANE)
    [lane] = provider.health("t")
    assert (breaker.state, breaker.open_until) == (State.HALF_OPEN, None)
    assert (lane.breaker_state, lane.open_until, lane.consecutive_failures) == (
        "half_open",
        None,
        3,
    )
    assert store.standing(LANE) == before
    assert before.breaker.state is State.OPEN
    assert call(provider).success
    assert breaker.state is State.CLOSED
