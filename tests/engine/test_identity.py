"""Equal ids: one after the other in a consumer, once in a producer."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Gauge, consumer, nap, now, producer, rules
from tests.engine.colours import Colour, consume, produce


@pytest.mark.req("T3.10", "RFC-004:3e", "RFC-004:14a", "R0-I4")
@pytest.mark.parametrize("mode", ["batch", "continuous"])
def test_equal_ids_never_run_together_and_none_is_dropped(colour: Colour, mode: str) -> None:
    """Four deliveries of one id among others: all are worked on, one at a time."""
    gauge = Gauge()

    async def process(transaction: Any) -> None:
        with gauge.inside(transaction.transaction_id):
            await nap(1.0)

    same = [Transaction("same", n) for n in range(4)]
    source = ScriptedConnector([[same[0], same[1], *transactions(2), same[2], same[3]]])
    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=6, concurrency=6, mode=mode), task=task)
    assert outcome.report.succeeded == 6
    assert gauge.peaks["same"] == 1
    assert gauge.peak == 3
    assert outcome.report.duplicates == ()


@pytest.mark.req("T3.10", "T3.31")
def test_equal_ids_keep_their_order(colour: Colour) -> None:
    """They run in the order of delivery."""
    order: list[int] = []

    async def process(transaction: Any) -> None:
        order.append(transaction.payload)
        await nap(1.0)

    source = ScriptedConnector([[Transaction("same", n) for n in range(5)]])
    task = consumer(colour, source, process=process)
    consume(colour, source, rules(size=5, concurrency=5), task=task)
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.req("T3.10")
def test_a_deferred_one_holds_no_permit(colour: Colour) -> None:
    """With two permits and two of one id first, the third transaction starts at once."""
    starts: dict[str, list[float]] = {}

    async def process(transaction: Any) -> None:
        starts.setdefault(transaction.transaction_id, []).append(now())
        await nap(10.0)

    source = ScriptedConnector([[Transaction("a"), Transaction("a"), Transaction("b")]])
    task = consumer(colour, source, process=process)
    consume(colour, source, rules(size=3, concurrency=2), task=task)
    assert starts == {"a": [0.0, 10.0], "b": [0.0]}


@pytest.mark.req("T3.10")
def test_a_deferred_one_runs_whatever_became_of_the_first(colour: Colour) -> None:
    """Failure and timeout let the next one go, too."""
    calls: list[int] = []

    async def process(transaction: Any) -> None:
        calls.append(transaction.payload)
        if transaction.payload == 0:
            raise ValueError("x")
        if transaction.payload == 1:
            await nap(100.0)

    source = ScriptedConnector([[Transaction("a", n) for n in range(3)]])
    task = consumer(colour, source, process=process)
    policy = rules(size=3, concurrency=3, transaction_timeout=5.0)
    report = consume(colour, source, policy, task=task).report
    assert calls == [0, 1, 2]
    assert (report.succeeded, report.failed, report.timed_out) == (1, 1, 1)


@pytest.mark.req("T3.10")
def test_an_id_may_come_again_later(colour: Colour) -> None:
    """Over batches ids repeat legitimately."""
    outcome = consume(colour, [transactions(1), transactions(1), transactions(1)])
    assert outcome.calls("process") == ["t1", "t1", "t1"]
    assert outcome.report == 3


@pytest.mark.req("T3.10", "RFC-004:14a")
def test_continuous_refill_defers_an_id_that_still_runs(colour: Colour) -> None:
    """The repeat arrives with a later fetch while the first is at work."""
    gauge = Gauge()

    async def process(transaction: Any) -> None:
        with gauge.inside(transaction.transaction_id):
            await nap(10.0)

    source = ScriptedConnector([[Transaction("a"), Transaction("b")], [Transaction("a")]])
    task = consumer(colour, source, process=process)
    policy = rules(size=2, concurrency=4, mode="continuous")
    outcome = consume(colour, source, policy, task=task)
    assert gauge.peaks == {"a": 1, "b": 1}
    assert outcome.report.succeeded == 3


@pytest.mark.req("T3.10", "RFC-005:10.3e", "RFC-005:16a")
@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_producer_skips_and_reports_repeats(colour: Colour, size: int) -> None:
    """Over batches too; the first of each id is produced."""
    one, two, three = transactions(3)
    outcome = produce(colour, [one, two, one, three, two, one], rules(size=size, concurrency=3))
    assert sorted(outcome.calls("produce")) == ["t1", "t2", "t3"]
    assert sorted(outcome.report.duplicates) == ["t1", "t1", "t2"]
    assert outcome.report == 3


@pytest.mark.req("T3.10")
def test_repeats_are_warned_about(colour: Colour, caplog: pytest.LogCaptureFixture) -> None:
    """A skipped transaction is never silent."""
    one, two = transactions(2)
    produce(colour, [one, two, one])
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert any("t1" in text for text in warnings)


@pytest.mark.req("T3.10")
def test_long_ids_are_told_apart(colour: Colour) -> None:
    """Ids that differ only at the end are different ids."""
    given = [Transaction("x" * 200 + str(n)) for n in range(5)]
    outcome = produce(colour, [*given, given[3]], rules(size=10))
    assert outcome.report == 5
    assert outcome.report.duplicates == (given[3].transaction_id,)


@pytest.mark.req("T3.10")
def test_the_registry_belongs_to_one_call(colour: Colour) -> None:
    """The same task may produce the same ids again."""
    seen: list[str] = []

    async def send(transaction: Any) -> None:
        seen.append(transaction.transaction_id)

    task = producer(colour, produce=send)
    for _ in range(2):
        assert produce(colour, transactions(2), rules(size=2), task=task).report == 2
    assert seen == ["t1", "t2"] * 2


@pytest.mark.req("RFC-005:10.3e", "RFC-004:14a")
def test_a_retry_is_not_a_second_processing_at_once(colour: Colour) -> None:
    """Attempts of one transaction follow each other when none hangs."""
    gauge = Gauge()

    async def process(transaction: Any) -> None:
        with gauge.inside(transaction.transaction_id):
            await nap(1.0)
            raise ValueError("again")

    source = ScriptedConnector([transactions(3)])
    task = consumer(colour, source, process=process)
    policy = rules(size=3, concurrency=3, steps={"process": {"max_attempts": 4}})
    consume(colour, source, policy, task=task)
    assert gauge.peaks == {"t1": 1, "t2": 1, "t3": 1}


@pytest.mark.req("T3.10")
def test_a_deferred_repeat_is_not_lost_when_a_stop_comes(colour: Colour) -> None:
    """It is finished in the drain or named; here nothing can be handed back, so it is finished."""
    source = ScriptedConnector([[Transaction("a", 0), Transaction("a", 1)]])
    ran: list[int] = []

    async def process(transaction: Any) -> None:
        if transaction.payload == 0:
            task.request_stop()
        await nap(1.0)
        ran.append(transaction.payload)

    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=2, concurrency=2), task=task)
    assert ran == [0, 1] or outcome.report.stranded == ("a",)
    assert outcome.report + len(outcome.report.stranded) == 2


@pytest.mark.req("T3.10")
def test_hung_repeats_do_not_block_each_other_for_ever(colour: Colour) -> None:
    """Three of one id, each hanging: the lifecycle timeout lets each next one go."""
    source = ScriptedConnector([[Transaction("a", n) for n in range(3)]])
    policy = rules(size=3, concurrency=3, transaction_timeout=5.0, max_abandoned=9)
    outcome = consume(colour, source, policy, process=Takes(1000.0))
    assert outcome.times("process") == [0.0, 5.0, 10.0]
    assert outcome.report.timed_out == 3
