"""The short way and the machine give the same answers, rows and state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.ports.providerstore import AttemptRow
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderAuthError,
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderRateLimitError,
    ProviderTimeoutError,
)
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.testing import VirtualClock

STEPS: dict[str, Any] = {
    "good": {"a": 1},
    "slow": {"b": 2},
    "list": [1],
    "auth": lambda: ProviderAuthError("no"),
    "down": lambda: ProviderDependencyError("down", http_status=503),
    "unsent": lambda: ProviderConnectionError("refused", never_sent=True),
    "rate": lambda: ProviderRateLimitError("wait", retry_after_seconds=2.0),
    "pause": lambda: ProviderRateLimitError("wait longer", retry_after_seconds=60.0),
    "timeout": lambda: ProviderTimeoutError("late"),
    "bug": lambda: KeyError("x"),
    "stop": KeyboardInterrupt,
}


class Scripted(ProviderBase):
    """Does what it is told, attempt by attempt."""

    provider_name, capability = "scripted", "test"

    def __init__(self, clock: VirtualClock, steps: list[str], **options: Any) -> None:
        super().__init__(
            retry_policy=RetryPolicy(jitter_ratio=0.0),
            circuit_breaker=CircuitBreaker(failure_threshold=3, open_cooldown_seconds=5),
            quota=QuotaPolicy(limit=4, window_seconds=100),
            timeout_budget_seconds=20.0,
            clock=clock,
            wall=lambda: clock.now() + 1e9,
            **options,
        )
        self.clock = clock
        self.steps = iter(steps)

    def _execute_impl(self, *, context: ProviderExecutionContext, **_: Any) -> dict[str, Any]:
        step = next(self.steps, "good")
        if step == "slow":
            self.clock.sleep(21.0)
        made = STEPS[step]
        if callable(made):
            raise made()
        return made  # type: ignore[no-any-return]


class AsyncScripted(Scripted):
    """The same in the other colour."""

    async def _execute_impl(  # type: ignore[override]
        self, *, context: ProviderExecutionContext, **_: Any
    ) -> dict[str, Any]:
        return super()._execute_impl(context=context)


def told(
    steps: list[str], pauses: list[float], *, takes_express: bool, is_async: bool = False
) -> list[Any]:
    """Everything that can be seen of a run, without the random ids."""
    seen: list[Any] = []
    with VirtualClock() as clock:
        provider = (AsyncScripted if is_async else Scripted)(clock, steps)
        provider.runtime.has_fast_path = takes_express
        for number, pause in enumerate(pauses):
            clock.advance(pause)
            context = ProviderExecutionContext(correlation_id=f"c{number}")
            asked: dict[str, Any] = {
                "tenant_id": "t",
                "campaign_id": None,
                "operation": "fetch",
                "payload": {},
                "context": context,
            }
            try:
                if is_async:
                    seen.append(of(clock.run(provider.aexecute(**asked))))
                else:
                    seen.append(of(provider.execute(**asked)))
            except KeyboardInterrupt:
                seen.append("interrupted")
            seen.append(clock.now())
            breaker = provider.circuit_breaker
            seen.append(breaker and (breaker.state, breaker.consecutive_failures))
        provider.flush()
        for number in range(len(pauses)):
            rows: list[AttemptRow] = provider.store.attempts_of(f"c{number}")
            seen += [row._replace(id="") for row in rows]
        health = provider.health("t")
        seen.append([(each.account, each.success_rate_1h, each.last_error_code) for each in health])
    return seen


def of(result: ProviderExecutionResult) -> Any:
    """What a caller sees."""
    error = result.error
    return (
        result.success,
        result.data,
        type(error),
        str(error),
        result.reason_code,
        result.attempts,
        result.duration_ms,
        result.correlation_id,
        result.retry_after_seconds,
        result.stop_reason,
        result.is_late,
        result.breaker_state,
        result.quota,
        result.attempt_log,
    )


SCRIPTS = st.lists(st.sampled_from(sorted(STEPS)), max_size=12)
PAUSES = st.lists(st.sampled_from([0.0, 0.5, 6.0, 45.0, 101.0]), min_size=1, max_size=6)


@pytest.mark.req("PROVIDERS:pipeline")
@settings(deadline=None)
@given(steps=SCRIPTS, pauses=PAUSES)
def test_both_ways_agree(steps: list[str], pauses: list[float]) -> None:
    """Whatever a provider does, call after call."""
    assert told(steps, pauses, takes_express=True) == told(steps, pauses, takes_express=False)


@pytest.mark.req("PROVIDERS:pipeline")
@settings(deadline=None)
@given(steps=SCRIPTS.filter(lambda steps: "slow" not in steps), pauses=PAUSES)
def test_both_colours_agree(steps: list[str], pauses: list[float]) -> None:
    """Sync and async, short way and machine."""
    steps = [step for step in steps if step != "stop"]  # it would end the event loop
    wanted = told(steps, pauses, takes_express=False)
    assert told(steps, pauses, takes_express=True, is_async=True) == wanted
    assert told(steps, pauses, takes_express=False, is_async=True) == wanted


@pytest.mark.req("PEF:A-5", "PEF:A-29")
@pytest.mark.parametrize("steps", [["down"] * 3, ["good"] * 5, ["pause"]])
@pytest.mark.parametrize("is_async", [False, True])
def test_both_ways_agree_on_a_flood_of_refusals(steps: list[str], is_async: bool) -> None:
    """An open circuit, a used-up window, a pause that outlasts a call: most calls leave no row."""
    pauses = [0.0] * 40
    wanted = told(steps, pauses, takes_express=False, is_async=is_async)
    found = told(steps, pauses, takes_express=True, is_async=is_async)
    assert without_refusals(found) == without_refusals(wanted)
    assert len(found) < len(without_refusals(found)) + 30


def without_refusals(seen: list[Any]) -> list[Any]:
    """How many refused calls get a row depends on where a second begins, which is real time."""
    return [each for each in seen if not isinstance(each, AttemptRow) or each.attempt_number]
