"""The two colours of one call: the same results, rows and waits, whatever happens."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.provider_call import RetryBudget
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import AsyncScripted, Scripted, acall, call, new_store


class Settings(NamedTuple):
    """How the providers of one example are built."""

    threshold: int
    scope: str
    unit: str
    limit: int | None
    block: int
    timeout: float | None
    has_parent: bool
    has_retry_budget: bool
    isolates: bool


SETTINGS = st.builds(
    Settings,
    threshold=st.integers(1, 4),
    scope=st.sampled_from(["attempt", "execution"]),
    unit=st.sampled_from(["attempt", "execution"]),
    limit=st.one_of(st.none(), st.integers(1, 6)),
    block=st.sampled_from([1, 4]),
    timeout=st.sampled_from([None, 1.2, 20.0]),
    has_parent=st.booleans(),
    has_retry_budget=st.booleans(),
    isolates=st.booleans(),
)
STEP = st.one_of(
    st.just("good"),
    st.just("garbage"),
    st.just("bug"),
    st.tuples(st.sampled_from(sorted(ERROR_OF)), st.sampled_from([None, 0.3, 4.0]), st.booleans()),
)
STEPS = st.lists(STEP, max_size=15)


class Asked(NamedTuple):
    """One call of an example."""

    pause: float
    tenant: str
    offset: int
    seconds: float | None
    units: int


CALLS = st.lists(
    st.builds(
        Asked,
        pause=st.sampled_from([0.0, 0.4, 1.0, 6.0, 101.0]),
        tenant=st.sampled_from(["a", "b"]),
        offset=st.sampled_from([0, 0, 0, 1, 3]),
        seconds=st.sampled_from([None, None, 0.0, 0.7]),
        units=st.sampled_from([1, 1, 2]),
    ),
    min_size=1,
    max_size=6,
)


def made(step: Any) -> Any:
    """What the provider does in an attempt: nothing that a test could share by mistake."""
    if step == "good":
        return {"a": 1}
    if step == "garbage":
        return [1]
    if step == "bug":
        return KeyError("x")
    reason, wait, never_sent = step
    return ERROR_OF[reason]("x", retry_after_seconds=wait, never_sent=never_sent)


def options_of(chosen: Settings) -> dict[str, Any]:
    """As a provider takes them."""
    quota = None
    if chosen.limit is not None:
        quota = QuotaPolicy(max(2, chosen.limit), window_seconds=100, block=chosen.block)
    return {
        "retry_policy": RetryPolicy(jitter_ratio=0.0),
        "circuit_breaker": CircuitBreaker(chosen.threshold, 5),
        "parent_breaker": CircuitBreaker(chosen.threshold + 1, 5) if chosen.has_parent else None,
        "quota": quota,
        "quota_unit": chosen.unit,
        "breaker_scope": chosen.scope,
        "timeout_budget_seconds": chosen.timeout,
        "attempt_timeout_seconds": 50.0,
        "retry_budget": RetryBudget(0.0, 1) if chosen.has_retry_budget else None,
    }


def told(
    kind: type[Scripted],
    chosen: Settings,
    steps: list[Any],
    calls: list[Asked],
    *,
    store_kind: str,
    is_async: bool,
    isolates: bool = False,
) -> list[Any]:
    """Everything that can be seen of a run, without what is random."""
    seen: list[Any] = []
    with (
        TemporaryDirectory() as folder,
        VirtualClock() as clock,
        new_store(store_kind, clock, Path(folder)) as store,
    ):
        provider = kind(*map(made, steps), store=store, isolate=isolates, **options_of(chosen))
        for number, each in enumerate(calls):
            clock.advance(each.pause)
            context: dict[str, Any] = {
                "correlation_id": f"c{number}",
                "attempt_offset": each.offset,
                "timeout_budget_seconds": each.seconds,
                "units": each.units,
            }
            if is_async:
                result = clock.run(acall(provider, each.tenant, **context))
            else:
                result = call(provider, each.tenant, **context)
            error = result.error
            seen.append((type(error), str(error), result.data, result.reason_code))
            seen.append((result.attempts, result.duration_ms, result.retry_after_seconds))
            seen.append((result.stop_reason, result.is_late, result.breaker_state, result.quota))
            seen.append((result.attempt_log, clock.now(), provider.calls))
        provider.close()
        for number in range(len(calls)):
            seen += [row._replace(id="") for row in store.attempts_of(f"c{number}")]
        for tenant in ("a", "b", "*"):
            for health in store.health(tenant):
                seen.append((health.key, health.breaker_state, health.consecutive_failures))
                seen.append((health.account, health.cooldown_until, health.success_rate_1h))
    return seen


@pytest.mark.slow
@pytest.mark.req("PEF:A-30")
@settings(deadline=None)
@given(chosen=SETTINGS, steps=STEPS, calls=CALLS)
def test_every_way_of_calling_agrees(
    chosen: Settings, steps: list[Any], calls: list[Asked]
) -> None:
    """A thread, an event loop, a provider of either colour, isolated or not."""
    wanted = told(Scripted, chosen, steps, calls, store_kind="memory", is_async=False)
    ways: list[tuple[type[Scripted], bool, bool]] = [
        (AsyncScripted, True, False),
        (Scripted, True, False),
        (Scripted, False, True),
        (Scripted, True, True),
    ]
    for kind, is_async, isolates in ways if chosen.isolates else ways[:2]:
        found = told(
            kind,
            chosen,
            steps,
            calls,
            store_kind="memory",
            is_async=is_async,
            isolates=isolates,
        )
        assert found == wanted


@pytest.mark.slow
@pytest.mark.req("PEF:A-30")
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(chosen=SETTINGS, steps=STEPS, calls=CALLS)
def test_every_store_agrees(chosen: Settings, steps: list[Any], calls: list[Asked]) -> None:
    """In memory and in a file, in both colours."""
    wanted = told(Scripted, chosen, steps, calls, store_kind="memory", is_async=False)
    for kind, is_async in ((Scripted, False), (AsyncScripted, True)):
        found = told(kind, chosen, steps, calls, store_kind="sqlite", is_async=is_async)
        assert found == wanted
