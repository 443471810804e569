"""A provider called by a transaction's hook, with threads and with asyncio, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.engine.clocks import current_clock
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector
from tests.engine.bodies import consumer, rules
from tests.engine.colours import Colour, Outcome, consume
from tests.providers.scripted import EPOCH, Scripted

TRACE = f"00-{7:032x}-{9:016x}-01"


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """The colour of the engine under test."""
    return str(request.param)


async def called(provider: ProviderBase, payload: Any = None, **given: Any) -> Any:
    """One call; the virtual engines run a coroutine in either colour."""
    result: ProviderExecutionResult = provider.execute(
        tenant_id="t",
        campaign_id=None,
        operation="now",
        payload={"n": payload},
        context=ProviderExecutionContext(**given),
    )
    return result.unwrap()


def consumed(colour: Colour, source: Any, provider: ProviderBase, policy: Any = None) -> Outcome:
    """What becomes of the transactions of a source whose hook calls the provider."""

    async def process(transaction: Any) -> Any:
        return await called(provider, transaction.payload)

    task = consumer(colour, source, process=process)
    return consume(colour, source, policy, task=task)


def on_the_engines_clock(*steps: Any, **options: Any) -> Scripted:
    """A provider that takes part in whatever time its caller lives in."""
    store = MemoryProviderStore(clock=lambda: EPOCH + current_clock().now())
    return Scripted(*steps, store=store, **options)


@pytest.mark.req("ONE:provider-inside")
def test_what_the_transaction_knows_reaches_the_provider(colour: Colour) -> None:
    """Correlation id, key, name, trace and deadline, without a line of code in the hook."""
    provider = on_the_engines_clock()
    given = Transaction("t1", 1, {"traceparent": TRACE}, correlation_id="order-7")
    consumed(colour, ScriptedConnector([[given]]), provider, rules(transaction_timeout=9.0))
    [context] = provider.seen
    assert context.correlation_id == "order-7"
    assert (context.idempotency_key or "").startswith("t1/")
    assert (context.task_execution_id, context.traceparent) == ("t1", TRACE)
    assert context.deadline == 9.0


@pytest.mark.req("ONE:provider-inside")
def test_what_the_caller_says_counts(colour: Colour) -> None:
    """Only what was left open is taken over, and a deadline only ever gets earlier."""
    provider = on_the_engines_clock()
    given = {"correlation_id": "mine", "idempotency_key": "k", "deadline": 3.0, "max_attempts": 2}

    async def process(transaction: Any) -> None:
        await called(provider, **given)
        await called(provider, deadline=30.0)

    source = ScriptedConnector([[Transaction("t1")]])
    task = consumer(colour, source, process=process)
    consume(colour, source, rules(transaction_timeout=9.0), task=task)
    first, second = provider.seen
    assert (first.correlation_id, first.idempotency_key, first.deadline) == ("mine", "k", 3.0)
    assert (first.max_attempts, second.deadline) == (2, 9.0)


@pytest.mark.req("ONE:patience")
@pytest.mark.parametrize(("step_attempts", "calls"), [(1, 3), (2, 2), (4, 4)])
def test_attempts_never_multiply(colour: Colour, step_attempts: int, calls: int) -> None:
    """Either the step is patient or the provider, never both."""
    provider = on_the_engines_clock(*[ConnectionError("no")] * 12)
    policy = rules(steps={"process": {"max_attempts": step_attempts}})
    outcome = consumed(colour, ScriptedConnector([[Transaction("t1")]]), provider, policy)
    assert outcome.report.failed == 1
    assert len(provider.seen) == calls


@pytest.mark.req("ONE:patience")
def test_a_source_that_delivers_again_is_patient_enough(colour: Colour) -> None:
    """Below such a source a call has one attempt, although its step has no second one."""
    provider = on_the_engines_clock(*[ConnectionError("no")] * 3)
    source = MemoryConnector([Transaction("t1")])
    source.redelivers = True  # type: ignore[attr-defined]
    consumed(colour, source, provider)
    assert len(provider.seen) == 1


@pytest.mark.req("ONE:parked")
def test_an_open_circuit_parks_what_can_be_parked(colour: Colour) -> None:
    """The connector keeps it until the circuit may close; then it succeeds, charged nothing."""
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=20)
    provider = on_the_engines_clock(ConnectionError("no"), circuit_breaker=breaker)
    source = MemoryConnector([Transaction("t1"), Transaction("t2"), Transaction("t3")])
    policy = rules(streaming=True, limit=5, empty_queue={"backoff": 1.0})
    outcome = consumed(colour, source, provider, policy)
    report = outcome.report
    assert [each.transaction_id for each, _ in source.dead] == ["t1"]
    assert (report.failed, report.parked, report.succeeded) == (1, 2, 2)
    assert len(provider.seen) == 3


@pytest.mark.req("ONE:parked")
def test_an_empty_quota_lets_the_rest_wait_in_place(colour: Colour) -> None:
    """A source that cannot keep a transaction has it wait for the next window, uncharged."""
    provider = on_the_engines_clock(quota=QuotaPolicy(limit=1, window_seconds=60))
    source = ScriptedConnector([[Transaction("t1"), Transaction("t2")]])

    async def process(transaction: Any) -> None:
        await called(provider)

    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=2), task=task)
    assert outcome.report.succeeded == 2
    assert 50.0 <= outcome.report.elapsed <= 61.0


@pytest.mark.req("ONE:parked")
def test_a_limit_of_the_providers_own_is_an_attempt(colour: Colour) -> None:
    """Somebody was asked, so it is charged; the wait it asked for is kept."""

    class Limit(Exception):
        status_code = 429
        headers = {"Retry-After": "7"}  # noqa: RUF012

    provider = on_the_engines_clock(Limit(), Limit())
    policy = rules(steps={"process": {"max_attempts": 2}})
    outcome = consumed(colour, ScriptedConnector([[Transaction("t1")]]), provider, policy)
    assert (outcome.report.failed, len(provider.seen)) == (1, 2)
    assert outcome.report.elapsed >= 7.0


@pytest.mark.req("ONE:provider-inside")
def test_names_that_no_table_takes_are_left_out(colour: Colour) -> None:
    """A foreign id does not fail the call; its key is made of the request alone."""
    provider = on_the_engines_clock()
    odd = "x" * 300
    consumed(colour, ScriptedConnector([[Transaction(odd, correlation_id=odd)]]), provider)
    [context] = provider.seen
    assert context.task_execution_id is None
    assert context.correlation_id not in {None, odd}
    assert len(context.idempotency_key or "") == 64


def test_outside_of_everything_nothing_is_added() -> None:
    """A call of its own has what its caller gave, and all its attempts."""
    with VirtualClock():
        provider = on_the_engines_clock(ConnectionError("no"))
        provider.execute(
            tenant_id="t",
            campaign_id=None,
            operation="now",
            payload={},
            context=ProviderExecutionContext(),
        )
    assert [(each.idempotency_key, each.deadline) for each in provider.seen] == [(None, 60.0)] * 2


@pytest.mark.req("ONE:patience")
def test_attempts_made_before_do_not_count_against_the_one_inside(colour: Colour) -> None:
    """Whoever carries two attempts along still has one here, unless the policy has no more."""
    provider = on_the_engines_clock(ConnectionError("no"), retry_policy=RetryPolicy(max_attempts=5))
    source = ScriptedConnector([[Transaction("t1")]])

    async def process(transaction: Any) -> None:
        await called(provider, attempt_offset=2)

    task = consumer(colour, source, process=process)
    policy = rules(steps={"process": {"max_attempts": 2}})
    outcome = consume(colour, source, policy, task=task)
    assert outcome.report.succeeded == 1
    assert [each.attempt for each in provider.seen] == [3, 3]
