"""The loop in batch mode: batches, concurrency, order, streaming, its timeout and its end."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.core.loop import StopReason
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ConsumerLoopTimeoutException, ExceptionType
from ergon_framework.task.mixins.policies import ConsumerPolicy
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Gauge, Supply, consumer, final_report, nap, now, rules
from tests.engine.colours import Colour, consume


@pytest.mark.req("RFC-004:7.2a", "RFC-004:13.1a", "R3-EQ1")
def test_an_empty_fetch_ends_the_loop_without_streaming(colour: Colour) -> None:
    """At once, without a wait, and the report says why."""
    outcome = consume(colour, [[]])
    assert len(outcome.connector.fetches) == 1
    assert (outcome.report, outcome.report.stop_reason) == (0, StopReason.EMPTY)
    assert outcome.report.elapsed == 0.0


@pytest.mark.req("T3.9")
def test_none_is_an_empty_batch(colour: Colour) -> None:
    """None and an empty list mean the same."""
    outcome = consume(colour, [None, transactions(1)])
    assert outcome.report == 0


@pytest.mark.req("RFC-004:7.1a", "R3-BA1", "RFC-004:13.2b", "RFC-004:13.2c")
def test_each_fetch_asks_for_exactly_the_batch_size(colour: Colour) -> None:
    """And passes the extra arguments of the policy as keywords."""
    source = ScriptedConnector([transactions(2), transactions(1, "u")])
    policy = rules(size=7, extra={"queue": "orders", "wait": 3})
    outcome = consume(colour, source, policy)
    assert source.fetches == [(7, {"queue": "orders", "wait": 3})] * 3
    assert (outcome.report, outcome.report.batches) == (3, 2)


@pytest.mark.req("RFC-004:8.1a", "RFC-004:8.2a", "RFC-004:3h", "R0-G6", "RFC-004:3d")
@pytest.mark.parametrize("bound", [1, 3, 8])
def test_concurrency_is_reached_and_never_exceeded(colour: Colour, bound: int) -> None:
    """As many lifecycles at once as allowed, and not one more."""
    gauge = Gauge()

    async def process(_transaction: Any) -> None:
        with gauge.inside():
            await nap(1.0)

    source = Supply(transactions(30))
    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=15, concurrency=bound), task=task)
    assert gauge.peak == bound
    assert outcome.report.succeeded == 30
    assert outcome.report.elapsed == 2 * -(-15 // bound)


@pytest.mark.req("RFC-004:8.1a", "RFC-004:8.2a", "T3.3")
def test_the_permit_belongs_to_the_whole_lifecycle(colour: Colour) -> None:
    """Handlers and waits between attempts count: two permits mean two open lifecycles."""
    inside: set[str] = set()
    peaks: list[int] = []

    async def process(transaction: Any) -> None:
        inside.add(transaction.transaction_id)
        peaks.append(len(inside))
        await nap(1.0)
        raise ValueError("again")

    async def exception(transaction: Any, _exc: Any) -> None:
        await nap(1.0)
        inside.discard(transaction.transaction_id)

    source = Supply(transactions(6))
    task = consumer(colour, source, process=process, exception=exception)
    steps = {"process": {"max_attempts": 2, "backoff": 3.0}}
    outcome = consume(colour, source, rules(size=6, concurrency=2, steps=steps), task=task)
    assert max(peaks) == 2
    assert outcome.report.failed == 6
    assert outcome.report.elapsed == 18.0


@pytest.mark.req("RFC-004:8.1b", "RFC-004:8.2b")
def test_a_free_worker_takes_the_next_of_the_batch(colour: Colour) -> None:
    """One slow transaction does not keep the other worker from the rest of the batch."""
    hooks: dict[str, Any] = {
        "process": {"t1": [Takes(10.0)], **{f"t{n}": [Takes(1.0)] for n in range(2, 6)}}
    }
    outcome = consume(colour, [transactions(5)], rules(size=5, concurrency=2), **hooks)
    assert outcome.times("process") == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert outcome.report.elapsed == 10.0


@pytest.mark.req("T3.8", "RFC-004:15d")
def test_the_next_fetch_waits_for_the_whole_batch(colour: Colour) -> None:
    """Batches are neither merged nor split: a barrier stands between them."""
    hooks: dict[str, Any] = {"process": {"t1": [Takes(10.0)]}}
    answers = [transactions(2), transactions(2, "u")]
    outcome = consume(colour, answers, rules(size=2, concurrency=2), **hooks)
    assert outcome.times("process") == [0.0, 0.0, 10.0, 10.0]


@pytest.mark.req("T3.8")
def test_a_batch_smaller_than_the_concurrency_is_warned_about(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """The default batch of 1 would make workers idle, so somebody must say so."""
    consume(colour, [transactions(1)], rules(size=1, concurrency=4))
    assert any("batch.size" in record.getMessage() for record in caplog.records)
    caplog.clear()
    consume(colour, [transactions(1)], rules(size=4, concurrency=4))
    consume(colour, [transactions(1)], rules(size=1, concurrency=4, mode="continuous"))
    assert not any("batch.size" in record.getMessage() for record in caplog.records)


@pytest.mark.req("T3.9", "RFC-004:13.2a", "RFC-004:13.2b", "RFC-004:15d")
def test_over_delivery_is_processed_under_the_bound(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is dropped, the concurrency holds, and there is a warning."""
    gauge = Gauge()

    async def process(_transaction: Any) -> None:
        with gauge.inside():
            await nap(1.0)

    source = ScriptedConnector([transactions(9)])
    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=3, concurrency=3), task=task)
    assert outcome.report.succeeded == 9
    assert gauge.peak == 3
    assert any(
        record.levelname == "WARNING" and "9" in record.getMessage() for record in caplog.records
    )


@pytest.mark.req("T3.31", "T3.9", "RFC-004:14f")
def test_transactions_start_in_the_order_they_came(colour: Colour) -> None:
    """First in, first out, over batches and with several workers."""
    started: list[str] = []

    async def process(transaction: Any) -> None:
        started.append(transaction.transaction_id)
        await nap(1.0)

    given = transactions(12)
    source = Supply(given)
    task = consumer(colour, source, process=process)
    consume(colour, source, rules(size=5, concurrency=1), task=task)
    assert started == [each.transaction_id for each in given]


@pytest.mark.req("T3.31", "RFC-004:14f", "R0-G4", "R3-D3")
def test_the_same_scene_runs_the_same_way_twice(colour: Colour) -> None:
    """Same connector, same task: same calls at the same instants."""

    def story() -> Any:
        retry = {"max_attempts": 3, "backoff": 0.7}
        hooks: dict[str, Any] = {
            "process": {"t2": [OSError(), Takes(2.0)], "t3": [Takes(0.3)], "t5": [OSError()]}
        }
        policy = rules(size=3, concurrency=2, steps={"process": retry})
        outcome = consume(colour, [transactions(3), transactions(6)[3:]], policy, **hooks)
        return [(each.at, each.hook, each.transaction_id) for each in outcome.happened]

    first = story()
    assert sorted(first) == sorted(story())
    assert [each[0] for each in first] == [each[0] for each in story()]


@pytest.mark.req("RFC-004:7.2b", "RFC-004:7.2c", "R3-EQ2", "R3-EQ3", "T3.21", "RFC-004:3g", "R0-G7")
def test_streaming_waits_by_the_empty_queue_formula(colour: Colour) -> None:
    """Exponent 0 first, growing with each empty fetch in a row, at most the cap."""
    instants: list[float] = []

    class Empty:
        def fetch_transactions(self, batch_size: int) -> None:
            instants.append(now())

        async def fetch_transactions_async(self, batch_size: int) -> None:
            instants.append(now())

    empty = {"backoff": 1.0, "backoff_multiplier": 3.0, "backoff_cap": 10.0}
    policy = rules(streaming=True, empty_queue=empty, timeout=40.0)
    outcome = consume(colour, Empty(), policy, task=consumer(colour, Empty(), process=_nothing))
    assert instants == [0.0, 1.0, 4.0, 13.0, 23.0, 33.0]
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)


async def _nothing(_transaction: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("declared", "extra", "instants"),
    [
        (True, {}, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (True, {"wait": None}, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (True, {"wait": 0.5}, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        (False, {"wait": 2.0}, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (True, {"wait": 0.0}, [0.0, 1.0, 4.0]),
        (False, {}, [0.0, 3.0, 8.0]),
        (None, {"wait": 2.0}, [0.0, 3.0, 8.0]),
    ],
)
def test_a_source_that_waits_for_work_is_asked_again_at_once(
    colour: Colour, declared: bool | None, extra: dict[str, Any], instants: list[float]
) -> None:
    """No growing wait comes on top of its own, in which nobody would hear of work."""
    asked: list[float] = []

    class Broker:
        async def fetch_transactions_async(
            self, batch_size: int, wait: float | None = None
        ) -> None:
            asked.append(now())
            await nap(2.0 if wait is None else wait)

        def fetch_transactions(self, batch_size: int, wait: float | None = None) -> None:
            asked.append(now())
            clock = current_clock()
            assert isinstance(clock, VirtualClock)
            clock.sleep(2.0 if wait is None else wait)

    broker = Broker()
    if declared is not None:
        broker.waits_for_work = declared  # type: ignore[attr-defined]
    empty = {"backoff": 1.0, "backoff_multiplier": 3.0, "backoff_cap": 10.0}
    policy = rules(streaming=True, empty_queue=empty, timeout=8.5, extra=extra)
    consume(colour, broker, policy, task=consumer(colour, broker, process=_nothing))
    assert asked == instants


@pytest.mark.req("R3-EQ4", "T3.21", "RFC-004:7.2c")
def test_only_a_delivery_resets_the_empty_count(colour: Colour) -> None:
    """After a non-empty fetch the wait starts from the beginning."""
    empty = {"backoff": 1.0, "backoff_multiplier": 2.0, "backoff_cap": 0.0}
    answers = [None, [], None, transactions(1), None, [], transactions(1, "u")]
    policy = rules(streaming=True, empty_queue=empty, limit=2)
    outcome = consume(colour, answers, policy)
    # 1 + 2 + 4, then the first delivery; 1 + 2, then the second.
    assert outcome.times("process") == [7.0, 10.0]
    assert outcome.report.stop_reason is StopReason.LIMIT


@pytest.mark.req("T3.21", "R3-EQ4")
def test_a_failed_and_retried_fetch_does_not_reset_the_empty_count(colour: Colour) -> None:
    """A fetch that failed and then delivered nothing is one more empty fetch."""
    empty = {"backoff": 1.0, "backoff_multiplier": 2.0, "backoff_cap": 0.0}
    answers = [None, OSError("blip"), None, transactions(1)]
    policy = rules(streaming=True, empty_queue=empty, limit=1, steps={"fetch": {"max_attempts": 2}})
    outcome = consume(colour, answers, policy)
    assert outcome.times("process") == [3.0]


@pytest.mark.req("T3.22")
def test_a_very_long_idle_time_does_not_overflow(colour: Colour) -> None:
    """More than a thousand empty fetches in a row, uncapped with base 0 and capped."""
    for empty in (
        {"backoff": 0.0, "backoff_multiplier": 2.0, "backoff_cap": 0.0},
        {"backoff": 0.1, "backoff_multiplier": 10.0, "backoff_cap": 1.0},
    ):
        answers = [None] * 1100 + [transactions(1)]
        policy = rules(streaming=True, empty_queue=empty, limit=1)
        assert consume(colour, answers, policy).report.succeeded == 1


@pytest.mark.req("RFC-004:9c", "RFC-004:13.1c", "R3-CL2", "T3.17")
def test_the_loop_timeout_bounds_a_streaming_call(colour: Colour) -> None:
    """In the middle of an empty-queue wait, to the instant, with the report attached."""
    empty = {"backoff": 60.0, "backoff_multiplier": 2.0, "backoff_cap": 0.0}
    policy = rules(streaming=True, empty_queue=empty, timeout=5.0)
    outcome = consume(colour, [transactions(1)], policy)
    error = outcome.error
    assert isinstance(error, ConsumerLoopTimeoutException)
    assert isinstance(error, TimeoutError)
    assert error.report.succeeded == 1
    assert error.report.stop_reason is StopReason.TIMEOUT
    assert error.report.elapsed == 5.0


@pytest.mark.req("T3.17", "RFC-004:9c")
def test_the_loop_timeout_interrupts_a_fetch(colour: Colour) -> None:
    """A connector that does not answer cannot hold the call."""
    source = ScriptedConnector([Takes(1000.0, transactions(1))])
    outcome = consume(colour, source, rules(timeout=5.0))
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert final_report(outcome).elapsed == 5.0
    assert outcome.calls() == []


@pytest.mark.req("T3.17")
def test_the_loop_timeout_interrupts_the_wait_before_a_retry_of_fetch(colour: Colour) -> None:
    """Backoff after a failed fetch is inside the bound too."""
    steps = {"fetch": {"max_attempts": 5, "backoff": 100.0}}
    outcome = consume(colour, [OSError("down")], rules(timeout=5.0, steps=steps))
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert final_report(outcome).elapsed == 5.0


@pytest.mark.req("T3.17", "RFC-004:9c", "RFC-004:3h")
def test_the_loop_timeout_aborts_work_in_flight(colour: Colour) -> None:
    """No exception phase begins after it, nothing succeeds later, the rest is reported."""
    policy = rules(size=4, concurrency=2, timeout=5.0)
    outcome = consume(colour, [transactions(4)], policy, process=Takes(100.0, "late"))
    error = outcome.error
    assert isinstance(error, ConsumerLoopTimeoutException)
    assert sorted(outcome.calls()) == ["process:t1", "process:t2"]
    report = final_report(outcome)
    assert (report, report.aborted, report.elapsed) == (0, 2, 5.0)
    # Nothing can be handed back here, so the ids of the aborted and of the unstarted are named.
    assert sorted(report.stranded) == ["t1", "t2", "t3", "t4"]


@pytest.mark.req("T3.17", "T3.23")
def test_the_loop_timeout_interrupts_a_sleeping_retry(colour: Colour) -> None:
    """A lifecycle that waits for its next attempt is aborted at once."""
    steps = {"process": {"max_attempts": 2, "backoff": 100.0}}
    policy = rules(timeout=5.0, steps=steps)
    outcome = consume(colour, [transactions(1)], policy, process=ValueError("x"))
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert outcome.calls() == ["process:t1"]
    assert (final_report(outcome).aborted, final_report(outcome).elapsed) == (1, 5.0)


@pytest.mark.req("T3.17")
def test_a_stubborn_handler_does_not_hold_the_loop_timeout(colour: Colour) -> None:
    """Also an exception phase that is under way is cut off."""
    outcome = consume(
        colour,
        [transactions(1)],
        rules(timeout=5.0),
        process=ValueError("x"),
        exception=Takes(100.0),
    )
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert final_report(outcome).elapsed == 5.0
    assert outcome.calls() == ["process:t1", "exception:t1"]


@pytest.mark.req("T3.18", "RFC-004:15a")
def test_the_report_is_an_int_with_disjoint_counts(colour: Colour) -> None:
    """succeeded + failed + timed_out is the number; the rest is beside it."""
    hooks: dict[str, Any] = {
        "process": {"t1": ["ok"], "t2": [ValueError("x")], "t3": [Takes(100.0)], "t4": [OSError()]},
        "exception": {"t4": [OSError("handler")]},
    }
    policy = rules(size=4, transaction_timeout=5.0, max_abandoned=9)
    report = consume(colour, [transactions(4)], policy, **hooks).report
    assert isinstance(report, int)
    assert report == 4
    assert (report.succeeded, report.failed, report.timed_out) == (1, 2, 1)
    assert (report.handler_failures, report.aborted, report.batches) == (1, 0, 1)
    assert (report.stranded, report.duplicates) == ((), ())
    assert isinstance(report.elapsed, float)
    assert report.stop_reason is StopReason.EMPTY


@pytest.mark.req("RFC-004:15h", "RFC-004:3b")
def test_policies_are_never_changed(colour: Colour) -> None:
    """The same object before and after, and usable for the next call."""
    policy = ConsumerPolicy.model_validate(
        rules(size=2, limit=3, extra={"a": [1]}, steps={"process": {"max_attempts": 2}})
    )
    before = policy.model_dump_json()
    for _ in range(2):
        outcome = consume(
            colour, [transactions(2), transactions(2, "u")], policy, process=OSError()
        )
        assert outcome.report.failed == 3
    assert policy.model_dump_json() == before


@pytest.mark.req("RFC-004:17a", "R3-D4", "R0-BC")
def test_defaults_are_safe(colour: Colour) -> None:
    """Without a policy: one at a time, one attempt, until the source is empty."""
    outcome = consume(colour, [transactions(1), transactions(1, "u")], None, process=OSError())
    assert outcome.calls() == ["process:t1", "exception:t1", "process:u1", "exception:u1"]
    assert outcome.happened[-1].argument.category is ExceptionType.SYSTEM
    assert [size for size, _extra in outcome.connector.fetches] == [1, 1, 1]
