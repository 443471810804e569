"""Async calls whose threads are all taken by others: each ends in its time, and costs nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.tasks import TaskCall, TaskEnd, TaskGate, TaskOptions
from ergon_framework.providers.threads import BoundedThreads
from tests.providers.scripted import (
    ONCE,
    WAIT_TIMEOUT,
    AsyncScripted,
    Scripted,
    acall,
    call,
    lane_state,
    rows,
    used,
)

pytestmark = pytest.mark.req("PEF:R-5", "PEF:T-2")

BUDGET = 0.05
DAILY = QuotaPolicy(limit=9, window_seconds=1e9)


@contextmanager
def taken(threads: BoundedThreads) -> Iterator[None]:
    """All of them hang meanwhile."""
    threads.pool = ThreadPoolExecutor(1)
    is_busy, may_go_on = threading.Event(), threading.Event()

    def hang() -> None:
        is_busy.set()
        may_go_on.wait(WAIT_TIMEOUT)

    work = threads.do(hang)
    assert is_busy.wait(WAIT_TIMEOUT)
    try:
        yield
    finally:
        may_go_on.set()
        work.result()


def ended(provider: Scripted, **context: Any) -> Any:
    """One call on an event loop."""

    async def main() -> Any:
        async with asyncio.timeout(WAIT_TIMEOUT):
            return await acall(provider, **context)

    return asyncio.run(main())


@pytest.mark.parametrize("isolates", [False, True])
@pytest.mark.parametrize("unit", ["execution", "attempt"])
def test_an_attempt_that_gets_no_thread_in_its_time_is_not_made(unit: Any, isolates: bool) -> None:
    """The call ends when its budget does; it says nothing about the provider, and costs no unit."""
    provider = Scripted(
        quota=DAILY, quota_unit=unit, isolate=isolates, timeout_budget_seconds=BUDGET
    )
    with taken(provider.runtime.calls):
        result = ended(provider, correlation_id="mine")
    assert (result.reason_code, result.stop_reason, result.attempts) == (
        "timeout",
        "budget_spent",
        0,
    )
    assert result.error.never_sent
    provider.runtime.calls.pool.shutdown()
    assert (provider.calls, used(provider), lane_state(provider).failures) == (0, 0, 0)
    assert [row.attempt_number for row in rows(provider, "mine")] == [0]


def test_a_second_attempt_that_gets_no_thread_is_no_second_failure() -> None:
    """What the provider said is told; the circuit hears of it once."""
    provider = Scripted(quota=DAILY, quota_unit="attempt", timeout_budget_seconds=1.0)

    def fails(_: object) -> Exception:
        stack.enter_context(taken(provider.runtime.calls))
        return ProviderDependencyError("down", http_status=503)

    provider.steps.append(fails)
    with ExitStack() as stack:
        result = ended(provider)
    assert (result.reason_code, result.stop_reason) == ("dependency_unavailable", "budget_spent")
    assert (result.attempts, used(provider), lane_state(provider).failures) == (1, 1, 1)


def test_a_provider_that_hangs_takes_no_thread_from_another() -> None:
    """Each has its own."""
    slow, quick = Scripted(), Scripted()
    with taken(slow.runtime.calls):
        assert ended(quick).success


@pytest.mark.parametrize("fails_open", [False, True])
def test_a_store_that_takes_all_threads_is_a_store_that_does_not_answer(
    tmp_path: Path, fails_open: bool
) -> None:
    """A quota that cannot be asked for in time is not waited for any longer."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    provider = AsyncScripted(
        quota=DAILY, store=store, timeout_budget_seconds=30.0, quota_fails_open=fails_open
    )
    try:
        assert ended(provider).success
        with taken(provider.runtime.steps):
            result = ended(provider, timeout_budget_seconds=BUDGET)
        wanted = (
            ("timeout", "budget_spent")
            if fails_open
            else ("dependency_unavailable", "store_unavailable")
        )
        assert (result.reason_code, result.stop_reason, result.attempts) == (*wanted, 0)
        provider.runtime.steps.pool.shutdown()
        assert used(provider) == 1
    finally:
        provider.close()
        store.close()


def test_a_store_that_hangs_takes_no_thread_from_another(tmp_path: Path) -> None:
    """Providers share threads with those of their own store alone."""
    stores = [open_store(f"sqlite:///{tmp_path / name}.db") for name in ("one", "two")]
    one, beside, two = (AsyncScripted(quota=DAILY, store=stores[n]) for n in (0, 0, 1))
    try:
        assert one.runtime.steps is beside.runtime.steps
        with taken(one.runtime.steps):
            assert ended(two).success
    finally:
        for each in (one, beside, two):
            each.close()
        for store in stores:
            store.close()


def test_a_probe_that_could_not_ask_for_its_place_has_none(tmp_path: Path) -> None:
    """The circuit stays as it was: the next call may probe."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    down = ProviderDependencyError("down", http_status=503)
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=0)
    provider = AsyncScripted(down, retry_policy=ONCE, circuit_breaker=breaker, store=store)
    try:
        call(provider)
        with taken(provider.runtime.steps):
            result = ended(provider, timeout_budget_seconds=BUDGET)
        assert (result.reason_code, result.stop_reason) == ("timeout", "budget_spent")
        provider.runtime.steps.renew()
        assert (provider.calls, ended(provider).success) == (1, True)
        assert lane_state(provider).state is CircuitState.CLOSED
    finally:
        provider.close()
        store.close()


@pytest.mark.usefixtures("own_place")
def test_a_task_that_cannot_ask_for_its_key_is_put_off(tmp_path: Path) -> None:
    """As when the store does not answer: the queue sends it again."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    provider = AsyncScripted(store=store)
    runner = ProviderTaskRunner(
        provider, task_name="t", options=TaskOptions(timeout_budget_seconds=BUDGET)
    )
    try:
        with taken(provider.runtime.steps):
            ending = asyncio.run(runner.arun(TaskCall("t", None, "fetch", {}, call_id="m")))
        assert (ending.end, ending.gate, provider.calls) == (TaskEnd.DEFER, TaskGate.STORE, 0)
    finally:
        provider.close()
        store.close()
