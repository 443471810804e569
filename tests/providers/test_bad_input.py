"""Callers, settings, providers, clocks and databases that are not as they should be."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.core.provider_call import RetryBudget
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.ports.providerstore import ALL_TENANTS, LaneKey, ProviderStore
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderBadRequestError,
    ProviderDependencyError,
    ProviderResponseFormatError,
)
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.tasks import TaskOptions
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    LANE,
    ONCE,
    WAIT_TIMEOUT,
    Scripted,
    WatchedStore,
    asked,
    call,
    is_whole,
    lane_state,
    new_store,
    rows,
    used,
)

pytestmark = pytest.mark.req("PROVIDERS:badinput")
DOWN = ProviderDependencyError("down")


class Unserialisable:
    """Nothing that JSON could hold."""

    def __repr__(self) -> str:
        return "SECRET"


def endless() -> dict[str, Any]:
    """A dict that holds itself."""
    found: dict[str, Any] = {}
    found["me"] = found
    return found


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        *({"ratio": ratio} for ratio in (None, "1", -0.1, float("nan"), float("inf"), True)),
        *({"minimum": minimum} for minimum in (None, "1", -1, 0.5, True)),
    ],
)
def test_a_retry_budget_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """When it is made, not in the middle of the first call that fails."""
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be"):
        RetryBudget(**wrong)


# -- callers -------------------------------------------------------------------------------------


@pytest.mark.req("PEF:B-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant_id", None),
        ("tenant_id", ""),
        ("tenant_id", 5),
        ("tenant_id", "x" * 37),
        ("tenant_id", "a\x00b"),
        ("tenant_id", "\ud800"),
        ("tenant_id", ALL_TENANTS),
        ("campaign_id", ""),
        ("campaign_id", "x" * 37),
        ("campaign_id", 5),
        ("operation", None),
        ("operation", ""),
        ("operation", "x" * 121),
        ("operation", "a\udfffb"),
        ("payload", None),
        ("payload", [1]),
        ("payload", "text"),
        ("payload", {"a": Unserialisable()}),
        ("payload", {"a": [1, {"b": {Unserialisable()}}]}),
        ("payload", endless()),
        ("payload", {"a": float("nan")}),
        ("payload", {"a": [None, {"b": (1.0, float("-inf"))}]}),
        ("payload", {"a": "\ud800"}),
        ("payload", {1: "a", "1": "b"}),
        ("payload", {"a": [{"b": {date(2026, 1, 1): 1, "2026-01-01": 2}}]}),
        ("context", None),
        ("context", {"correlation_id": "c"}),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_taken(
    name: str, value: Any, clock: VirtualClock
) -> None:
    """With its name and without its content."""
    store = WatchedStore(clock)
    provider = Scripted(quota=QuotaPolicy(limit=5), store=store)
    given = {**asked(), name: value}
    with pytest.raises(ProviderBadRequestError, match=name) as refused:
        provider.execute(**given)
    assert (refused.value.never_sent, refused.value.details["path"]) == (True, name)
    assert "SECRET" not in str(refused.value)
    with pytest.raises(ProviderBadRequestError, match=name):
        clock.run(provider.aexecute(**given))
    assert (provider.calls, store.asked) == (0, [])


@pytest.mark.req("PEF:B-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("correlation_id", ""),
        ("correlation_id", "x" * 256),
        ("correlation_id", 5),
        ("correlation_id", "\ud800"),
        ("idempotency_key", ""),
        ("idempotency_key", "x" * 256),
        ("idempotency_key", "a\x00"),
        ("task_execution_id", "x" * 37),
        ("task_name", ""),
        ("deadline", math.nan),
        ("deadline", math.inf),
        ("deadline", "soon"),
        ("timeout_budget_seconds", math.inf),
        ("timeout_budget_seconds", -math.inf),
        ("timeout_budget_seconds", True),
        ("units", 0),
        ("units", -1),
        ("units", 1.0),
        ("units", True),
        ("attempt_offset", -1),
        ("attempt_offset", 1.5),
        ("attempt_offset", 2**31),
    ],
)
def test_a_wrong_context_is_refused(name: str, value: Any, clock: VirtualClock) -> None:
    """With the field."""
    provider = Scripted(quota=QuotaPolicy(limit=5), timeout_budget_seconds=None)
    with pytest.raises(ProviderBadRequestError, match=f"context.{name}"):
        call(provider, **{name: value})
    assert provider.calls == 0


def test_arguments_that_are_fine_pass(clock: VirtualClock) -> None:
    """At their limits, and in any script."""
    provider = Scripted(quota=QuotaPolicy(limit=5))
    assert call(
        provider,
        "é" * 36,
        campaign_id="c" * 36,
        operation="Ω" * 120,
        payload={"a": [1, 2.5, None, True, {"b": "ü"}]},
        correlation_id="x" * 255,
        idempotency_key="x" * 255,
        task_execution_id="x" * 36,
    ).success


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_budget_seconds", 0),
        ("timeout_budget_seconds", -1),
        ("timeout_budget_seconds", math.inf),
        ("timeout_budget_seconds", "60"),
        ("attempt_timeout_seconds", 0),
        ("default_cooldown_seconds", -1),
        ("max_cooldown_seconds", 0),
        ("max_lanes", 0),
        ("breaker_scope", "call"),
        ("quota_unit", "row"),
        ("retry_policy", {"max_attempts": 3}),
        ("circuit_breaker", True),
        ("circuit_breaker", 5),
        ("parent_breaker", False),
        ("quota", 1000),
        ("retry_budget", 0.2),
        ("decisions", {"rate_limit_refunds": True}),
        ("store", "work.db"),
        ("store", "mysql://host/db"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_provider_is_built(name: str, value: Any) -> None:
    """With its name."""
    with pytest.raises(ConfigurationError, match="store" if name == "store" else name):
        Scripted(**{"retry_policy": ONCE, "wall": lambda: 0.0, name: value})


def test_isolation_needs_an_end() -> None:
    """Otherwise a call that hangs would be waited for."""
    with pytest.raises(ConfigurationError, match="isolate"):
        Scripted(isolate=True, timeout_budget_seconds=None)


# -- providers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, [], "text", 5, ("a", 1), {"a"}, object()])
def test_what_is_no_dict_is_an_invalid_answer(value: Any, clock: VirtualClock) -> None:
    """It was paid for and says something about the provider; what came is not told."""
    provider = Scripted(value, {}, value, quota=QuotaPolicy(limit=5))
    for expected in (False, True, False):
        result = call(provider)
        assert result.success is expected
        if not expected:
            assert isinstance(result.error, ProviderResponseFormatError)
            assert type(value).__name__ in str(result.error)
    assert used(provider) == 3


class OwnInterrupt(BaseException):
    """One that nobody knows."""


INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit, OwnInterrupt]


@pytest.mark.req("PEF:E-15")
@pytest.mark.parametrize("kind", INTERRUPTS)
@pytest.mark.parametrize("store_kind", ["memory", "sqlite"])
def test_interrupts_pass_and_leave_nothing_taken(
    kind: type[BaseException], store_kind: str, clock: VirtualClock, tmp_path: Path
) -> None:
    """Through a closed circuit, and as the only probe of a half-open one."""
    with new_store(store_kind, clock, tmp_path) as store:
        breaker = CircuitBreaker(1, 5, probe_lease_seconds=10_000)
        provider = Scripted(
            kind(),
            retry_policy=ONCE,
            circuit_breaker=breaker,
            quota=QuotaPolicy(limit=5),
            store=store,
        )
        with pytest.raises(kind):
            call(provider)
        assert (used(provider), lane_state(provider).failures) == (0, 0)
        provider.steps.extend([DOWN, kind()])
        call(provider)
        clock.advance(5.0)
        with pytest.raises(kind):
            call(provider)
        assert (used(provider), is_whole(provider)) == (1, True)
        assert lane_state(provider).state is CircuitState.HALF_OPEN
        assert call(provider).success


@pytest.mark.req("PEF:E-15")
@pytest.mark.parametrize("unit", ["execution", "attempt"])
def test_an_interrupt_while_waiting_leaves_nothing_taken(unit: str, clock: VirtualClock) -> None:
    """But for the unit: it paid for an attempt that was sent, and stays spent."""

    class Interrupting(VirtualClock):
        """Somebody presses Ctrl-C in the first wait."""

        def signal(self, lock: threading.Lock) -> Any:
            raise KeyboardInterrupt

    interrupting = Interrupting()
    provider = Scripted(DOWN, clock=interrupting, quota=QuotaPolicy(limit=5), quota_unit=unit)
    with pytest.raises(KeyboardInterrupt):
        call(provider)
    assert used(provider) == 1
    assert is_whole(provider)


@pytest.mark.req("PEF:E-15")
@pytest.mark.parametrize("step", ["lane_state", "reserve", "compare_and_set"])
def test_an_interrupt_at_a_gate_leaves_nothing_taken(step: str, clock: VirtualClock) -> None:
    """Whichever of them it hits; the next call goes through."""
    store = WatchedStore(clock)
    provider = Scripted(
        DOWN,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5, probe_lease_seconds=10_000),
        quota=QuotaPolicy(limit=5),
        store=store,
    )
    call(provider)
    clock.advance(5.0)

    def interrupt(name: str) -> None:
        if name == step:
            store.before = lambda name: None
            raise KeyboardInterrupt

    store.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        call(provider)
    assert (used(provider), is_whole(provider), provider.calls) == (1, True, 1)
    assert call(provider).success
    assert used(provider) == 2


@pytest.mark.req("PEF:E-15", "PEF:C-11")
def test_an_interrupt_while_a_probe_reports_gives_its_place_back(clock: VirtualClock) -> None:
    """The call was made, so its unit is spent; but nobody waits for its place."""
    store = WatchedStore(clock)
    provider = Scripted(
        DOWN,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5, probe_lease_seconds=10_000),
        quota=QuotaPolicy(limit=5),
        store=store,
    )
    call(provider)
    clock.advance(5.0)

    def interrupt(name: str) -> None:
        if name == "compare_and_set" and provider.calls == 2:
            store.before = lambda name: None
            raise KeyboardInterrupt

    store.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        call(provider)
    assert (provider.calls, used(provider), is_whole(provider)) == (2, 2, True)
    assert call(provider).success


@pytest.mark.slow
def test_a_provider_may_fork(tmp_path: Path) -> None:
    """The child ends, the parent goes on; a child that calls for itself is counted too."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    children: list[int] = []

    def fork(_: object) -> dict[str, Any]:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(int(WAIT_TIMEOUT))
                code = 0 if call(provider, correlation_id="child").success else 2
                recorder_of(store).close(WAIT_TIMEOUT)
            finally:
                os._exit(code)
        children.append(child)
        return {"forked": True}

    provider = Scripted(fork, store=store, quota=QuotaPolicy(limit=5))
    try:
        assert call(provider, correlation_id="parent").data == {"forked": True}
        _, status = os.waitpid(children[0], 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert len(rows(provider, "parent")) == len(rows(provider, "child")) == 1
        assert used(provider) == 2
    finally:
        recorder_of(store).close()
        store.close()


# -- clocks --------------------------------------------------------------------------------------


class WallClock:
    """A clock on the wall that anybody may set."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.ahead = 1_800_000_000.0

    def __call__(self) -> float:
        return self._clock.now() + self.ahead


@pytest.fixture(params=["memory", "sqlite"])
def wall_and_store(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path
) -> Iterator[tuple[WallClock, ProviderStore]]:
    """A store that goes by a clock on the wall."""
    wall = WallClock(clock)
    if request.param == "memory":
        from ergon_framework.providers.stores.memory import MemoryProviderStore

        yield wall, MemoryProviderStore(clock=wall)
        return
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}", clock=wall)
    try:
        yield wall, store
    finally:
        recorder_of(store).close()
        store.close()


@pytest.mark.req("PEF:trap-clock-back")
@pytest.mark.parametrize("hours", [-1, 1])
def test_an_hour_more_or_less_leaves_no_circuit_open(
    hours: int, clock: VirtualClock, wall_and_store: tuple[WallClock, ProviderStore]
) -> None:
    """It ends within its cooldown, by whatever clock; and so does the lease of a probe."""
    wall, store = wall_and_store
    provider = Scripted(DOWN, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 10), store=store)
    call(provider)
    wall.ahead += hours * 3600
    if hours < 0:
        assert call(provider).reason_code == "circuit_open"
    clock.advance(11.0)
    assert call(provider).success
    assert lane_state(provider).state is CircuitState.CLOSED


@pytest.mark.req("PEF:trap-clock-back")
@pytest.mark.parametrize("hours", [-1, 1])
def test_an_hour_more_or_less_gives_no_quota_twice(
    hours: int, clock: VirtualClock, wall_and_store: tuple[WallClock, ProviderStore]
) -> None:
    """Back and forth again: never more than a window's budget per window that was new."""
    wall, store = wall_and_store
    provider = Scripted(quota=QuotaPolicy(limit=3, window_seconds=600), store=store)
    assert sum(call(provider).success for _ in range(5)) == 3
    wall.ahead += hours * 3600
    clock.advance(2.0)
    granted = sum(call(provider).success for _ in range(5))
    assert granted == (3 if hours > 0 else 0)
    wall.ahead -= hours * 3600
    clock.advance(2.0)
    assert sum(call(provider).success for _ in range(5)) == 0


def test_a_clock_that_jumps_within_a_call_does_no_harm(
    clock: VirtualClock, wall_and_store: tuple[WallClock, ProviderStore]
) -> None:
    """Waits and deadlines go by another clock than the one on the wall."""
    wall, store = wall_and_store

    def jump(_: object) -> Exception:
        wall.ahead -= 3600
        return DOWN

    provider = Scripted(jump, DOWN, store=store, quota=QuotaPolicy(limit=5))
    result = call(provider, correlation_id="c")
    assert (result.success, result.attempts, clock.now()) == (True, 3, 1.5)
    assert result.duration_ms == 1500.0
    assert sorted(row.attempt_number for row in rows(provider, "c")) == [1, 2, 3]


def test_state_that_nobody_shares_follows_no_clock_on_the_wall(clock: VirtualClock) -> None:
    """Without a store, setting it does nothing at all."""
    wall = WallClock(clock)
    provider = Scripted(DOWN, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 10), wall=wall)
    call(provider)
    wall.ahead -= 3600
    assert call(provider).retry_after_seconds == pytest.approx(10.0)
    wall.ahead += 7200
    clock.advance(9.0)
    assert call(provider).reason_code == "circuit_open"
    clock.advance(1.0)
    assert call(provider).success


# -- databases -----------------------------------------------------------------------------------


@pytest.mark.req("PEF:B-11", "PEF:trap-store-down")
def test_thirty_seconds_without_the_store(clock: VirtualClock) -> None:
    """Calls go on by what this process knows; what it learned is known to all afterwards."""
    store = WatchedStore(clock)
    provider = Scripted(store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(3, 60))
    assert call(provider).success
    store.is_away = True
    for _ in range(27):
        clock.advance(1.0)
        assert call(provider).success
    provider.steps.extend([DOWN] * 3)
    for _ in range(3):
        call(provider)
    assert call(provider).reason_code == "circuit_open"
    clock.advance(3.0)
    store.is_away = False
    assert call(provider).reason_code == "circuit_open"
    found = store.lane_state(LANE).breaker
    assert (found.state, found.failures) == (CircuitState.OPEN, 3)
    clock.advance(60.0)
    assert call(provider).success
    assert store.lane_state(LANE).breaker.state is CircuitState.CLOSED
    assert provider.flush()
    assert provider.runtime.recorder.stats().written_rows == 34


@pytest.mark.req("PEF:B-11")
def test_a_pause_that_was_asked_for_meanwhile_is_not_forgotten(clock: VirtualClock) -> None:
    """The provider's, not the store's."""
    from ergon_framework.providers.errors import ProviderRateLimitError

    store = WatchedStore(clock)
    provider = Scripted(
        ProviderRateLimitError("wait", retry_after_seconds=30.0), store=store, retry_policy=ONCE
    )
    store.is_away = True
    call(provider)
    store.is_away = False
    clock.advance(10.0)
    assert call(provider, timeout_budget_seconds=5.0).stop_reason == "cooldown"
    assert store.lane_state(LANE).cooldown_until == store.now() + 20.0
    other = Scripted(store=store)
    assert call(other, timeout_budget_seconds=5.0).stop_reason == "cooldown"


@pytest.mark.req("PEF:C-11", "PEF:B-11")
@pytest.mark.parametrize(
    "step", ["lane_state", "reserve", "refund", "compare_and_set", "extend_cooldown"]
)
def test_a_store_that_fails_at_any_step_raises_nothing(step: str, clock: VirtualClock) -> None:
    """Every call has a canonical end, and all is well again afterwards."""
    from ergon_framework.providers.errors import ProviderConnectionError, ProviderRateLimitError

    store = WatchedStore(clock)
    provider = Scripted(
        store=store,
        circuit_breaker=CircuitBreaker(2, 5, probe_lease_seconds=20),
        quota=QuotaPolicy(limit=1000),
        retry_policy=RetryPolicy(max_attempts=2, jitter_ratio=0),
    )
    call(provider)

    def fail(name: str) -> None:
        if name == step:
            raise StoreUnavailableError("away")

    store.before = fail
    for _ in range(5):
        provider.steps.extend([DOWN, ProviderRateLimitError("x"), {}, DOWN, DOWN, [1]])
        provider.steps.extend([ProviderConnectionError("x", never_sent=True)] * 2)
        for _ in range(6):
            clock.advance(3.0)
            result = call(provider)
            assert result.success or result.error is not None
    store.before = lambda name: None
    provider.steps.clear()
    clock.advance(30.0)
    assert call(provider).success
    found = store.lane_state(LaneKey(*LANE)).breaker
    assert (found.state, found.probes) == (CircuitState.CLOSED, ())


def test_a_context_may_be_used_for_many_calls(clock: VirtualClock) -> None:
    """It is read and never written."""
    context = ProviderExecutionContext(correlation_id="c")
    provider = Scripted(DOWN)
    for _ in range(3):
        provider.execute(**{**asked(), "context": context})
    assert context == ProviderExecutionContext(correlation_id="c")


@pytest.mark.parametrize("name", ["timeout_seconds", "budget_seconds"])
def test_another_word_for_the_timeout_budget_is_refused(name: str) -> None:
    """A bound that is accepted and ignored is worse than none; the error names the right word."""
    old: dict[str, Any] = {name: 5.0}
    for kind in (Scripted, ProviderExecutionContext, TaskOptions):
        with pytest.raises(ConfigurationError, match=f"there is no {name}") as refused:
            kind(**old)
        assert "timeout_budget_seconds for the whole call" in str(refused.value.remedy)
    with pytest.raises(ConfigurationError, match=name):
        replace(ProviderExecutionContext(), **old)
    assert name not in {*signature(ProviderExecutionContext).parameters}
    assert name not in {*signature(ProviderBase).parameters}
