"""Calls that nobody waits for any more: what they did is paid for and on record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.ports.providerstore import LaneKey, QuotaGrant
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderTimeoutError,
)
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    ONCE,
    WAIT_TIMEOUT,
    AsyncScripted,
    Scripted,
    WatchedStore,
    acall,
    call,
    lane_state,
    rows,
    used,
)

DOWN = ProviderDependencyError("down", http_status=503)


class Held:
    """A step that says when it began, and ends when it is told."""

    def __init__(self, then: Any) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self._then = then

    def __call__(self, _: object) -> Any:
        self.began.set()
        assert self.may_end.wait(WAIT_TIMEOUT)
        return self._then


async def until(has_come: Callable[[], bool]) -> None:
    """Let the loop go round until another thread has come that far."""
    while not has_come():  # noqa: ASYNC110 - a thread of a pool cannot set an event of the loop
        await asyncio.sleep(0)


async def cancel(work: asyncio.Task[Any]) -> None:
    """Cancel it, which must end it."""
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.req("PEF:E-15", "PEF:trap-timeout-returns")
@pytest.mark.parametrize("isolates", [False, True])
@pytest.mark.parametrize(
    ("then", "spent", "outcome"),
    [
        ({"ok": True}, 1, "success"),
        (DOWN, 1, "failed"),
        (ProviderConnectionError("refused", never_sent=True), 0, "failed"),
        (SystemExit(3), 0, None),
    ],
    ids=["returns", "fails", "never-sent", "exits"],
)
def test_a_call_on_a_thread_is_settled_when_it_ends(
    then: Any, spent: int, outcome: str | None, isolates: bool
) -> None:
    """The cancellation returns at once; the unit and the row follow from what happened."""
    held = Held(then)
    provider = Scripted(held, quota=QuotaPolicy(limit=9, window_seconds=1e9), isolate=isolates)

    async def main() -> None:
        work = asyncio.create_task(acall(provider, correlation_id="left"))
        await until(held.began.is_set)
        await cancel(work)
        assert used(provider) == 1  # as long as nobody knows better
        held.may_end.set()

    asyncio.run(main())
    provider.runtime.calls.pool.shutdown()
    assert used(provider) == spent
    kept = [row.outcome for row in rows(provider, "left")]
    assert kept == ([] if outcome is None else [outcome])


@pytest.mark.req("PEF:E-15", "PEF:C-11")
def test_a_probe_on_a_thread_keeps_its_place_until_it_ends() -> None:
    """And then it votes as any other."""
    held = Held({"ok": True})
    provider = Scripted(
        DOWN, held, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 0, probe_lease_seconds=999)
    )
    call(provider)

    async def main() -> None:
        work = asyncio.create_task(acall(provider))
        await until(held.began.is_set)
        await cancel(work)
        assert len(lane_state(provider).probes) == 1
        held.may_end.set()

    asyncio.run(main())
    provider.runtime.calls.pool.shutdown()
    assert lane_state(provider).state is CircuitState.CLOSED


@pytest.mark.req("PEF:E-15")
def test_a_call_that_waits_for_a_thread_is_not_made() -> None:
    """Cancelled in the queue of the pool it costs nothing."""
    provider = Scripted(quota=QuotaPolicy(limit=9))
    is_busy, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        is_busy.set()
        may_go_on.wait(WAIT_TIMEOUT)

    provider.runtime.calls.pool = ThreadPoolExecutor(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        blocked = loop.run_in_executor(provider.runtime.calls.pool, block)
        await until(is_busy.is_set)
        work = asyncio.create_task(acall(provider))
        await until(lambda: used(provider) > 0)
        await cancel(work)
        may_go_on.set()
        await blocked

    asyncio.run(main())
    assert (provider.calls, used(provider)) == (0, 0)


@pytest.mark.req("PEF:E-15", "PEF:M-2")
def test_rows_that_wait_for_a_thread_are_written(tmp_path: Path) -> None:
    """A cancellation while the pool is busy loses nothing of a call that was made."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    provider = AsyncScripted(store=store, durable=True)
    is_busy, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        is_busy.set()
        may_go_on.wait(WAIT_TIMEOUT)

    provider.runtime.steps.pool = ThreadPoolExecutor(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await acall(provider)
        blocked = loop.run_in_executor(provider.runtime.steps.pool, block)
        await until(is_busy.is_set)
        work = asyncio.create_task(acall(provider, correlation_id="mine"))
        await until(lambda: provider.calls > 1)
        work.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        await blocked

    try:
        asyncio.run(main())
        assert len(rows(provider, "mine")) == 1
    finally:
        recorder_of(store).close()
        store.close()


class Remote:
    """A store that is not in this process, as far as the drivers know."""

    url = None

    def __init__(self, inner: MemoryProviderStore) -> None:
        self._inner = inner
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reserve(self, *args: Any) -> QuotaGrant:
        """Slowly."""
        self.asked.set()
        assert self.may_answer.wait(WAIT_TIMEOUT)
        return self._inner.reserve(*args)


@pytest.mark.req("PEF:E-15", "PEF:trap-refund-window")
def test_a_loop_that_ends_waits_for_a_step() -> None:
    """asyncio.run cancels every task at its end; a unit that is being taken is given back."""
    store = Remote(MemoryProviderStore())
    provider = AsyncScripted(store=store, quota=QuotaPolicy(limit=9))

    tasks: list[asyncio.Task[Any]] = []

    async def answer_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            store.may_answer.set()

    async def main() -> None:
        tasks.append(asyncio.create_task(acall(provider)))
        tasks.append(asyncio.create_task(answer_at_the_end()))
        await until(store.asked.is_set)

    asyncio.run(main())
    assert tasks[0].cancelled()
    assert used(provider) == 0


@pytest.mark.req("PEF:E-15", "PEF:M-2")
@pytest.mark.parametrize(
    ("unit", "first", "spent"),
    [
        ("execution", ProviderTimeoutError("served perhaps"), 1),
        ("execution", ProviderConnectionError("refused", never_sent=True), 0),
        ("attempt", ProviderTimeoutError("served perhaps"), 1),
        ("attempt", ProviderConnectionError("refused", never_sent=True), 0),
    ],
)
def test_cut_short_in_a_later_attempt(unit: str, first: Exception, spent: int) -> None:
    """What was sent before is spent; the attempt that was cut short counts as not made."""
    with VirtualClock() as clock:
        provider = AsyncScripted(first, quota=QuotaPolicy(limit=9), quota_unit=unit)

        async def inside() -> None:
            began = asyncio.Event()

            async def hang() -> None:
                began.set()
                await asyncio.Event().wait()

            provider.steps.append(lambda _: hang())
            work = asyncio.create_task(acall(provider, correlation_id="cut"))
            await began.wait()
            await cancel(work)

        clock.run(inside())
        assert used(provider) == spent
        kept = [(row.attempt_number, row.outcome) for row in rows(provider, "cut")]
        assert kept == [(1, "failed")]


@pytest.mark.req("PEF:trap-store-down")
def test_an_attempt_without_a_unit_gives_none_back() -> None:
    """With a quota that fails open, the unit of the attempt before stays spent."""

    class Away(WatchedStore):
        """Does not answer the second time."""

        def reserve(self, key: LaneKey, *args: Any) -> QuotaGrant:
            if self.asked.count("reserve") == 1:
                self.asked.append("reserve")
                raise StoreUnavailableError("away")
            return super().reserve(key, *args)

    with VirtualClock() as clock:
        provider = Scripted(
            ProviderTimeoutError("served perhaps"),
            ProviderConnectionError("refused", never_sent=True),
            store=Away(clock),
            quota=QuotaPolicy(limit=9),
            quota_unit="attempt",
            quota_fails_open=True,
            retry_policy=RetryPolicy(max_attempts=2),
        )
        assert call(provider).attempts == 2
        assert used(provider) == 1


@pytest.mark.req("PROVIDERS:badinput")
def test_isolation_is_for_threads() -> None:
    """An async provider that asks for it is told so when it is built."""
    with pytest.raises(ConfigurationError, match="async"):
        AsyncScripted(isolate=True)
