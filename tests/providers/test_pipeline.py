"""One guarded call: its order, its ends, its deadline, and what is written about it."""

from __future__ import annotations

import inspect
import logging
import pickle
from typing import Any

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.core.provider_call import RetryBudget
from ergon_framework.errors import WiringError
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderAuthError,
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderError,
    ProviderInternalError,
    ProviderRateLimitError,
    ProviderResponseFormatError,
    ProviderTimeoutError,
)
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.mapping import Rule
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    ONCE,
    Scripted,
    WatchedStore,
    after,
    call,
    is_whole,
    lane_state,
    rows,
    used,
)

DOWN = ProviderDependencyError("down", http_status=503)


# -- the contract --------------------------------------------------------------------------------


@pytest.mark.req("PEF:B-1", "PEF:B-4")
def test_a_provider_is_a_subclass_with_one_method() -> None:
    """Without it there is none."""
    assert inspect.isabstract(ProviderBase)
    assert ProviderBase.__abstractmethods__ == {"_execute_impl"}
    with pytest.raises(TypeError, match="_execute_impl"):
        ProviderBase()  # type: ignore[abstract]


@pytest.mark.req("PEF:B-2")
@pytest.mark.parametrize("name", [None, "", "x" * 81, 5, "a\x00b", "a\nb", "\ud800", "\x1b[31m"])
def test_a_provider_has_a_name_and_a_capability(name: Any) -> None:
    """Which its tables can hold, and a list of them can show."""

    class Nameless(Scripted):
        provider_name = name

    class Useless(Scripted):
        capability = name

    with pytest.raises(WiringError, match="provider_name"):
        Nameless()
    with pytest.raises(WiringError, match="capability"):
        Useless()


@pytest.mark.req("PEF:B-3")
@pytest.mark.parametrize("method", [ProviderBase.execute, ProviderBase.aexecute])
def test_the_signature_is_that_of_the_specification(method: Any) -> None:
    """Five arguments by name; whoever has nothing to say leaves three of them out."""
    given = inspect.signature(method).parameters
    assert list(given) == [
        "self",
        "tenant_id",
        "campaign_id",
        "operation",
        "payload",
        "context",
    ]
    for parameter in list(given.values())[1:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    needed = [each.name for each in given.values() if each.default is inspect.Parameter.empty]
    assert needed == ["self", "tenant_id", "operation"]


def test_a_short_call_means_no_campaign_an_empty_payload_and_a_context_without_wishes(
    clock: VirtualClock,
) -> None:
    """And each call has its own: what one provider puts into its payload, no other call sees."""
    seen: list[dict[str, Any]] = []

    class Greedy(ProviderBase):
        provider_name, capability = "greedy", "test"

        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            seen.append({**given, "payload": dict(given["payload"])})
            given["payload"]["left"] = "behind"
            return {}

    provider = Greedy()
    first = provider.execute(tenant_id="acme", operation="look")
    second = clock.run(provider.aexecute(tenant_id="acme", operation="look"))
    assert (first.success, second.success) == (True, True)
    assert [(each["campaign_id"], each["payload"]) for each in seen] == [(None, {}), (None, {})]
    assert first.correlation_id != second.correlation_id


@pytest.mark.req("PEF:B-4")
def test_the_method_is_given_what_the_caller_gave() -> None:
    """And the context of the attempt."""
    seen: dict[str, Any] = {}

    class Reading(ProviderBase):
        provider_name, capability = "reading", "test"

        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            seen.update(given)
            return {}

    payload = {"q": 1}
    call(Reading(), "acme", campaign_id="c1", operation="look", payload=payload, task_name="n")
    context = seen.pop("context")
    assert seen == {
        "tenant_id": "acme",
        "campaign_id": "c1",
        "operation": "look",
        "payload": {"q": 1},
    }
    assert (context.task_name, context.attempt) == ("n", 1)


def test_a_provider_that_forgot_its_base_says_so() -> None:
    """When it is used, with the way out."""

    class Forgetful(Scripted):
        def __init__(self) -> None:
            pass

    with pytest.raises(WiringError, match="super"):
        call(Forgetful())


@pytest.mark.req("PEF:B-5")
def test_a_correlation_id_is_kept_or_made(clock: VirtualClock) -> None:
    """The same for all attempts of a call and for its result, another for each call."""
    provider = Scripted(DOWN, {}, {})
    first, second = call(provider), call(provider)
    assert provider.seen[0].correlation_id == first.correlation_id
    assert provider.seen[1].correlation_id == first.correlation_id
    assert first.correlation_id
    assert first.correlation_id != second.correlation_id
    assert call(provider, correlation_id="mine").correlation_id == "mine"
    assert rows(provider, first.correlation_id)
    assert rows(provider, "mine")


@pytest.mark.req("PEF:A-31")
def test_the_context_reaches_the_attempt(clock: VirtualClock) -> None:
    """With all its fields, and those that belong to the attempt."""
    provider = Scripted(DOWN, timeout_budget_seconds=30, attempt_timeout_seconds=20)
    given = ProviderExecutionContext(
        correlation_id="c",
        idempotency_key="i",
        task_execution_id="e",
        task_name="n",
        deadline=25.0,
        traceparent="tp",
        metadata={"k": "v"},
    )
    provider.execute(tenant_id="t", campaign_id=None, operation="fetch", payload={}, context=given)
    first, second = provider.seen
    assert (first.correlation_id, first.idempotency_key) == ("c", "i")
    assert (first.task_execution_id, first.task_name) == ("e", "n")
    assert (first.traceparent, first.metadata, first.deadline) == ("tp", {"k": "v"}, 25.0)
    assert (first.attempt, second.attempt) == (1, 2)
    assert given.attempt == 0


@pytest.mark.req("PEF:A-31")
def test_a_result_that_failed_raises_its_error_when_unwrapped(clock: VirtualClock) -> None:
    """And one that succeeded gives its data, even if there are none in it."""
    provider = Scripted({}, ProviderAuthError("no", http_status=401))
    assert call(provider).unwrap() == {}
    result = call(provider)
    assert (result.data, result.http_status) == (None, 401)
    with pytest.raises(ProviderAuthError):
        result.unwrap()
    assert "secret" not in repr(call(Scripted({"secret": "data"})))


# -- the order -----------------------------------------------------------------------------------


@pytest.mark.req("PEF:B-6", "PEF:A-5")
def test_the_order_is_look_reserve_admit_attempt_record(clock: VirtualClock) -> None:
    """Through a half-open circuit, where every step leaves a trace."""
    store = WatchedStore(clock)
    provider = Scripted(
        DOWN,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5),
        quota=QuotaPolicy(limit=9),
        store=store,
    )
    call(provider)
    clock.advance(5.0)
    store.asked.clear()

    def attempt(_: object) -> dict[str, Any]:
        store.asked.append("attempt")
        return {}

    provider.steps.append(attempt)
    assert call(provider).success
    steps = [name for name in store.asked if name != "lane_state"]
    assert store.asked[0] == "lane_state"
    assert steps == ["reserve", "compare_and_set", "attempt", "compare_and_set"]


@pytest.mark.req("PEF:B-7", "PEF:B-6")
def test_a_quota_refusal_takes_no_place_in_a_half_open_circuit(clock: VirtualClock) -> None:
    """Quota comes first for that very reason."""
    provider = Scripted(
        DOWN,
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 5),
        quota=QuotaPolicy(limit=1),
    )
    call(provider)
    clock.advance(5.0)
    assert call(provider).reason_code == "quota_exhausted"
    assert (lane_state(provider).state, lane_state(provider).probes) == (CircuitState.OPEN, ())


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.req("PEF:B-10")
def test_failures_are_returned_and_not_raised(clock: VirtualClock) -> None:
    """Whatever the provider raises."""
    for error in (DOWN, ValueError("?"), OSError("!"), StopIteration(), AssertionError()):
        provider = Scripted(*[error] * 3)
        result = call(provider)
        assert isinstance(result, ProviderExecutionResult)
        assert not result.success
        assert isinstance(result.error, ProviderError)
        assert result.reason_code == result.error.reason_code


@pytest.mark.req("PEF:E-13", "PEF:E-14")
def test_a_canonical_error_is_passed_on_as_it_is(clock: VirtualClock) -> None:
    """The very object; another one becomes the cause of a canonical error."""
    error = ProviderAuthError("no", http_status=403)
    assert call(Scripted(error)).error is error
    raw = ValueError("?")
    found = call(Scripted(raw)).error
    assert isinstance(found, ProviderInternalError)
    assert found.__cause__ is raw


@pytest.mark.req("PROVIDERS:package")
def test_a_provider_may_know_its_own_errors(clock: VirtualClock) -> None:
    """Its rules are asked first."""

    class Own(Scripted):
        error_rules = (Rule(LookupError, "dependency_unavailable"),)

    provider = Own(KeyError("x"))
    result = call(provider)
    assert (result.success, result.attempts) == (True, 2)


@pytest.mark.parametrize("status", [429, 503])
def test_an_error_may_carry_the_header_as_it_came(clock: VirtualClock, status: int) -> None:
    """A provider that passes Retry-After on as text is understood, and one with nonsense too."""
    wait: Any = "5"
    provider = Scripted(ProviderRateLimitError("wait", retry_after_seconds=wait))
    assert call(provider).success
    assert clock.now() == 5.0
    odd: Any = [object(), f"{status} Bad"]
    provider = Scripted(
        ProviderRateLimitError("wait", retry_after_seconds=odd[0], http_status=odd[1])
    )
    result = call(provider, correlation_id="odd")
    assert result.success
    assert rows(provider, "odd")[0].http_status is None


def test_an_error_class_that_skips_its_base_is_still_one(clock: VirtualClock) -> None:
    """What it does not have, it does not say."""

    class Bare(ProviderTimeoutError):
        def __init__(self) -> None:
            pass

    result = call(Scripted(Bare(), Bare(), Bare()))
    assert (result.reason_code, result.attempts, result.http_status) == ("timeout", 3, None)


@pytest.mark.req("PEF:B-10")
def test_errors_survive_the_way_to_another_process() -> None:
    """With everything they carry."""
    error = ProviderRateLimitError(
        "wait", http_status=429, retry_after_seconds=2.5, details={"a": 1}
    )
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy)) == (ProviderRateLimitError, str(error))
    assert (copy.http_status, copy.retry_after_seconds) == (429, 2.5)


# -- the deadline --------------------------------------------------------------------------------


@pytest.mark.req("PEF:A-7", "PEF:R-5")
def test_the_earliest_of_all_deadlines_holds(clock: VirtualClock) -> None:
    """The caller's, the context's and the provider's; and an attempt gets what is left of it."""
    clock.advance(100.0)
    cases: list[tuple[dict[str, Any], dict[str, Any], float | None]] = [
        ({"timeout_budget_seconds": 60}, {}, 60.0),
        ({"timeout_budget_seconds": 60}, {"timeout_budget_seconds": 10}, 10.0),
        ({"timeout_budget_seconds": 60}, {"timeout_budget_seconds": 90}, 60.0),
        ({"timeout_budget_seconds": 60}, {"deadline": 107.0}, 7.0),
        ({"timeout_budget_seconds": 60}, {"deadline": 107.0, "timeout_budget_seconds": 5}, 5.0),
        ({"timeout_budget_seconds": None}, {}, None),
        ({"timeout_budget_seconds": 60, "attempt_timeout_seconds": 3}, {}, 3.0),
        ({"timeout_budget_seconds": 2, "attempt_timeout_seconds": 3}, {}, 2.0),
        ({"timeout_budget_seconds": None, "attempt_timeout_seconds": 3}, {}, 3.0),
    ]
    for options, context, limit in cases:
        for _ in range(2):  # on the machine's way, and on the short one
            provider = Scripted(**options)
            call(provider, **context)
            call(provider, **context)
            assert [each.attempt_timeout_seconds for each in provider.seen] == [limit, limit]


@pytest.mark.req("PEF:R-5", "PEF:A-7")
@pytest.mark.parametrize(
    "context", [{"deadline": -1.0}, {"timeout_budget_seconds": 0}, {"deadline": 0.0}]
)
def test_without_time_nothing_is_called_and_nothing_taken(
    clock: VirtualClock, context: dict[str, Any]
) -> None:
    """Whichever way the call would have gone."""
    provider = Scripted(quota=QuotaPolicy(limit=5))
    for taken in (0, 1):
        result = call(provider, **context)
        assert (result.reason_code, result.stop_reason) == ("timeout", "budget_spent")
        assert (provider.calls, used(provider)) == (taken, taken)
        call(provider)


@pytest.mark.req("PEF:R-5", "PEF:R-5")
def test_no_wait_passes_the_deadline(clock: VirtualClock) -> None:
    """Rather end now, with the real error."""
    provider = Scripted(DOWN, DOWN, DOWN, timeout_budget_seconds=1.5)
    result = call(provider)
    assert (result.attempts, clock.now(), result.stop_reason) == (2, 0.5, "budget_spent")
    assert result.error is DOWN


@pytest.mark.req("PEF:A-7", "PEF:A-7")
def test_a_late_success_is_a_success(clock: VirtualClock) -> None:
    """It says that it was late, and is not run again."""
    provider = Scripted(after(clock, 61.0, {"a": 1}), after(clock, 61.0, {"a": 2}))
    for number in (1, 2):
        result = call(provider)
        assert (result.data, result.is_late, provider.calls) == ({"a": number}, True, number)
        assert result.duration_ms == 61_000.0


@pytest.mark.req("PEF:A-8")
def test_the_budget_of_a_row_is_that_of_the_whole_call(clock: VirtualClock) -> None:
    """The same in every row, and in bounds."""
    provider = Scripted(DOWN, DOWN, timeout_budget_seconds=30)
    call(provider, correlation_id="a")
    assert [row.timeout_budget_ms for row in rows(provider, "a")] == [30_000] * 3
    unbounded = Scripted(timeout_budget_seconds=None)
    cases: list[tuple[str, dict[str, Any], int | None]] = [
        ("none", {}, None),
        ("past", {"deadline": -5.0}, 0),
        ("far", {"timeout_budget_seconds": 1e300}, 2**31 - 1000),
    ]
    for name, context, budget in cases:
        call(unbounded, correlation_id=name, **context)
        assert [row.timeout_budget_ms for row in rows(unbounded, name)] == [budget]


# -- beside --------------------------------------------------------------------------------------


@pytest.mark.req("PROVIDERS:pipeline")
def test_a_retry_budget_keeps_a_storm_down(clock: VirtualClock) -> None:
    """While one call retries, no second may begin to; the first goes on."""
    budget = RetryBudget(ratio=0.0, minimum=1)
    inner: list[ProviderExecutionResult] = []
    provider = Scripted(retry_budget=budget)

    def meanwhile(_: object) -> Exception:
        provider.steps.appendleft(DOWN)
        inner.append(call(provider, "other"))
        return DOWN

    provider.steps.extend([DOWN, meanwhile, {"a": 1}])
    result = call(provider)
    assert (result.success, result.attempts) == (True, 3)
    assert (inner[0].stop_reason, inner[0].attempts) == ("retry_budget_spent", 1)
    provider.steps.append(DOWN)
    assert call(provider).success  # nobody retries any more


def test_a_provider_is_closed_by_its_block(clock: VirtualClock) -> None:
    """And may be closed twice, and used again."""
    with Scripted() as provider:
        call(provider, correlation_id="c")
    provider.close()
    assert call(provider).success


@pytest.mark.req("PEF:trap-one-notice")
def test_one_change_of_the_circuit_is_told_once(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However many failures come in after it opened."""
    caplog.set_level(logging.INFO, "ergon_framework.providers")
    store = WatchedStore(clock)
    provider = Scripted(store=store, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 5))

    def meanwhile(_: object) -> Exception:
        provider.steps.appendleft(DOWN)
        call(provider)
        return DOWN

    provider.steps.extend([meanwhile])
    call(provider)
    clock.advance(5.0)
    call(provider)
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert told == ["circuit.opened", "circuit.half_opened", "circuit.closed"]


def test_a_call_inside_a_call_is_a_call_of_its_own(clock: VirtualClock) -> None:
    """Providers may use each other."""
    inner = Scripted({"inner": True})
    outer = Scripted(lambda _: call(inner).unwrap())
    assert call(outer).data == {"inner": True}


def test_garbage_is_a_failure_of_the_provider(clock: VirtualClock) -> None:
    """It votes, and is not tried again."""
    provider = Scripted([1], None, "text")
    for _ in range(3):
        result = call(provider)
        assert isinstance(result.error, ProviderResponseFormatError)
        assert result.attempts == 1
    assert lane_state(provider).failures == 3
    assert is_whole(provider)


def test_a_reset_connection_may_have_been_served(clock: VirtualClock) -> None:
    """Only what certainly was not sent comes back."""
    provider = Scripted(*[ProviderConnectionError("gone")] * 3, quota=QuotaPolicy(limit=9))
    call(provider)
    assert used(provider) == 1


@pytest.mark.req("PEF:R-5", "PEF:A-7")
def test_a_budget_of_the_context_bounds_the_call(clock: VirtualClock) -> None:
    """Without a deadline beside it, it is counted from now on, and it is what the row says."""
    provider = Scripted(timeout_budget_seconds=60.0)
    result = call(provider, timeout_budget_seconds=5.0, correlation_id="c")
    assert result.success
    assert provider.seen[0].attempt_timeout_seconds == pytest.approx(5.0)
    assert [row.timeout_budget_ms for row in rows(provider, "c")] == [5000]
