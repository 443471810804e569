from __future__ import annotations

import pytest

from ergon_framework.core.circuit_breaker import Breaker, BreakerRule, CircuitState, ProbeLease
from ergon_framework.ports.providerstore import (
    LaneKey,
    LaneState,
    ProviderStore,
    RecordBatch,
    ShortensCooldowns,
)
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.testing import VirtualClock
from tests.providers.stores.conftest import Opener
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt, race

OPEN = Breaker(CircuitState.OPEN, 5, START + 30.123456789, generation=3)
HELD = Breaker(CircuitState.OPEN, 0, START + 3600.1, generation=5, held_for=3600.1)
HALF_OPEN = Breaker(
    CircuitState.HALF_OPEN,
    5,
    None,
    1,
    (ProbeLease("one", START + 7.7), ProbeLease("two", START + 8.1)),
    4,
)
CIRCUITS = [Breaker(failures=2), OPEN, HELD, HALF_OPEN, Breaker(generation=9)]


@pytest.mark.req("PEF:C-8", "PEF:A-13", "PEF:A-14")
@pytest.mark.parametrize("breaker", CIRCUITS)
def test_a_circuit_comes_back_as_it_was_written(store: ProviderStore, breaker: Breaker) -> None:
    """Every field of a circuit survives, to the last bit of its instants."""
    assert store.lane_state(LANE) == LaneState()
    assert store.compare_and_set(LANE, 0, breaker)
    assert store.lane_state(LANE) == LaneState(breaker, 0.0, 1)


@pytest.mark.req("PEF:A-14", "PEF:H-3")
def test_a_swap_counts_only_against_the_version_it_was_made_from(store: ProviderStore) -> None:
    """Who comes second is told so, and changes nothing."""
    assert store.compare_and_set(LANE, 0, OPEN)
    assert not store.compare_and_set(LANE, 0, HALF_OPEN)
    assert not store.compare_and_set(LANE, 2, HALF_OPEN)
    assert store.compare_and_set(LANE, 1, HALF_OPEN)
    assert store.lane_state(LANE) == LaneState(HALF_OPEN, 0.0, 2)
    [lane] = store.health(LANE.tenant_id)
    assert (lane.breaker_state, lane.consecutive_failures) == ("half_open", 5)


@pytest.mark.req("PEF:A-14")
def test_a_version_that_nobody_wrote_is_not_swapped(store: ProviderStore) -> None:
    """A lane that is not there has version 0 and no other."""
    assert not store.compare_and_set(LANE, 1, OPEN)
    assert store.lane_state(LANE) == LaneState()


@pytest.mark.req("PEF:H-1", "PEF:C-8")
def test_the_first_swap_takes_up_a_row_that_others_made(store: ProviderStore) -> None:
    """Attempts and cooldowns make the lane's one row; the first circuit goes into it."""
    store.record(RecordBatch([attempt()]))
    store.extend_cooldown(LANE, START + 5)
    assert store.compare_and_set(LANE, 0, OPEN)
    assert not store.compare_and_set(LANE, 0, OPEN)
    assert store.lane_state(LANE) == LaneState(OPEN, START + 5, 1)
    assert len(store.health(LANE.tenant_id)) == 1


@pytest.mark.req("PEF:A-9")
def test_a_cooldown_is_never_shortened(store: ProviderStore) -> None:
    """The later of two instants holds, whichever came first."""
    assert store.extend_cooldown(LANE, START + 10) == START + 10
    assert store.extend_cooldown(LANE, START + 3) == START + 10
    assert store.extend_cooldown(LANE, START + 20) == START + 20
    assert store.lane_state(LANE).cooldown_until == START + 20


@pytest.mark.req("PEF:A-9")
def test_a_cooldown_is_shortened_by_whoever_knows_it(store: ProviderStore) -> None:
    """One that was asked for meanwhile stays."""
    assert isinstance(store, ShortensCooldowns)
    store.extend_cooldown(LANE, START + 20.123457)
    known = store.lane_state(LANE).cooldown_until
    assert not store.shorten_cooldown(LANE, known - 1, START)
    assert store.shorten_cooldown(LANE, known, START + 5)
    assert not store.shorten_cooldown(LANE, known, START)
    assert store.lane_state(LANE).cooldown_until == START + 5


@pytest.mark.req("PEF:trap-clock-back", "PEF:A-9")
@pytest.mark.parametrize("back", [3600.0, 10 * 365 * 86_400.0])
def test_a_clock_set_back_lengthens_no_pause_for_a_new_process(
    back: float, store: ProviderStore, clock: HandClock
) -> None:
    """It waits for as long as was asked, and heals the pause for those that come after it."""
    store.extend_cooldown(LANE, START + 5)
    clock.at = START - back
    with VirtualClock():
        circuit = Circuit(store, LANE, BreakerRule())
        circuit.refresh()
        assert circuit.cooldown(3600.0) == pytest.approx(5.0)
    assert store.lane_state(LANE).cooldown_until == pytest.approx(clock.at + 5)


@pytest.mark.req("PEF:A-9")
def test_an_endless_cooldown_is_as_long_as_a_calendar(store: ProviderStore) -> None:
    """No instant is too far away to be kept."""
    assert store.extend_cooldown(LANE, float("inf")) > START + 10**9
    assert store.compare_and_set(LANE, 0, Breaker(CircuitState.OPEN, 10**12, float("inf")))
    found = store.lane_state(LANE).breaker.open_until
    assert found is not None
    assert found > START + 10**9


@pytest.mark.req("PEF:A-14", "PEF:trap-half-open-stampede")
def test_one_of_twenty_racing_swaps_wins(opened: Opener) -> None:
    """Twenty threads of two processes' stores swap from one version: one is told that it did."""
    stores = [opened(), opened()]

    def compare_and_set(number: int) -> bool:
        mine = Breaker(CircuitState.HALF_OPEN, 5, None, 0, (ProbeLease(f"{number}", START),), 1)
        return stores[number % 2].compare_and_set(LANE, version, mine)

    for version in range(3):
        won = race(20, compare_and_set)
        assert sum(won) == 1
        found = stores[0].lane_state(LANE)
        assert found.version == version + 1
        assert [probe.token for probe in found.breaker.probes] == [f"{won.index(True)}"]


@pytest.mark.req("PEF:C-8")
def test_another_process_sees_the_circuit(opened: Opener) -> None:
    """What one wrote, the next reads, also after the first is gone."""
    first = opened()
    first.compare_and_set(LANE, 0, OPEN)
    first.close()
    assert opened().lane_state(LANE).breaker == OPEN


@pytest.mark.req("PEF:G-3", "PEF:A-15")
def test_lanes_do_not_touch_each_other(store: ProviderStore, clock: HandClock) -> None:
    """Another tenant, provider or capability is another lane."""
    others = [
        LaneKey("other", "rank", "snapshot"),
        LaneKey("tenant", "other", "snapshot"),
        LaneKey("tenant", "rank", "other"),
    ]
    store.compare_and_set(LANE, 0, OPEN)
    store.extend_cooldown(LANE, START + 9)
    assert all(store.lane_state(key) == LaneState() for key in others)
    assert store.health("other") == []
