"""The same call on an event loop: cancelled anywhere, and never holding the loop up."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.errors import HookError
from ergon_framework.ports.providerstore import DeadLetter, ProviderStore
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderRateLimitError,
    ProviderTimeoutError,
)
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.store_urls import open_store
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    ONCE,
    WAIT_TIMEOUT,
    AsyncScripted,
    Scripted,
    acall,
    call,
    is_whole,
    lane_state,
    new_store,
    rows,
    used,
)

DOWN = ProviderDependencyError("down", http_status=503)
COLOURS = pytest.mark.parametrize("kind", [Scripted, AsyncScripted])


@COLOURS
@pytest.mark.req("PEF:A-30", "PEF:M-2")
def test_it_retries_and_writes_as_its_twin_does(
    kind: type[Scripted], clock: VirtualClock, store: ProviderStore
) -> None:
    """Whether the provider itself is async or not."""
    provider = kind(DOWN, DOWN, store=store, quota=QuotaPolicy(limit=9))
    result = clock.run(acall(provider, correlation_id="c"))
    assert (result.success, result.attempts, clock.now()) == (True, 3, 1.5)
    assert [row.outcome for row in rows(provider, "c")] == ["retry", "retry", "success"]
    assert used(provider) == 1


@COLOURS
@pytest.mark.req("PEF:A-30")
def test_refusals_come_back_as_results(
    kind: type[Scripted], clock: VirtualClock, store: ProviderStore
) -> None:
    """Of the circuit and of the quota."""
    provider = kind(
        DOWN,
        store=store,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5),
        quota=QuotaPolicy(limit=2),
    )
    found = [clock.run(acall(provider)).reason_code for _ in range(2)]
    clock.advance(5.0)
    found += [clock.run(acall(provider)).reason_code for _ in range(2)]
    assert found == ["dependency_unavailable", "circuit_open", None, "quota_exhausted"]


@pytest.mark.req("PEF:A-7")
def test_an_attempt_that_awaits_too_long_is_ended(clock: VirtualClock) -> None:
    """It is a timeout, and may be tried again while there is time."""
    provider = AsyncScripted(
        lambda _: asyncio.sleep(100), attempt_timeout_seconds=5, timeout_budget_seconds=60
    )
    result = clock.run(acall(provider))
    assert (result.success, result.attempts) == (True, 2)
    assert result.attempt_log[0].reason_code == "timeout"
    assert result.attempt_log[0].duration_ms == 5000.0


@pytest.mark.req("PEF:A-7")
def test_a_timeout_of_the_providers_own_is_told_as_it_is(clock: VirtualClock) -> None:
    """It did not come from our limit."""
    own = ProviderTimeoutError("mine", http_status=504)
    provider = AsyncScripted(own, retry_policy=ONCE)
    result = clock.run(acall(provider))
    assert result.error is own


@pytest.mark.req("PEF:A-30")
def test_an_async_provider_may_be_called_from_a_thread(clock: VirtualClock) -> None:
    """It gets an event loop of its own; inside one it must be awaited."""
    provider = AsyncScripted(DOWN, retry_policy=ONCE)
    assert call(provider).reason_code == "dependency_unavailable"
    assert call(provider).success

    async def inside() -> None:
        call(provider)

    with pytest.raises(HookError, match="event loop") as refused:
        clock.run(inside())
    assert "aexecute" in str(refused.value)


@pytest.mark.req("PEF:B-10")
@pytest.mark.timeout(30)
def test_a_thread_that_raises_stop_iteration_comes_back(clock: VirtualClock) -> None:
    """A future would not take it, and the call would never end."""
    provider = Scripted(StopIteration())
    assert clock.run(acall(provider)).reason_code == "internal_error"


def test_the_context_of_the_caller_is_seen_on_the_thread(clock: VirtualClock) -> None:
    """So that traces go on."""
    from contextvars import ContextVar

    here: ContextVar[str] = ContextVar("here", default="nowhere")

    async def inside() -> ProviderExecutionResult:
        here.set("caller")
        return await acall(Scripted(lambda _: {"where": here.get()}))

    assert clock.run(inside()).data == {"where": "caller"}


WAITS = {"lane_state", "compare_and_set", "extend_cooldown", "reserve", "refund", "record"}
"""Calls of a store that wait for its database."""


class Listening:
    """A store that notes which of its calls were made on the thread that made this object."""

    def __init__(self, store: ProviderStore) -> None:
        self.heard: set[tuple[str, bool]] = set()
        self._store = store
        self._main = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._store, name)
        if name not in WAITS:
            return target

        def told(*args: Any) -> Any:
            self.heard.add((name, threading.get_ident() == self._main))
            return target(*args)

        return told


def test_the_loop_is_not_held_up_by_the_store(tmp_path: Path) -> None:
    """Whatever waits for a database does so on another thread."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    listening = Listening(store)
    provider = AsyncScripted(
        store=listening,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(2, 0.001),
        quota=QuotaPolicy(limit=100),
        default_cooldown_seconds=0.0001,
        spill=tmp_path / "spill",
        durable=True,
    )

    async def inside() -> None:
        for error in (DOWN, ProviderRateLimitError("x"), DOWN):
            provider.steps.append(error)
            await acall(provider)
        provider.steps.append(ProviderConnectionError("x", never_sent=True))
        for _ in range(3):
            await acall(provider)

    try:
        asyncio.run(inside())
        provider.close()
        assert {name for name, _ in listening.heard} == WAITS
        on_main = {name for name, is_main in listening.heard if is_main}
        assert on_main <= {"record"}
    finally:
        recorder_of(provider.store).close()
        store.close()


# -- cancelled -----------------------------------------------------------------------------------


def probing(kind: type[Scripted], clock: VirtualClock, store: ProviderStore) -> Scripted:
    """A provider whose next call is the only probe of a half-open circuit."""
    provider = kind(
        DOWN,
        store=store,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5, probe_lease_seconds=10_000),
        quota=QuotaPolicy(limit=9),
    )
    call(provider)
    clock.advance(5.0)
    return provider


@pytest.mark.req("PEF:E-2", "PEF:R-4")
def test_an_attempt_that_breaks_while_it_is_cut_short_is_out_of_time(clock: VirtualClock) -> None:
    """What its cleanup raises is the cause, and no reason of its own; it is tried again."""

    async def break_down() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ValueError("closing the connection failed") from None

    provider = AsyncScripted(lambda _: break_down(), attempt_timeout_seconds=5)
    result = clock.run(acall(provider))
    assert (result.success, result.attempts, clock.now()) == (True, 2, 5.5)
    assert result.attempt_log[0].reason_code == "timeout"


@pytest.mark.req("PEF:E-13")
def test_an_attempt_that_breaks_in_time_is_not_out_of_time(clock: VirtualClock) -> None:
    """It is told as what it is."""
    provider = AsyncScripted(ValueError("no"), attempt_timeout_seconds=5)
    assert clock.run(acall(provider)).reason_code == "internal_error"


async def cancelled(work: asyncio.Task[Any]) -> bool:
    """Cancel it; whether it ended so."""
    work.cancel()
    try:
        await work
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.req("PEF:E-15", "PEF:C-11")
def test_cancelled_in_its_attempt(clock: VirtualClock, store: ProviderStore) -> None:
    """The place in the circuit and the unit come back."""
    provider = probing(AsyncScripted, clock, store)

    async def inside() -> None:
        began = asyncio.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        provider.steps.append(lambda _: hang())
        work = asyncio.create_task(acall(provider))
        await began.wait()
        assert await cancelled(work)

    clock.run(inside())
    assert (used(provider), is_whole(provider)) == (1, True)
    assert lane_state(provider).state is CircuitState.HALF_OPEN
    assert clock.run(acall(provider)).success


@COLOURS
@pytest.mark.req("PEF:E-15")
def test_cancelled_in_its_wait(
    kind: type[Scripted], clock: VirtualClock, store: ProviderStore
) -> None:
    """Between two attempts: the one that was made is on record, and its unit is spent."""
    provider = kind(DOWN, store=store, quota=QuotaPolicy(limit=9))

    async def inside() -> None:
        work = asyncio.create_task(acall(provider, correlation_id="given-up"))
        asyncio.get_running_loop().call_later(0.25, work.cancel)
        with pytest.raises(asyncio.CancelledError):
            await work

    clock.run(inside())
    assert clock.now() == 0.25
    assert (provider.calls, used(provider), is_whole(provider)) == (1, 1, True)
    kept = [(row.attempt_number, row.outcome) for row in rows(provider, "given-up")]
    assert kept == [(1, "failed")]


@pytest.mark.req("PEF:E-15", "PEF:trap-refund-window")
@pytest.mark.parametrize("step", ["lane_state", "reserve", "compare_and_set"])
@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_at_a_gate(
    step: str, times: int, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store does what it was asked for: that is heard out, and given back."""
    with new_store("sqlite", clock, tmp_path) as store:
        provider = probing(AsyncScripted, clock, store)
        asked_for, may_go_on = threading.Event(), threading.Event()
        plain = getattr(store, step)

        def slowly(*args: Any) -> Any:
            found = plain(*args)
            monkeypatch.setattr(store, step, plain)
            asked_for.set()
            assert may_go_on.wait(WAIT_TIMEOUT)
            return found

        monkeypatch.setattr(store, step, slowly)

        async def inside() -> None:
            loop = asyncio.get_running_loop()
            work = asyncio.create_task(acall(provider))
            await loop.run_in_executor(None, asked_for.wait, WAIT_TIMEOUT)
            for _ in range(times):  # somebody impatient
                work.cancel()
                await asyncio.sleep(0)
            assert not work.done()
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await work

        clock.run(inside())
        assert (provider.calls, used(provider), is_whole(provider)) == (1, 1, True)
        clock.advance(10.0)
        assert clock.run(acall(provider)).success


@pytest.mark.req("PEF:E-15")
def test_cancelled_while_it_gives_back(
    clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second cancellation does not keep the first from tidying up."""
    with new_store("sqlite", clock, tmp_path) as store:
        provider = probing(AsyncScripted, clock, store)
        asked_for, may_go_on = threading.Event(), threading.Event()
        plain = store.refund

        def slowly(*args: Any) -> Any:
            asked_for.set()
            assert may_go_on.wait(WAIT_TIMEOUT)
            return plain(*args)

        monkeypatch.setattr(store, "refund", slowly)

        async def inside() -> None:
            loop = asyncio.get_running_loop()
            began = asyncio.Event()

            async def hang() -> None:
                began.set()
                await asyncio.Event().wait()

            provider.steps.append(lambda _: hang())
            work = asyncio.create_task(acall(provider))
            await began.wait()
            work.cancel()
            await loop.run_in_executor(None, asked_for.wait, WAIT_TIMEOUT)
            work.cancel()
            await asyncio.sleep(0)
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await work

        clock.run(inside())
        assert (used(provider), is_whole(provider)) == (1, True)


@pytest.mark.req("PEF:E-15")
def test_thrown_away_in_its_attempt(clock: VirtualClock, store: ProviderStore) -> None:
    """A coroutine that nobody awaits any more cannot wait for a thread, and gives back itself."""
    provider = probing(AsyncScripted, clock, store)

    async def inside() -> None:
        began = asyncio.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        provider.steps.append(lambda _: hang())
        coroutine = acall(provider)

        while not began.is_set():
            pending = coroutine.send(None)
            if not began.is_set():
                await asyncio.wait({pending})
        coroutine.close()

    clock.run(inside())
    assert (used(provider), is_whole(provider)) == (1, True)


@pytest.mark.req("PEF:E-15")
@COLOURS
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_passes(
    kind: type[Scripted], error: BaseException, clock: VirtualClock, store: ProviderStore
) -> None:
    """Also from another thread; nothing stays taken."""
    provider = probing(kind, clock, store)
    provider.steps.append(error)
    with pytest.raises(type(error)):
        clock.run(acall(provider))
    assert (used(provider), is_whole(provider)) == (1, True)


# -- beside --------------------------------------------------------------------------------------


@pytest.mark.req("PEF:C-9", "PEF:A-30")
@COLOURS
def test_calls_run_at_once(kind: type[Scripted], clock: VirtualClock) -> None:
    """Four of them meet in the middle of their attempts."""
    met = threading.Barrier(4) if kind is Scripted else None
    provider = kind()

    async def inside() -> list[ProviderExecutionResult]:
        inner = asyncio.Barrier(4)

        async def meet() -> dict[str, Any]:
            await inner.wait()
            return {}

        def step(_: object) -> Any:
            if met is None:
                return meet()
            met.wait(WAIT_TIMEOUT)
            return {}

        provider.steps.extend([step] * 4)
        return await asyncio.gather(*(acall(provider) for _ in range(4)))

    assert all(result.success for result in clock.run(inside()))


@pytest.mark.req("PEF:A-18")
def test_a_dead_letter_is_written_on_a_thread(clock: VirtualClock) -> None:
    """The event loop goes on meanwhile."""
    main = threading.get_ident()
    seen: list[bool] = []

    def bury(_: ProviderExecutionResult) -> DeadLetter | None:
        seen.append(threading.get_ident() == main)
        return None

    provider = AsyncScripted(DOWN, DOWN, DOWN)
    context = ProviderExecutionContext()
    result = clock.run(provider.aexecute_delivery(bury, "t", None, "fetch", {}, context))
    assert (result.success, seen) == (False, [False])


def test_durable_rows_are_there_before_the_call_returns(
    clock: VirtualClock, store: ProviderStore
) -> None:
    """Nobody needs to flush."""
    provider = AsyncScripted(store=store, durable=True)
    for number in range(2):
        clock.run(acall(provider, correlation_id=f"c{number}"))
        assert len(store.attempts_of(f"c{number}")) == 1
