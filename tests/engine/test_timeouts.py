"""Step and lifecycle timeouts: they really bound, they retry, and what comes late is dropped."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ergon_framework.errors import (
    ExceptionType,
    TransactionException,
    TransactionTimeoutException,
)
from ergon_framework.ports.context import current_attempt
from ergon_framework.testing.scripted import Takes, transactions
from tests.engine.bodies import Gauge, Supply, consumer, nap, now, producer, rules
from tests.engine.colours import Colour, Outcome, consume, produce

HANGS = Takes(1000.0, "too late")


@pytest.mark.req(
    "RFC-004:9a", "RFC-004:11.3a", "RFC-004:11.3b", "R3-RT1", "R3-RT2", "T3.2", "T3.13", "R0-I8",
)  # fmt: skip
def test_a_step_timeout_bounds_each_attempt(colour: Colour) -> None:
    """Three attempts of 5 s each, told as TIMEOUT; the sum is not bounded."""
    policy = rules(max_abandoned=9, steps={"process": {"max_attempts": 3, "timeout": 5.0}})
    outcome = consume(colour, [transactions(1)], policy, process=HANGS)
    assert outcome.times("process") == [0.0, 5.0, 10.0]
    assert outcome.times("exception") == [15.0]
    told = outcome.happened[-1].argument
    assert (told.category, told.transaction_id) == (ExceptionType.TIMEOUT, "t1")
    assert outcome.calls("success") == []


@pytest.mark.req("RFC-005:11a", "RFC-005:11e", "RFC-005:7.1e", "RFC-005:13e", "RFC-005:3b")
@pytest.mark.parametrize("step", ["produce", "success", "exception"])
def test_every_step_of_a_producer_is_bounded(colour: Colour, step: str) -> None:
    """A hanging hook is left after its timeout and told as TIMEOUT where anybody is told."""
    retry = {"max_attempts": 2, "timeout": 4.0}
    hooks: dict[str, Any] = {step: HANGS}
    if step == "exception":
        hooks["produce"] = ValueError("first")
    policy = rules(max_abandoned=9, steps={step: retry})
    outcome = produce(colour, transactions(1), policy, **hooks)
    assert outcome.times(step) == [0.0, 4.0]
    assert outcome.report.elapsed == 8.0
    if step != "exception":
        told = outcome.happened[-1].argument
        assert isinstance(told, TransactionException)
        assert told.category is ExceptionType.TIMEOUT
    else:
        assert outcome.report.handler_failures == 1


@pytest.mark.req("RFC-004:9a", "RFC-004:9d", "R3-ST2")
@pytest.mark.parametrize("step", ["success", "exception"])
def test_handlers_of_a_consumer_are_bounded(colour: Colour, step: str) -> None:
    """Each attempt of a handler has its own time."""
    hooks: dict[str, Any] = {step: [HANGS, "fine"]}
    if step == "exception":
        hooks["process"] = ValueError("first")
    policy = rules(max_abandoned=9, steps={step: {"max_attempts": 2, "timeout": 4.0}})
    outcome = consume(colour, [transactions(1)], policy, **hooks)
    assert outcome.times(step) == [0.0, 4.0]
    assert outcome.report.elapsed == 4.0
    assert outcome.report.handler_failures == 0


@pytest.mark.req("T3.23", "RFC-004:9d")
def test_waits_do_not_count_against_the_step(colour: Colour) -> None:
    """Backoff may be longer than the step's timeout."""
    retry = {"max_attempts": 2, "timeout": 1.0, "backoff": 50.0}
    policy = rules(steps={"process": retry})
    outcome = consume(colour, [transactions(1)], policy, process=[ValueError("x"), "ok"])
    assert outcome.times("process") == [0.0, 50.0]
    assert outcome.report.succeeded == 1


@pytest.mark.req("T3.23", "T3.4", "RFC-004:9b")
def test_waits_do_count_against_the_lifecycle(colour: Colour) -> None:
    """A retry that sleeps past the transaction timeout is cut short there."""
    policy = rules(
        steps={"process": {"max_attempts": 2, "backoff": 50.0}}, transaction_timeout=20.0
    )
    outcome = consume(colour, [transactions(1)], policy, process=ValueError("x"))
    assert outcome.times("process") == [0.0]
    assert outcome.times("exception") == [20.0]
    assert outcome.happened[-1].argument.category is ExceptionType.TIMEOUT
    assert outcome.report.timed_out == 1


@pytest.mark.req(
    "RFC-004:8.1c", "RFC-004:8.2c", "RFC-004:9b", "R3-CL1", "T3.4", "T3.5", "RFC-004:14d",
)  # fmt: skip
def test_a_lifecycle_timeout_leads_to_one_exception_phase(colour: Colour) -> None:
    """At the deadline the handler is told TIMEOUT once; the late result is dropped."""
    policy = rules(steps={"process": {"max_attempts": 3}}, transaction_timeout=7.0)
    outcome = consume(colour, [transactions(1)], policy, process=HANGS)
    assert outcome.calls() == ["process:t1", "exception:t1"]
    assert outcome.times("exception") == [7.0]
    told = outcome.happened[-1].argument
    assert isinstance(told, TransactionTimeoutException)
    assert told.transaction_id == "t1"
    report = outcome.report
    assert (report, report.timed_out, report.failed, report.succeeded) == (1, 1, 0, 0)


@pytest.mark.req(
    "RFC-005:11b", "RFC-005:10.2c", "RFC-005:10.3c", "RFC-005:15.2c", "RFC-005:16f", "T3.4",
    "RFC-004:8.1c", "RFC-004:8.2c",
)  # fmt: skip
def test_the_lifecycle_timeout_reaches_every_worker(colour: Colour) -> None:
    """All hanging transactions of a batch end at their deadline with their handler called once."""
    policy = rules(size=3, concurrency=3, transaction_timeout=7.0, max_abandoned=9)
    for outcome in (
        produce(colour, transactions(3), policy, produce=HANGS),
        consume(colour, [transactions(3)], policy, process=HANGS),
    ):
        assert sorted(outcome.calls("exception")) == ["t1", "t2", "t3"]
        assert outcome.times("exception") == [7.0] * 3
        assert (outcome.report.timed_out, outcome.report.elapsed) == (3, 7.0)


@pytest.mark.req(
    "T3.4", "RFC-004:8.1c", "RFC-004:8.2c", "RFC-004:9b", "RFC-005:10.2c", "RFC-005:10.3c",
    "RFC-005:11b", "RFC-005:16f",
)  # fmt: skip
def test_a_running_success_handler_is_cut_off_at_the_lifecycle_timeout(colour: Colour) -> None:
    """Counted from the beginning of the first step; then the one exception phase runs."""
    retry = {"max_attempts": 2}
    policies = [
        rules(transaction_timeout=7.0, steps={step: retry}) for step in ("process", "produce")
    ]
    first: Any = [Takes(2.0, OSError("once")), Takes(2.0)]
    for step, outcome in (
        ("process", consume(colour, [transactions(1)], policies[0], process=first, success=HANGS)),
        ("produce", produce(colour, transactions(1), policies[1], produce=first, success=HANGS)),
    ):
        assert outcome.calls() == [f"{step}:t1", f"{step}:t1", "success:t1", "exception:t1"]
        assert outcome.times("exception") == [7.0]
        assert (outcome.report.timed_out, outcome.report.succeeded) == (1, 0)


@pytest.mark.req("T3.4", "T3.5")
def test_a_running_exception_phase_gets_one_more_lifecycle_timeout(colour: Colour) -> None:
    """It is never started twice and closes after at most one further transaction timeout."""
    policy = rules(transaction_timeout=7.0)
    outcome = consume(colour, [transactions(1)], policy, process=ValueError("x"), exception=HANGS)
    assert outcome.calls() == ["process:t1", "exception:t1"]
    assert outcome.report.elapsed <= 14.0
    assert outcome.report.handler_failures == 1
    assert outcome.report == 1


@pytest.mark.req("T3.4")
def test_an_exception_phase_started_by_the_timeout_may_finish(colour: Colour) -> None:
    """Its own time is one transaction timeout from where it began."""
    policy = rules(transaction_timeout=7.0)
    outcome = consume(
        colour, [transactions(1)], policy, process=HANGS, exception=Takes(6.0, "told")
    )
    assert outcome.calls() == ["process:t1", "exception:t1"]
    assert (outcome.report.elapsed, outcome.report.handler_failures) == (13.0, 0)
    assert outcome.report.timed_out == 1


@pytest.mark.req("T3.3")
def test_waiting_in_the_batch_is_not_lifecycle_time(colour: Colour) -> None:
    """Five transactions of 6 s one after the other, each within its 7 s."""
    policy = rules(size=5, transaction_timeout=7.0)
    outcome = consume(colour, [transactions(5)], policy, process=Takes(6.0, "ok"))
    assert (outcome.report.succeeded, outcome.report.timed_out) == (5, 0)
    assert outcome.times("process") == [0.0, 6.0, 12.0, 18.0, 24.0]


@pytest.mark.req("T3.3")
def test_the_lifecycle_clock_starts_anew_behind_hung_calls(colour: Colour) -> None:
    """Those queued behind a hung one still get their whole time."""
    policy = rules(size=3, transaction_timeout=7.0, max_abandoned=9)
    outcome = consume(
        colour, [transactions(3)], policy, process={"t1": HANGS, "t2": Takes(6.0), "t3": Takes(6.0)}
    )
    assert outcome.times("process") == [0.0, 7.0, 13.0]
    assert (outcome.report.succeeded, outcome.report.timed_out) == (2, 1)


@pytest.mark.req("RFC-004:9d", "T3.17")
def test_scopes_are_independent(colour: Colour) -> None:
    """A step's time is not shortened by what is left of the lifecycle: the first to expire acts."""
    policy = rules(
        max_abandoned=9,
        steps={"process": {"max_attempts": 5, "timeout": 5.0}},
        transaction_timeout=12.0,
    )
    outcome = consume(colour, [transactions(1)], policy, process=HANGS)
    assert outcome.times("process") == [0.0, 5.0, 10.0]
    assert outcome.times("exception") == [12.0]
    assert outcome.report.timed_out == 1


@pytest.mark.req("RFC-004:9a", "T3.2", "T3.13")
def test_a_late_result_never_runs_the_success_handler(colour: Colour) -> None:
    """The hung call comes back while the loop still runs, and nothing comes of it."""
    policy = rules(size=2, max_abandoned=9, steps={"process": {"timeout": 5.0}})
    hooks: dict[str, Any] = {"process": {"t1": [Takes(8.0, "late")], "t2": [Takes(4.0, "fine")]}}
    outcome = consume(colour, [transactions(2), Takes(50.0, None)], policy, **hooks)
    assert outcome.calls("success") == ["t2"]
    assert outcome.calls("exception") == ["t1"]
    assert (outcome.report.succeeded, outcome.report) == (1, 2)


@pytest.mark.req("T3.13")
def test_a_coroutine_that_swallows_cancellation_is_abandoned() -> None:
    """After cancel_grace the engine goes on without it, counts it, and drops its result."""
    ends: list[str] = []

    async def stubborn(transaction: Any) -> str:
        end = now() + 100.0
        while now() < end:
            try:
                await asyncio.sleep(end - now())
            except asyncio.CancelledError:
                continue
        ends.append(transaction.transaction_id)
        return "late"

    succeeded: list[str] = []
    told: list[tuple[float, str]] = []

    async def success(transaction: Any, _result: Any) -> None:
        succeeded.append(transaction.transaction_id)

    async def exception(transaction: Any, exc: Any) -> None:
        told.append((now(), exc.category.value))

    source = Supply(transactions(1))
    task = consumer("async", source, process=stubborn, success=success, exception=exception)
    policy = rules(steps={"process": {"timeout": 5.0}}, cancel_grace=2.0)
    outcome = consume("async", source, policy, task=task)
    assert told == [(7.0, "timeout")]
    assert succeeded == []
    assert outcome.report.abandoned == 1
    assert outcome.report.elapsed == 7.0


@pytest.mark.req("T3.13")
def test_a_coroutine_that_turns_cancellation_into_a_result_has_still_timed_out() -> None:
    """What it returns after its deadline is dropped."""

    async def sly(_transaction: Any) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "as if nothing had happened"
        return "never"

    calls: list[str] = []

    async def success(_transaction: Any, _result: Any) -> None:
        calls.append("success")

    async def exception(_transaction: Any, exc: Any) -> None:
        calls.append(exc.category.value)

    source = Supply(transactions(1))
    task = consumer("async", source, process=sly, success=success, exception=exception)
    consume("async", source, rules(steps={"process": {"timeout": 5.0}}), task=task)
    assert calls == ["timeout"]


@pytest.mark.req("T3.13")
def test_cleanup_within_the_grace_finishes_before_the_retry() -> None:
    """A cancelled attempt that cleans up quickly does not overlap the next one."""
    gauge = Gauge()

    async def tidy(_transaction: Any) -> None:
        with gauge.inside():
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.5)

    source = Supply(transactions(1))
    task = consumer("async", source, process=tidy)
    policy = rules(steps={"process": {"max_attempts": 3, "timeout": 5.0}}, cancel_grace=1.0)
    outcome = consume("async", source, policy, task=task)
    assert gauge.peak == 1
    assert outcome.report.abandoned == 0
    assert outcome.report.failed + outcome.report.timed_out == 1


@pytest.mark.req("T3.2")
def test_abandoned_threads_are_daemonic_and_counted() -> None:
    """They cannot hold the interpreter, and the report says how many there were."""
    daemonic: list[bool] = []

    async def hang(_transaction: Any) -> None:
        daemonic.append(threading.current_thread().daemon)
        await nap(1000.0)

    source = Supply(transactions(2))
    task = consumer("sync", source, process=hang)
    policy = rules(size=2, concurrency=2, steps={"process": {"timeout": 5.0}})
    outcome = consume("sync", source, policy, task=task)
    assert daemonic == [True, True]
    assert outcome.report.abandoned == 2
    assert outcome.report.elapsed == 5.0


@pytest.mark.req("T3.2", "RFC-004:8.1a")
def test_no_new_work_starts_at_the_cap_of_abandoned_threads() -> None:
    """With the cap reached, the loop waits until a hung call comes back."""
    hooks: dict[str, Any] = {
        "process": {"t1": [Takes(30.0)], "t2": [Takes(40.0)], "t3": ["ok"], "t4": ["ok"]}
    }
    policy = rules(size=4, max_abandoned=2, steps={"process": {"timeout": 5.0}})
    outcome = consume("sync", [transactions(4)], policy, **hooks)
    assert outcome.times("process") == [0.0, 5.0, 30.0, 30.0]
    assert outcome.report.succeeded == 2
    assert outcome.report.abandoned == 2


@pytest.mark.req("T3.2")
def test_the_default_cap_is_the_concurrency() -> None:
    """From a handful on, never more than twice as many threads as lifecycles may run."""
    gauge = Gauge()

    async def hang(_transaction: Any) -> None:
        with gauge.inside():
            await nap(100.0)

    source = Supply(transactions(40))
    task = consumer("sync", source, process=hang)
    policy = rules(size=40, concurrency=8, steps={"process": {"timeout": 5.0}})
    outcome = consume("sync", source, policy, task=task)
    assert outcome.report == 40
    assert gauge.peak <= 16


@pytest.mark.req("T3.2")
def test_a_held_permit_keeps_the_stricter_bound() -> None:
    """With abandoned='hold' a hung call keeps its permit: never more bodies than permits."""
    gauge = Gauge()

    async def hang(transaction: Any) -> None:
        with gauge.inside():
            await nap(30.0 if transaction.payload < 3 else 1.0)

    source = Supply(transactions(4))
    task = consumer("sync", source, process=hang)
    policy = rules(
        size=4,
        concurrency=2,
        abandoned="hold",
        max_abandoned=9,
        steps={"process": {"timeout": 5.0}},
    )
    outcome = consume("sync", source, policy, task=task)
    assert gauge.peak == 2
    assert outcome.report == 4
    assert outcome.report.succeeded == 2


@pytest.mark.req("T3.2")
def test_a_retry_overlaps_the_zombie_only_in_threads() -> None:
    """The documented tension: the abandoned call still runs while its retry does."""
    gauge = Gauge()

    async def hang(_transaction: Any) -> None:
        with gauge.inside():
            await nap(100.0)

    source = Supply(transactions(1))
    task = consumer("sync", source, process=hang)
    policy = rules(max_abandoned=9, steps={"process": {"max_attempts": 2, "timeout": 5.0}})
    consume("sync", source, policy, task=task)
    assert gauge.peak == 2


@pytest.mark.req("T3.2", "R0-C1")
def test_cooperative_code_can_see_that_it_was_given_up(colour: Colour) -> None:
    """current_attempt() knows the remaining time and whether the result is still wanted."""
    seen: list[Any] = []

    async def polite(transaction: Any) -> None:
        attempt = current_attempt()
        assert attempt is not None
        if transaction.payload == 2:
            await nap(4.0)
            return
        seen.append((attempt.remaining(), attempt.is_cancelled))
        try:
            await nap(8.0)
        finally:
            seen.append((attempt.remaining(), attempt.is_cancelled))

    source = Supply(transactions(2))
    task = consumer(colour, source, process=polite)
    policy = rules(size=2, max_abandoned=9, steps={"process": {"timeout": 5.0}})
    consume(colour, source, policy, task=task)
    assert seen == [(5.0, False), (0.0, True)]


@pytest.mark.req("T3.12")
def test_an_error_raised_in_time_is_not_a_timeout(colour: Colour) -> None:
    """A user's TimeoutError in a step that has a timeout stays SYSTEM."""
    policy = rules(steps={"process": {"timeout": 5.0}})
    outcome = consume(colour, [transactions(1)], policy, process=Takes(4.0, TimeoutError("mine")))
    told = outcome.happened[-1].argument
    assert told.category is ExceptionType.SYSTEM
    assert outcome.report.timed_out == 0


def _story(outcome: Outcome) -> Any:
    return [(each.at, each.hook, each.attempt) for each in outcome.happened]


@pytest.mark.req("RFC-004:5.1b", "T3.4")
def test_timeouts_tell_the_same_story_in_producer_and_consumer(colour: Colour) -> None:
    """The two engines mirror each other."""
    steps = {"max_attempts": 2, "timeout": 5.0, "backoff": 1.0}
    consumed = consume(
        colour,
        [transactions(1)],
        rules(steps={"process": steps}, max_abandoned=9, transaction_timeout=30.0),
        process=HANGS,
    )
    produced = produce(
        colour,
        transactions(1),
        rules(steps={"produce": steps}, max_abandoned=9, transaction_timeout=30.0),
        produce=HANGS,
    )
    assert [each[0] for each in _story(consumed)] == [each[0] for each in _story(produced)]
    assert consumed.report.timed_out == produced.report.timed_out


@pytest.mark.req("T3.5", "T3.4")
def test_no_second_exception_phase_when_the_timeout_meets_the_handler(colour: Colour) -> None:
    """The lifecycle deadline passes while a failing handler is between its own retries."""
    policy = rules(
        steps={"exception": {"max_attempts": 3, "backoff": 4.0, "backoff_multiplier": 1.0}},
        transaction_timeout=5.0,
    )
    outcome = consume(
        colour, [transactions(1)], policy, process=ValueError("x"), exception=ValueError("y")
    )
    assert outcome.times("exception") == [0.0, 4.0, 8.0]
    assert outcome.report.handler_failures == 1
    assert outcome.report == 1
    assert [each.attempt for each in outcome.happened if each.hook == "exception"] == [0, 1, 2]


def test_a_producer_of_hung_calls_ends(colour: Colour) -> None:
    """Every transaction of a long input hangs, and the call still ends with all told."""
    told: list[str] = []

    async def hang(_transaction: Any) -> None:
        await nap(1e5)

    async def exception(transaction: Any, _exc: Any) -> None:
        told.append(transaction.transaction_id)

    task = producer(colour, produce=hang, exception=exception)
    policy = rules(size=5, concurrency=5, max_abandoned=50, steps={"produce": {"timeout": 1.0}})
    outcome = produce(colour, transactions(20), policy, task=task)
    assert sorted(told) == sorted(each.transaction_id for each in transactions(20))
    assert outcome.report.elapsed == 4.0
