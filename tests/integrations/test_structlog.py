from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.executor import Registry
from ergon_framework.integrations.structlog import add_unit, name_calls
from ergon_framework.ports.transaction import Transaction
from ergon_framework.ports.unit_of_work import OBSERVERS
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.task.ready import AsyncConsumerTask, ConsumerTask
from tests.executor.link import Child, Link, request, runtime_command
from tests.providers.scripted import Scripted

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE}-{SPAN}-01", "correlation_id": "order-7"}

AT_ONCE = RetryPolicy(base_delay_seconds=0.0)

name_calls(on=False)  # importing the module has turned it on, for the tests of other files as well


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """What is logged, with the ids that the processor adds."""
    name_calls()
    with capture_logs(processors=[add_unit]) as kept:
        yield kept
    name_calls(on=False)


def fields(event: dict[str, Any]) -> dict[str, Any]:
    """What the processor added."""
    return {name: value for name, value in event.items() if name not in ("event", "log_level")}


def say(text: str = "here", **more: Any) -> None:
    """Log something."""
    structlog.get_logger().info(text, **more)


class Orders(ConsumerTask):
    def process_transaction(self, transaction: Transaction) -> None:
        say()
        if transaction.payload == "twice":
            raise ConnectionError


class AsyncOrders(AsyncConsumerTask):
    async def process_transaction(self, transaction: Transaction) -> None:
        say()


def call_in(provider: Scripted) -> None:
    """Make a call."""
    provider.execute(
        tenant_id="t",
        campaign_id=None,
        operation="quote",
        payload={},
        context=ProviderExecutionContext(correlation_id="call-1"),
    )


def test_a_transaction(events: list[Any]) -> None:
    """Each attempt has its number; the trace is the one that the transaction came with."""
    metadata = {"traceparent": CARRIER["traceparent"]}
    one = Transaction("o-1", "twice", metadata=metadata, correlation_id="order-7")
    policy = {"steps": {"process": {"retry": {"max_attempts": 2}}}}
    Orders(connectors={"orders": MemoryConnector([one])}).consume_transactions(policy)
    about = {
        "unit_kind": "transaction",
        "unit_name": "Orders",
        "unit_id": "o-1",
        "correlation_id": "order-7",
        "trace_id": TRACE,
        "span_id": SPAN,
    }
    numbers = [{**about, "attempt_number": number} for number in (1, 2)]
    assert [fields(each) for each in events] == numbers


def test_behind_a_renderer_no_log_line_fails_a_unit(caplog: pytest.LogCaptureFixture) -> None:
    """The text stays as it is; where the processor belongs is said once."""
    written: list[Any] = []

    def keep(_logger: Any, _name: str, event: Any) -> Any:
        written.append(event)
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.processors.KeyValueRenderer(), add_unit, keep])
    try:
        source = MemoryConnector([Transaction("o-1"), Transaction("o-2")])
        report = Orders(connectors={"orders": source}).consume_transactions({})
    finally:
        structlog.configure(processors=before)
    assert (report.succeeded, report.failed) == (2, 0)
    assert len(written) == 2
    assert caplog.text.count("write it before the renderer") == 1


def test_a_transaction_of_an_async_task(events: list[Any]) -> None:
    """Transactions that run at once do not mix."""
    source = MemoryConnector([Transaction("o-1"), Transaction("o-2")])
    policy = {"loop": {"concurrency": {"value": 2}}}
    asyncio.run(AsyncOrders(connectors={"orders": source}).consume_transactions(policy))
    assert sorted(each["unit_id"] for each in events) == ["o-1", "o-2"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job(events: list[Any], is_async: bool) -> None:
    """In the executor, plain and async."""
    registry = Registry()

    def shrink() -> None:
        say()

    async def ashrink() -> None:
        say()

    registry.add(ashrink if is_async else shrink)
    name = "ashrink" if is_async else "shrink"
    with Link(registry) as link:
        answer = link.ask(name, job_id="job-7", _attempt=3, _trace_context=CARRIER)
    assert answer["status"] == "success"
    (event,) = events
    assert fields(event) == {
        "unit_kind": "job",
        "unit_name": name,
        "unit_id": "job-7",
        "attempt_number": 3,
        "correlation_id": "order-7",
        "trace_id": TRACE,
        "span_id": event["span_id"],
    }


def test_a_provider_call(events: list[Any]) -> None:
    """On its own it is the unit; each attempt has its number."""

    def fail(_: Any) -> Any:
        say()
        raise ConnectionError

    def answer(_: Any) -> dict[str, Any]:
        say()
        return {}

    with Scripted(fail, answer, retry_policy=AT_ONCE) as provider:
        call_in(provider)
    say("after")
    about = {
        "unit_kind": "call",
        "unit_name": "scripted/test/quote",
        "unit_id": "call-1",
        "call_name": "scripted/test/quote",
        "call_id": "call-1",
    }
    numbers = [{**about, "attempt_number": each, "call_attempt": each} for each in (1, 2)]
    assert [fields(each) for each in events] == [*numbers, {}]


def test_a_call_inside_a_transaction(events: list[Any]) -> None:
    """The transaction stays the unit, so that one id finds all of its lines."""

    def answer(_: Any) -> dict[str, Any]:
        say()
        return {}

    with Scripted(answer) as provider:

        class Calling(ConsumerTask):
            def process_transaction(self, transaction: Transaction) -> None:
                call_in(provider)

        Calling(connectors={"c": MemoryConnector([Transaction("o-1")])}).consume_transactions({})
    (event,) = events
    assert (event["unit_kind"], event["unit_id"]) == ("transaction", "o-1")
    assert (event["call_name"], event["call_attempt"]) == ("scripted/test/quote", 1)


def test_outside_of_any_unit_nothing_is_added(events: list[Any]) -> None:
    """The event is as it was."""
    say()
    assert fields(events[0]) == {}


def test_the_values_of_an_event_stay(events: list[Any]) -> None:
    """What the caller says wins."""

    class Named(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            say(unit_id="mine")

    Named(connectors={"c": MemoryConnector([Transaction("o-1")])}).consume_transactions({})
    assert events[0]["unit_id"] == "mine"


def test_an_observer_that_fails_does_not_fail_the_work(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a job nor a call; it is said once."""

    def broken(_: object) -> Any:
        raise LookupError("no such thing")

    registry = Registry()
    registry.add(lambda: 7, name="seven")
    OBSERVERS.append(broken)
    try:
        with Link(registry) as link, Scripted() as provider:
            answers = [link.ask("seven")["result"], link.ask("seven")["result"]]
            call_in(provider)
    finally:
        OBSERVERS.remove(broken)
    assert answers == [7, 7]
    assert caplog.text.count("failed to observe an attempt") == 1


def test_a_real_executor_process() -> None:
    """The processor works where the handler runs, and loads no OpenTelemetry for it."""
    with Child(runtime_command("speaking:registry")) as child:
        child.send(request("speak", job_id="job-9", _trace_context={"correlation_id": "order-9"}))
        told = json.loads(child.out.next())["result"]
    assert told == {
        "unit_kind": "job",
        "unit_name": "speak",
        "unit_id": "job-9",
        "attempt_number": 1,
        "correlation_id": "order-9",
        "has_opentelemetry": False,
    }
