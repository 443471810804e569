"""Stops, cancellations and signals that reach a call whose hooks do not await."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import threading
from typing import Any

import pytest

from ergon_framework.core.loop import StopReason
from ergon_framework.errors import ConsumerLoopTimeoutException
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.producer import ProducerMixin
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, transactions
from tests.engine.colours import Outcome, consume


@pytest.mark.req("T3.17", "RFC-004:9c")
def test_nothing_begins_after_the_loop_timeout_even_if_no_hook_awaits() -> None:
    """The overrun is at most the one call that blocks the event loop."""
    scene: list[Outcome] = []

    def blocks() -> None:
        scene[0].clock.advance(0.15)

    policy = {"loop": {"timeout": 0.2, "batch": {"size": 20}}}
    outcome = consume("async", [transactions(20)], policy, meanwhile=scene.append, process=[blocks])
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert outcome.calls("process") == ["t1", "t2"]
    assert (outcome.report.succeeded, outcome.report.aborted) == (1, 1)


@pytest.mark.req("T3.30")
def test_a_stop_from_a_thread_is_heard_even_if_no_hook_awaits() -> None:
    """The request waits in the event loop; the worker lets it in before the next transaction."""
    scene: list[Outcome] = []

    def asks() -> None:
        other = threading.Thread(target=scene[0].task.request_stop)
        other.start()
        other.join(30)

    source = ScriptedConnector([transactions(20)], settling=True)
    policy = {"loop": {"batch": {"size": 20}}}
    outcome = consume("async", source, policy, meanwhile=scene.append, process=[asks])
    assert outcome.report.stop_reason is StopReason.STOPPED
    assert outcome.calls("process") == ["t1"]


@pytest.mark.req("T3.30")
def test_a_signal_handler_wakes_a_sleeping_event_loop() -> None:
    """The handler runs inside the selector, which would go on sleeping."""

    class Idle(AsyncConsumerMixin, BaseAsyncTask):
        async def process_transaction(self, transaction: Transaction) -> None: ...

    task = Idle({"source": ScriptedConnector()})

    async def run() -> Any:
        # From another thread, so that it finds the event loop asleep in its selector.
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        long = {"backoff": 1e6, "backoff_cap": 1e6}
        return await task.consume_transactions({"loop": {"streaming": True, "empty_queue": long}})

    before = signal.signal(signal.SIGUSR1, lambda *_: task.request_stop())
    try:
        assert asyncio.run(run()).stop_reason is StopReason.STOPPED
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.req("RFC-004:16d", "T3.11")
def test_a_cancellation_that_a_hook_leaves_behind_hits_nobody_else() -> None:
    """Not the next transaction, not the acknowledgement, not the fetch."""

    class Careless(AsyncConsumerMixin, BaseAsyncTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            task = asyncio.current_task()
            if transaction.id == "t1" and task is not None:
                task.cancel()
            elif transaction.id == "t2":
                await asyncio.sleep(0)

    class Source(ScriptedConnector):
        acked: list[str]

        async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Any:
            await asyncio.sleep(0)
            return await super().fetch_transactions_async(batch_size, **extra)

        async def ack_async(self, transaction: Transaction) -> None:
            await asyncio.sleep(0)
            self.acked.append(transaction.id)

    source = Source([transactions(1), transactions(2)[1:]])
    source.acked = []
    report = VirtualClock().run(Careless({"source": source}).consume_transactions())
    assert (report.succeeded, report.settlement_failures) == (2, 0)
    assert source.acked == ["t1", "t2"]


@pytest.mark.req("T3.32", "T3.2")
def test_a_call_inside_an_abandoned_attempt_ends() -> None:
    """A thread cannot be stopped, but the loop it is in can."""
    sent: list[str] = []

    class Hybrid(ConsumerMixin, ProducerMixin, BaseTask):
        def process_transaction(self, transaction: Transaction) -> int:
            return int(self.produce_transactions(transactions(10, "n")))

        def produce_transaction(self, transaction: Transaction) -> None:
            clock.sleep(1.0)
            sent.append(transaction.id)

    policy = {"steps": {"process": {"retry": {"timeout": 2.5}}}}
    with VirtualClock() as clock:
        task = Hybrid({"source": ScriptedConnector([transactions(1)])})
        report = task.consume_transactions(policy)
        clock.sleep(100.0)
    assert report.timed_out == 1
    assert sent == ["n1", "n2", "n3"]  # the third was under way when its caller was given up


@pytest.mark.req("T3.30", "T3.11")
def test_what_could_not_be_handed_back_is_named_when_the_end_is_cancelled() -> None:
    """Cancelled once more while it releases: the rest is stranded, and the call still ends."""
    told: list[Any] = []
    calls: list[asyncio.Future[Any]] = []

    class Slow(ScriptedConnector):
        async def release_async(self, transaction: Transaction) -> None:
            told.append(transaction.id)
            if len(told) == 2:
                calls[0].cancel()
                await asyncio.sleep(1000)

    class Stops(AsyncConsumerMixin, BaseAsyncTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            self.request_stop()

    from ergon_framework.telemetry import add_listener, remove_listener

    policy = {"loop": {"batch": {"size": 5}}}

    async def run() -> None:
        task = Stops({"source": Slow([transactions(5)])})
        calls.append(asyncio.ensure_future(task.consume_transactions(policy)))
        with pytest.raises(asyncio.CancelledError):
            await calls[0]

    ended: list[Any] = []

    def listen(notice: Any) -> None:
        if notice.name == "call.ended":
            ended.append(notice["report"])

    add_listener(listen)
    try:
        VirtualClock().run(run())
    finally:
        remove_listener(listen)
    assert told == ["t2", "t3"]
    assert ended[0].stranded == ("t3", "t4", "t5")
    assert ended[0].released == 1


class Special(Transaction):
    """A subclass of a user's."""


@pytest.mark.req("R1-S1")
def test_a_subclass_of_a_transaction_survives_pickle_and_copy() -> None:
    """The class, too."""
    one = Special("t1", {"a": 1})
    for other in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):  # noqa: S301
        assert type(other) is Special
        assert other == one
