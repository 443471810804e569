"""Who owns a transaction when a worker, a task or a thread ends in a way nobody planned."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.engine.asyncio_engine import AsyncioEngine
from ergon_framework.engine.plan import EnginePlan, Hooks
from ergon_framework.engine.thread_engine import ThreadEngine
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import consumer, producer, rules
from tests.engine.colours import Colour, consume

BALANCE = "does not balance"


@pytest.fixture(autouse=True)
def _balanced(caplog: pytest.LogCaptureFixture) -> Generator[None, None, None]:
    """The engine's own check of its account must hold in every test here."""
    yield
    assert [each for each in caplog.records if BALANCE in each.getMessage()] == []


async def _long(_transaction: Any) -> None:
    await asyncio.sleep(100)


async def _fails(_transaction: Any) -> None:
    raise OSError("for now")


def _watched(source: Any, process: Any, told: list[str]) -> Any:
    async def exception(transaction: Any, _exc: Any) -> None:
        told.append(transaction.transaction_id)

    return consumer("async", source, process=process, exception=exception)


BACKOFF = {"process": {"max_attempts": 3, "backoff": 60.0}}


@pytest.mark.req("T3.11", "T3.30", "R0-I3")
@pytest.mark.parametrize("process", [_long, _fails], ids=["in a hook", "in backoff"])
@pytest.mark.parametrize("how", ["a neighbour raises", "main returns"])
def test_a_loop_that_shuts_down_dead_letters_nothing(process: Any, how: str) -> None:
    """Supervisor and workers are cancelled together: stopped, not failed; all is handed back."""
    told: list[str] = []
    source = ScriptedConnector([transactions(40)], settling=True)
    task = _watched(source, process, told)
    policy = rules(size=40, concurrency=20, steps=BACKOFF)

    async def raises() -> None:
        await asyncio.sleep(5)
        raise ZeroDivisionError

    async def main() -> Any:
        if how == "a neighbour raises":
            await asyncio.gather(task.consume_transactions(policy), raises())
        running = asyncio.create_task(task.consume_transactions(policy))
        await asyncio.sleep(5)
        return running

    with suppress(ZeroDivisionError):
        VirtualClock().run(main())
    assert told == []
    assert sorted(source.settled) == sorted(("release", f"t{n}") for n in range(1, 41))


@pytest.mark.req("T3.11")
def test_workers_that_are_cancelled_without_their_supervisor_stop_the_call() -> None:
    """Somebody cancels every task but his own and the call's: the call ends as cancelled."""
    told: list[str] = []
    source = ScriptedConnector([transactions(4)], settling=True)
    task = _watched(source, _long, told)

    async def main() -> None:
        call = asyncio.create_task(task.consume_transactions(rules(size=4, concurrency=2)))
        await asyncio.sleep(5)
        for each in asyncio.all_tasks() - {call, asyncio.current_task()}:
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.get_running_loop().time() == 5.0

    VirtualClock().run(main())
    assert told == []
    assert sorted(source.settled) == [("release", f"t{n}") for n in (1, 2, 3, 4)]


@pytest.mark.req("T3.11")
def test_a_hook_that_turns_a_cancellation_into_an_error_has_not_failed() -> None:
    """What a hook raises because the loop shuts down is no failure of its transaction."""
    told: list[str] = []

    async def converts(_transaction: Any) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    source = ScriptedConnector([transactions(1)], settling=True)
    task = _watched(source, converts, told)

    async def main() -> Any:
        running = asyncio.create_task(task.consume_transactions(rules()))
        await asyncio.sleep(5)
        return running

    VirtualClock().run(main())
    assert (told, source.settled) == ([], [("release", "t1")])


@pytest.mark.req("T3.11")
def test_a_timeout_of_the_hooks_own_is_still_its_own() -> None:
    """asyncio.timeout cancels the worker from a timer and takes it back: nobody stops the call."""

    async def process(_transaction: Any) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(100)

    source = ScriptedConnector([transactions(2)], settling=True)
    outcome = consume(
        "async", source, rules(size=2), task=consumer("async", source, process=process)
    )
    assert outcome.error is None
    assert outcome.report.failed == 2


@pytest.mark.req("T3.17", "R0-I3")
def test_what_a_cancelled_fetch_still_yields_is_stranded() -> None:
    """A source without release: what it gives while the call is cut off is named."""

    class Slow:
        async def fetch_transactions_async(self, batch_size: int) -> list[Transaction]:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            return transactions(2)

    task = consumer("async", Slow(), process=_long)
    outcome = consume("async", Slow(), rules(size=2, timeout=5.0), task=task)
    assert isinstance(outcome.error, TimeoutError)
    assert outcome.report.stranded == ("t1", "t2")


@coroutine
def _gone_on_with(body: Coroutine[Any, Any, Any], answer: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that was begun outside of a task."""
    while True:
        value, error = None, None
        try:
            value = yield answer
        except BaseException as thrown:
            error = thrown
        try:
            answer = body.send(value) if error is None else body.throw(error)
        except StopIteration as stop:
            return stop.value


def _eager(loop: asyncio.AbstractEventLoop, body: Any, **named: Any) -> Any:
    """What eager_task_factory of Python 3.12 does, for older ones: begin at once."""

    async def whole(steps: Any, value: Any) -> Any:
        return value if steps is None else await steps

    try:
        rest = whole(_gone_on_with(body, body.send(None)), None)
    except StopIteration as stop:
        rest = whole(None, stop.value)
    return asyncio.Task(rest, loop=loop, **named)


FACTORIES = [_eager]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.mark.req("R0-G6", "R0-I3")
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("number", [3, 2000])
def test_an_eager_task_factory_changes_nothing(factory: Any, number: int) -> None:
    """Workers begin inside of whoever starts them, two thousand of them without recursion."""
    source = ScriptedConnector([transactions(number)], settling=True)

    async def process(_transaction: Any) -> None:
        await asyncio.sleep(0)

    task = consumer("async", source, process=process)

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(factory)
        return await task.consume_transactions(rules(size=number, concurrency=number))

    report = VirtualClock().run(main())
    assert report.succeeded == number
    assert len(source.settled) == number


class FewThreads(VirtualClock):
    """A machine that starts so many threads and no more."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.left = threads

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("can't start new thread")
        return super().spawn(name, body)


def _plan(process: Any, **named: Any) -> EnginePlan:
    answers = iter([transactions(3)])
    return EnginePlan(
        "consumer", "Scene", lambda _at_most: next(answers, None), Hooks(process), **named
    )


@pytest.mark.req("T3.2", "R0-I3")
def test_a_hung_worker_that_cannot_be_replaced_keeps_its_transaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No thread can be started for it: the call ends with that error, and names what it leaves."""
    source = ScriptedConnector([transactions(1)])
    policy = rules(steps={"process": {"timeout": 5.0, "max_attempts": 2}})
    clock = FewThreads(1)
    task = consumer("sync", source, process=_long)
    type(task).process_transaction = lambda _self, _transaction: clock.sleep(1000.0)
    with clock, pytest.raises(RuntimeError, match="can't start new thread"):
        task.consume_transactions(policy)
    clock.advance(1e6)
    assert any("could not be handed back: t1" in each.getMessage() for each in caplog.records)


@pytest.mark.req("R0-G6")
def test_fewer_threads_than_wanted_do_the_work(caplog: pytest.LogCaptureFixture) -> None:
    """Where a machine has no more threads, those that are there go on, with a warning."""
    source = ScriptedConnector([transactions(6)])
    task = consumer("sync", source, process=_long)
    clock = FewThreads(2)
    type(task).process_transaction = lambda _self, _transaction: clock.sleep(1.0)
    with clock:
        report = task.consume_transactions(rules(size=6, concurrency=6))
    assert report.succeeded == 6
    assert "could not be started" in caplog.text


@pytest.mark.req("R0-G6")
def test_no_thread_at_all_ends_the_call_at_once() -> None:
    """The caller gets the error; nothing was taken in, and nobody waits for a grace."""
    clock = FewThreads(0)
    task = producer("sync", produce=_long)
    with clock, pytest.raises(RuntimeError, match="can't start new thread"):
        task.produce_transactions(transactions(3), rules())
    assert clock.now() == 0.0


@pytest.mark.req("T3.17")
def test_a_release_that_fails_leaves_its_transaction_stranded(colour: Colour) -> None:
    """Not handed back is stranded, whether the source did not answer or said no."""
    source = ScriptedConnector([transactions(3)], settling=True)

    def release(transaction: Transaction) -> None:
        if transaction.transaction_id == "t2":
            raise OSError("gone")

    source.release = release  # type: ignore[attr-defined]
    outcome = consume(colour, source, rules(size=3, timeout=5.0), process=[Takes(100.0)])
    report = outcome.report
    assert (report.released, report.stranded) == (2, ("t2",))


@pytest.mark.req("R0-I3")
def test_an_account_that_does_not_balance_is_told_and_fails_nobody(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of the engine, planted: what nobody held is named as stranded, at CRITICAL."""
    plan = _plan(lambda _transaction: None)

    def lose(engine: Any) -> None:
        engine.live["lost"] = Transaction("lost")
        engine.intake.delivered += 1

    if colour == "sync":
        engine: Any = ThreadEngine(plan, clock=VirtualClock())
        lose(engine)
        report = engine.run()
    else:

        async def main() -> Any:
            engine = AsyncioEngine(plan)
            lose(engine)
            return await engine.run()

        report = VirtualClock().run(main())
    assert (report.succeeded, report.stranded) == (3, ("lost",))
    told = [each for each in caplog.records if BALANCE in each.getMessage()]
    assert [each.levelno for each in told] == [logging.CRITICAL]
    caplog.clear()  # it was planted


@pytest.mark.req("T3.11")
def test_an_event_loop_that_is_closed_around_a_call_names_what_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """loop.stop() and loop.close() with the call under way: nothing can be awaited any more."""
    source = ScriptedConnector([transactions(2)], settling=True)
    task = consumer("async", source, process=_long)
    loop = asyncio.new_event_loop()
    call = loop.create_task(task.consume_transactions(rules(size=2)))
    loop.call_later(0.05, loop.stop)
    loop.run_forever()
    body = call.get_coro()
    assert body is not None
    body.close()
    loop.close()
    assert any("could not be handed back: t1, t2" in each.getMessage() for each in caplog.records)
