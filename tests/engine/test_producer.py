"""The producer's loop: sequential batches over any iterable, bounded and complete."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.core.loop import StopReason
from ergon_framework.errors import InputException, ProducerLoopTimeoutException
from ergon_framework.task import ready
from ergon_framework.task.mixins.policies import ProducerPolicy
from ergon_framework.task.ready import (
    AsyncDispatching,
    AsyncProducerTask,
    Dispatching,
    ProducerTask,
)
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Gauge, final_report, method, nap, now, producer, refusal, rules
from tests.engine.colours import Colour, Outcome, consume, produce


@pytest.mark.req("RFC-005:15.1a", "RFC-005:6b", "RFC-005:15.1d")
@pytest.mark.parametrize("count", [0, 1, 7])
def test_all_input_is_produced(colour: Colour, count: int) -> None:
    """Each once, and the report says that the input is used up; none is waited for."""
    outcome = produce(colour, transactions(count), rules(size=3))
    assert outcome.calls("produce") == [f"t{n}" for n in range(1, count + 1)]
    assert (outcome.report, outcome.report.stop_reason) == (count, StopReason.EXHAUSTED)
    assert outcome.report.elapsed == 0.0


@pytest.mark.req("RFC-005:6b")
def test_a_producer_asks_no_connector_for_work(colour: Colour) -> None:
    """It produces what it was given, whatever its connectors could deliver."""
    source = ScriptedConnector([transactions(2, "u")])
    seen: list[str] = []

    async def send(transaction: Any) -> None:
        seen.append(transaction.transaction_id)

    task = producer(colour, {"source": source}, produce=send)
    assert produce(colour, transactions(1), task=task).report == 1
    assert (seen, source.fetches) == (["t1"], [])


@pytest.mark.req("RFC-005:10.1a", "R3-BA2", "RFC-005:10.1b", "T3.8")
def test_batches_run_strictly_one_after_the_other(colour: Colour) -> None:
    """A slow one holds the next batch, whatever the free workers."""
    hooks: dict[str, Any] = {"produce": {"t1": [Takes(10.0)]}}
    outcome = produce(colour, transactions(5), rules(size=2, concurrency=2), **hooks)
    assert outcome.times("produce") == [0.0, 0.0, 10.0, 10.0, 10.0]
    assert outcome.report.batches == 3


@pytest.mark.req(
    "RFC-005:10.1c", "RFC-005:10.2a", "RFC-005:10.3a", "RFC-005:10.3d", "RFC-005:16h", "RFC-005:3c",
    "RFC-005:15.2a", "RFC-005:3f",
)  # fmt: skip
@pytest.mark.parametrize("bound", [1, 3, 6])
def test_concurrency_is_reached_and_never_exceeded(colour: Colour, bound: int) -> None:
    """Across batches."""
    gauge = Gauge()

    async def send(_transaction: Any) -> None:
        with gauge.inside():
            await nap(1.0)

    task = producer(colour, produce=send)
    outcome = produce(colour, transactions(18), rules(size=6, concurrency=bound), task=task)
    assert gauge.peak == bound
    assert outcome.report.succeeded == 18
    assert outcome.report.elapsed == 3 * -(-6 // bound)


@pytest.mark.req(
    "RFC-005:10.1d", "RFC-005:10.3f", "RFC-005:15.2b", "RFC-005:15.2d", "RFC-005:15.2e",
)  # fmt: skip
def test_a_free_worker_takes_the_next_of_the_batch(colour: Colour) -> None:
    """Refill within the batch, also after a failure."""
    hooks: dict[str, Any] = {
        "produce": {"t1": [Takes(10.0)], "t2": [Takes(1.0, OSError())], "t3": [Takes(2.0)]}
    }
    outcome = produce(colour, transactions(4), rules(size=4, concurrency=2), **hooks)
    assert outcome.times("produce") == [0.0, 0.0, 1.0, 3.0]


@pytest.mark.req("RFC-005:11c", "RFC-005:11f", "RFC-005:15.1c", "RFC-005:16g", "T3.17")
def test_the_loop_timeout_bounds_the_whole_call(colour: Colour) -> None:
    """A ProducerLoopTimeoutException that is a TimeoutError, with aborted and unstarted named."""
    hooks: dict[str, Any] = {"produce": {"t1": ["ok"], "t2": [Takes(100.0)]}}
    outcome = produce(colour, transactions(6), rules(size=2, concurrency=2, timeout=5.0), **hooks)
    error = outcome.error
    assert isinstance(error, ProducerLoopTimeoutException)
    assert isinstance(error, TimeoutError)
    report = final_report(outcome)
    assert (report.succeeded, report.aborted, report.elapsed) == (1, 1, 5.0)
    assert set(report.stranded) >= {"t3", "t4", "t5", "t6"}
    assert report.stop_reason is StopReason.TIMEOUT
    assert outcome.calls("exception") == []
    assert outcome.calls("success") == ["t1"]


@pytest.mark.req("T3.17")
def test_the_loop_timeout_interrupts_a_slow_iterable(colour: Colour) -> None:
    """Reading the input is inside the bound, too."""
    scene: list[Outcome] = []

    def items() -> Iterator[Transaction]:
        yield from transactions(1)
        scene[0].clock.sleep(1000.0)
        yield from transactions(1, "u")

    async def aitems() -> AsyncIterator[Transaction]:
        for each in transactions(1):
            yield each
        await nap(1000.0)

    given: Any = items() if colour == "sync" else aitems()
    outcome = produce(colour, given, rules(timeout=5.0), meanwhile=scene.append)
    assert isinstance(outcome.error, ProducerLoopTimeoutException)
    assert outcome.calls("success") == ["t1"]
    assert final_report(outcome).elapsed == 5.0


@pytest.mark.req("T3.27", "RFC-005:3d")
def test_input_is_read_lazily(colour: Colour) -> None:
    """Never more than one batch is in the engine's hands, however long the input."""
    outstanding = 0
    most = 0
    ended = 0

    def items() -> Iterator[Transaction]:
        nonlocal outstanding, most
        for n in range(10_000):
            outstanding += 1
            most = max(most, outstanding)
            yield Transaction(f"t{n}", n)

    async def send(_transaction: Any) -> None:
        nonlocal outstanding, ended
        outstanding -= 1
        ended += 1

    task = producer(colour, produce=send)
    outcome = produce(colour, items(), rules(size=20, concurrency=1), task=task)
    assert outcome.report == ended == 10_000
    assert most <= 20


@pytest.mark.req("T3.27")
def test_no_more_tasks_than_permits_exist() -> None:
    """A permit is taken before a task is made."""
    most = 0

    async def send(_transaction: Any) -> None:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(1)

    task = producer("async", produce=send)
    produce("async", transactions(200), rules(size=200, concurrency=5), task=task)
    assert most <= 5 + 1 + 1  # the workers, the call itself, and the test's own


@pytest.mark.req("RFC-005:10.2a", "T3.27")
def test_no_more_threads_than_permits_exist() -> None:
    """Long-lived workers, not a thread per transaction."""
    names: set[int] = set()

    async def send(_transaction: Any) -> None:
        names.add(threading.get_ident())
        await nap(1.0)

    task = producer("sync", produce=send)
    produce("sync", transactions(60), rules(size=60, concurrency=4), task=task)
    assert len(names) <= 4


@pytest.mark.req("T3.27", "RFC-005:17c")
def test_an_iterable_that_raises_half_way_loses_nothing(colour: Colour) -> None:
    """What it gave is produced; then InputException with the cause and the report."""
    broken = OSError("disk")

    def items() -> Iterator[Transaction]:
        yield from transactions(3)
        raise broken

    for size in (1, 2, 3, 10):
        outcome = produce(colour, items(), rules(size=size, concurrency=1))
        assert isinstance(outcome.error, InputException)
        assert outcome.error.__cause__ is broken
        assert outcome.calls("success") == ["t1", "t2", "t3"]
        assert final_report(outcome).succeeded == 3


@pytest.mark.req("T3.27")
def test_an_async_iterable_is_read_lazily_and_loses_nothing() -> None:
    """Items come as they are needed, an error after them."""

    async def items() -> AsyncIterator[Transaction]:
        for each in transactions(5):
            await nap(1.0)
            yield each
        raise OSError("disk")

    outcome = produce("async", items(), rules(size=2, concurrency=2))
    assert isinstance(outcome.error, InputException)
    assert outcome.calls("success") == ["t1", "t2", "t3", "t4", "t5"]
    assert outcome.times("produce") == [2.0, 2.0, 4.0, 4.0, 5.0]


@pytest.mark.req("T3.27")
def test_an_async_iterable_that_ends(colour: Colour) -> None:
    """Any iterable will do: set, generator, iterator, async generator."""

    async def items() -> AsyncIterator[Transaction]:
        for each in transactions(5):
            yield each

    given: list[Any] = [set(transactions(5)), iter(transactions(5)), tuple(transactions(5))]
    if colour == "async":
        given.append(items())
    for each in given:
        outcome = produce(colour, each, rules(size=2))
        assert sorted(outcome.calls("produce")) == ["t1", "t2", "t3", "t4", "t5"]


@pytest.mark.req("T3.31")
def test_start_order_is_first_in_first_out(colour: Colour) -> None:
    """Within and across batches."""
    given = transactions(11)
    outcome = produce(colour, given, rules(size=4, concurrency=1), produce=Takes(1.0))
    assert outcome.calls("produce") == [each.transaction_id for each in given]


@pytest.mark.req("RFC-005:17b", "RFC-005:19a")
def test_policies_are_never_changed(colour: Colour) -> None:
    """The same object before and after, for several calls."""
    policy = ProducerPolicy.model_validate(rules(size=2, limit=3))
    before = policy.model_dump_json()
    for _ in range(2):
        assert produce(colour, transactions(5), policy).report == 3
    assert policy.model_dump_json() == before


@pytest.mark.req("RFC-005:16c", "RFC-005:16d", "RFC-005:9b")
def test_a_mixed_batch_gives_every_transaction_its_one_outcome(colour: Colour) -> None:
    """Success, BUSINESS, exhausted SYSTEM and timeout side by side."""
    hooks: dict[str, Any] = {
        "produce": {"t2": [refusal()], "t3": [OSError()], "t4": [Takes(100.0)]},
    }
    policy = rules(size=4, concurrency=4, transaction_timeout=5.0, max_abandoned=9)
    outcome = produce(colour, transactions(4), policy, **hooks)
    assert outcome.calls("success") == ["t1"]
    assert sorted(outcome.calls("exception")) == ["t2", "t3", "t4"]
    report = outcome.report
    assert (report, report.succeeded, report.failed, report.timed_out) == (4, 1, 2, 1)


@pytest.mark.req("T3.25", "R0-L5", "R0-N")
def test_the_engine_dispatches_nothing_by_itself(colour: Colour) -> None:
    """Only a hook that calls the connector delivers; the ready-made one does so."""

    class Target:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def dispatch_transactions(self, items: Any) -> None:
            self.sent.extend(each.transaction_id for each in items)

        async def dispatch_transactions_async(self, items: Any) -> None:
            self.dispatch_transactions(items)

    async def nothing(_transaction: Any) -> None:
        return None

    silent, loud = Target(), Target()
    produce(colour, transactions(2), task=producer(colour, {"out": silent}, produce=nothing))
    assert silent.sent == []
    bases = (
        (Dispatching, ProducerTask) if colour == "sync" else (AsyncDispatching, AsyncProducerTask)
    )
    kind: Any = type("Sender", bases, {"target": "out"})
    task = kind({"out": loud, "other": Target()}, {})
    assert produce(colour, transactions(2), rules(size=2), task=task).report.succeeded == 2
    assert loud.sent == ["t1", "t2"]


@pytest.mark.req("R2-X1", "R2-DI1")
def test_ready_made_tasks_execute(colour: Colour) -> None:
    """execute() consumes, or produces what transactions() gives, with the policy it is given."""

    async def hook(_transaction: Any) -> None:
        return None

    clock = VirtualClock()
    prefix = "" if colour == "sync" else "Async"
    body = method(colour, hook)
    reports = []
    for role, members in (
        ("ConsumerTask", {"process_transaction": body}),
        ("HybridTask", {"process_transaction": body, "produce_transaction": body}),
        (
            "ProducerTask",
            {"produce_transaction": body, "transactions": lambda _self: transactions(3)},
        ),
    ):
        kind: Any = type("Mine", (getattr(ready, prefix + role),), members)
        task = kind({"source": ScriptedConnector([transactions(3)])}, {})
        policy = (ProducerPolicy if role == "ProducerTask" else None) and ProducerPolicy()
        if colour == "sync":
            with clock:
                reports.append(task.execute(policy))
        else:
            reports.append(clock.run(_execute(task, policy)))
    assert reports == [3, 3, 3]


async def _execute(task: Any, policy: Any) -> Any:
    return await task.execute(policy)


@pytest.mark.req("T3.18")
def test_reports_of_consumer_and_producer_have_the_same_shape(colour: Colour) -> None:
    """Same fields, same meaning; it survives pickling and JSON."""
    consumed = consume(colour, [transactions(2)], rules(size=2)).report
    produced = produce(colour, transactions(2), rules(size=2)).report
    assert consumed.to_dict().keys() == produced.to_dict().keys()
    for report in (consumed, produced):
        again = pickle.loads(pickle.dumps(report))  # noqa: S301 - our own bytes
        assert again == report == 2
        assert again.to_dict() == report.to_dict()
        assert json.loads(json.dumps(report.to_dict()))["succeeded"] == 2


@pytest.mark.req("T3.27", "T3.10")
def test_a_long_run_of_duplicates_does_not_end_the_call(colour: Colour) -> None:
    """A batch worth of repeats is not an end of input."""
    one, two = transactions(2)
    outcome = produce(colour, [one, *[one] * 50, two], rules(size=2))
    assert outcome.calls("produce") == ["t1", "t2"]
    assert len(outcome.report.duplicates) == 50


@pytest.mark.req("T3.3")
def test_waiting_in_the_batch_is_not_lifecycle_time(colour: Colour) -> None:
    """A producer's queue does not eat a transaction's time."""
    outcome = produce(
        colour, transactions(4), rules(size=4, transaction_timeout=7.0), produce=Takes(6.0)
    )
    assert outcome.report.succeeded == 4
    assert outcome.report.elapsed == 24.0


def test_the_clock_of_the_scene_is_virtual(colour: Colour) -> None:
    """A check of the tests themselves: an hour passes in no time."""
    seen: list[float] = []

    async def send(_transaction: Any) -> None:
        await nap(3600.0)
        seen.append(now())

    produce(colour, transactions(1), task=producer(colour, produce=send))
    assert seen == [3600.0]
