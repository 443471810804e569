"""KeyboardInterrupt, SystemExit and cancellation: who raised it decides what follows."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from ergon_framework.core.loop import StopReason
from ergon_framework.engine.report import Report
from ergon_framework.errors import ExceptionType
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Supply, consumer, nap, now, producer, rules
from tests.engine.colours import Colour, consume, produce


@pytest.mark.req("T3.11")
@pytest.mark.parametrize("hook", ["process", "success", "exception"])
def test_keyboard_interrupt_in_a_hook_stops_and_propagates(colour: Colour, hook: str) -> None:
    """No retry, no new work; the others in flight finish; then it leaves the call."""
    hooks: dict[str, Any] = {hook: {"t1": [KeyboardInterrupt()]}}
    if hook == "exception":
        hooks["process"] = {"t1": [ValueError("x")], "t2": [Takes(5.0)]}
    elif hook == "process":
        hooks["process"] = {"t1": [KeyboardInterrupt()], "t2": [Takes(5.0)]}
    else:
        hooks["process"] = {"t2": [Takes(5.0)]}
    retry = {"max_attempts": 3}
    policy = rules(
        size=2, concurrency=2, steps=dict.fromkeys(("process", "success", "exception"), retry)
    )
    answers = [transactions(2), transactions(2, "u")]
    outcome = consume(colour, answers, policy, **hooks)
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert outcome.calls(hook).count("t1") == 1
    assert outcome.calls("success").count("t2") == 1
    assert not any(each.startswith("u") for each in outcome.calls("process"))


@pytest.mark.req("T3.11")
@pytest.mark.parametrize("hook", ["process", "success"])
def test_an_interrupt_of_a_hooks_own_does_not_come_again(hook: str) -> None:
    """Ctrl-C reaches the main thread alone: raised by a hook in a thread, it is its failure.

    Handed back, the transaction would come again and do the same, for ever.
    """
    hooks: dict[str, Any] = {hook: {"t1": [KeyboardInterrupt()]}}
    policy = rules(size=2, concurrency=2, steps={hook: {"max_attempts": 3}})
    outcome = consume("sync", [transactions(2)], policy, **hooks)
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert outcome.report.failed == 1
    assert outcome.report.aborted == 0
    assert outcome.calls("exception") == ["t1"]
    told = next(each.argument for each in outcome.happened if each.hook == "exception")
    assert isinstance(told.__cause__, KeyboardInterrupt)


@pytest.mark.req("RFC-004:15a", "T3.11")
def test_system_exit_ends_its_lifecycle_and_leaves_the_call(colour: Colour) -> None:
    """SYSTEM without a retry, the handler is told, and SystemExit propagates with its code."""
    hooks: dict[str, Any] = {"process": {"t1": [SystemExit(3)], "t2": [Takes(5.0)]}}
    policy = rules(size=2, concurrency=2, steps={"process": {"max_attempts": 3}})
    outcome = consume(colour, [transactions(2), transactions(1, "u")], policy, **hooks)
    assert isinstance(outcome.error, SystemExit)
    assert outcome.error.code == 3
    assert outcome.calls("process").count("t1") == 1
    assert outcome.calls("exception") == ["t1"]
    told = next(each.argument for each in outcome.happened if each.hook == "exception")
    assert told.category is ExceptionType.SYSTEM
    assert isinstance(told.__cause__, SystemExit)
    assert outcome.calls("success") == ["t2"]
    assert "u1" not in outcome.calls("process")


@pytest.mark.req("RFC-005:17c", "T3.11")
def test_a_producer_treats_them_alike(colour: Colour) -> None:
    """Interrupt and exit leave the produce call, too."""
    for kind in (KeyboardInterrupt, SystemExit):
        hooks: dict[str, Any] = {"produce": {"t1": [kind()]}}
        policy = rules(steps={"produce": {"max_attempts": 3}})
        outcome = produce(colour, transactions(3), policy, **hooks)
        assert isinstance(outcome.error, kind)
        assert outcome.calls("produce") == ["t1"]


@pytest.mark.req("T3.11")
def test_a_stray_cancelled_error_is_system(colour: Colour) -> None:
    """Raised by user code with nobody cancelling: retried, then told; the loop goes on."""
    hooks: dict[str, Any] = {
        "process": {"t1": [asyncio.CancelledError(), asyncio.CancelledError()]}
    }
    policy = rules(size=2, steps={"process": {"max_attempts": 2}})
    outcome = consume(colour, [transactions(2)], policy, **hooks)
    assert outcome.error is None
    assert outcome.calls() == [
        "process:t1", "process:t1", "exception:t1", "process:t2", "success:t2",
    ]  # fmt: skip
    told = outcome.happened[2].argument
    assert told.category is ExceptionType.SYSTEM


@pytest.mark.req("T3.11")
def test_a_cancelled_future_awaited_by_a_hook_is_system() -> None:
    """The usual way a stray CancelledError comes about."""

    async def process(_transaction: Any) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    source = Supply(transactions(2))
    task = consumer("async", source, process=process)
    outcome = consume("async", source, rules(size=2), task=task)
    assert outcome.error is None
    assert outcome.report.failed == 2


@pytest.mark.req("T3.11")
def test_a_hook_that_cancels_its_own_task_does_not_kill_the_loop() -> None:
    """The worker's task is the engine's: cancelling it from inside fails that transaction only."""

    async def process(transaction: Any) -> None:
        if transaction.payload == 1:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
        await asyncio.sleep(1)

    source = Supply(transactions(3))
    task = consumer("async", source, process=process)
    outcome = consume("async", source, rules(size=3), task=task)
    assert outcome.error is None
    assert (outcome.report.failed, outcome.report.succeeded) == (1, 2)


@pytest.mark.req("T3.11")
def test_a_stray_cancelled_error_from_a_fetch_is_a_fetch_error(colour: Colour) -> None:
    """It is retried like any other error of a connector."""
    answers = [asyncio.CancelledError(), transactions(1)]
    outcome = consume(colour, answers, rules(steps={"fetch": {"max_attempts": 2}}))
    assert outcome.error is None
    assert outcome.report.succeeded == 1


@pytest.mark.req("T3.11")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_from_a_fetch_propagate(colour: Colour, kind: type[BaseException]) -> None:
    """Without a retry."""
    source = ScriptedConnector([kind(), transactions(1)])
    outcome = consume(colour, source, rules(steps={"fetch": {"max_attempts": 3}}))
    assert isinstance(outcome.error, kind)
    assert len(source.fetches) == 1


@pytest.mark.req("T3.11", "T3.17")
def test_external_cancellation_leaves_nobody_behind() -> None:
    """All tasks of the call are gone, no success handler runs later, CancelledError propagates."""
    ran: list[str] = []

    async def process(transaction: Any) -> None:
        await asyncio.sleep(10)

    async def success(transaction: Any, _result: Any) -> None:
        ran.append("success")

    async def exception(transaction: Any, _exc: Any) -> None:
        ran.append("exception")

    source = ScriptedConnector([transactions(4)], settling=True)
    task = consumer("async", source, process=process, success=success, exception=exception)

    async def scene() -> set[str]:
        call = asyncio.create_task(task.consume_transactions(rules(size=4, concurrency=2)))
        await asyncio.sleep(5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.get_running_loop().time() == 5.0
        others = {each.get_name() for each in asyncio.all_tasks()} - {
            getattr(asyncio.current_task(), "get_name")()  # noqa: B009
        }
        await asyncio.sleep(100)
        return others

    others = VirtualClock().run(scene())
    assert others == set()
    assert ran == []
    assert sorted(source.settled) == [("release", f"t{n}") for n in (1, 2, 3, 4)]


@pytest.mark.req("T3.11")
def test_external_cancellation_during_a_fetch_or_a_wait() -> None:
    """Wherever the call stands, it ends at once."""
    for answers, policy in (
        ([Takes(100.0, None)], rules()),
        ([], rules(streaming=True, empty_queue={"backoff": 60.0, "backoff_cap": 0.0})),
        ([OSError()], rules(steps={"fetch": {"max_attempts": 2, "backoff": 100.0}})),
    ):
        task = consumer("async", ScriptedConnector(answers), process=_one_second)

        async def scene(task: Any = task, policy: Any = policy) -> float:
            call = asyncio.create_task(task.consume_transactions(policy))
            await asyncio.sleep(5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return now()

        assert VirtualClock().run(scene()) == 5.0


async def _one_second(_transaction: Any) -> None:
    await nap(1.0)


@pytest.mark.req("T3.11", "T3.13")
def test_wait_for_around_a_call_works() -> None:
    """asyncio.timeout around consume_transactions gives its TimeoutError, not ours."""
    task = consumer("async", ScriptedConnector([transactions(1)]), process=_one_second)

    async def scene() -> None:
        async with asyncio.timeout(0.5):
            await task.consume_transactions(rules())

    with pytest.raises(TimeoutError) as caught:
        VirtualClock().run(scene())
    assert not hasattr(caught.value, "report")


@pytest.mark.req("T3.11")
def test_external_cancellation_with_a_stubborn_hook_is_bounded() -> None:
    """A hook that swallows cancellation is abandoned after cancel_grace, without a success."""
    ran: list[str] = []

    async def stubborn(_transaction: Any) -> None:
        end = now() + 100
        while now() < end:
            try:
                await asyncio.sleep(end - now())
            except asyncio.CancelledError:
                continue

    async def success(_transaction: Any, _result: Any) -> None:
        ran.append("success")

    task = consumer(
        "async", ScriptedConnector([transactions(1)]), process=stubborn, success=success
    )

    async def scene() -> float:
        call = asyncio.create_task(task.consume_transactions(rules(cancel_grace=2.0)))
        await asyncio.sleep(5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        ended = now()
        await asyncio.sleep(200)
        return ended

    assert VirtualClock().run(scene()) == 7.0
    assert ran == []


@pytest.mark.req("T3.17", "T3.13")
def test_a_loop_timeout_leaves_no_orphan_tasks() -> None:
    """Cancelled children are gone when the call raises; none calls a handler later."""
    ran: list[str] = []

    async def process(_transaction: Any) -> None:
        await asyncio.sleep(50)

    async def success(_transaction: Any, _result: Any) -> None:
        ran.append("success")

    task = producer("async", produce=process, success=success)

    async def scene() -> int:
        with pytest.raises(TimeoutError):
            await task.produce_transactions(
                transactions(4), rules(size=4, concurrency=4, timeout=5.0)
            )
        left = len(asyncio.all_tasks()) - 1
        await asyncio.sleep(100)
        return left

    assert VirtualClock().run(scene()) == 0
    assert ran == []


@pytest.mark.req("T3.11", "T3.30")
def test_ctrl_c_reaches_the_waiting_main_thread() -> None:
    """SIGINT while the main thread supervises: in-flight work ends, KeyboardInterrupt leaves."""
    heard = threading.Event()
    sent: list[int] = []

    def handler(*_args: object) -> None:
        heard.set()
        raise KeyboardInterrupt

    async def process(transaction: Any) -> None:
        if not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.wait(10)  # holds the virtual clock until the main thread was reached
        await nap(1.0)

    source = Supply(transactions(5000))
    task = consumer("sync", source, process=process)
    before = signal.signal(signal.SIGINT, handler)
    try:
        outcome = consume("sync", source, rules(), task=task)
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert source.waiting  # it did not go on until the source was empty


@pytest.mark.req("T3.11")
def test_an_interrupt_names_its_reason(colour: Colour) -> None:
    """The notices and the report speak of an interruption."""
    outcome = consume(colour, [transactions(1)], process=KeyboardInterrupt())
    assert isinstance(outcome.error, KeyboardInterrupt)
    report = getattr(outcome.error, "report", None)
    if isinstance(report, Report):
        assert report.stop_reason is StopReason.INTERRUPTED
