"""Gates that take their time, stores that are away, and clocks that are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import BreakerRule, CircuitState, Permit, Vote
from ergon_framework.core.provider_call import Guard, GuardAction, GuardRule
from ergon_framework.core.retry import RetryRule
from ergon_framework.ports.providerstore import QuotaGrant
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderRateLimitError, ProviderTimeoutError
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    EPOCH,
    LANE,
    ONCE,
    AsyncScripted,
    Scripted,
    WatchedStore,
    acall,
    call,
    rows,
    used,
    wall_of,
)

RULE = BreakerRule(1, 30.0)


def let_in(circuit: Circuit) -> Permit:
    """A permit, which must be given."""
    permit = circuit.admit()
    assert isinstance(permit, Permit)
    return permit


# -- a store that is away --------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-shared-store", "PEF:A-14")
def test_what_was_only_read_is_not_brought_back(clock: VirtualClock) -> None:
    """Who lost the store for a moment does not open anew what others have closed since."""
    store, flaky = WatchedStore(clock), WatchedStore(clock)
    flaky.share_tables_of(store)  # another connection to the same state
    here, there = Circuit(flaky, LANE, RULE), Circuit(store, LANE, RULE)
    here.refresh()
    there.refresh()
    there.report(let_in(there), Vote.FAILURE)
    clock.advance(2.0)
    here.refresh()
    assert here.breaker.state is CircuitState.OPEN
    clock.advance(2.0)
    flaky.is_away = True
    here.refresh()
    flaky.is_away = False
    clock.advance(60.0)
    there.refresh()
    there.report(let_in(there), Vote.SUCCESS)
    clock.advance(600.0)
    here.refresh()
    assert here.breaker.state is store.lane_state(LANE).breaker.state is CircuitState.CLOSED


@pytest.mark.req("PEF:trap-shared-store", "PEF:A-14")
@pytest.mark.parametrize("others_wrote", [False, True])
def test_what_was_learned_meanwhile_is_brought_back(
    others_wrote: bool, clock: VirtualClock
) -> None:
    """Unless somebody else has written: who had the store knows more."""
    store = WatchedStore(clock)
    circuit = Circuit(store, LANE, RULE)
    circuit.refresh()
    store.is_away = True
    circuit.report(let_in(circuit), Vote.FAILURE)
    assert circuit.breaker.state is CircuitState.OPEN
    store.is_away = False
    if others_wrote:
        other = Circuit(store, LANE, BreakerRule(9))
        other.report(let_in(other), Vote.FAILURE)
    clock.advance(2.0)
    circuit.refresh()
    wanted = CircuitState.CLOSED if others_wrote else CircuitState.OPEN
    assert circuit.breaker.state is store.lane_state(LANE).breaker.state is wanted


@pytest.mark.req("PEF:trap-store-down")
def test_nobody_waits_again_for_a_store_that_is_away(clock: VirtualClock) -> None:
    """It is asked once a second, however many attempts fail and pauses are asked for."""
    store = WatchedStore(clock)
    failing = [ProviderTimeoutError("late"), ProviderRateLimitError("wait", retry_after_seconds=0)]
    provider = Scripted(
        *failing * 6,
        store=store,
        circuit_breaker=CircuitBreaker(failure_threshold=999),
        retry_policy=RetryPolicy(max_attempts=4, base_delay_seconds=0, jitter_ratio=0),
    )
    store.is_away = True
    for _ in range(3):
        assert not call(provider).success
    assert len(store.asked) == 1
    circuit = provider.runtime.lane("t").circuits[0]
    circuit.extend_cooldown(9.0)
    assert len(store.asked) == 1
    clock.advance(1.0)
    store.is_away = False
    circuit.refresh()
    assert store.lane_state(LANE).cooldown_until == EPOCH + 9.0


# -- a gate that takes its time --------------------------------------------------------------------


class Slow(MemoryProviderStore):
    """Takes its time to give a unit, or a place."""

    def __init__(self, clock: VirtualClock, at: str) -> None:
        super().__init__(clock=wall_of(clock))
        self._virtual, self.at, self.is_slow = clock, at, True

    def reserve(self, *args: Any) -> QuotaGrant:
        self._pause("reserve")
        return super().reserve(*args)

    def compare_and_set(self, *args: Any, **failed: Any) -> bool:
        self._pause("compare_and_set")
        return super().compare_and_set(*args, **failed)

    def _pause(self, name: str) -> None:
        if self.is_slow and name == self.at:
            self._virtual.advance(3.0)


def ask_sync(provider: Scripted, clock: VirtualClock, **context: Any) -> Any:
    """In a thread."""
    return call(provider, **context)


def ask_async(provider: Scripted, clock: VirtualClock, **context: Any) -> Any:
    """On a loop."""
    return clock.run(acall(provider, **context))


WAYS = pytest.mark.parametrize(
    ("kind", "ask"), [(Scripted, ask_sync), (AsyncScripted, ask_async)], ids=["sync", "async"]
)


@WAYS
@pytest.mark.req("PEF:R-5", "PEF:A-7")
@pytest.mark.parametrize("is_short", [True, False], ids=["short", "machine"])
def test_no_attempt_begins_after_the_deadline(
    is_short: bool, kind: type[Scripted], ask: Callable[..., Any], clock: VirtualClock
) -> None:
    """The quota took all the time there was: nothing is called, and the unit comes back."""
    store = Slow(clock, "reserve")
    provider = kind(store=store, quota=QuotaPolicy(limit=9), timeout_budget_seconds=2.0)
    provider.runtime.lane("t").refresh()
    given = {} if is_short else {"deadline": clock.now() + 2.0}
    result = ask(provider, clock, correlation_id="late", **given)
    assert (result.stop_reason, result.reason_code) == ("budget_spent", "timeout")
    assert (result.attempts, provider.calls, used(provider)) == (0, 0, 0)
    assert result.duration_ms == 3000.0
    assert [row.attempt_number for row in rows(provider, "late")] == [0]


@pytest.mark.req("PEF:R-5", "PEF:A-7")
def test_a_place_that_comes_too_late_is_given_back(clock: VirtualClock) -> None:
    """The only probe of a half-open circuit."""
    store = Slow(clock, "compare_and_set")
    store.is_slow = False
    breaker = CircuitBreaker(1, 5, probe_lease_seconds=999)
    provider = Scripted(ProviderTimeoutError("late"), store=store, circuit_breaker=breaker)
    provider.runtime.lane("t").refresh()
    call(provider, timeout_budget_seconds=0.1)
    clock.advance(5.0)
    store.is_slow = True
    result = call(provider, timeout_budget_seconds=2.0)
    store.is_slow = False
    assert (result.stop_reason, provider.calls) == ("budget_spent", 1)
    assert not store.lane_state(LANE).breaker.probes
    assert call(provider).success


@WAYS
@pytest.mark.req("PEF:R-5", "PEF:A-7")
@pytest.mark.parametrize("is_short", [True, False], ids=["short", "machine"])
def test_the_budget_begins_before_the_gates(
    is_short: bool, kind: type[Scripted], ask: Callable[..., Any], clock: VirtualClock
) -> None:
    """What the quota took is not there for the attempt; a row says what the attempt took."""
    provider = kind(
        store=Slow(clock, "reserve"), quota=QuotaPolicy(limit=9), timeout_budget_seconds=10.0
    )
    provider.runtime.lane("t").refresh()

    def take_a_second(_: object) -> dict[str, Any]:
        clock.advance(1.0)
        return {"ok": True}

    provider.steps.append(take_a_second)
    given = {} if is_short else {"deadline": clock.now() + 10.0}
    result = ask(provider, clock, correlation_id="slow", **given)
    (context,) = provider.seen
    assert (context.deadline, context.attempt_timeout_seconds) == (10.0, 7.0)
    assert (result.duration_ms, result.attempt_log[0].duration_ms) == (4000.0, 1000.0)
    (row,) = rows(provider, "slow")
    assert (row.duration_ms, row.timeout_budget_ms) == (1000, 10_000)


# -- a clock that is set ---------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-clock-back", "PEF:A-9")
@pytest.mark.parametrize("who", ["told", "other"])
def test_a_clock_set_back_does_not_lengthen_a_pause(who: str, clock: VirtualClock) -> None:
    """It takes as long as it was to take, for whoever has seen it."""
    shift = [0.0]
    store = MemoryProviderStore(clock=lambda: EPOCH + clock.now() + shift[0])
    told, other = (Circuit(store, LANE, RULE) for _ in range(2))
    told.extend_cooldown(5.0)
    other.refresh()
    assert other.cooldown() == 5.0
    shift[0] = -3600.0
    circuit = told if who == "told" else other
    circuit.refresh()
    assert circuit.cooldown(3600.0) == 5.0
    clock.advance(4.0)
    circuit.refresh()
    assert circuit.cooldown(3600.0) == 1.0
    clock.advance(1.0)
    assert circuit.cooldown(3600.0) == 0.0
    circuit.extend_cooldown(
        2.0
    )  # the store still states the old one, which ends later by its clock
    assert circuit.cooldown(3600.0) == 2.0


@pytest.mark.req("PEF:trap-clock-back", "PEF:A-9")
def test_a_pause_that_nobody_saw_begin_ends_all_the_same(clock: VirtualClock) -> None:
    """Found after the clock was set back, it takes the longest pause and no longer."""
    store = MemoryProviderStore(clock=wall_of(clock))
    store.extend_cooldown(LANE, EPOCH + 86_400.0)
    provider = Scripted(store=store, retry_policy=ONCE, max_cooldown_seconds=60.0)
    assert call(provider, timeout_budget_seconds=5.0).retry_after_seconds == 60.0
    clock.advance(59.0)
    assert call(provider, timeout_budget_seconds=0.5).retry_after_seconds == 1.0
    clock.advance(1.0)
    assert call(provider).success


@pytest.mark.req("PEF:A-9", "PEF:trap-jitter")
def test_not_everybody_goes_on_at_the_end_of_a_pause() -> None:
    """The calls that sat it out are spread, but none beyond its own deadline."""
    rule = GuardRule(RetryRule(3, asked_spread=0.2), has_quota=False)
    ends = []
    for number in range(10):
        guard = Guard(rule, 0.0, 60.0)
        assert guard.begun(0.0, None, 20.0, number / 10) is GuardAction.WAIT
        ends.append(guard.until)
    assert len(set(ends)) == 10
    assert min(ends) == 20.0
    assert max(ends) < 24.0
    hurried = Guard(rule, 0.0, 20.5)
    hurried.begun(0.0, None, 20.0, 0.9)
    assert hurried.until == 20.0
