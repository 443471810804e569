"""A process that forks: its child has locks, counts and units of its own."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.core.provider_call import RetryBudget
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.store_urls import open_store
from tests.providers.locks import holding, recorded_locks
from tests.providers.scripted import WAIT_TIMEOUT, Scripted, call, used

pytestmark = [
    pytest.mark.req("PEF:trap-prefork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
DOWN = ProviderDependencyError("down")


def in_child(work: Callable[[], bool]) -> None:
    """Run it in a forked child, which must come to an end and find it true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(WAIT_TIMEOUT))
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
        limiter = provider.runtime.lane("t").quota
        assert limiter is not None
        remaining = limiter.block_remaining
        assert remaining

        def use_up() -> bool:
            made = 0
            while call(provider).success:
                made += 1
            return made == 40 - 2 - remaining

        in_child(use_up)
        made = 0
        while call(provider).success:
            made += 1
        assert made == remaining
        assert used(provider) == 40
    finally:
        recorder_of(store).close()
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_locks_that_are_held_during_a_fork(isolate: bool) -> None:
    """Their holders are not in the child, which goes on all the same."""
    quota = QuotaPolicy(limit=1000, block=10)
    with recorded_locks("ergon_framework.providers") as locks:
        provider = Scripted(quota=quota, retry_budget=RetryBudget(), isolate=isolate)
        assert call(provider).success

    def goes_on() -> bool:
        provider.steps.append(DOWN)
        return call(provider).success and call(provider, "another").success

    # Quota, circuit, lanes, retry budget, breaker, isolated threads and store have one each.
    assert len(locks) >= 7
    with holding(locks):
        in_child(goes_on)


@pytest.mark.slow
def test_a_breaker_used_alone() -> None:
    """Its lock is renewed too."""
    with recorded_locks("ergon_framework.providers") as locks:
        breaker = CircuitBreaker(1)
        breaker.after_call(breaker.before_call())

    def opens() -> bool:
        breaker.after_call(breaker.before_call(), ValueError())
        return breaker.state == "open"

    with holding(locks):
        in_child(opens)


@pytest.mark.slow
def test_the_child_counts_only_its_own_calls() -> None:
    """Calls that hang, or retry, in the parent take no place in the child."""
    hanging = Scripted(isolate=True)
    hanging.runtime.isolation.left(32)
    retrying = Scripted(
        DOWN, retry_policy=RetryPolicy(base_delay_seconds=0), retry_budget=RetryBudget(0.0, 1)
    )
    retries, other = retrying.runtime.retries, object()
    retries.began()
    assert retries.may_begin(other)
    in_child(lambda: call(hanging).success)
    in_child(lambda: call(retrying).attempts == 2)
    assert call(hanging).reason_code == "dependency_unavailable"
    assert call(retrying).attempts == 1


def test_a_call_that_began_before_the_fork_may_end_after_it() -> None:
    """Nothing is counted below zero."""
    provider = Scripted(retry_budget=RetryBudget(), isolate=True)
    runtime = provider.runtime
    runtime.retries.began()
    runtime.isolation.left(1)
    runtime.renew()
    runtime.retries.ended(object())
    runtime.isolation.left(-1)
    assert (runtime.retries.under_way, runtime.isolation.abandoned) == (0, 0)


def test_a_provider_that_is_gone_is_not_kept() -> None:
    """Nobody holds on to it for the sake of a fork."""
    provider = Scripted()
    gone = weakref.ref(provider.runtime)
    del provider
    gc.collect()
    assert gone() is None
