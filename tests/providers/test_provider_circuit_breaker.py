"""The circuit breaker: closed, open, half-open, alone and in a provider, on both stores."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import Breaker, CircuitState, ProbeLease, Vote
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.providerstore import ALL_TENANTS, LaneKey, ProviderStore
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderAuthError,
    ProviderCircuitOpenError,
    ProviderDependencyError,
)
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.shared_circuit import PROBE_LEASE, Circuit
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    EPOCH,
    LANE,
    ONCE,
    Scripted,
    WatchedStore,
    call,
    lane_state,
    used,
    wall_of,
)

DOWN = ProviderDependencyError("down")
BREAKER: dict[str, Any] = {"failure_threshold": 3, "open_cooldown_seconds": 10}


def build(store: ProviderStore | None, *steps: Any, **options: Any) -> Scripted:
    """A provider of single attempts with a breaker of three."""
    options.setdefault("retry_policy", ONCE)
    options.setdefault("circuit_breaker", CircuitBreaker(**BREAKER))
    return Scripted(*steps, store=store, **options)


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    """Let calls through the breaker fail."""
    for _ in range(times):
        breaker.after_call(breaker.before_call(), DOWN)


# -- alone ---------------------------------------------------------------------------------------


@pytest.mark.req("PEF:C-1")
def test_the_states_are_the_words_of_the_specification() -> None:
    """Also in the database."""
    assert [state.value for state in CircuitState] == ["closed", "open", "half_open"]


@pytest.mark.req("PEF:C-2")
def test_the_fields_are_those_of_the_specification(clock: VirtualClock) -> None:
    """The settings as they were given, the rest as it is."""
    breaker = CircuitBreaker(failure_threshold=5, open_cooldown_seconds=30, half_open_max_calls=1)
    assert (breaker.failure_threshold, breaker.open_cooldown_seconds) == (5, 30)
    assert (breaker.half_open_max_calls, breaker.half_open_success_threshold) == (1, 1)
    assert (breaker.state, breaker.consecutive_failures, breaker.open_until) == ("closed", 0, None)
    fail(breaker, 5)
    assert (breaker.state, breaker.consecutive_failures) == ("open", 5)
    assert breaker.open_until is not None
    assert "state='open'" in repr(breaker)


@pytest.mark.req("PEF:C-3", "PEF:X-1")
def test_failures_in_a_row_open_it_and_a_success_starts_over(clock: VirtualClock) -> None:
    """Two, a success, two more: closed. The third in a row opens it."""
    breaker = CircuitBreaker(**BREAKER)
    fail(breaker, 2)
    breaker.after_call(breaker.before_call())
    assert breaker.consecutive_failures == 0
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"


@pytest.mark.req("PEF:C-4", "PEF:C-6", "PEF:X-1")
def test_it_refuses_until_its_cooldown_and_a_good_probe_closes_it(clock: VirtualClock) -> None:
    """The refusal says for how long."""
    breaker = CircuitBreaker(**BREAKER)
    fail(breaker, 3)
    clock.advance(4.0)
    with pytest.raises(ProviderCircuitOpenError) as refused:
        breaker.before_call()
    assert refused.value.retry_after_seconds == pytest.approx(6.0)
    clock.advance(6.0)
    permit = breaker.before_call()
    assert breaker.state == "half_open"
    breaker.after_call(permit)
    assert (breaker.state, breaker.consecutive_failures) == ("closed", 0)


@pytest.mark.req("PEF:C-5", "PEF:X-1")
def test_half_open_lets_in_only_so_many_at_once(clock: VirtualClock) -> None:
    """A place that comes free is given away again."""
    breaker = CircuitBreaker(**BREAKER, half_open_max_calls=2, half_open_success_threshold=10)
    fail(breaker, 3)
    clock.advance(10.0)
    first, _second = breaker.before_call(), breaker.before_call()
    with pytest.raises(ProviderCircuitOpenError):
        breaker.before_call()
    breaker.after_call(first)
    breaker.before_call()
    with pytest.raises(ProviderCircuitOpenError):
        breaker.before_call()


@pytest.mark.req("PEF:C-6", "PEF:A-3")
def test_so_many_probes_must_succeed_as_the_threshold_says(clock: VirtualClock) -> None:
    """More than fit at once: places recycle, so that cannot deadlock."""
    breaker = CircuitBreaker(**BREAKER, half_open_max_calls=1, half_open_success_threshold=3)
    fail(breaker, 3)
    clock.advance(10.0)
    for expected in ("half_open", "half_open", "closed"):
        breaker.after_call(breaker.before_call())
        assert breaker.state == expected


@pytest.mark.req("PEF:A-3")
def test_by_default_as_many_probes_must_succeed_as_are_let_in() -> None:
    """One of one, three of three."""
    assert CircuitBreaker(half_open_max_calls=3).half_open_success_threshold == 3
    assert CircuitBreaker().half_open_success_threshold == 1


@pytest.mark.req("PEF:C-7", "PEF:X-1")
def test_a_probe_that_fails_opens_it_for_a_whole_cooldown(clock: VirtualClock) -> None:
    """Counted from the failure, even after another probe had succeeded."""
    breaker = CircuitBreaker(**BREAKER, half_open_max_calls=2)
    fail(breaker, 3)
    clock.advance(10.0)
    first, second = breaker.before_call(), breaker.before_call()
    breaker.after_call(first)
    clock.advance(3.0)
    breaker.after_call(second, DOWN)
    assert breaker.state == "open"
    clock.advance(9.5)
    with pytest.raises(ProviderCircuitOpenError):
        breaker.before_call()
    clock.advance(0.5)
    breaker.before_call()


@pytest.mark.req("PEF:C-10", "PEF:trap-stale-success")
def test_a_result_from_before_a_change_counts_for_nothing(clock: VirtualClock) -> None:
    """A slow call let in while closed neither closes the open circuit nor the half-open one."""
    breaker = CircuitBreaker(**BREAKER)
    slow, slower = breaker.before_call(), breaker.before_call()
    fail(breaker, 3)
    until = breaker.open_until
    breaker.after_call(slow)
    breaker.after_call(slower, DOWN)
    assert (breaker.state, breaker.open_until, breaker.consecutive_failures) == ("open", until, 3)
    clock.advance(10.0)
    probe = breaker.before_call()
    breaker.after_call(slow)
    assert breaker.state == "half_open"
    breaker.after_call(probe)
    breaker.after_call(probe, DOWN)
    assert (breaker.state, breaker.consecutive_failures) == ("closed", 0)


@pytest.mark.req("PEF:C-11", "PEF:A-3", "PEF:trap-lost-probe")
def test_a_probe_that_never_reports_gives_its_place_back(clock: VirtualClock) -> None:
    """Once its lease has run out; its late report is not heard then."""
    breaker = CircuitBreaker(**BREAKER, probe_lease_seconds=5)
    fail(breaker, 3)
    clock.advance(10.0)
    lost = breaker.before_call()
    with pytest.raises(ProviderCircuitOpenError) as refused:
        breaker.before_call()
    assert refused.value.retry_after_seconds == pytest.approx(1.0)  # it may report at any moment
    clock.advance(4.5)
    with pytest.raises(ProviderCircuitOpenError) as refused:
        breaker.before_call()
    assert refused.value.retry_after_seconds == pytest.approx(0.5)
    clock.advance(0.5)
    probe = breaker.before_call()
    breaker.after_call(lost, DOWN)
    assert breaker.state == "half_open"
    breaker.after_call(probe)
    assert breaker.state == "closed"


@pytest.mark.req("PEF:A-3")
def test_a_lease_lasts_as_long_as_a_call_may_or_as_the_cooldown() -> None:
    """Whichever is longer."""
    assert CircuitBreaker(open_cooldown_seconds=30).rule(60.0).probe_lease == 60.0
    assert CircuitBreaker(open_cooldown_seconds=30).rule(60.0, is_shared=True).probe_lease == 5.0
    assert CircuitBreaker(open_cooldown_seconds=90).rule(60.0).probe_lease == 90.0
    assert CircuitBreaker(probe_lease_seconds=2).rule(60.0).probe_lease == 2.0


def test_what_is_no_verdict_on_the_other_side_does_not_count(clock: VirtualClock) -> None:
    """Our own mistake and an interrupt are neutral; any other exception is a failure."""
    breaker = CircuitBreaker(**BREAKER)
    fail(breaker, 2)
    for error in (ProviderAuthError("no"), KeyboardInterrupt()):
        breaker.after_call(breaker.before_call(), error)
    assert breaker.consecutive_failures == 2
    breaker.after_call(breaker.before_call(), ValueError("?"))
    assert breaker.state == "open"


# -- in a provider -------------------------------------------------------------------------------


@pytest.mark.req("PEF:X-2", "PEF:C-4", "PEF:B-8")
def test_a_provider_fails_fast_and_recovers(clock: VirtualClock, store: ProviderStore) -> None:
    """Open: not called, and the result says when to come back. A good probe closes it."""
    provider = build(store, DOWN, DOWN, DOWN)
    for _ in range(3):
        call(provider)
    for _ in range(5):
        result = call(provider)
        assert (result.reason_code, result.attempts) == ("circuit_open", 0)
        assert (result.stop_reason, result.breaker_state) == ("circuit_open", "open")
        assert result.retry_after_seconds == pytest.approx(10.0)
    assert provider.calls == 3
    clock.advance(10.0)
    assert call(provider).success
    assert lane_state(provider).state is CircuitState.CLOSED
    assert provider.calls == 4


@pytest.mark.req("PEF:H-3", "PEF:C-8")
def test_the_row_says_what_the_breaker_says(clock: VirtualClock, store: ProviderStore) -> None:
    """After every change."""
    provider = build(store, DOWN, DOWN, DOWN, {}, DOWN)
    seen = []
    for _ in range(4):
        call(provider)
        [health] = provider.health("t")
        breaker = provider.circuit_breaker
        assert breaker is not None
        assert health.breaker_state == breaker.state
        assert health.consecutive_failures == breaker.consecutive_failures
        assert health.open_until == breaker.open_until
        seen.append((health.breaker_state, health.consecutive_failures))
        clock.advance(10.0 if health.breaker_state == "open" else 0.0)
    assert seen == [("closed", 1), ("closed", 2), ("open", 3), ("closed", 0)]


@pytest.mark.req("PEF:C-8", "PEF:A-13")
def test_a_restart_finds_it_open(clock: VirtualClock, store: ProviderStore) -> None:
    """Until the instant that was set, and half-open from then on: not closed."""
    first = build(store, DOWN, DOWN, DOWN)
    for _ in range(3):
        call(first)
    clock.advance(4.0)
    second = build(store)
    result = call(second)
    assert (second.calls, result.reason_code) == (0, "circuit_open")
    assert result.retry_after_seconds == pytest.approx(6.0)
    clock.advance(6.0)
    third = build(store, DOWN)
    call(third)
    assert lane_state(third).state is CircuitState.OPEN
    assert lane_state(third).open_until == EPOCH + clock.now() + 10.0


@pytest.mark.req("PEF:C-8", "PEF:A-13", "PEF:C-11")
def test_a_restart_finds_it_half_open(clock: VirtualClock, store: ProviderStore) -> None:
    """With the probe of a process that died: its place comes free with its lease."""
    dead = ProbeLease("dead", EPOCH + 4.0)
    assert store.compare_and_set(
        LANE, 0, Breaker(CircuitState.HALF_OPEN, 3, probes=(dead,), generation=2)
    )
    provider = build(store)
    result = call(provider)
    assert result.reason_code == "circuit_open"
    assert result.retry_after_seconds == pytest.approx(1.0)
    clock.advance(3.5)
    assert call(provider).retry_after_seconds == pytest.approx(0.5)
    clock.advance(0.5)
    assert call(provider).success
    assert lane_state(provider).state is CircuitState.CLOSED


@pytest.mark.req("PEF:A-13", "PEF:trap-clock-back")
def test_an_instant_of_another_clock_does_not_keep_it_open(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Whoever wrote it may be an hour ahead: it is never open for longer than its cooldown."""
    ahead = Breaker(CircuitState.OPEN, 3, EPOCH + 3600.0, generation=1)
    assert store.compare_and_set(LANE, 0, ahead)
    provider = build(store)
    assert call(provider).retry_after_seconds == pytest.approx(10.0)
    clock.advance(10.0)
    assert call(provider).success


@pytest.mark.req("PEF:A-13", "PEF:trap-clock-back")
def test_a_lease_of_another_clock_does_not_keep_a_place(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """The same for the probe of somebody who died and whose clock was ahead."""
    dead = ProbeLease("dead", EPOCH + 3600.0)
    assert store.compare_and_set(
        LANE, 0, Breaker(CircuitState.HALF_OPEN, 3, probes=(dead,), generation=2)
    )
    provider = build(store)
    assert not call(provider).success
    clock.advance(59.5 if isinstance(store, MemoryProviderStore) else PROBE_LEASE - 0.5)
    assert call(provider).retry_after_seconds == pytest.approx(0.5)
    clock.advance(0.5)
    assert call(provider).success


@pytest.mark.req("PEF:A-13")
def test_open_without_an_instant_lasts_for_a_cooldown(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """As a row that somebody else wrote by hand."""
    assert store.compare_and_set(LANE, 0, Breaker(CircuitState.OPEN, 3, generation=1))
    provider = build(store)
    assert call(provider).retry_after_seconds == pytest.approx(10.0)
    clock.advance(10.0)
    assert call(provider).success


@pytest.mark.req("PEF:G-3", "PEF:A-15")
def test_tenants_do_not_share_a_circuit(clock: VirtualClock, store: ProviderStore) -> None:
    """One who is cut off does not cut off the others; the breaker shows the worst."""
    provider = build(store, DOWN, DOWN, DOWN)
    for _ in range(3):
        call(provider, "a")
    assert call(provider, "a").reason_code == "circuit_open"
    assert call(provider, "b").success
    assert provider.circuit_breaker is not None
    assert provider.circuit_breaker.state == "open"


@pytest.mark.req("PEF:A-15")
def test_a_parent_breaker_hears_all_tenants(clock: VirtualClock, store: ProviderStore) -> None:
    """An outage is the provider's, not one tenant's; and a good probe closes it for all."""
    parent = CircuitBreaker(failure_threshold=3, open_cooldown_seconds=5)
    provider = build(store, DOWN, DOWN, DOWN, parent_breaker=parent)
    for tenant in "abc":
        call(provider, tenant)
    assert parent.state == "open"
    assert lane_state(provider, "a").state is CircuitState.CLOSED
    assert call(provider, "d").reason_code == "circuit_open"
    clock.advance(5.0)
    assert call(provider, "d").success
    assert parent.state == "closed"
    assert (
        store.lane_state(LaneKey(ALL_TENANTS, "scripted", "test")).breaker.state
        is CircuitState.CLOSED
    )


@pytest.mark.req("PEF:A-15", "PEF:C-11")
def test_a_parent_that_refuses_leaves_no_place_taken(clock: VirtualClock) -> None:
    """Somebody else is faster at the parent's only place: the tenant's own is given back."""
    store = WatchedStore(clock)
    own = CircuitBreaker(**BREAKER, probe_lease_seconds=99)
    parent = CircuitBreaker(1, 10, probe_lease_seconds=99)
    circuits = [
        Circuit(store, LANE, own.rule(60.0)),
        Circuit(store, LaneKey(ALL_TENANTS, "scripted", "test"), parent.rule(60.0)),
    ]
    for circuit in circuits:
        circuit.force(CircuitState.OPEN)
    clock.advance(10.0)
    options = {"circuit_breaker": own, "parent_breaker": parent, "quota": QuotaPolicy(limit=9)}
    provider = build(store, **options)

    def another_is_first(name: str) -> None:
        if name == "reserve":
            store.before = lambda name: None
            assert not isinstance(circuits[1].admit(), float)

    store.before = another_is_first
    assert call(provider).reason_code == "circuit_open"
    assert (lane_state(provider).state, lane_state(provider).probes) == (CircuitState.HALF_OPEN, ())
    assert used(provider) == 0


@pytest.mark.req("PEF:A-15")
def test_the_registry_of_lanes_is_bounded(clock: VirtualClock) -> None:
    """What is dropped loses nothing: the store has it."""
    store = WatchedStore(clock)
    provider = build(store, DOWN, DOWN, DOWN, max_lanes=10)
    for _ in range(3):
        call(provider, "first")
    for number in range(50):
        call(provider, f"tenant-{number}")
    lanes = provider.runtime.lanes
    assert len(lanes.all()) <= 10
    assert lanes.get("first") is None
    assert call(provider, "first").reason_code == "circuit_open"


# -- its scope -----------------------------------------------------------------------------------


@pytest.mark.req("PEF:A-4")
def test_each_attempt_votes_and_an_open_circuit_ends_the_loop(clock: VirtualClock) -> None:
    """The error is the real one; the stop says why there was no further attempt."""
    provider = Scripted(
        DOWN, DOWN, DOWN, circuit_breaker=CircuitBreaker(2, 10), wall=wall_of(clock)
    )
    result = call(provider)
    assert (provider.calls, result.attempts) == (2, 2)
    assert (result.reason_code, result.stop_reason) == ("dependency_unavailable", "circuit_open")
    assert result.error is DOWN
    assert result.retry_after_seconds == pytest.approx(9.0)


@pytest.mark.req("PEF:A-4")
def test_a_circuit_that_another_opened_ends_the_loop_too(clock: VirtualClock) -> None:
    """It is asked again before each attempt."""
    store = WatchedStore(clock)

    def opened_by_another(_: object) -> Exception:
        other = Circuit(store, LANE, CircuitBreaker(1, 10).rule())
        other.force(CircuitState.OPEN)
        return DOWN

    provider = Scripted(opened_by_another, store=store)
    result = call(provider)
    assert (provider.calls, result.stop_reason) == (1, "circuit_open")


@pytest.mark.req("PEF:A-4")
def test_with_the_scope_of_an_execution_only_its_end_votes(clock: VirtualClock) -> None:
    """The literal drawing: three attempts, one vote."""
    provider = Scripted(
        *[DOWN] * 6, circuit_breaker=CircuitBreaker(2, 10), breaker_scope="execution"
    )
    call(provider)
    assert (provider.calls, lane_state(provider).failures) == (3, 1)
    call(provider)
    assert (provider.calls, lane_state(provider).state) == (6, CircuitState.OPEN)


@pytest.mark.req("PEF:A-4", "PEF:C-11")
def test_a_permit_for_all_attempts_is_given_back_when_a_gate_ends_the_call(
    clock: VirtualClock,
) -> None:
    """A pause longer than the budget comes between two attempts of a probe: its vote counts."""
    store = WatchedStore(clock)
    options: dict[str, Any] = {"breaker_scope": "execution", "store": store}
    breaker = CircuitBreaker(1, 5, probe_lease_seconds=1000)
    slowly = RetryPolicy(base_delay_seconds=2, jitter_ratio=0)
    provider = Scripted(
        circuit_breaker=breaker, timeout_budget_seconds=20, retry_policy=slowly, **options
    )
    provider.steps.extend([DOWN, DOWN, DOWN])

    def told_to_pause(_: object) -> Exception:
        store.extend_cooldown(LANE, EPOCH + clock.now() + 100.0)
        return DOWN

    call(provider)
    assert lane_state(provider).state is CircuitState.OPEN
    clock.advance(5.0)
    provider.steps.append(told_to_pause)
    result = call(provider)
    assert (result.attempts, result.stop_reason) == (1, "cooldown")
    assert (lane_state(provider).state, lane_state(provider).probes) == (CircuitState.OPEN, ())


# -- the price of a refusal ----------------------------------------------------------------------


@pytest.mark.req("PEF:A-5")
def test_a_thousand_refusals_write_nothing_and_take_no_quota(clock: VirtualClock) -> None:
    """The circuit is looked at before quota is taken."""
    store = WatchedStore(clock)
    provider = build(store, DOWN, DOWN, DOWN, quota=QuotaPolicy(limit=5000))
    for _ in range(3):
        call(provider)
    assert used(provider) == 3
    store.asked.clear()
    for _ in range(1000):
        assert call(provider).reason_code == "circuit_open"
    assert store.written == []
    assert len(store.asked) <= 1
    assert used(provider) == 3


@pytest.mark.req("PEF:A-5")
def test_a_unit_comes_back_when_the_circuit_refuses_after_all(clock: VirtualClock) -> None:
    """The look let it pass, the circuit itself did not."""
    store = WatchedStore(clock)
    provider = build(store, DOWN, DOWN, DOWN, quota=QuotaPolicy(limit=50))
    for _ in range(3):
        call(provider)
    clock.advance(10.0)
    other = Circuit(store, LANE, CircuitBreaker(**BREAKER).rule(60.0))

    def another_is_first(name: str) -> None:
        if name == "reserve":
            store.before = lambda name: None
            other.refresh()
            assert not isinstance(other.admit(), float)

    store.before = another_is_first
    assert call(provider).reason_code == "circuit_open"
    assert (provider.calls, used(provider)) == (3, 3)


@pytest.mark.req("PROVIDERS:breaker")
def test_without_a_breaker_nothing_is_refused(clock: VirtualClock, store: ProviderStore) -> None:
    """However often it fails; and the health row still counts the failures."""
    provider = build(store, *[DOWN] * 20, circuit_breaker=False)
    for _ in range(20):
        assert call(provider).reason_code == "dependency_unavailable"
    assert provider.circuit_breaker is None
    [health] = provider.health("t")
    assert (health.breaker_state, health.consecutive_failures) == ("closed", 20)


def test_an_operator_may_open_and_close_it(clock: VirtualClock, store: ProviderStore) -> None:
    """By force, and for everybody who uses the store."""
    provider = build(store)
    circuit = Circuit(store, LANE, CircuitBreaker(**BREAKER).rule())
    circuit.force(CircuitState.OPEN)
    assert call(provider).reason_code == "circuit_open"
    circuit.force(CircuitState.CLOSED)
    clock.advance(1.0)
    assert call(provider).success


@pytest.mark.req("PROVIDERS:breaker")
def test_an_operator_may_hold_it_open_for_a_day(clock: VirtualClock, store: ProviderStore) -> None:
    """Longer than the provider's cooldown; calls are refused all that time, in plain seconds."""
    provider = build(store)
    circuit = Circuit(store, LANE, CircuitBreaker(**BREAKER).rule())
    circuit.force(CircuitState.OPEN, 86_400.0)
    for number in range(24):  # the refusals after the first few take the short way
        result = call(provider)
        assert result.reason_code == "circuit_open"
        assert f"for another {86_400.0 - 3600 * number:.1f} seconds" in str(result.error)
        clock.advance(3600.0)
    assert lane_state(provider).open_until == EPOCH + 86_400.0
    assert call(provider).success


def test_a_neutral_report_through_a_closed_circuit_writes_nothing(clock: VirtualClock) -> None:
    """And so does a success, when there is no streak to end."""
    store = WatchedStore(clock)
    circuit = Circuit(store, LANE, CircuitBreaker(**BREAKER).rule())
    for vote in (Vote.NEUTRAL, Vote.SUCCESS):
        permit = circuit.admit()
        assert not isinstance(permit, float)
        circuit.report(permit, vote)
    assert store.asked == []


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failure_threshold", 0),
        ("failure_threshold", 1.5),
        ("failure_threshold", True),
        ("open_cooldown_seconds", -1),
        ("open_cooldown_seconds", float("nan")),
        ("half_open_max_calls", 0),
        ("half_open_success_threshold", 0),
        ("probe_lease_seconds", 0),
        ("probe_lease_seconds", "5"),
    ],
)
def test_wrong_settings_are_named(name: str, value: Any) -> None:
    """When the breaker is made."""
    with pytest.raises(ConfigurationError, match=name):
        CircuitBreaker(**{name: value})
