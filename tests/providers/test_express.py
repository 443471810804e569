"""The short way and the machine give the same answers, rows and state."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.ports.providerstore import AttemptRow
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderAuthError,
    ProviderBadRequestError,
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
    "mute": lambda: Mute(),  # noqa: PLW0108 - it is defined below
    "stop": KeyboardInterrupt,
}


class Mute(Exception):
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Scripted(ProviderBase):
    """Does what it is told, attempt by attempt."""

    provider_name, capability = "scripted", "test"

    def __init__(self, clock: VirtualClock, steps: list[str], **options: Any) -> None:
        given: dict[str, Any] = {
            "retry_policy": RetryPolicy(jitter_ratio=0.0),
            "circuit_breaker": CircuitBreaker(failure_threshold=3, open_cooldown_seconds=5),
            "quota": QuotaPolicy(limit=4, window_seconds=100),
            "timeout_budget_seconds": 20.0,
            **options,
        }
        self.set_by = 0.0
        """Seconds by which somebody has set the clock of the machine."""
        super().__init__(clock=clock, wall=lambda: clock.now() + 1e9 + self.set_by, **given)
        self.clock = clock
        self.steps = iter(steps)
        self.seen: list[Any] = []
        """What each attempt was given."""

    def _execute_impl(
        self, *, context: ProviderExecutionContext, payload: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        self.seen.append((dict(payload), context))
        payload["page"] = "changed by the attempt"
        step = next(self.steps, "good")
        if step == "slow":
            self.clock.sleep(21.0)
        made = STEPS[step]
        if callable(made):
            raise made()
        return made  # type: ignore[no-any-return]


class AsyncScripted(Scripted):
    """The same in the other colour."""

    async def _execute_impl(self, **given: Any) -> dict[str, Any]:  # type: ignore[override]
        return super()._execute_impl(**given)


@dataclass(frozen=True)
class Asked:
    """One call: when it is made, after what step of the clock, and what its caller says of it."""

    pause: float = 0.0
    clock_step: float = 0.0
    bounds: dict[str, Any] = field(default_factory=dict)


def told(
    steps: list[str],
    calls: list[float] | list[Asked],
    *,
    takes_express: bool,
    is_async: bool = False,
    options: dict[str, Any] | None = None,
) -> list[Any]:
    """Everything that can be seen of a run, without the random ids."""
    seen: list[Any] = []
    made = [each if isinstance(each, Asked) else Asked(each) for each in calls]
    with VirtualClock() as clock:
        parts = {name: make() for name, make in (options or {}).items()}
        provider = (AsyncScripted if is_async else Scripted)(clock, steps, **parts)
        provider.runtime.has_fast_path &= takes_express
        for number, each in enumerate(made):
            clock.advance(each.pause)
            provider.set_by += each.clock_step
            context = ProviderExecutionContext(correlation_id=f"c{number}", **each.bounds)
            asked: dict[str, Any] = {
                "tenant_id": "t",
                "campaign_id": None,
                "operation": "fetch",
                "payload": {"page": number},
                "context": context,
            }
            try:
                if is_async:
                    seen.append(of(clock.run(provider.aexecute(**asked))))
                else:
                    seen.append(of(provider.execute(**asked)))
            except (KeyboardInterrupt, ProviderBadRequestError) as error:
                seen.append(repr(error))
            seen.append(clock.now())
            breaker = provider.circuit_breaker
            seen.append(breaker and (breaker.state, breaker.consecutive_failures))
        provider.flush()
        seen += provider.seen
        for number in range(len(made)):
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


def some_of(most: int, **choices: list[Any]) -> Any:
    """A few settings: with all of them, hardly a call would be one for the short way."""
    pairs = [(name, each) for name, several in choices.items() for each in several]
    return st.lists(st.sampled_from(pairs), max_size=most).map(dict)


OPTIONS = some_of(
    4,
    retry_policy=[lambda n=n: RetryPolicy(max_attempts=n, jitter_ratio=0.0) for n in (1, 5)],
    circuit_breaker=[
        lambda: False,
        lambda: CircuitBreaker(failure_threshold=1, open_cooldown_seconds=1),
    ],
    parent_breaker=[lambda: CircuitBreaker(failure_threshold=2, open_cooldown_seconds=5)],
    quota=[
        lambda: None,
        lambda: QuotaPolicy(limit=1, window_seconds=10),
        lambda: QuotaPolicy(limit=10, window_seconds=100, block=3),
        lambda: QuotaPolicy(limit=3, period="day", tz="America/Havana"),
    ],
    quota_unit=[lambda: "attempt", lambda: "execution"],
    breaker_scope=[lambda: "attempt", lambda: "execution"],
    timeout_budget_seconds=[lambda: None, lambda: 2.0],
    attempt_timeout_seconds=[lambda: 1.0, lambda: 30.0],
    max_cooldown_seconds=[lambda: 1.0, lambda: 10.0],
    default_cooldown_seconds=[lambda: 1.0],
    quota_fails_open=[lambda: True],
    durable=[lambda: True],
)
BOUNDS = some_of(
    2,
    units=[1, 2, 11],
    attempt_offset=[0, 1, 5],
    max_attempts=[1, 9],
    timeout_budget_seconds=[0.0, 1.0, 50.0],
    attempt_timeout_seconds=[0.5, 3.0],
    deadline=[0.0, 60.0],
    idempotency_key=["k"],
)
CALLS = st.lists(
    st.builds(
        Asked,
        # The short way is for calls that follow one another within a second.
        st.sampled_from([0.0, 0.0, 0.0, 0.5, 6.0, 45.0, 101.0]),
        st.sampled_from([0.0] * 8 + [-3600.0, -5.0, 7.0, 3600.0]),
        BOUNDS,
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.req("PROVIDERS:pipeline")
@settings(deadline=None, max_examples=60)
@given(steps=SCRIPTS, calls=CALLS, options=OPTIONS, is_async=st.booleans())
def test_both_ways_agree_whatever_is_set(
    steps: list[str], calls: list[Asked], options: dict[str, Any], is_async: bool
) -> None:
    """Whatever the provider was made with, whatever callers bound, and when a clock is set."""
    if is_async:  # a signal would end the event loop, and a sleep would block it
        steps = [step for step in steps if step not in ("stop", "slow")]
    ways = [
        told(steps, calls, takes_express=way, is_async=is_async, options=options)
        for way in (True, False)
    ]
    assert without_refusals(ways[0]) == without_refusals(ways[1])


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


class Request:
    """What a caller works on: it keeps the result, and the metadata leads back to it."""

    result: ProviderExecutionResult


def test_a_failed_call_is_collected_with_what_its_metadata_leads_to() -> None:
    """The collector looks through a call on the short way, too."""

    class Failing(ProviderBase):
        provider_name, capability = "failing", "test"

        def _execute_impl(self, **_given: Any) -> Any:
            raise ProviderAuthError("no")

    provider = Failing()

    def called() -> weakref.ref[Request]:
        request = Request()
        context = ProviderExecutionContext(metadata={"request": request})
        request.result = provider.execute(tenant_id="t", operation="o", payload={}, context=context)
        return weakref.ref(request)

    known = [called() for _ in range(10)]
    gc.collect()
    assert not any(each() for each in known)
