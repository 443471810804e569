"""What cannot work is refused before anything runs, with the field and the remedy."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ergon_framework.errors import (
    ConfigurationError,
    EnvelopeError,
    ErgonError,
    ExceptionType,
    HookError,
    InputException,
    TransactionException,
    WiringError,
)
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
from ergon_framework.testing.scripted import ScriptedConnector, transactions
from tests.engine.bodies import rules
from tests.engine.colours import Colour, consume, produce


def _consumer(colour: Colour, connectors: Any = None, **members: Any) -> Any:
    bases = (ConsumerMixin, BaseTask) if colour == "sync" else (AsyncConsumerMixin, BaseAsyncTask)
    if connectors is None:
        connectors = {"source": ScriptedConnector([transactions(1)])}
    return type("Odd", bases, members)(connectors, {})


def _producer(colour: Colour, **members: Any) -> Any:
    bases = (ProducerMixin, BaseTask) if colour == "sync" else (AsyncProducerMixin, BaseAsyncTask)
    return type("Odd", bases, members)({}, {})


def _plain(_self: Any, _transaction: Any) -> None:
    return None


async def _coroutine(_self: Any, _transaction: Any) -> None:
    return None


def _right(colour: Colour) -> Any:
    return _plain if colour == "sync" else _coroutine


@pytest.mark.req("T3.35", "R3-K2")
def test_a_missing_hook_is_refused(colour: Colour) -> None:
    """By name, with the line to write, before the connector is touched."""
    source = ScriptedConnector([transactions(1)])
    outcome = consume(colour, source, task=_consumer(colour, {"source": source}))
    assert isinstance(outcome.error, HookError)
    assert "process_transaction" in str(outcome.error)
    assert outcome.error.remedy
    assert source.fetches == []
    produced = produce(colour, transactions(1), task=_producer(colour))
    assert isinstance(produced.error, HookError)
    assert "produce_transaction" in str(produced.error)


@pytest.mark.req("T3.35")
@pytest.mark.parametrize(
    "name", ["process_transaction", "handle_transaction_success", "handle_transaction_exception"]
)
def test_a_hook_that_cannot_be_called_is_refused(colour: Colour, name: str) -> None:
    """A value in the place of a method."""
    members = {"process_transaction": _right(colour), name: "text"}
    outcome = consume(colour, None, task=_consumer(colour, **members))
    assert isinstance(outcome.error, HookError)
    assert name in str(outcome.error)
    assert isinstance(outcome.error, TypeError)


@pytest.mark.req("T3.35")
@pytest.mark.parametrize("name", ["handle_transaction_success", "handle_transaction_exception"])
def test_a_handler_of_the_wrong_arity_is_refused(colour: Colour, name: str) -> None:
    """A handler takes the transaction and a second argument."""
    members = {"process_transaction": _right(colour), name: _right(colour)}
    outcome = consume(colour, None, task=_consumer(colour, **members))
    assert isinstance(outcome.error, HookError)
    assert name in str(outcome.error)


@pytest.mark.req("T3.35")
def test_a_first_hook_of_the_wrong_arity_is_refused(colour: Colour) -> None:
    """No argument, or one too many."""

    def none(_self: Any) -> None: ...

    def three(_self: Any, _a: Any, _b: Any) -> None: ...

    for wrong in (none, three):
        outcome = consume(colour, None, task=_consumer(colour, process_transaction=wrong))
        assert isinstance(outcome.error, HookError)
        outcome = produce(
            colour, transactions(1), task=_producer(colour, produce_transaction=wrong)
        )
        assert isinstance(outcome.error, HookError)


@pytest.mark.req("T3.35", "RFC-005:7")
def test_a_coroutine_in_a_threaded_task_is_refused() -> None:
    """It would never be awaited."""
    outcome = consume("sync", None, task=_consumer("sync", process_transaction=_coroutine))
    assert isinstance(outcome.error, HookError)
    assert "coroutine" in str(outcome.error)
    outcome = produce(
        "sync", transactions(1), task=_producer("sync", produce_transaction=_coroutine)
    )
    assert isinstance(outcome.error, HookError)


@pytest.mark.req("T3.35")
@pytest.mark.parametrize("is_quick", [True, False], ids=["at-once", "after-a-wait"])
@pytest.mark.parametrize("place", ["process", "success", "exception", "produce"])
def test_a_hook_that_forgets_to_await_has_not_done_its_work(place: str, is_quick: bool) -> None:
    """What it returns is a coroutine that nobody would run: a failure, and tried once only."""
    awaited: list[str] = []

    async def work() -> None:
        awaited.append("never")

    async def forgetful(_self: Any, *_given: Any) -> Any:
        if not is_quick:
            await asyncio.sleep(1)
        return work()

    async def failing(_self: Any, *_given: Any) -> None:
        raise TransactionException("no", ExceptionType.BUSINESS)

    retry = {"retry": {"max_attempts": 3}}
    if place == "produce":
        task = _producer("async", produce_transaction=forgetful)
        outcome = produce("async", transactions(1), {"steps": {"produce": retry}}, task=task)
    else:
        first = {"process": forgetful, "success": _coroutine, "exception": failing}[place]
        hooks = {"process_transaction": first}
        if place != "process":
            hooks[f"handle_transaction_{place}"] = forgetful
        outcome = consume(
            "async", None, {"steps": {"process": retry}}, task=_consumer("async", **hooks)
        )
    report = outcome.report
    assert (report.succeeded, report.failed) == (0, 1)
    assert report.handler_failures == (place == "exception")
    assert awaited == []
    assert report.elapsed == (0.0 if is_quick else 1.0)


@pytest.mark.req("T3.33", "RFC-005:7")
def test_a_plain_function_in_an_async_task_works_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its value is the result; the warning comes once per hook, not per transaction."""
    caplog.set_level(logging.WARNING)
    task = _consumer(
        "async", {"s": ScriptedConnector([transactions(5)])}, process_transaction=_plain
    )
    outcome = consume("async", None, rules(size=5), task=task)
    assert outcome.report.succeeded == 5
    told = [each for each in caplog.records if "process_transaction" in each.getMessage()]
    assert len(told) == 1


@pytest.mark.req("T3.35")
def test_connectors_must_be_unambiguous(colour: Colour) -> None:
    """None, several, an unknown name: each refused with a hint."""
    members = {"process_transaction": _right(colour)}
    one, two = ScriptedConnector([transactions(1)]), ScriptedConnector([transactions(1)])
    none = consume(colour, None, task=_consumer(colour, {}, **members))
    several = _consumer(colour, {"orders": one, "returns": two}, **members)
    ambiguous = consume(colour, None, task=several)
    policy = {"steps": {"fetch": {"connector_name": "order"}}}
    unknown = consume(colour, None, policy, task=several)
    for outcome in (none, ambiguous, unknown):
        assert isinstance(outcome.error, WiringError)
        assert isinstance(outcome.error, ValueError)
        assert outcome.error.remedy
    assert "ambiguous" in str(ambiguous.error)
    assert "'orders'" in str(unknown.error)
    assert one.fetches == two.fetches == []


@pytest.mark.req("T3.35")
def test_a_named_connector_is_used(colour: Colour) -> None:
    """The policy chooses among several."""
    one, two = ScriptedConnector([]), ScriptedConnector([transactions(2)])
    task = _consumer(colour, {"a": one, "b": two}, process_transaction=_right(colour))
    policy = {**rules(size=2), "steps": {"fetch": {"connector_name": "b"}}}
    assert consume(colour, None, policy, task=task).report == 2
    assert one.fetches == []


@pytest.mark.req("T3.35")
def test_a_connector_of_the_wrong_colour_is_refused(colour: Colour) -> None:
    """Or without any fetch method."""

    class Plain:
        def fetch_transactions(self, batch_size: int) -> None:
            raise AssertionError("must not be called")

    class Coro:
        async def fetch_transactions_async(self, batch_size: int) -> None:
            raise AssertionError("must not be called")

    class Neither:
        pass

    for wrong in (Coro() if colour == "sync" else Plain(), Neither(), None):
        task = _consumer(colour, {"source": wrong}, process_transaction=_right(colour))
        outcome = consume(colour, None, task=task)
        assert isinstance(outcome.error, WiringError)
        assert "'source'" in str(outcome.error)


@pytest.mark.req("T3.35")
def test_a_threaded_fetch_must_not_be_a_coroutine() -> None:
    """Under the plain name it would hand out a coroutine instead of a batch."""

    class Mixed:
        async def fetch_transactions(self, batch_size: int) -> None: ...

    task = _consumer("sync", {"source": Mixed()}, process_transaction=_plain)
    outcome = consume("sync", None, task=task)
    assert isinstance(outcome.error, WiringError)


@pytest.mark.req("T3.35", "R3-K2")
@pytest.mark.parametrize("policy", [7, "text", [], ProducerPolicy(), object()])
def test_a_policy_of_the_wrong_type_is_refused(colour: Colour, policy: Any) -> None:
    """Before anything is fetched."""
    source = ScriptedConnector([transactions(1)])
    outcome = consume(colour, source, policy)
    assert isinstance(outcome.error, ConfigurationError)
    assert "ConsumerPolicy" in str(outcome.error)
    assert source.fetches == []


@pytest.mark.req("T3.35")
def test_a_producer_refuses_a_consumers_policy(colour: Colour) -> None:
    """And names the one it wants."""
    outcome = produce(colour, transactions(1), ConsumerPolicy())  # type: ignore[arg-type]
    assert isinstance(outcome.error, ConfigurationError)
    assert "ProducerPolicy" in str(outcome.error)
    assert outcome.calls() == []


@pytest.mark.req("R3-K2", "T3.22", "T3.23", "T3.24")
@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"steps": {"process": {"retry": {"max_attempts": 0}}}}, "max_attempts"),
        ({"steps": {"process": {"retry": {"backoff_multiplier": 0.5}}}}, "backoff_multiplier"),
        ({"steps": {"process": {"retry": {"backoff": float("nan")}}}}, "backoff"),
        ({"steps": {"process": {"retry": {"timeout": 0}}}}, "timeout"),
        ({"loop": {"timeout": 0}}, "timeout"),
        ({"loop": {"transaction_timeout": float("inf")}}, "transaction_timeout"),
        ({"loop": {"concurrency": {"value": -1}}}, "value"),
        ({"loop": {"concurency": 3}}, "concurrency"),
        ({"process": {"retry": {}}}, "steps"),
    ],
)
def test_a_wrong_policy_names_its_field(colour: Colour, policy: Any, field: str) -> None:
    """Refused before the connector is touched."""
    source = ScriptedConnector([transactions(1)])
    outcome = consume(colour, source, policy)
    assert isinstance(outcome.error, ValueError)
    assert field in str(outcome.error)
    assert source.fetches == []


@pytest.mark.req("T3.35")
@pytest.mark.parametrize("given", [None, 7, "text", b"raw", {"a": 1}, transactions(1)[0]])
def test_input_that_is_no_iterable_of_transactions_is_refused(colour: Colour, given: Any) -> None:
    """With a remedy, before anything is produced."""
    outcome = produce(colour, given)
    assert isinstance(outcome.error, ErgonError)
    assert outcome.error.remedy
    assert outcome.calls() == []


@pytest.mark.req("T3.35")
def test_a_list_with_a_stranger_is_refused_whole(colour: Colour) -> None:
    """A list can be looked through first, so nothing of it is produced."""
    outcome = produce(colour, [*transactions(2), "text"])
    assert isinstance(outcome.error, EnvelopeError)
    assert "item 2" in str(outcome.error)
    assert outcome.calls() == []


@pytest.mark.req("T3.27")
def test_a_generator_with_a_stranger_produces_what_came_before(colour: Colour) -> None:
    """The error names the item; what was good is not lost."""

    def items() -> Any:
        yield from transactions(2)
        yield "text"

    outcome = produce(colour, items(), rules(size=5))
    assert isinstance(outcome.error, InputException | EnvelopeError)
    assert outcome.calls("produce") == ["t1", "t2"]


@pytest.mark.req("T3.35")
def test_an_async_iterable_for_a_threaded_producer_is_refused() -> None:
    """It names the other kind of task."""

    async def items() -> Any:
        yield transactions(1)[0]

    outcome = produce("sync", items())
    assert isinstance(outcome.error, WiringError)
    assert "Async" in str(outcome.error)


@pytest.mark.req("T3.35")
@pytest.mark.parametrize("connectors", [7, ["a"], {1: object()}])
def test_connectors_that_are_no_mapping_of_names_are_refused(connectors: Any) -> None:
    """When the task is made."""
    with pytest.raises(WiringError):
        BaseTask(connectors=connectors)


@pytest.mark.req("T3.35")
def test_a_task_without_super_init_says_what_is_missing(colour: Colour) -> None:
    """A subclass that forgets super().__init__() is not a puzzle."""

    def forgetful(self: Any, *_args: Any) -> None:
        return None

    members = {"__init__": forgetful, "process_transaction": _right(colour)}
    outcome = consume(colour, None, task=_consumer(colour, {}, **members))
    assert isinstance(outcome.error, WiringError)
    assert "connector" in str(outcome.error)


@pytest.mark.req("R1-ID1")
def test_a_single_lifecycle_needs_a_transaction() -> None:
    """The one-transaction entry refuses anything else."""
    task = _consumer("sync", process_transaction=_plain)
    with pytest.raises(EnvelopeError):
        task._start_processing({"id": "t1"})
