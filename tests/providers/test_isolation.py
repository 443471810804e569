"""Calls that never return: left behind in time, counted, and no more begun than can hang."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError, ProviderTimeoutError
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    ONCE,
    WAIT_TIMEOUT,
    Scripted,
    acall,
    after,
    call,
    is_whole,
    lane_state,
    used,
)

pytestmark = pytest.mark.req("PROVIDERS:badinput")


def run(provider: Scripted, clock: VirtualClock, colour: str) -> Any:
    """One call, in either colour."""
    return call(provider) if colour == "sync" else clock.run(acall(provider))


COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@COLOURS
def test_a_call_in_time_is_a_call(colour: str, clock: VirtualClock) -> None:
    """With its data, its errors and its interrupts, on another thread."""
    here = threading.get_ident()
    provider = Scripted(
        lambda _: {"elsewhere": threading.get_ident() != here},
        ProviderDependencyError("down"),
        after(clock, 5.0, {"slow": True}),
        SystemExit(3),
        isolate=True,
    )
    assert run(provider, clock, colour).data == {"elsewhere": True}
    result = run(provider, clock, colour)
    assert (result.data, result.attempts) == ({"slow": True}, 2)
    with pytest.raises(SystemExit):
        run(provider, clock, colour)
    assert provider.runtime.isolation.abandoned == 0


@COLOURS
@pytest.mark.req("PEF:A-7", "PEF:trap-timeout-returns")
def test_a_call_that_hangs_is_left_behind(colour: str, clock: VirtualClock) -> None:
    """When its time is up, not when the thread ends; and the next attempt may succeed."""
    provider = Scripted(
        lambda _: clock.hang(),
        isolate=True,
        attempt_timeout_seconds=5,
        timeout_budget_seconds=60,
        quota=QuotaPolicy(limit=9),
    )
    result = run(provider, clock, colour)
    assert (result.success, result.attempts) == (True, 2)
    assert (result.attempt_log[0].reason_code, result.attempt_log[0].duration_ms) == (
        "timeout",
        5000.0,
    )
    assert (provider.runtime.isolation.abandoned, used(provider)) == (1, 1)


@COLOURS
@pytest.mark.req("PEF:A-7", "PEF:C-11")
def test_a_probe_that_hangs_reports_a_timeout(colour: str, clock: VirtualClock) -> None:
    """Its place is free, and the circuit open again."""
    provider = Scripted(
        ProviderDependencyError("down"),
        retry_policy=ONCE,
        isolate=True,
        timeout_budget_seconds=5,
        circuit_breaker=CircuitBreaker(1, 5, probe_lease_seconds=10_000),
    )
    run(provider, clock, colour)
    clock.advance(5.0)
    provider.steps.append(lambda _: clock.hang())
    result = run(provider, clock, colour)
    assert isinstance(result.error, ProviderTimeoutError)
    assert (lane_state(provider).state, is_whole(provider)) == (CircuitState.OPEN, True)


@COLOURS
def test_not_more_are_begun_than_may_hang(colour: str, clock: VirtualClock) -> None:
    """Then calls fail at once, until one of them comes back."""
    release = threading.Event()
    hanging: list[threading.Thread] = []

    def hang(_: object) -> dict[str, Any]:
        hanging.append(threading.current_thread())
        clock.leave_time()  # it takes no part in time: it hangs in something else
        try:
            assert release.wait(WAIT_TIMEOUT)
        finally:
            clock.join_time()
        return {}

    provider = Scripted(
        *[hang] * 32,
        isolate=True,
        retry_policy=ONCE,
        timeout_budget_seconds=1,
        circuit_breaker=False,
    )
    for _ in range(32):
        assert run(provider, clock, colour).reason_code == "timeout"
    isolation = provider.runtime.isolation
    assert isolation.abandoned == 32
    result = run(provider, clock, colour)
    assert (result.reason_code, provider.calls) == ("dependency_unavailable", 32)
    assert "never returned" in str(result.error)
    release.set()
    for thread in hanging:
        thread.join(WAIT_TIMEOUT)
    assert isolation.abandoned == 0
    assert run(provider, clock, colour).success


def test_an_interrupt_of_the_caller_leaves_the_call_behind(clock: VirtualClock) -> None:
    """Ctrl-C does not wait for a call that hangs."""

    class Interrupting(VirtualClock):
        """The wait for the end of the call is interrupted."""

        def leave_time(self) -> None:
            super().leave_time()
            if threading.current_thread() is threading.main_thread() and self.is_armed:
                self.is_armed = False
                raise KeyboardInterrupt

        is_armed = True

    interrupting = Interrupting()
    provider = Scripted(
        lambda _: interrupting.hang(),
        isolate=True,
        timeout_budget_seconds=5,
        clock=interrupting,
        quota=QuotaPolicy(limit=9),
    )
    with pytest.raises(KeyboardInterrupt):
        call(provider)
    assert (provider.runtime.isolation.abandoned, used(provider)) == (1, 0)


SCRIPT = """
import asyncio, sys, threading
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.retry import RetryPolicy

class Hanging(ProviderBase):
    provider_name, capability = "hanging", "test"
    def _execute_impl(self, **_):
        threading.Event().wait()

once = RetryPolicy(max_attempts=1)
provider = Hanging(isolate=True, timeout_budget_seconds=0.05, retry_policy=once)
given = dict(tenant_id="t", campaign_id=None, operation="x", payload={},
             context=ProviderExecutionContext())
if sys.argv[1] == "async":
    result = asyncio.run(provider.aexecute(**given))
else:
    result = provider.execute(**given)
print(result.reason_code)
"""


@pytest.mark.slow
@COLOURS
@pytest.mark.req("PEF:trap-timeout-returns")
def test_a_call_that_hangs_keeps_no_process_from_ending(colour: str) -> None:
    """Neither the end of the event loop nor that of the interpreter waits for it."""
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", SCRIPT, colour],
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT,
        check=True,
    )
    assert done.stdout.strip() == "timeout"


@pytest.mark.req("PEF:A-7")
def test_without_isolation_the_deadline_is_the_providers_to_keep(clock: VirtualClock) -> None:
    """It is told how long it may take, and what it returns late still counts."""
    provider = Scripted(lambda context: {"may": context.attempt_timeout_seconds})
    assert asyncio.run(acall(provider)).data == {"may": 60.0}
    assert call(provider).success
