"""Many threads through one breaker: none waits for another's call."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState, Permit, Vote
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import LaneKey, ProviderStore, QuotaGrant
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderCircuitOpenError, ProviderDependencyError
from ergon_framework.providers.quota import QuotaLimiter, QuotaPolicy
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    LANE,
    ONCE,
    WAIT_TIMEOUT,
    Scripted,
    WatchedStore,
    call,
    lane_state,
    rows,
    used,
)

THREADS = 16
DOWN = ProviderDependencyError("down")


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Let so many threads begin at once."""
    start = threading.Barrier(threads)

    def one(number: int) -> Any:
        start.wait(WAIT_TIMEOUT)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


@pytest.mark.req("PEF:C-9", "PEF:trap-lock-across-call")
def test_all_calls_are_under_way_at_once(store: ProviderStore) -> None:
    """Each waits in the middle of its attempt for all the others: with a lock they never meet."""
    meeting = threading.Barrier(THREADS)
    provider = Scripted(store=store, timeout_budget_seconds=None, quota=QuotaPolicy(limit=100))

    def meet(_: object) -> dict[str, Any]:
        meeting.wait(WAIT_TIMEOUT)
        return {}

    provider.steps.extend([meet] * 2 * THREADS)
    for _ in range(2):
        results = together(lambda _: call(provider))
        assert all(result.success for result in results)
    assert used(provider) == 2 * THREADS


@pytest.mark.req("PEF:C-9")
def test_a_breaker_alone_holds_nothing_during_a_call(clock: VirtualClock) -> None:
    """Others come, go and look while sixteen calls are under way."""
    breaker = CircuitBreaker(failure_threshold=100)
    permits = together(lambda _: breaker.before_call())
    assert breaker.state == "closed"
    breaker.after_call(breaker.before_call(), DOWN)
    assert breaker.consecutive_failures == 1
    together(lambda number: breaker.after_call(permits[number], DOWN))
    assert breaker.consecutive_failures == 1 + THREADS


@pytest.mark.req("PEF:C-3")
def test_no_failure_is_lost_between_threads(store: ProviderStore) -> None:
    """Each of them is counted once."""
    provider = Scripted(
        *[DOWN] * THREADS,
        store=store,
        retry_policy=ONCE,
        timeout_budget_seconds=None,
        circuit_breaker=CircuitBreaker(failure_threshold=1000),
    )
    together(lambda _: call(provider))
    # A store that is slow for a moment gets the rest from a thread of ours.
    deadline = time.monotonic() + WAIT_TIMEOUT
    while lane_state(provider).failures != THREADS and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert lane_state(provider).failures == THREADS


class WaitingProbes:
    """Where probes wait until all the others were refused, and which holds only so many."""

    def __init__(self, places: int, others: int) -> None:
        self._places = threading.Semaphore(places)
        self._others = others
        self._refused = 0
        self._all_refused = threading.Condition()

    def probe(self, _: object) -> dict[str, Any]:
        """One step of the provider."""
        assert self._places.acquire(blocking=False), "one too many"
        with self._all_refused:
            assert self._all_refused.wait_for(lambda: self._refused >= self._others, WAIT_TIMEOUT)
        self._places.release()
        return {}

    def refuse(self) -> None:
        """One was not let in."""
        with self._all_refused:
            self._refused += 1
            self._all_refused.notify_all()


@pytest.mark.req("PEF:C-5", "PEF:trap-half-open-stampede")
@pytest.mark.parametrize("cap", [1, 3])
def test_twenty_probes_race_for_the_places(
    store: ProviderStore, clock: VirtualClock, cap: int
) -> None:
    """At the very instant the cooldown ends; never more than the cap get in."""
    breaker = CircuitBreaker(1, 5, half_open_max_calls=cap, half_open_success_threshold=100)
    provider = Scripted(store=store, timeout_budget_seconds=None, circuit_breaker=breaker)
    circuit = Circuit(store, LANE, breaker.rule())
    waiting = WaitingProbes(cap, 20 - cap)

    def one(_: int) -> str | None:
        reason = call(provider).reason_code
        if reason is not None:
            waiting.refuse()
        return reason

    for _ in range(5):
        circuit.force(CircuitState.OPEN)
        clock.advance(5.0)
        waiting = WaitingProbes(cap, 20 - cap)
        provider.steps.extend([waiting.probe] * 20)
        found = Counter(together(one, 20))
        assert found == {None: cap, "circuit_open": 20 - cap}
        provider.steps.clear()


@pytest.mark.req("PEF:C-5", "PEF:trap-half-open-stampede")
def test_circuits_of_several_processes_share_the_places(
    store: ProviderStore, clock: VirtualClock
) -> None:
    """Twenty views of one lane, as twenty processes have them."""
    rule = CircuitBreaker(1, 5, half_open_max_calls=2).rule()
    first = Circuit(store, LANE, rule)
    first.force(CircuitState.OPEN)
    clock.advance(5.0)
    circuits = [Circuit(store, LANE, rule) for _ in range(20)]

    def admitted(number: int) -> bool:
        circuits[number].refresh()
        return isinstance(circuits[number].admit(), Permit)

    assert sum(together(admitted, 20)) == 2


@pytest.mark.req("PEF:C-5")
def test_a_swap_that_is_always_lost_lets_nobody_in(clock: VirtualClock) -> None:
    """A place that could not be written down would be one too many."""

    class Losing(WatchedStore):
        def compare_and_set(self, *args: Any, **failed: Any) -> bool:
            return False

    store = Losing(clock)
    rule = CircuitBreaker(1, 5).rule()
    helper = Circuit(store, LANE, rule)
    WatchedStore.compare_and_set(
        store, LANE, 0, helper.breaker.forced(rule, CircuitState.OPEN, store.now())
    )
    clock.advance(5.0)
    circuit = Circuit(store, LANE, rule)
    circuit.refresh()
    assert circuit.admit() == 0.0
    assert circuit.refused_for() is None


@pytest.mark.req("PEF:C-8")
def test_an_old_reading_does_not_undo_a_new_change(clock: VirtualClock) -> None:
    """A thread reads the store, another opens the circuit, then the first goes on."""
    store = WatchedStore(clock)
    circuit = Circuit(store, LANE, CircuitBreaker(1, 5).rule())
    plain = store.lane_state

    def slowly(key: Any) -> Any:
        found = plain(key)
        store.lane_state = plain  # type: ignore[method-assign]
        circuit.force(CircuitState.OPEN)
        return found

    store.lane_state = slowly  # type: ignore[method-assign]
    circuit.refresh()
    assert circuit.breaker.state is CircuitState.OPEN


@pytest.mark.req("PEF:A-9")
def test_a_pause_survives_a_change_of_the_circuit_at_the_same_time(clock: VirtualClock) -> None:
    """One thread is told to wait while another writes down a failure."""
    store = WatchedStore(clock)
    circuit = Circuit(store, LANE, CircuitBreaker(5).rule())
    permit = circuit.admit()
    assert isinstance(permit, Permit)

    def meanwhile(name: str) -> None:
        if name == "compare_and_set":
            store.before = lambda name: None
            circuit.extend_cooldown(30.0)

    store.before = meanwhile
    circuit.report(permit, Vote.FAILURE)
    assert (circuit.breaker.failures, circuit.cooldown()) == (1, 30.0)


@pytest.mark.req("PEF:C-3")
def test_a_success_ends_a_streak_that_began_meanwhile(clock: VirtualClock) -> None:
    """It was let in before the failure, and came back after it."""
    provider = Scripted({}, retry_policy=ONCE)
    call(provider)

    def meanwhile(_: object) -> dict[str, Any]:
        provider.steps.append(DOWN)
        call(provider)
        assert lane_state(provider).failures == 1
        return {}

    provider.steps.append(meanwhile)
    assert call(provider).success
    assert lane_state(provider).failures == 0


@pytest.mark.req("PEF:A-5")
def test_a_circuit_that_opens_between_the_gates_gives_the_unit_back(clock: VirtualClock) -> None:
    """The unit was taken, and then there was no way in; neither on the short way nor later."""
    store = WatchedStore(clock)
    provider = Scripted(store=store, quota=QuotaPolicy(limit=9))
    call(provider)
    circuit = provider.runtime.lane("t").circuits[0]

    def opens(name: str) -> None:
        if name == "reserve":
            store.before = lambda name: None
            circuit.force(CircuitState.OPEN)

    store.before = opens
    assert call(provider).reason_code == "circuit_open"
    assert (provider.calls, used(provider)) == (1, 1)


@pytest.mark.req("PEF:trap-clock-back")
def test_a_clock_that_is_set_back_throws_no_block_away(clock: VirtualClock) -> None:
    """What this process has in hand belongs to the newest window, and that is still the newest."""
    store = WatchedStore(clock)
    clock.advance(60.0)
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=1000, window_seconds=60, block=50))
    for _ in range(2):
        limiter.reserve()
    store.asked.clear()
    clock.advance(-60.0)
    assert all(limiter.reserve() is not None for _ in range(40))
    assert store.asked == []


@pytest.mark.req("PROVIDERS:quota")
def test_a_thread_that_looked_at_the_clock_too_early_drops_no_newer_block(
    clock: VirtualClock,
) -> None:
    """Before it asks, the next window begins, and another thread takes a block of that."""
    store = WatchedStore(clock)
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=1000, window_seconds=60, block=50))
    limiter.reserve()

    read = store.now

    def read_too_early() -> float:
        vars(store)["now"] = read
        found = read()
        clock.advance(60.0)
        for _ in range(2):
            limiter.reserve()
        return found

    vars(store)["now"] = read_too_early
    taken = limiter.reserve()
    account = store.reserve(LANE, limiter.policy.window(store.now()), 1000, 0).account
    assert taken is not None
    assert taken.window == account.window
    assert account.used == 3 + limiter.block_remaining


@pytest.mark.req("PROVIDERS:quota")
def test_a_block_of_a_window_that_another_process_opened_is_used(clock: VirtualClock) -> None:
    """Its clock is ahead of this one's; the store grants units of that window from then on."""
    store = WatchedStore(clock)
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=1000, window_seconds=60, block=50))
    limiter.reserve()
    ahead = limiter.policy.window(store.now() + 60.0)

    def opened(name: str) -> None:
        store.before = lambda name: None
        store.reserve(LANE, ahead, 1000, 1)

    store.before = opened
    granted = sum(limiter.reserve() is not None for _ in range(20))
    account = store.reserve(LANE, ahead, 1000, 0).account
    assert (granted, account.used) == (20, 21 + limiter.block_remaining)


@pytest.mark.req("PROVIDERS:quota")
@pytest.mark.parametrize("refunds", [True, False])
def test_a_block_that_comes_late_does_not_take_the_place_of_a_newer_one(
    clock: VirtualClock, refunds: bool
) -> None:
    """Its answer was under way while another thread took a block of the next window."""
    store = WatchedStore(clock)
    limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=1000, window_seconds=60, block=50))
    limiter.reserve()

    def reserve(key: LaneKey, window: QuotaWindow, limit: int, units: int) -> QuotaGrant:
        vars(store).pop("reserve")
        found = store.reserve(key, window, limit, units)
        clock.advance(60.0)
        for _ in range(2):
            limiter.reserve()
        store.is_away = not refunds
        return found

    vars(store)["reserve"] = reserve
    assert limiter.reserve() is not None
    store.is_away = False
    account = store.reserve(LANE, limiter.policy.window(store.now()), 1000, 0).account
    assert account.used == 2 + limiter.block_remaining
    assert limiter.block_remaining > 40


def test_lanes_are_made_once(clock: VirtualClock) -> None:
    """By sixteen threads that all need the same one."""
    provider = Scripted()
    lanes = together(lambda _: provider.runtime.lane("t"))
    assert len({id(lane) for lane in lanes}) == 1


def test_rows_of_all_threads_are_written_once(store: ProviderStore) -> None:
    """Each under its own id."""
    provider = Scripted(store=store, timeout_budget_seconds=None)
    together(lambda _: [call(provider, correlation_id="c") for _ in range(20)])
    found = rows(provider, "c")
    assert len(found) == len({row.id for row in found}) == THREADS * 20


@pytest.mark.req("PEF:C-5")
def test_a_breaker_alone_lets_in_no_more_than_its_cap(clock: VirtualClock) -> None:
    """Twenty threads at the instant its cooldown ends."""
    breaker = CircuitBreaker(1, 5, half_open_max_calls=3)
    breaker.after_call(breaker.before_call(), DOWN)
    clock.advance(5.0)

    def admitted(_: int) -> bool:
        try:
            breaker.before_call()
        except ProviderCircuitOpenError:
            return False
        return True

    assert sum(together(admitted, 20)) == 3
