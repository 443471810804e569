"""Continuous refill: no barrier, event driven, still bounded."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from ergon_framework.core.loop import StopReason
from ergon_framework.engine.call import EngineCall
from ergon_framework.errors import ConsumerLoopTimeoutException, FetchException
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Gauge, Supply, by_hand, consumer, nap, now, rules
from tests.engine.colours import Colour, consume


@pytest.mark.req("T3.8")
def test_a_slow_one_does_not_keep_the_others_waiting(colour: Colour) -> None:
    """The next fetch comes before the slow transaction ends."""
    hooks: dict[str, Any] = {"process": {"t1": [Takes(100.0)]}}
    answers = [transactions(2), transactions(2, "u"), transactions(2, "v")]
    policy = rules(size=2, concurrency=2, mode="continuous")
    outcome = consume(colour, answers, policy, **hooks)
    assert set(outcome.times("process")) == {0.0}
    assert outcome.report.succeeded == 6
    assert outcome.report.elapsed == 100.0


@pytest.mark.req("T3.8", "RFC-004:8.1a", "RFC-004:8.2a", "T3.9")
@pytest.mark.parametrize("delivers", [1, 4, 20])
def test_concurrency_holds_whatever_is_delivered(colour: Colour, delivers: int) -> None:
    """Over-delivery does not break the bound, and the bound is reached."""
    gauge = Gauge()

    async def process(_transaction: Any) -> None:
        with gauge.inside():
            await nap(1.0)

    given = transactions(20)
    answers = [given[n : n + delivers] for n in range(0, 20, delivers)]
    source = ScriptedConnector(answers)
    task = consumer(colour, source, process=process)
    policy = rules(size=4, concurrency=3, mode="continuous")
    outcome = consume(colour, source, policy, task=task)
    assert gauge.peak == 3
    assert outcome.report.succeeded == 20
    assert outcome.report.elapsed == 7.0


@pytest.mark.req("T3.8", "R0-G7")
def test_what_arrives_later_starts_at_once_when_workers_are_free(colour: Colour) -> None:
    """An empty fetch with work in flight waits by the empty-queue policy, not for a completion."""
    gauge: list[tuple[str, float]] = []

    class Trickle:
        calls = 0

        async def _fetch(self) -> Any:
            self.calls += 1
            if self.calls == 1:
                return transactions(1)
            return transactions(1, "late") if now() >= 0.2 and self.calls < 9 else None

        def fetch_transactions(self, batch_size: int) -> Any:
            return by_hand(self._fetch())

        async def fetch_transactions_async(self, batch_size: int) -> Any:
            return await self._fetch()

    async def process(transaction: Any) -> None:
        gauge.append((transaction.transaction_id, now()))
        await nap(1.0)

    source = Trickle()
    task = consumer(colour, source, process=process)
    empty = {"backoff": 0.1, "backoff_multiplier": 1.0}
    policy = rules(
        size=10, concurrency=10, mode="continuous", streaming=True, limit=2, empty_queue=empty
    )
    consume(colour, source, policy, task=task)
    assert gauge[0] == ("t1", 0.0)
    assert gauge[1][0] == "late1"
    assert gauge[1][1] == pytest.approx(0.2)


@pytest.mark.req("T3.7", "T3.8")
def test_the_limit_is_exact(colour: Colour) -> None:
    """Refilling never takes in more than the limit leaves."""
    source = Supply(transactions(50))
    task = consumer(colour, source, process=_one_second)
    policy = rules(size=4, concurrency=3, mode="continuous", limit=10, streaming=True)
    outcome = consume(colour, source, policy, task=task)
    assert (outcome.report, outcome.report.stop_reason) == (10, StopReason.LIMIT)
    assert len(source.waiting) == 40


async def _one_second(_transaction: Any) -> None:
    await nap(1.0)


@pytest.mark.req("T3.8", "T3.27")
def test_what_is_taken_in_stays_bounded(colour: Colour) -> None:
    """A full house stops fetching: at most concurrency + size are in the engine's hands."""
    source = Supply(transactions(100))
    most = 0
    ended = 0

    async def process(_transaction: Any) -> None:
        nonlocal most, ended
        await nap(1.0)
        most = max(most, 100 - len(source.waiting) - ended)
        ended += 1

    task = consumer(colour, source, process=process)
    consume(colour, source, rules(size=5, concurrency=1, mode="continuous"), task=task)
    assert ended == 100
    assert most <= 1 + 5 + 5


@pytest.mark.req("T3.8", "T3.19")
def test_fetches_never_overlap(colour: Colour) -> None:
    """However slow the fetch and however many workers are idle, there is one at a time."""
    source = Supply(transactions(12), takes=3.0)
    task = consumer(colour, source, process=_one_second)
    outcome = consume(colour, source, rules(size=2, concurrency=6, mode="continuous"), task=task)
    assert source.gauge.peak == 1
    assert outcome.report.succeeded == 12
    assert outcome.report.elapsed == 3.0 * 7


@pytest.mark.req("T3.8", "T3.17")
def test_the_loop_timeout_bounds_it(colour: Colour) -> None:
    """As in batch mode: to the instant, with what was in flight reported."""
    policy = rules(size=2, concurrency=2, mode="continuous", streaming=True, timeout=5.0)
    outcome = consume(colour, [transactions(2)], policy, process={"t1": Takes(100.0)})
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert (outcome.report.succeeded, outcome.report.aborted) == (1, 1)
    assert outcome.report.elapsed == 5.0


@pytest.mark.req("T3.8", "T3.20")
def test_a_failing_fetch_lets_work_in_flight_finish(colour: Colour) -> None:
    """The error is raised after the slow transaction succeeded."""
    policy = rules(size=1, concurrency=2, mode="continuous")
    outcome = consume(
        colour, [transactions(1), OSError("gone")], policy, process=Takes(9.0, "fine")
    )
    assert isinstance(outcome.error, FetchException)
    assert outcome.report.succeeded == 1
    assert outcome.times("success") == [9.0]


@pytest.mark.req("T3.8", "RFC-004:13.1a")
def test_without_streaming_an_empty_fetch_ends_it_after_the_work(colour: Colour) -> None:
    """No further fetch after the empty one; what runs is finished."""
    source = ScriptedConnector([transactions(1), None, transactions(1, "u")])
    policy = rules(concurrency=2, mode="continuous")
    outcome = consume(colour, source, policy, process=Takes(5.0))
    assert outcome.calls("success") == ["t1"]
    assert len(source.fetches) == 2


@pytest.mark.req("T3.31", "T3.8")
def test_start_order_is_first_in_first_out(colour: Colour) -> None:
    """Refilling keeps the order of delivery."""
    given = transactions(20)
    outcome = consume(
        colour, Supply(given), rules(size=3, concurrency=1, mode="continuous"), process=Takes(1.0)
    )
    assert outcome.calls("process") == [each.transaction_id for each in given]


@pytest.mark.req("T3.31", "T3.8")
@pytest.mark.parametrize("mode", ["batch", "continuous"])
@pytest.mark.parametrize("concurrency", [2, 3, 8])
def test_several_workers_start_in_the_order_of_delivery(
    colour: Colour, mode: str, concurrency: int, request: pytest.FixtureRequest
) -> None:
    """Who is about to begin one gets the next worker going first, and is not overtaken by it."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(60.0)  # only where it waits may a thread be overtaken
    given = transactions(20)
    policy = rules(size=20, concurrency=concurrency, mode=mode)
    outcome = consume(colour, Supply(given), policy, process=Takes(1.0))
    assert outcome.calls("process") == [each.transaction_id for each in given]


@pytest.mark.req("T3.21")
def test_those_who_have_nothing_to_do_let_each_other_rest(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the queue stays empty one waits for the next fetch, and nobody wakes anybody."""
    rests = 0
    leave_rest = EngineCall.leave_rest

    def counted(call: EngineCall) -> None:
        nonlocal rests
        rests += 1
        assert rests < 200, "they wake each other"
        leave_rest(call)

    monkeypatch.setattr(EngineCall, "leave_rest", counted)

    async def process(_transaction: Any) -> None:
        if now() >= 50.0:
            task.request_stop()
        await nap(1.0)

    source = ScriptedConnector([transactions(4), *[None] * 5, transactions(1, "last"), None])
    task = consumer(colour, source, process=process)
    empty = {"backoff": 10.0, "backoff_multiplier": 1.0}
    policy = rules(size=10, concurrency=10, mode="continuous", streaming=True, empty_queue=empty)
    outcome = consume(colour, source, policy, task=task)
    assert (outcome.error, outcome.report.succeeded) == (None, 5)
