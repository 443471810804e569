"""The asyncio driver shares its event loop, also with code that never suspends.

Every busy body here gives up by itself after many rounds, so that a driver that keeps the loop for
itself fails the test instead of hanging it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.core.loop import StopReason
from ergon_framework.errors import ConsumerLoopTimeoutException
from ergon_framework.testing.scripted import transactions
from tests.engine.bodies import consumer, rules

ROUNDS = 50_000
"""What a busy body does before it gives up; one that shares its loop is stopped far earlier."""
AT_MOST = 10_000
"""Rounds until the neighbour has had its turns."""


class Busy:
    """Counts rounds, and ends the call when nobody else got a turn for too long."""

    def __init__(self) -> None:
        self.rounds = 0

    def once(self) -> None:
        self.rounds += 1
        if self.rounds >= ROUNDS:
            raise SystemExit("the event loop was kept")


def neighbour_of(task: Any) -> Callable[[], Any]:
    """Another task of the same event loop: after twenty turns it asks for a stop."""

    async def neighbour() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        task.request_stop()

    return neighbour


def run(task: Any, policy: dict[str, Any]) -> Any:
    """The report of a call that shares its loop with a neighbour, which stops it."""

    async def both() -> Any:
        beside = asyncio.create_task(neighbour_of(task)())
        report = await task.consume_transactions(policy)
        await beside
        return report

    return asyncio.run(both())


async def _nothing(_transaction: Any) -> None:
    """A hook that never suspends."""


class NeverSuspends:
    """A source whose fetch answers at once, without ever waiting."""

    def __init__(self, busy: Busy, answer: Callable[[], Any] = list) -> None:
        self._busy = busy
        self._answer = answer

    async def fetch_transactions_async(self, batch_size: int) -> Any:
        self._busy.once()
        return self._answer()


def _fails() -> Any:
    raise OSError("refused")


@pytest.mark.req("R0-G6", "R3-EQ3")
@pytest.mark.parametrize("answer", [list, _fails], ids=["empty", "failing"])
def test_fetches_without_a_wait_share_the_event_loop(answer: Callable[[], Any]) -> None:
    """An empty queue or a broken source with a backoff of 0 freezes nobody, and can be stopped."""
    busy = Busy()
    task = consumer("async", NeverSuspends(busy, answer), process=_nothing)
    endless = {"fetch": {"max_attempts": 10**9}}
    report = run(task, rules(streaming=True, empty_queue={"backoff": 0.0}, steps=endless))
    assert report.stop_reason is StopReason.STOPPED
    assert busy.rounds < AT_MOST


@pytest.mark.req("R0-G6", "R3-CL2", "T3.17")
def test_a_loop_timeout_is_kept_by_a_source_that_never_suspends() -> None:
    """The supervisor gets its turn, whatever the source does."""
    task = consumer("async", NeverSuspends(Busy()), process=_nothing)
    with pytest.raises(ConsumerLoopTimeoutException):
        asyncio.run(
            task.consume_transactions(
                rules(streaming=True, empty_queue={"backoff": 0.0}, timeout=0.05)
            )
        )


@pytest.mark.req("R0-G6")
@pytest.mark.parametrize("concurrency", [1, 500])
def test_retries_without_a_backoff_share_the_event_loop(concurrency: int) -> None:
    """Also when many workers retry at once: they share one turn, not one each."""
    busy = Busy()

    async def process(_transaction: Any) -> None:
        busy.once()
        raise OSError("again")

    source = NeverSuspends(Busy(), lambda: transactions(concurrency))
    task = consumer("async", source, process=process)
    policy = rules(
        size=concurrency,
        concurrency=concurrency,
        steps={"process": {"max_attempts": 10**9}},
        stop_grace=0.0,
    )
    report = run(task, policy)
    assert len(report.stranded) == concurrency
    assert busy.rounds < AT_MOST * 3


@pytest.mark.req("R0-G6")
def test_an_asynchronous_answer_that_never_suspends_shares_the_event_loop() -> None:
    """A long batch is read in turns, too."""
    busy = Busy()

    class Source:
        async def fetch_transactions_async(self, batch_size: int) -> AsyncIterator[Transaction]:
            while not task_is_asked[0]:
                busy.once()
                yield Transaction(f"t{busy.rounds}")

    task_is_asked = [False]
    task = consumer("async", Source(), process=_nothing)

    async def both() -> None:
        async def neighbour() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            task_is_asked[0] = True
            task.request_stop()

        beside = asyncio.create_task(neighbour())
        await task.consume_transactions(rules(size=10**9))
        await beside

    asyncio.run(both())
    assert busy.rounds < AT_MOST


@pytest.mark.req("R0-G6")
def test_handing_back_shares_the_event_loop() -> None:
    """Many releases that never suspend are done in turns."""
    turns: list[int] = []
    released: list[str] = []

    class Source:
        async def fetch_transactions_async(self, batch_size: int) -> Any:
            return transactions(2000)

        async def release_async(self, transaction: Transaction) -> None:
            released.append(transaction.transaction_id)

    async def process(_transaction: Any) -> None:
        task.request_stop()

    task = consumer("async", Source(), process=process)

    async def both() -> Any:
        async def neighbour() -> None:
            while True:
                turns.append(len(released))
                await asyncio.sleep(0)

        beside = asyncio.create_task(neighbour())
        report = await task.consume_transactions(rules(size=2000))
        beside.cancel()
        return report

    report = asyncio.run(both())
    assert (report.succeeded, report.released) == (1, 1999)
    assert max(later - before for before, later in pairwise(turns)) < 500
