"""Mistakes that others made, each with a test that falls into it.

Those that have a place of their own are tested there, under the same marks: the races of threads in
``test_threads.py``, windows and refunds in ``test_provider_quota_state.py``, late and stale results
in ``test_provider_circuit_breaker.py``, clocks in ``test_bad_input.py``.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState, Permit, Vote
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderBadRequestError,
    ProviderDependencyError,
    ProviderError,
    ProviderTimeoutError,
)
from ergon_framework.providers.quota import QuotaLimiter, QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.providers.store_urls import open_store
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    EPOCH,
    LANE,
    ONCE,
    WAIT_TIMEOUT,
    AsyncScripted,
    Scripted,
    WatchedStore,
    acall,
    after,
    call,
    lane_state,
    rows,
    used,
)

DOWN = ProviderDependencyError("down")


# -- breakers ------------------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-half-open-stampede")
def test_the_change_to_half_open_lets_nobody_slip_in(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Each of those who saw it open at the same instant asks the same circuit."""
    rule = CircuitBreaker(1, 5).rule()
    circuits = [Circuit(store, LANE, rule) for _ in range(10)]
    circuits[0].force(CircuitState.OPEN)
    for circuit in circuits:
        circuit.refresh()
    clock.advance(5.0)
    for circuit in circuits:
        assert circuit.refused_for() is None  # by what it saw, it might pass
    assert sum(isinstance(circuit.admit(), Permit) for circuit in circuits) == 1


@pytest.mark.req("PEF:trap-lost-probe")
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_probe_that_dies_of_an_interrupt_does_not_wedge(
    end: type[BaseException], clock: VirtualClock, store: ProviderStore
) -> None:
    """Ten thousand seconds later nobody must still be waiting for it; nor at once."""
    provider = Scripted(
        DOWN,
        end(),
        store=store,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5, probe_lease_seconds=100_000),
    )
    call(provider)
    clock.advance(5.0)
    with pytest.raises(end):
        call(provider)
    assert call(provider).success


@pytest.mark.req("PEF:trap-lost-probe")
def test_an_ignored_error_gives_its_place_back(clock: VirtualClock, store: ProviderStore) -> None:
    """Neither success nor failure, but an end."""
    provider = Scripted(
        DOWN,
        ProviderBadRequestError("ours"),
        store=store,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5, probe_lease_seconds=100_000),
    )
    call(provider)
    clock.advance(5.0)
    assert call(provider).reason_code == "bad_request"
    assert (lane_state(provider).state, lane_state(provider).probes) == (CircuitState.HALF_OPEN, ())
    assert call(provider).success


@pytest.mark.req("PEF:trap-stale-success")
def test_a_slow_success_does_not_close_what_opened_meanwhile(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Let in while closed, back while open, and while half-open."""
    provider = Scripted(store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 5))

    def slow(_: object) -> dict[str, Any]:
        provider.steps.appendleft(DOWN)
        call(provider)
        assert lane_state(provider).state is CircuitState.OPEN
        return {}

    provider.steps.append(slow)
    assert call(provider).success
    assert lane_state(provider).state is CircuitState.OPEN


@pytest.mark.req("PEF:trap-neutral-votes")
def test_a_bug_of_ours_does_not_cut_off_a_healthy_provider(clock: VirtualClock) -> None:
    """Wrong requests say nothing about it, however many there are."""
    provider = Scripted(
        *[ProviderBadRequestError("ours")] * 100, circuit_breaker=CircuitBreaker(3, 60)
    )
    for _ in range(100):
        assert call(provider).reason_code == "bad_request"
    assert call(provider).success


@pytest.mark.req("PEF:trap-shared-store")
def test_a_short_cooldown_lasts_as_long_as_it_says(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Instants are kept with their fractions: half a second is neither nothing nor a second."""
    clock.advance(0.75)
    provider = Scripted(
        DOWN, store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 0.5)
    )
    call(provider)
    clock.advance(0.49)
    assert call(Scripted(store=store)).reason_code == "circuit_open"
    clock.advance(0.01)
    other = Scripted(store=store, circuit_breaker=CircuitBreaker(1, 0.5))
    assert call(other).success


@pytest.mark.req("PEF:trap-shared-store")
def test_two_breakers_share_nothing_by_default(clock: VirtualClock, store: ProviderStore) -> None:
    """The key is who calls what, not the breaker's name; not even one object is shared by two."""

    class Other(Scripted):
        provider_name = "other"

    breaker = CircuitBreaker(1, 60)
    first = Scripted(DOWN, store=store, retry_policy=ONCE, circuit_breaker=breaker)
    second = Other(store=store, circuit_breaker=breaker)
    call(first)
    assert call(first).reason_code == "circuit_open"
    assert call(second).success


@pytest.mark.req("PEF:trap-shared-store")
def test_a_new_process_does_not_reset_the_streak(clock: VirtualClock, store: ProviderStore) -> None:
    """It goes on where the others are."""
    for failures, state in (
        (1, CircuitState.CLOSED),
        (2, CircuitState.CLOSED),
        (3, CircuitState.OPEN),
    ):
        fresh = Scripted(
            DOWN, store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(3, 60)
        )
        call(fresh)
        assert (lane_state(fresh).failures, lane_state(fresh).state) == (failures, state)
        clock.advance(0.7)


@pytest.mark.req("PEF:trap-shared-store")
def test_processes_do_not_keep_it_open_by_looking_at_it(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Whoever finds it open leaves the instant as it is."""
    first = Scripted(DOWN, store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 5))
    call(first)
    until = lane_state(first).open_until
    for _ in range(4):
        clock.advance(1.1)
        late = Scripted(store=store, circuit_breaker=CircuitBreaker(1, 5))
        assert call(late).reason_code == "circuit_open"
        assert lane_state(late).open_until == until
    clock.advance(0.6)
    assert call(first).success


@pytest.mark.req("PEF:trap-shared-store")
def test_calls_through_a_closed_circuit_hardly_ask_the_store(clock: VirtualClock) -> None:
    """One look a second, however many calls; nothing is written for a success."""
    store = WatchedStore(clock)
    provider = Scripted(store=store)
    for _ in range(10):
        for _ in range(100):
            assert call(provider).success
        clock.advance(1.0)
    assert store.asked == ["lane_state"] * 10


@pytest.mark.req("PEF:trap-clock-back")
def test_a_breaker_alone_does_not_follow_the_clock_on_the_wall(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sets it forth by an hour: that ends no cooldown."""
    import time

    breaker = CircuitBreaker(1, 60)
    breaker.after_call(breaker.before_call(), DOWN)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    with pytest.raises(ProviderError):
        breaker.before_call()
    clock.advance(60.0)
    breaker.before_call()


@pytest.mark.req("PEF:trap-one-notice")
def test_failures_that_come_after_it_opened_are_no_news(clock: VirtualClock) -> None:
    """One notice per change; the instant is not put off."""
    told: list[str] = []
    store = WatchedStore(clock)
    circuit = Circuit(
        store, LANE, CircuitBreaker(2, 5).rule(), lambda name, /, **_: told.append(name)
    )
    permits = [circuit.admit() for _ in range(10)]
    for permit in permits:
        assert isinstance(permit, Permit)
        clock.advance(0.1)
        circuit.report(permit, Vote.FAILURE)
    assert told == ["circuit.opened"]
    assert circuit.breaker.open_until == pytest.approx(EPOCH + 0.2 + 5)


# -- retries -------------------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-frozen-error")
@pytest.mark.parametrize("kind", [ProviderError, *ERROR_OF.values()])
def test_errors_pass_through_a_context_manager(kind: type[ProviderError]) -> None:
    """An exception must take a traceback, a cause and a note."""

    @contextmanager
    def block() -> Iterator[None]:
        yield

    error = kind("x", http_status=500)
    error.add_note("seen")
    with pytest.raises(kind) as caught, block():
        raise error from ValueError("why")
    assert traceback.format_exception(caught.value)


@pytest.mark.req("PEF:A-6")
def test_a_provider_inside_a_provider_does_not_multiply(clock: VirtualClock) -> None:
    """Whoever wraps one passes its error on: three attempts each would be nine."""
    inner = Scripted(*[DOWN] * 9, retry_policy=ONCE)
    outer = Scripted(*[lambda _: call(inner).unwrap()] * 3)
    assert call(outer).attempts == 3
    assert inner.calls == 3


@pytest.mark.req("PEF:A-7")
def test_an_overrun_success_is_not_run_again(clock: VirtualClock) -> None:
    """The side effect has happened."""
    provider = Scripted(after(clock, 1000.0, {"done": 1}), timeout_budget_seconds=10)
    result = call(provider)
    assert (provider.calls, result.data, result.is_late) == (1, {"done": 1}, True)


@pytest.mark.req("PEF:R-5")
def test_the_budget_counts_failures_and_waits(clock: VirtualClock) -> None:
    """Not only the time of what succeeded."""
    slow = after(clock, 4.0, ProviderTimeoutError("slow"))
    provider = Scripted(
        *[slow] * 9,
        timeout_budget_seconds=10,
        retry_policy=RetryPolicy(max_attempts=9, base_delay_seconds=1, jitter_ratio=0),
    )
    result = call(provider)
    assert (result.attempts, result.stop_reason, clock.now()) == (2, "budget_spent", 9.0)


# -- quota ---------------------------------------------------------------------------------------


@pytest.mark.req("PEF:trap-check-then-act")
def test_no_way_round_the_limit(clock: VirtualClock, store: ProviderStore) -> None:
    """Neither a second look nor a fallback admits after it is reached."""
    policy = QuotaPolicy(limit=3)
    # Every time a process that knows nothing yet.
    fresh = [QuotaLimiter(store, LANE, policy).reserve() is not None for _ in range(10)]
    assert fresh == [True] * 3 + [False] * 7
    [health] = store.health("t")
    assert health.account is not None
    assert health.account.used == 3


@pytest.mark.req("PEF:trap-clock-skew")
def test_all_go_by_the_clock_of_the_store(clock: VirtualClock, store: ProviderStore) -> None:
    """Two hosts whose own clocks differ by an hour share one window."""
    policy = QuotaPolicy(limit=4, window_seconds=60)
    hosts = [Scripted(quota=policy, store=store, wall=lambda by=by: EPOCH + by) for by in (0, 3600)]
    granted = sum(call(hosts[number % 2]).success for number in range(10))
    assert granted == 4


@pytest.mark.req("PEF:trap-refund-window")
def test_a_cancelled_call_pins_no_unit(clock: VirtualClock, store: ProviderStore) -> None:
    """However often calls are cancelled, the budget is there for those that are not."""
    provider = AsyncScripted(store=store, quota=QuotaPolicy(limit=2))

    async def cancel_one() -> None:
        began = asyncio.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        provider.steps.append(lambda _: hang())
        work = asyncio.create_task(acall(provider))
        await began.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    for _ in range(5):
        clock.run(cancel_one())
    assert used(provider) == 0
    assert clock.run(acall(provider)).success


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.req("PEF:trap-prefork")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_provider_from_before_a_fork_works_after_it(kind: str, tmp_path: Path) -> None:
    """Connections, threads and numbers of the parent are not the child's; no row has two ids."""
    store: ProviderStore | None = None
    if kind == "sqlite":
        store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    provider = Scripted(store=store, quota=QuotaPolicy(limit=100))
    call(provider, correlation_id="parent")
    assert len(rows(provider, "parent")) == 1
    reading, writing = os.pipe()
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                results = [call(provider, correlation_id="child") for _ in range(5)]
                found = rows(provider, "child")
                os.write(writing, "".join(f"{row.id}\n" for row in found).encode())
                recorder_of(provider.store).close(WAIT_TIMEOUT)
                code = 0 if all(each.success for each in results) else 2
            finally:
                os._exit(code)
        children.append(child)
    os.close(writing)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    with open(reading, encoding="ascii") as pipe:
        ids = set(pipe.read().split())
    assert codes == [0, 0, 0]
    assert len(ids) == 15
    if store is not None:
        assert len(rows(provider, "child")) == 15
        assert used(provider) == 16
        recorder_of(store).close()
        store.close()
