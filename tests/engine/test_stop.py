"""request_stop: stop fetching, wake sleepers, drain for a grace, then abort."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.core.loop import StopReason
from ergon_framework.task.ready import ConsumerTask
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Supply, by_hand, consumer, final_report, nap, now, producer, rules
from tests.engine.colours import Colour, consume, produce


async def _nothing(_transaction: Any) -> None:
    """A hook that does nothing."""


def _stopper(colour: Colour, source: Any, *, at: float, others: float, stops: int = 1) -> Any:
    """A consumer whose transaction t1 asks for the stop at an instant; the others take a while."""
    ended: list[tuple[str, float]] = []

    async def process(transaction: Any) -> None:
        if transaction.transaction_id == "t1":
            await nap(at)
            for _ in range(stops):
                task.request_stop()
        else:
            await nap(others)
        ended.append((transaction.transaction_id, now()))

    async def exception(transaction: Any, exc: Any) -> None:
        ended.append((f"exception:{transaction.transaction_id}", now()))

    task = consumer(colour, source, process=process, exception=exception)
    task.ended = ended
    return task


@pytest.mark.req("T3.30", "R0-R")
def test_a_stop_from_a_hook_drains_what_runs(colour: Colour) -> None:
    """In flight is finished, no further fetch comes, the report says stopped."""
    source = ScriptedConnector([transactions(2), transactions(2, "u")])
    task = _stopper(colour, source, at=1.0, others=5.0)
    outcome = consume(colour, source, rules(size=2, concurrency=2), task=task)
    assert outcome.error is None
    assert task.ended == [("t1", 1.0), ("t2", 5.0)]
    assert len(source.fetches) == 1
    assert outcome.report.succeeded == 2
    assert outcome.report.stop_reason is StopReason.STOPPED


@pytest.mark.req("T3.30")
def test_a_stop_hands_back_what_has_not_begun(colour: Colour) -> None:
    """Where the connector takes back, the drain is short."""
    source = ScriptedConnector([transactions(6)], settling=True)
    task = _stopper(colour, source, at=1.0, others=5.0)
    outcome = consume(colour, source, rules(size=6, concurrency=2), task=task)
    assert sorted(source.settled) == [
        ("ack", "t1"), ("ack", "t2"),
        ("release", "t3"), ("release", "t4"), ("release", "t5"), ("release", "t6"),
    ]  # fmt: skip
    assert (outcome.report.released, outcome.report.stranded) == (4, ())
    assert outcome.report.elapsed == 5.0


@pytest.mark.req("T3.30")
def test_a_stop_finishes_the_batch_where_nothing_can_be_handed_back(colour: Colour) -> None:
    """What is in our hands and in nobody else's is worked on within the grace, or named."""
    source = ScriptedConnector([transactions(6)])
    task = _stopper(colour, source, at=1.0, others=5.0)
    outcome = consume(colour, source, rules(size=6, concurrency=2), task=task)
    report = outcome.report
    assert report.succeeded + len(report.stranded) == 6
    assert len(report.stranded) == 0


@pytest.mark.req("T3.30", "T3.17")
def test_after_the_grace_the_rest_is_aborted(colour: Colour) -> None:
    """At the instant of the grace, without new exception phases, all named."""
    source = ScriptedConnector([transactions(3)])
    task = _stopper(colour, source, at=1.0, others=100.0)
    policy = rules(size=3, concurrency=2, stop_grace=10.0)
    outcome = consume(colour, source, policy, task=task)
    report = final_report(outcome)
    assert outcome.error is None
    assert task.ended == [("t1", 1.0)]
    assert report.elapsed == 11.0
    assert report.succeeded == 1
    assert report.aborted == 2
    assert sorted(report.stranded) == ["t2", "t3"]
    assert report.stop_reason is StopReason.STOPPED


@pytest.mark.req("T3.30")
def test_a_second_stop_acts_at_once(colour: Colour) -> None:
    """No grace is waited for."""
    source = ScriptedConnector([transactions(2)])
    task = _stopper(colour, source, at=1.0, others=100.0, stops=2)
    outcome = consume(colour, source, rules(size=2, concurrency=2, stop_grace=50.0), task=task)
    report = final_report(outcome)
    # Under asyncio a cancelled hook ends at once; in threads nobody is waited for either.
    assert report.elapsed == 1.0
    assert report.aborted >= 1
    assert ("t2", 100.0) not in task.ended


@pytest.mark.req("T3.30")
def test_a_stop_wakes_an_idle_stream(colour: Colour) -> None:
    """The wait after an empty fetch is cut short."""
    calls: list[float] = []

    class Empty:
        def _answer(self) -> None:
            calls.append(now())
            if len(calls) == 2:
                task.request_stop()

        def fetch_transactions(self, batch_size: int) -> None:
            self._answer()

        async def fetch_transactions_async(self, batch_size: int) -> None:
            self._answer()

    async def process(_transaction: Any) -> None:
        return None

    task = consumer(colour, Empty(), process=process)
    empty = {"backoff": 60.0, "backoff_cap": 0.0}
    outcome = consume(colour, None, rules(streaming=True, empty_queue=empty), task=task)
    assert calls == [0.0, 60.0]
    assert outcome.report.elapsed == 60.0
    assert outcome.report.stop_reason is StopReason.STOPPED


@pytest.mark.req("T3.30")
def test_a_stop_wakes_the_wait_before_a_fetch_retry(colour: Colour) -> None:
    """Backoff of a fetch does not delay a stop."""

    class Down:
        def fetch_transactions(self, batch_size: int) -> None:
            task.request_stop()
            raise OSError("down")

        async def fetch_transactions_async(self, batch_size: int) -> None:
            self.fetch_transactions(batch_size)

    async def process(_transaction: Any) -> None:
        return None

    task = consumer(colour, Down(), process=process)
    steps = {"fetch": {"max_attempts": 9, "backoff": 100.0}}
    outcome = consume(colour, None, rules(steps=steps), task=task)
    assert outcome.error is None
    assert outcome.report.elapsed == 0.0


@pytest.mark.req("T3.30")
def test_a_short_retry_is_finished_in_the_drain(colour: Colour) -> None:
    """A sleeping retry that fits into the grace still gets its attempt."""
    policy = rules(
        size=2,
        concurrency=2,
        stop_grace=30.0,
        steps={"process": {"max_attempts": 2, "backoff": 10.0}},
    )
    task_hooks = _retrying(colour)
    outcome = consume(colour, None, policy, task=task_hooks)
    assert outcome.report.succeeded == 2
    assert outcome.report.elapsed == 10.0


@pytest.mark.req("T3.30")
def test_a_retry_that_outlives_the_grace_is_not_waited_for(colour: Colour) -> None:
    """It is aborted as soon as the stop is asked for, since its attempt can never come."""
    policy = rules(
        size=2,
        concurrency=2,
        stop_grace=30.0,
        steps={"process": {"max_attempts": 2, "backoff": 50.0}},
    )
    outcome = consume(colour, None, policy, task=_retrying(colour))
    report = outcome.report
    assert (report.succeeded, report.aborted) == (1, 1)
    assert report.elapsed == 1.0
    assert report.stranded == ("t2",)


def _retrying(colour: Colour) -> Any:
    """t2 fails once at 0 s; t1 asks for a stop at 1 s."""
    failed: list[int] = []

    async def process(transaction: Any) -> None:
        if transaction.transaction_id == "t1":
            await nap(1.0)
            task.request_stop()
        elif not failed:
            failed.append(1)
            raise ValueError("x")

    task = consumer(colour, ScriptedConnector([transactions(2)]), process=process)
    return task


@pytest.mark.req("T3.30")
def test_a_stop_from_another_thread(colour: Colour) -> None:
    """It is heard wherever it comes from."""
    source = Supply(transactions(50))

    async def process(transaction: Any) -> None:
        if transaction.payload == 2:
            other = threading.Thread(target=task.request_stop)
            other.start()
            other.join()
        await nap(1.0)

    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(streaming=True), task=task)
    assert outcome.report.stop_reason is StopReason.STOPPED
    assert outcome.report.succeeded == 2


@pytest.mark.req("T3.30", "R0-R")
def test_a_stop_from_a_signal_handler(colour: Colour) -> None:
    """The handler runs in the main thread, whatever that is doing."""
    source = Supply(transactions(50))

    heard = threading.Event()

    def handler(*_args: object) -> None:
        task.request_stop()
        heard.set()

    async def process(transaction: Any) -> None:
        if transaction.payload == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(10)  # holds the virtual clock until the main thread was reached
        await nap(1.0)

    task = consumer(colour, source, process=process)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        outcome = consume(colour, source, rules(streaming=True), task=task)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome.error is None
    assert outcome.report.stop_reason is StopReason.STOPPED
    assert outcome.report.succeeded == 2


@pytest.mark.req("T3.30")
def test_a_producer_stops_and_names_the_rest(colour: Colour) -> None:
    """What runs is finished within the grace; what was not begun is named."""

    async def send(transaction: Any) -> None:
        if transaction.payload == 1:
            task.request_stop()
        await nap(1.0)

    task = producer(colour, produce=send)
    outcome = produce(colour, transactions(10), rules(size=2), task=task)
    report = outcome.report
    assert report.stop_reason is StopReason.STOPPED
    assert report == 1
    assert list(report.stranded) == [f"t{n}" for n in range(2, 11)]


@pytest.mark.req("T3.30", "T3.19")
def test_a_hung_fetch_does_not_hold_a_stop_beyond_the_grace(colour: Colour) -> None:
    """After the grace the call ends, with the fetch abandoned."""

    class Hung:
        async def _fetch(self) -> Any:
            task.request_stop()
            await nap(1000.0)

        def fetch_transactions(self, batch_size: int) -> Any:
            return by_hand(self._fetch())

        async def fetch_transactions_async(self, batch_size: int) -> Any:
            return await self._fetch()

    async def process(_transaction: Any) -> None:
        return None

    task = consumer(colour, Hung(), process=process)
    outcome = consume(colour, None, rules(stop_grace=7.0), task=task)
    assert outcome.error is None
    assert final_report(outcome).elapsed == 7.0


@pytest.mark.req("T3.30")
def test_what_a_fetch_brings_during_a_stop_is_not_lost(colour: Colour) -> None:
    """Handed back where possible."""
    for settling in (True, False):
        source = ScriptedConnector(
            [transactions(1), Takes(3.0, transactions(2, "u"))], settling=settling
        )
        task = _stopper(colour, source, at=1.0, others=0.0)
        policy = rules(size=2, concurrency=2, mode="continuous")
        outcome = consume(colour, source, policy, task=task)
        names = [each[0] for each in task.ended]
        if settling:
            assert sorted(source.settled) == [("ack", "t1"), ("release", "u1"), ("release", "u2")]
            assert names == ["t1"]
        else:
            assert outcome.report + len(outcome.report.stranded) == 3


@pytest.mark.req("T3.30", "T3.17")
def test_the_loop_timeout_still_bounds_a_drain(colour: Colour) -> None:
    """Whichever comes first ends the call."""
    source = ScriptedConnector([transactions(2)])
    task = _stopper(colour, source, at=1.0, others=100.0)
    policy = rules(size=2, concurrency=2, stop_grace=50.0, timeout=20.0)
    outcome = consume(colour, source, policy, task=task)
    assert final_report(outcome).elapsed == 20.0
    assert isinstance(outcome.error, TimeoutError)


@pytest.mark.req("T3.30")
def test_every_running_call_of_a_task_is_stopped() -> None:
    """Two calls at once of one async task: one request reaches both."""

    async def process(_transaction: Any) -> None:
        await nap(1.0)

    source = ScriptedConnector([])
    task = consumer("async", source, process=process)

    async def scene() -> list[Any]:
        calls = [
            asyncio.create_task(task.consume_transactions(rules(streaming=True))) for _ in "ab"
        ]
        await asyncio.sleep(10)
        task.request_stop()
        return await asyncio.gather(*calls)

    reports = VirtualClock().run(scene())
    assert [each.stop_reason for each in reports] == [StopReason.STOPPED] * 2


class Waiting:
    """A source whose fetch waits for work, in naps, until somebody says that it need not."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.trouble = trouble
        self.is_over = False
        self.task: Any = None

    async def _fetch(self) -> list[Any]:
        self.task.request_stop()
        for _ in range(600):
            if self.is_over:
                break
            await nap(0.1)
        return []

    def fetch_transactions(self, batch_size: int) -> Any:
        return by_hand(self._fetch())

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        return await self._fetch()

    def stop_waiting(self) -> None:
        self.is_over = True
        if self.trouble is not None:
            raise self.trouble


@pytest.mark.req("T3.30", "ONE:connector-jobs")
@pytest.mark.parametrize("trouble", [None, OSError("no")])
def test_a_stop_wakes_a_fetch_that_waits_for_work(colour: Colour, trouble: Any) -> None:
    """A source that offers stop_waiting is told once; what it raises is only logged."""

    async def process(_transaction: Any) -> None:
        return None

    source = Waiting(trouble)
    source.task = task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(streaming=True), task=task)
    assert outcome.error is None
    assert outcome.report.stop_reason is StopReason.STOPPED
    assert outcome.report.elapsed < 1.0


@pytest.mark.req("T3.30", "R0-R")
@pytest.mark.parametrize("streaming", [True, False])
def test_a_stop_before_the_call_begins_is_not_forgotten(colour: Colour, streaming: bool) -> None:
    """The next call fetches nothing and says why; the one after that is not concerned."""
    source = ScriptedConnector([transactions(2)])
    task = consumer(colour, source, process=_nothing)
    task.request_stop()
    outcome = consume(colour, source, rules(size=2, streaming=streaming), task=task)
    assert (outcome.report, outcome.report.stop_reason) == (0, StopReason.STOPPED)
    assert source.fetches == []
    assert consume(colour, source, rules(size=2), task=task).report == 2


@pytest.mark.req("T3.30")
def test_a_stop_from_a_hook_is_heard_by_all_workers_before_they_begin_another() -> None:
    """In real time, where the lock that a stop needs is often taken: at most one more for each."""
    workers, ran = 8, []

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            ran.append(transaction.transaction_id)
            if transaction.transaction_id == "t20":
                self.request_stop()
                after.append(len(ran))

    for _ in range(10):
        after: list[int] = []
        ran.clear()
        source = MemoryConnector(transactions(2000))
        policy = rules(size=2000, concurrency=workers)
        report = Orders({"source": source}).consume_transactions(policy)
        assert len(ran) - after[0] <= workers
        assert report.succeeded + report.released == 2000


@pytest.mark.req("T3.11", "T3.18")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_leaves_a_call_carries_the_report(colour: Colour, kind: Any) -> None:
    """Whoever catches it can tell what was done and what was not."""
    outcome = consume(colour, [transactions(3)], rules(size=3), process={"t2": kind(3)})
    assert isinstance(outcome.error, kind)
    assert outcome.error.report.succeeded >= 1
    assert outcome.error.report.stop_reason is StopReason.INTERRUPTED
