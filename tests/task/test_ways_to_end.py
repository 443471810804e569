"""What a consumer raises to say how its unit goes on: Business, Retry, Snooze and Discard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.engine.report import Report
from ergon_framework.errors import Business, Discard, Retry, Snooze
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.functions import FunctionConsumer
from ergon_framework.task.ready import ConsumerTask
from ergon_framework.testing.clock import VirtualClock


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """The colour of the function."""
    return str(request.param)


class Told(MemoryConnector):
    """A queue that notes what it is told."""

    def __init__(self, *ids: str) -> None:
        super().__init__([Transaction(each, each) for each in ids])
        self.told: list[tuple[str, str]] = []

    def ack(self, transaction: Transaction) -> None:
        self.told.append(("ack", transaction.id))
        super().ack(transaction)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        self.told.append(("nack", transaction.id))
        super().nack(transaction, exc)


class Consumed:
    """A consumer of either colour that does what a function says, in virtual time."""

    def __init__(self, colour: str, queue: Any, body: Callable[[str, int], Any]) -> None:
        self.colour, self.queue, self.body = colour, queue, body
        self.clock = VirtualClock()
        self.calls: list[float] = []
        self.handled: list[Any] = []

    def run(self, **options: Any) -> Report:
        """Consume all of it."""

        def charge(order: str) -> Any:
            self.calls.append(self.clock.now())
            return self.body(order, len(self.calls))

        async def charge_async(order: str) -> Any:
            return charge(order)

        function: Any = charge if self.colour == "sync" else charge_async
        made = FunctionConsumer(function, self.queue, options=options)
        if self.colour == "async":

            async def note_async(transaction: Transaction, what: Any) -> None:
                self.handled.append((transaction.id, what))

            made.on_success(note_async)
            made.on_failure(note_async)
            report: Report = self.clock.run(made.run_async())
            return report
        made.on_success(lambda transaction, what: self.handled.append((transaction.id, what)))
        made.on_failure(lambda transaction, what: self.handled.append((transaction.id, what)))
        with self.clock:
            return made.run()


def test_business_is_a_failure_that_is_tried_once(colour: str) -> None:
    """Whatever the attempts; the source is told, with the reason."""
    queue = Told("t1")

    def body(_order: str, _call: int) -> None:
        raise Business("nothing to charge")

    consumed = Consumed(colour, queue, body)
    assert consumed.run(attempts=5).failed == 1
    assert consumed.calls == [0.0]
    assert queue.dead[0][1] == "Business: nothing to charge"
    assert consumed.handled[0][1].category == "business"


def test_retry_says_when_the_next_attempt_is_made(colour: str) -> None:
    """After that time, and not before the backoff; the attempt counts."""

    def body(_order: str, call: int) -> str:
        if call < 3:
            raise Retry("not there yet", after=40)
        return "done"

    consumed = Consumed(colour, Told("t1"), body)
    assert consumed.run(attempts=3, backoff=1.0).succeeded == 1
    assert consumed.calls == [0.0, 40.0, 80.0]


def test_retry_is_a_failure_when_no_attempt_is_left(colour: str) -> None:
    """The policy says how many there are, not the function."""

    def body(_order: str, _call: int) -> None:
        raise Retry("not there yet", after=1)

    consumed = Consumed(colour, Told("t1"), body)
    assert consumed.run(attempts=2).failed == 1
    assert consumed.calls == [0.0, 1.0]


def test_snooze_gives_the_unit_back_to_a_source_that_can_keep_it(colour: str) -> None:
    """It is delivered again after that time, and none of it counts as an attempt or a failure."""

    def body(_order: str, call: int) -> str:
        if call == 1:
            raise Snooze(60, "the night is quiet")
        return "done"

    consumed = Consumed(colour, Told("t1"), body)
    report = consumed.run(attempts=1, streaming=True, limit=2)
    assert (report.parked, report.succeeded, report.failed) == (1, 1, 0)
    assert len(consumed.calls) == 2
    assert consumed.calls[1] >= 60.0


def test_snooze_waits_in_its_place_where_the_source_cannot_keep_it(colour: str) -> None:
    """A source without release_after has nobody else who would bring it again."""

    def body(_order: str, call: int) -> str:
        if call == 1:
            raise Snooze(60)
        return "done"

    queue = MemoryConnector([Transaction("t1", "t1")], settling=False)
    consumed = Consumed(colour, queue, body)
    report = consumed.run(attempts=1)
    assert (report.parked, report.succeeded) == (0, 1)
    assert consumed.calls == [0.0, 60.0]


def test_discard_is_acknowledged_and_counted_by_itself(
    colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No handler is called and nothing is tried again; the log has the reason."""
    queue = Told("t1", "t2")

    def body(order: str, _call: int) -> str:
        if order == "t1":
            raise Discard("a newer one has come")
        return "done"

    consumed = Consumed(colour, queue, body)
    with caplog.at_level(logging.INFO, "ergon.engine"):
        report = consumed.run(attempts=3)
    assert (report.discarded, report.succeeded, report.failed, int(report)) == (1, 1, 0, 2)
    assert queue.told == [("ack", "t1"), ("ack", "t2")]
    assert consumed.handled == [("t2", "done")]
    assert "transaction t1 is discarded: a newer one has come" in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_each_unit_of_a_batch_may_end_in_its_own_way(colour: str) -> None:
    """The four exceptions mean the same in a list."""
    seen: list[list[str]] = []

    def charge(orders: list[str]) -> list[Any]:
        seen.append(sorted(orders))
        ways = {"bad": Business("no"), "old": Discard("pointless"), "later": Retry(after=5)}
        return [ways.get(each, each) if len(seen) == 1 else each for each in orders]

    async def charge_async(orders: list[str]) -> list[Any]:
        return charge(orders)

    queue = Told("bad", "old", "later", "good")
    clock = VirtualClock()
    options = {"batch": 4, "attempts": 2}
    if colour == "async":
        report = clock.run(FunctionConsumer(charge_async, queue, options=options).run_async())
    else:
        with clock:
            report = FunctionConsumer(charge, queue, options=options).run()
    assert (report.succeeded, report.failed, report.discarded) == (2, 1, 1)
    assert seen == [["bad", "good", "later", "old"], ["later"]]


def test_a_class_may_raise_them_too() -> None:
    """They belong to the engine, not to the short form."""

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            raise Discard

    queue = Told("t1")
    report = Orders({"orders": queue}).consume_transactions()
    assert (report.discarded, queue.told) == (1, [("ack", "t1")])
