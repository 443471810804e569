"""A process that forks: its child has locks, counts and units of its own."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.guard import RetryBudget
from ergon_framework.engine import atfork
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.stores import open_store
from tests.providers.scripted import PATIENCE, Scripted, call, used

pytestmark = [
    pytest.mark.req("PEF:trap-prefork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
DOWN = ProviderDependencyError("down")
LOCKS: dict[str, Callable[[Scripted], Any]] = {
    "quota": lambda provider: provider._runtime.lane("t").quota,
    "circuit": lambda provider: provider._runtime.lane("t").circuits[0],
    "lanes": lambda provider: provider._runtime.lanes,
    "retries": lambda provider: provider._runtime.retries,
    "breaker": lambda provider: provider.circuit_breaker,
    "isolation": lambda provider: provider._runtime.isolation,
}


def in_child(work: Callable[[], bool]) -> None:
    """Run it in a forked child, which must come to an end and find it true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(PATIENCE))
            code = 0 if work() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
def test_units_that_were_taken_ahead_stay_with_the_parent(tmp_path: Path) -> None:
    """Parent and child together get no more than the limit."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    policy = QuotaPolicy(limit=40, window_seconds=1e9, block=20)
    provider = Scripted(store=store, quota=policy)
    try:
        for _ in range(2):
            assert call(provider).success
        block = provider._runtime.lane("t").quota._block  # type: ignore[union-attr]
        assert block is not None
        assert block.remaining

        def use_up() -> bool:
            made = 0
            while call(provider).success:
                made += 1
            return made == 40 - 2 - block.remaining

        in_child(use_up)
        made = 0
        while call(provider).success:
            made += 1
        assert made == block.remaining
        assert used(provider) == 40
    finally:
        recorder_of(store).close()
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", LOCKS)
def test_a_lock_that_is_held_during_a_fork(part: str) -> None:
    """Its holder is not in the child, which goes on all the same."""
    options: dict[str, Any] = {"isolate": True} if part == "isolation" else {}
    quota = QuotaPolicy(limit=1000, block=10)
    provider = Scripted(quota=quota, retry_budget=RetryBudget(), **options)
    assert call(provider).success

    def goes_on() -> bool:
        provider.steps.append(DOWN)
        return call(provider).success and call(provider, "another").success

    with LOCKS[part](provider)._lock:
        in_child(goes_on)


@pytest.mark.slow
def test_a_breaker_used_alone() -> None:
    """Its lock is renewed too."""
    breaker = CircuitBreaker(1)
    breaker.after_call(breaker.before_call())

    def opens() -> bool:
        breaker.after_call(breaker.before_call(), ValueError())
        return breaker.state == "open"

    with breaker._circuits[next(iter(breaker._circuits))]._lock:
        in_child(opens)


@pytest.mark.slow
def test_the_child_counts_only_its_own_calls() -> None:
    """Calls that hang, or retry, in the parent take no place in the child."""
    hanging = Scripted(isolate=True)
    hanging._runtime.isolation.left(32)
    retrying = Scripted(
        DOWN, retry_policy=RetryPolicy(base_delay_seconds=0), retry_budget=RetryBudget(0.0, 1)
    )
    retries, other = retrying._runtime.retries, object()
    retries.began()
    assert retries.may_begin(other)
    in_child(lambda: call(hanging).success)
    in_child(lambda: call(retrying).attempts == 2)
    assert call(hanging).reason_code == "dependency_unavailable"
    assert call(retrying).attempts == 1


def test_a_call_that_began_before_the_fork_may_end_after_it() -> None:
    """Nothing is counted below zero."""
    provider = Scripted(retry_budget=RetryBudget(), isolate=True)
    fitted = provider._runtime
    fitted.retries.began()
    fitted.isolation.left(1)
    fitted.renew()
    fitted.retries.ended(object())
    fitted.isolation.left(-1)
    assert (fitted.retries._under_way, fitted.isolation.abandoned) == (0, 0)


def test_a_provider_that_is_gone_is_not_kept() -> None:
    """Nobody holds on to it for the sake of a fork."""
    provider = Scripted()
    fitted = provider._runtime
    assert fitted in atfork._alive
    count = len(atfork._alive)
    del provider, fitted
    gc.collect()
    assert len(atfork._alive) < count
