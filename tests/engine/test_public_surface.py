"""Names users rely on: importable as written, and pinned so that a change is a decision."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from ergon_framework.testing.scripted import ScriptedConnector, transactions

PINNED = {
    "ergon_framework.connector.transaction": ["Transaction"],
    "ergon_framework.task.base": ["BaseAsyncTask", "BaseTask"],
    "ergon_framework.task.exceptions": [
        "ConsumerLoopTimeoutException",
        "ExceptionCategory",
        "ExceptionType",
        "FetchException",
        "FetchTimeoutException",
        "InputException",
        "LoopTimeoutException",
        "NonRetryableException",
        "ProducerLoopTimeoutException",
        "TransactionException",
        "TransactionTimeoutException",
    ],
    "ergon_framework.task.mixins.consumer": ["AsyncConsumerMixin", "ConsumerMixin"],
    "ergon_framework.task.mixins.producer": ["AsyncProducerMixin", "ProducerMixin"],
    "ergon_framework.task.mixins.policies": [
        "BatchPolicy",
        "ConcurrencyPolicy",
        "ConsumerLoopPolicy",
        "ConsumerPolicy",
        "ConsumerSteps",
        "EmptyQueuePolicy",
        "ExceptionPolicy",
        "FetchPolicy",
        "ProcessPolicy",
        "ProducePolicy",
        "ProducerLoopPolicy",
        "ProducerPolicy",
        "ProducerSteps",
        "RetryPolicy",
        "SuccessPolicy",
    ],
    "ergon_framework.task.mixins.utils": [
        "run_with_timeout",
        "run_with_timeout_async",
        "with_context",
        "with_context_async",
    ],
    "ergon_framework.task.ready": [
        "AsyncConsumerTask",
        "AsyncHybridTask",
        "AsyncProducerTask",
        "ConsumerTask",
        "HybridTask",
        "ProducerTask",
    ],
}


@pytest.mark.req("RFC-004:5.1a", "RFC-005:5", "RFC-004:9e")
@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in PINNED.items() for name in names]
)
def test_pinned_names_are_importable(module: str, name: str) -> None:
    """Module path and name exactly as the documents give them, with a docstring."""
    found = getattr(importlib.import_module(module), name)
    assert found.__name__ in (name, "ExceptionType")
    assert inspect.getdoc(found)


@pytest.mark.req("RFC-004:5.1a")
@pytest.mark.parametrize(
    "module", ["ergon_framework.task.exceptions", "ergon_framework.connector.transaction"]
)
def test_modules_that_declare_their_names_declare_exactly_these(module: str) -> None:
    """Adding or removing a public name means changing this list on purpose."""
    assert sorted(importlib.import_module(module).__all__) == PINNED[module]


@pytest.mark.req("RFC-004:5.1a")
@pytest.mark.parametrize("module", sorted(PINNED))
def test_classes_defined_in_public_modules_are_pinned(module: str) -> None:
    """Classes and functions of the mixins that are no detail are all in the list above."""
    room = importlib.import_module(module)
    own = {
        name
        for name, value in vars(room).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    }
    details = {  # for other rooms of the framework, not for users
        "Document", "FrozenDict", "FrozenList", "explain", "frozen", "thawed", "unknown_key",
        "Stoppable", "begin_call", "choose_connector", "end_call", "running_calls",
        "AsyncDispatching", "Dispatching",
    }  # fmt: skip
    assert own - details <= set(PINNED[module])


@pytest.mark.req("RFC-004:5.1a", "RFC-004:5.1b")
def test_both_colours_have_the_same_methods_and_signatures() -> None:
    """A twin differs in colour only."""
    from ergon_framework.task.mixins import consumer, producer

    for plain, coloured in (
        (consumer.ConsumerMixin, consumer.AsyncConsumerMixin),
        (producer.ProducerMixin, producer.AsyncProducerMixin),
    ):
        methods = {name for name in vars(plain) if inspect.isfunction(vars(plain)[name])}
        assert methods == {
            name for name in vars(coloured) if inspect.isfunction(vars(coloured)[name])
        }
        for name in methods:
            one, other = getattr(plain, name), getattr(coloured, name)
            assert list(inspect.signature(one).parameters) == list(
                inspect.signature(other).parameters
            )
            assert inspect.iscoroutinefunction(other)
            assert not inspect.iscoroutinefunction(one)


@pytest.mark.req("RFC-004:5.1a", "RFC-005:5", "RFC-004:3d", "T3.29")
def test_the_documented_example_works_as_written() -> None:
    """Names, base classes and calls exactly as a reader of the documents writes them."""
    from ergon_framework.connector.transaction import Transaction
    from ergon_framework.task.base import BaseAsyncTask, BaseTask
    from ergon_framework.task.exceptions import ExceptionType, TransactionException
    from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
    from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
    from ergon_framework.task.mixins.producer import ProducerMixin
    from ergon_framework.testing.clock import VirtualClock

    told: list[Any] = []

    class Orders(ConsumerMixin, BaseTask):
        def process_transaction(self, transaction: Transaction) -> Any:
            if transaction.payload == 2:
                raise TransactionException("unknown customer", category=ExceptionType.BUSINESS)
            return transaction.id

        def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
            told.append(result)

        def handle_transaction_exception(self, transaction: Transaction, exc: Any) -> None:
            told.append(exc.message)

    class AsyncOrders(AsyncConsumerMixin, BaseAsyncTask):
        async def process_transaction(self, transaction: Transaction) -> Any:
            return transaction.transaction_id

    class Sender(ProducerMixin, BaseTask):
        def produce_transaction(self, transaction: Transaction) -> Any:
            told.append(transaction.id)

    policy = ConsumerPolicy()
    source = ScriptedConnector([transactions(1), transactions(2)[1:]])
    report = Orders(connectors={"orders": source}, services={}).consume_transactions(policy)
    assert (report, report.succeeded, report.failed) == (2, 1, 1)
    assert told == ["t1", "unknown customer"]

    async def run() -> Any:
        connectors = {"orders": ScriptedConnector([transactions(1)])}
        return await AsyncOrders(connectors=connectors, services={}).consume_transactions(policy)

    assert VirtualClock().run(run()) == 1
    sent = Sender(connectors={}, services={}).produce_transactions(
        [Transaction(transaction_id="a", payload={}), Transaction(id="b")], ProducerPolicy()
    )
    assert sent == 2
    assert told[2:] == ["a", "b"]


@pytest.mark.req("RFC-005:11f", "T3.18")
def test_exceptions_of_a_whole_call_keep_their_ancestry() -> None:
    """except TimeoutError catches every timeout of a call, and none is a TransactionException."""
    from ergon_framework.task import exceptions

    for name in (
        "ConsumerLoopTimeoutException",
        "ProducerLoopTimeoutException",
        "FetchTimeoutException",
    ):
        kind = getattr(exceptions, name)
        assert issubclass(kind, TimeoutError)
        assert not issubclass(kind, exceptions.TransactionException)
    assert issubclass(exceptions.FetchTimeoutException, exceptions.FetchException)


@pytest.mark.req("T3.18")
def test_the_reports_fields_are_pinned() -> None:
    """Counts, tuples, seconds and an enum under the documented names."""
    from enum import Enum

    from ergon_framework.engine.report import Report

    report = Report()
    assert isinstance(report, int)
    for name in ("succeeded", "failed", "timed_out", "handler_failures", "aborted", "batches"):
        assert getattr(report, name) == 0
    assert report.stranded == report.duplicates == ()
    assert report.elapsed == 0
    assert isinstance(report.stop_reason, Enum)
    with pytest.raises(TypeError):
        Report(unknown=1)


@pytest.mark.req("R2-D5", "R0-G8")
def test_real_time_works_as_well_as_virtual(colour: str) -> None:
    """Without any clock of ours: both colours run on the machine's own."""
    import asyncio

    from tests.engine.bodies import Supply, consumer, rules

    async def process(transaction: Any) -> int:
        return int(transaction.payload)

    source = Supply(transactions(50))
    task: Any = consumer(colour, source, process=process)  # type: ignore[arg-type]
    policy = rules(size=10, concurrency=4, steps={"process": {"timeout": 30.0}})
    if colour == "sync":
        report = task.consume_transactions(policy)
    else:
        report = asyncio.run(task.consume_transactions(policy))
    assert report.succeeded == 50


@pytest.mark.slow
@pytest.mark.req("T3.2")
def test_abandoned_threads_do_not_hold_the_interpreter() -> None:
    """A program with a call hung for ever still exits after its report."""
    import subprocess
    import sys

    program = """
import threading
from ergon_framework.connector.transaction import Transaction
from ergon_framework.task.base import BaseTask
from ergon_framework.task.mixins.producer import ProducerMixin

class Hung(ProducerMixin, BaseTask):
    def produce_transaction(self, transaction):
        threading.Event().wait()

report = Hung().produce_transactions(
    [Transaction("t1")], {"steps": {"produce": {"retry": {"timeout": 0.05}}}}
)
print(int(report), report.abandoned)
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1"]
