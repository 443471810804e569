"""Batch consumers: many units in one call, one outcome each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.engine.report import Report
from ergon_framework.errors import (
    ConsumerLoopTimeoutException,
    ExceptionType,
    TransactionException,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.functions import FunctionConsumer
from ergon_framework.testing.clock import VirtualClock


@dataclass
class Order:
    """What the functions below consume."""

    amount: int


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """The colour of the function."""
    return str(request.param)


class Batches:
    """A batch consumer of either colour that notes each call: when, and with which amounts."""

    def __init__(self, colour: str, answer: Callable[[list[int]], Any], took: float = 0.0) -> None:
        self.colour = colour
        self.answer = answer
        self.took = took
        self.clock = VirtualClock()
        self.calls: list[tuple[float, list[int]]] = []
        self.at_once = self.most_at_once = 0
        self.queue = MemoryConnector()

    def consume(self, *amounts: Any, **options: Any) -> Report:
        """Consume an order for each amount, in virtual time."""
        self.queue.dispatch_transactions(
            [Transaction(f"t{n}", {"amount": each}) for n, each in enumerate(amounts, 1)]
        )
        if self.colour == "async":
            made = FunctionConsumer(self._charge_async, self.queue, options=options)
            report: Report = self.clock.run(made.run_async())
            return report
        with self.clock:
            report = FunctionConsumer(self._charge, self.queue, options=options).run()
        self.clock.advance(1e6)  # whoever still hangs comes back now
        return report

    def _charge(self, orders: list[Order]) -> Any:
        self._began(orders)
        if self.took:
            self.clock.sleep(self.took)
        self.at_once -= 1
        return self.answer([each.amount for each in orders])

    async def _charge_async(self, orders: list[Order]) -> Any:
        self._began(orders)
        try:
            await asyncio.sleep(self.took)
        finally:
            self.at_once -= 1
        return self.answer([each.amount for each in orders])

    def _began(self, orders: list[Order]) -> None:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.calls.append((self.clock.now(), [each.amount for each in orders]))

    @property
    def dead(self) -> dict[str, str]:
        """Why each unit failed that did."""
        return {transaction.id: reason for transaction, reason in self.queue.dead}


def refuse(text: str) -> TransactionException:
    """A failure that is not tried again."""
    return TransactionException(text, ExceptionType.BUSINESS)


def test_units_come_in_full_batches_and_the_rest_after_the_linger(colour: str) -> None:
    """Twenty-five units at ten each are three calls, the last one when its time is over."""
    batches = Batches(colour, lambda _: None)
    report = batches.consume(*range(25), batch=10, linger=2.0)
    assert (report.succeeded, report.failed) == (25, 0)
    assert [len(amounts) for _, amounts in batches.calls] == [10, 10, 5]
    assert sorted(each for _, amounts in batches.calls for each in amounts) == list(range(25))
    assert [at for at, _ in batches.calls] == [0.0, 0.0, 2.0]
    assert batches.queue.get_transactions_count() == 0


@pytest.mark.parametrize("kind", [list, tuple])
def test_each_unit_has_its_own_outcome(colour: str, kind: Callable[[Any], Any]) -> None:
    """A list is one result for each; an exception in it is the failure of that unit alone."""
    batches = Batches(
        colour, lambda amounts: kind(refuse("nothing") if each == 0 else each for each in amounts)
    )
    report = batches.consume(3, 0, 5, batch=3)
    assert (report.succeeded, report.failed) == (2, 1)
    assert batches.dead == {"t2": "TransactionException: nothing"}
    assert len(batches.calls) == 1


def test_what_is_raised_fails_them_all(colour: str) -> None:
    """Each one for itself: the source is told of three failures."""

    def answer(_amounts: list[int]) -> Any:
        raise refuse("all of it")

    batches = Batches(colour, answer)
    assert batches.consume(1, 2, 3, batch=3, attempts=5).failed == 3
    assert len(batches.calls) == 1
    assert set(batches.dead) == {"t1", "t2", "t3"}
    assert set(batches.dead.values()) == {"TransactionException: all of it"}


def test_a_unit_that_is_tried_again_joins_the_next_batch(colour: str) -> None:
    """The two that failed come again together, and nobody else with them."""
    failed: set[int] = set()

    def answer(amounts: list[int]) -> list[Any]:
        first = [each for each in amounts if each in (1, 4) and each not in failed]
        failed.update(first)
        return [OSError("away") if each in first else each for each in amounts]

    batches = Batches(colour, answer)
    report = batches.consume(*range(5), batch=5, attempts=3, backoff=1.0, linger=0.5)
    assert report.succeeded == 5
    assert [(at, sorted(amounts)) for at, amounts in batches.calls] == [
        (0.0, [0, 1, 2, 3, 4]),
        (1.5, [1, 4]),
    ]


def test_a_bad_payload_fails_alone_and_never_reaches_the_function(colour: str) -> None:
    """The others do not wait for it longer than the linger."""
    batches = Batches(colour, lambda _: None)
    report = batches.consume(1, "x", 3, batch=3)
    assert (report.succeeded, report.failed) == (2, 1)
    assert [sorted(amounts) for _, amounts in batches.calls] == [[1, 3]]
    assert "amount: Expected `int`, got `str`" in batches.dead["t2"]


def test_a_list_of_another_length_fails_them_all_and_is_not_repeated(colour: str) -> None:
    """Nobody knows which result belongs to which unit, and the work has been done."""
    batches = Batches(colour, lambda amounts: amounts[1:])
    assert batches.consume(1, 2, 3, batch=3, attempts=5).failed == 3
    assert len(batches.calls) == 1
    assert "returned 2 results for 3 units" in batches.dead["t1"]


def test_the_timeout_bounds_the_call_of_a_batch(colour: str) -> None:
    """A call that hangs costs each unit one attempt, and the next one gets them again."""
    batches = Batches(colour, lambda _: None, took=60.0)
    report = batches.consume(1, 2, 3, batch=3, attempts=2, timeout=5.0, linger=1.0)
    assert report.timed_out == 3
    assert sorted(batches.calls[0][1]) == [1, 2, 3]
    assert sorted(each for _, amounts in batches.calls[1:] for each in amounts) == [1, 2, 3]
    assert batches.clock.now() >= 10.0
    assert report.elapsed <= 12.0


def test_no_more_calls_at_once_than_concurrency_says(colour: str) -> None:
    """Also where batches are not full: what comes meanwhile waits, and joins."""
    batches = Batches(colour, lambda _: None, took=1.0)
    assert batches.consume(*range(12), batch=3, concurrency=2).succeeded == 12
    assert batches.most_at_once == 2
    assert batches.clock.now() >= 2.0
    alone = Batches(colour, lambda _: None, took=1.0)
    assert alone.consume(*range(6), batch=3).succeeded == 6
    assert alone.most_at_once == 1


def test_a_function_may_take_whole_transactions(colour: str) -> None:
    """With their payloads converted where the annotation says so."""
    seen: list[Any] = []

    def charge(units: list[Transaction[Order]]) -> None:
        seen.extend((each.id, each.payload) for each in units)

    async def charge_async(units: list[Transaction[Order]]) -> None:
        charge(units)

    queue = MemoryConnector([Transaction("t1", {"amount": 1}), Transaction("t2", {"amount": 2})])
    clock = VirtualClock()
    if colour == "async":
        clock.run(FunctionConsumer(charge_async, queue, options={"batch": 2}).run_async())
    else:
        with clock:
            FunctionConsumer(charge, queue, options={"batch": 2}).run()
    assert sorted(seen, key=lambda each: str(each[0])) == [("t1", Order(1)), ("t2", Order(2))]


def test_a_stop_lets_the_batch_under_way_finish(colour: str) -> None:
    """What was not begun goes back; nobody waits for a batch to fill."""
    queue = MemoryConnector([Transaction(f"t{n}", {"amount": n}) for n in range(9)])
    tasks: list[Any] = []
    sizes = []

    def charge(orders: list[Order]) -> None:
        sizes.append(len(orders))
        tasks[0].request_stop()

    async def charge_async(orders: list[Order]) -> None:
        charge(orders)

    function: Any = charge if colour == "sync" else charge_async
    made = FunctionConsumer(function, queue, options={"batch": 3, "streaming": True})
    tasks.append(made.task())
    clock = VirtualClock()
    if colour == "async":
        report = clock.run(tasks[0].execute(made.policy))
    else:
        with clock:
            report = tasks[0].execute(made.policy)
    assert report.stop_reason == "stopped"
    assert report.succeeded == sum(sizes) >= 3
    assert queue.get_transactions_count() == 9 - report.succeeded


def test_a_call_meets_nothing_that_an_earlier_one_left_behind(colour: str) -> None:
    """The first call is cut off while its batch waits for more, on an event loop that ends."""
    clock = VirtualClock()
    sizes: list[int] = []

    def charge(orders: list[Order]) -> None:
        sizes.append(len(orders))

    async def charge_async(orders: list[Order]) -> None:
        sizes.append(len(orders))

    queue = MemoryConnector([Transaction(f"t{n}", {"amount": n}) for n in range(5)])
    function: Any = charge if colour == "sync" else charge_async
    made = FunctionConsumer(function, queue, options={"batch": 20, "linger": 60.0})
    task: Any = made.task()
    hurried = made.policy.model_dump(exclude_unset=True)
    hurried["loop"]["timeout"] = 10.0

    def execute(policy: Any) -> Any:
        if colour == "async":
            return clock.run(task.consume_transactions(policy))
        with clock:
            return task.consume_transactions(policy)

    with pytest.raises(ConsumerLoopTimeoutException):
        execute(hurried)
    began_at = clock.now()
    assert execute(made.policy).succeeded == 5
    assert (sizes, clock.now() - began_at) == ([5], 60.0)


def test_a_call_that_swallows_its_cancellation_does_not_hold_up_the_next() -> None:
    """It is abandoned like any other; threads always are, see above."""
    sizes: list[tuple[float, int]] = []
    clock = VirtualClock()

    async def charge(orders: list[Order]) -> None:
        sizes.append((clock.now(), len(orders)))
        if len(sizes) == 1:
            try:
                await asyncio.sleep(1e4)
            except asyncio.CancelledError:
                await asyncio.sleep(1e4)

    queue = MemoryConnector([Transaction(f"t{n}", {"amount": n}) for n in range(6)])
    options = {"batch": 3, "attempts": 2, "timeout": 5.0}
    report = clock.run(FunctionConsumer(charge, queue, options=options).run_async())
    assert report.abandoned >= 1
    assert report.succeeded == 6
    assert sizes[0] == (0.0, 3)
    assert 6.0 <= sizes[1][0] < 7.0


def test_whatever_fails_each_unit_ends_exactly_once(colour: str) -> None:
    """Hundreds of units, calls that raise, units that fail, and attempts that run out."""
    dice = random.Random(7)  # noqa: S311 - the same run each time
    charged: list[int] = []

    def answer(amounts: list[int]) -> list[Any]:
        if dice.random() < 0.1:
            raise OSError("away")
        results = [OSError("away") if dice.random() < 0.3 else each for each in amounts]
        charged.extend(each for each in results if isinstance(each, int))
        return results

    batches = Batches(colour, answer, took=0.5)
    options = {"batch": 20, "concurrency": 3, "attempts": 4, "backoff": 0.2, "timeout": 5.0}
    report = batches.consume(*range(400), **options)
    assert len(charged) == len(set(charged)) == report.succeeded
    assert report.succeeded + report.failed + report.timed_out == 400
    assert report.failed == len(batches.dead)
    assert 1 < batches.most_at_once <= 3
    assert all(len(amounts) <= 20 for _, amounts in batches.calls)
