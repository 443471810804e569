"""Fetching: retries, timeouts, conversion of errors, and never two at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.core.loop import StopReason
from ergon_framework.errors import (
    ConsumerLoopTimeoutException,
    ExceptionType,
    FetchException,
    FetchTimeoutException,
    TransactionException,
)
from ergon_framework.telemetry import add_listener, remove_listener
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Gauge, Supply, consumer, final_report, nap, refusal, rules
from tests.engine.colours import Colour, Outcome, consume

THREE = {"fetch": {"max_attempts": 3, "backoff": 1.0, "backoff_multiplier": 2.0}}


@pytest.mark.req("RFC-004:7.1b", "RFC-004:6b", "R3-BO")
def test_a_failing_fetch_is_retried_with_backoff(colour: Colour) -> None:
    """Two failures, 1 s and 2 s, then a delivery."""
    answers = [OSError("a"), OSError("b"), transactions(1)]
    outcome = consume(colour, answers, rules(steps=THREE))
    assert outcome.error is None
    assert outcome.times("process") == [3.0]


@pytest.mark.req("RFC-004:7.1b")
def test_a_delivery_restores_the_fetch_budget(colour: Colour) -> None:
    """Attempts count per fetch, not per call."""
    answers = [OSError(), OSError(), transactions(1), OSError(), OSError(), transactions(1, "u")]
    outcome = consume(colour, answers, rules(steps=THREE))
    assert outcome.report.succeeded == 2


@pytest.mark.req("RFC-004:7.1d", "RFC-004:7.1e", "RFC-004:13.1d", "T3.20", "RFC-004:15a")
def test_an_exhausted_fetch_ends_the_loop_with_its_cause(colour: Colour) -> None:
    """FetchException, chained, with the report of what was done before."""
    lost = ConnectionError("lost")
    answers = [transactions(1), OSError(), OSError(), lost, transactions(1, "never")]
    outcome = consume(colour, answers, rules(steps=THREE))
    error = outcome.error
    assert isinstance(error, FetchException)
    assert not isinstance(error, FetchTimeoutException)
    assert error.__cause__ is lost
    assert error.report.succeeded == 1
    assert error.report.stop_reason is StopReason.FETCH_FAILED
    assert outcome.calls("process") == ["t1"]


@pytest.mark.req("T3.6", "RFC-004:7.1d")
def test_business_from_a_fetch_is_not_retried_and_converted(colour: Colour) -> None:
    """The call never ends with a TransactionException of a fetch."""
    refused = refusal()
    outcome = consume(colour, [refused, transactions(1)], rules(steps=THREE))
    assert isinstance(outcome.error, FetchException)
    assert not isinstance(outcome.error, TransactionException)
    assert outcome.error.__cause__ is refused
    assert outcome.calls() == []


@pytest.mark.req("T3.12", "RFC-004:7.1d")
def test_a_connectors_own_timeout_error_is_retried_and_chained(colour: Colour) -> None:
    """A connector's TimeoutError is an error like any other; only the engine's own is a timeout."""
    mine = TimeoutError("socket")
    outcome = consume(colour, [OSError(), OSError(), mine], rules(steps=THREE))
    assert isinstance(outcome.error, FetchException)
    assert outcome.error.__cause__ is mine


@pytest.mark.req("RFC-004:7.1c", "RFC-004:9a", "RFC-004:11.3a", "T3.19")
def test_an_exhausted_fetch_timeout(colour: Colour) -> None:
    """A FetchTimeoutException that is a TimeoutError, after exactly the attempts' time."""
    source = ScriptedConnector([Takes(1000.0, None)] * 3)
    steps = {"fetch": {"max_attempts": 3, "timeout": 5.0, "backoff": 1.0}}
    outcome = consume(colour, source, rules(steps=steps))
    assert isinstance(outcome.error, FetchTimeoutException)
    assert isinstance(outcome.error, TimeoutError)
    assert outcome.error.category is ExceptionType.TIMEOUT
    if colour == "sync":
        assert len(source.fetches) == 1  # the hung call is not overlapped by another
    assert final_report(outcome).elapsed == 5.0 + 1.0 + 5.0 + 2.0 + 5.0


@pytest.mark.req("T3.19")
def test_a_hung_fetch_is_never_overlapped_and_its_late_answer_kept() -> None:
    """Threads: the retry counts as timed out without a call; what comes late is processed."""
    source = ScriptedConnector([Takes(12.0, transactions(2)), transactions(1, "u")])
    steps = {"fetch": {"max_attempts": 5, "timeout": 5.0}}
    outcome = consume("sync", source, rules(size=2, steps=steps))
    assert outcome.error is None
    assert outcome.calls("process") == ["t1", "t2", "u1"]
    assert outcome.times("process") == [12.0, 12.0, 12.0]
    assert outcome.report.succeeded == 3


@pytest.mark.req("T3.19")
def test_a_cancelled_async_fetch_may_be_repeated() -> None:
    """A coroutine really ends when cancelled, so its retry is a call of its own."""
    source = ScriptedConnector([Takes(12.0, transactions(2)), transactions(1, "u")])
    steps = {"fetch": {"max_attempts": 5, "timeout": 5.0}}
    outcome = consume("async", source, rules(size=2, steps=steps))
    assert outcome.error is None
    assert outcome.calls("process") == ["u1"]


@pytest.mark.req("T3.19", "T3.13")
def test_an_async_fetch_that_swallows_cancellation_is_not_overlapped() -> None:
    """It is waited for like a hung thread, and what it brings late is processed."""
    gauge = Gauge()

    class Stubborn:
        calls = 0

        async def fetch_transactions_async(self, batch_size: int) -> Any:
            self.calls += 1
            if self.calls > 1:
                return None
            with gauge.inside():
                end = asyncio.get_running_loop().time() + 12.0
                while (left := end - asyncio.get_running_loop().time()) > 0:
                    try:
                        await asyncio.sleep(left)
                    except asyncio.CancelledError:
                        continue
                return transactions(2)

    source = Stubborn()
    seen: list[str] = []

    async def process(transaction: Any) -> None:
        seen.append(transaction.transaction_id)

    task = consumer("async", source, process=process)
    steps = {"fetch": {"max_attempts": 5, "timeout": 5.0}}
    outcome = consume("async", source, rules(size=2, steps=steps), task=task)
    assert outcome.error is None
    assert gauge.peak == 1
    assert seen == ["t1", "t2"]


@pytest.mark.req("T3.19")
def test_what_a_given_up_fetch_brings_at_last_is_released() -> None:
    """After FetchTimeoutException the late delivery goes back where the connector can take it."""
    released = threading.Event()

    class Slow(ScriptedConnector):
        def release(self, transaction: Any) -> None:
            self.settled.append(("release", transaction.transaction_id))
            if len(self.settled) == 2:
                released.set()

    source = Slow([Takes(100.0, transactions(2))])
    steps = {"fetch": {"max_attempts": 2, "timeout": 5.0}}
    outcome = consume("sync", source, rules(size=2, steps=steps))
    assert isinstance(outcome.error, FetchTimeoutException)
    assert released.wait(10)
    assert sorted(source.settled) == [("release", "t1"), ("release", "t2")]
    assert outcome.calls() == []


@pytest.mark.req("T3.19", "T3.8")
@pytest.mark.parametrize("mode", ["batch", "continuous"])
def test_fetches_never_overlap(colour: Colour, mode: str) -> None:
    """One at a time whatever the number of idle workers."""
    source = Supply(transactions(9), takes=2.0)

    async def process(_transaction: Any) -> None:
        await nap(1.0)

    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=3, concurrency=3, mode=mode), task=task)
    assert source.gauge.peak == 1
    assert outcome.report.succeeded == 9


@pytest.mark.req("T3.20")
def test_work_in_flight_finishes_before_a_fetch_error_is_raised(colour: Colour) -> None:
    """Also its retries and handlers, in continuous mode where both can happen together."""
    policy = rules(
        size=1,
        concurrency=2,
        mode="continuous",
        steps={"process": {"max_attempts": 2, "backoff": 4.0}},
    )
    hooks: dict[str, Any] = {"process": [Takes(3.0, ValueError("x")), Takes(3.0, "fine")]}
    outcome = consume(colour, [transactions(1), OSError("gone")], policy, **hooks)
    assert isinstance(outcome.error, FetchException)
    assert outcome.times("success") == [10.0]
    assert final_report(outcome).succeeded == 1


@pytest.mark.req("T3.9")
@pytest.mark.parametrize("shape", [tuple, iter, lambda items: (each for each in items), set])
def test_any_iterable_is_a_batch(colour: Colour, shape: Any) -> None:
    """Lazy ones are materialised."""
    outcome = consume(colour, [shape(transactions(3))], rules(size=3))
    assert sorted(outcome.calls("process")) == ["t1", "t2", "t3"]


@pytest.mark.req("T3.9")
def test_an_async_generator_is_a_batch() -> None:
    """An asynchronous connector may answer with one."""

    async def items() -> Any:
        for each in transactions(3):
            yield each

    outcome = consume("async", [items()], rules(size=3))
    assert outcome.calls("process") == ["t1", "t2", "t3"]


@pytest.mark.req("T3.9", "RFC-004:15a")
def test_a_generator_that_raises_half_way_loses_nothing(colour: Colour) -> None:
    """What it gave is processed; then its error counts as the fetch's."""

    def items() -> Any:
        yield from transactions(2)
        raise OSError("broken pipe")

    outcome = consume(colour, [items()], rules(size=5))
    assert outcome.calls("process") == ["t1", "t2"]
    assert isinstance(outcome.error, FetchException)
    assert isinstance(outcome.error.__cause__, OSError)
    assert final_report(outcome).succeeded == 2


@pytest.mark.req("T3.9")
@pytest.mark.parametrize("junk", [[*transactions(1), "text", None], [{"id": "x"}], ["text"]])
def test_things_that_are_not_transactions_are_a_fetch_error(colour: Colour, junk: Any) -> None:
    """Named with position and type; good ones beside them are still processed, none retried."""
    outcome = consume(colour, [junk, transactions(1, "never")], rules(size=3, steps=THREE))
    assert isinstance(outcome.error, FetchException)
    assert outcome.calls("process") == (["t1"] if len(junk) == 3 else [])
    assert len(outcome.connector.fetches) == 1
    text = str(outcome.error)
    assert "not a Transaction" in text
    assert f"item {len(junk) // 2}" in text


@pytest.mark.req("T3.9")
@pytest.mark.parametrize("junk", [7, "text", {"a": 1}, object(), transactions(1)[0]])
def test_an_answer_that_is_no_batch_is_a_fetch_error(colour: Colour, junk: Any) -> None:
    """And a single transaction given bare is not lost either."""
    outcome = consume(colour, [lambda: junk])
    assert isinstance(outcome.error, FetchException)
    assert type(junk).__name__ in str(outcome.error)
    assert len(outcome.calls("process")) == (1 if type(junk).__name__ == "Transaction" else 0)


@pytest.mark.req("RFC-004:7.1a", "R3-K3")
def test_a_connector_is_given_the_size_and_nothing_of_the_policy(colour: Colour) -> None:
    """No policy object reaches it."""
    source = ScriptedConnector([None])
    consume(colour, source, rules(size=3))
    assert source.fetches == [(3, {})]


@pytest.mark.req("RFC-004:7.1a")
def test_a_connector_with_both_twins_is_asked_in_the_tasks_colour(colour: Colour) -> None:
    """Threads call the plain method, asyncio awaits the other one."""
    called: list[str] = []

    class Twins:
        def fetch_transactions(self, batch_size: int) -> None:
            called.append("sync")

        async def fetch_transactions_async(self, batch_size: int) -> None:
            called.append("async")

    async def process(_transaction: Any) -> None: ...

    consume(colour, None, task=consumer(colour, Twins(), process=process))
    assert called == [colour]


@pytest.mark.req("RFC-004:7.1a")
def test_the_extra_arguments_cannot_be_changed_by_a_connector(colour: Colour) -> None:
    """Each fetch gets the same ones."""
    seen: list[Any] = []

    class Rude:
        def _answer(self, extra: dict[str, Any]) -> Any:
            seen.append(dict(extra))
            extra.clear()
            return transactions(1) if len(seen) == 1 else None

        def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
            return self._answer(extra)

        async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Any:
            return self._answer(extra)

    async def process(_transaction: Any) -> None:
        return None

    task = consumer(colour, Rude(), process=process)
    consume(colour, None, rules(extra={"queue": "q"}), task=task)
    assert seen == [{"queue": "q"}] * 2


@pytest.mark.req("T3.19", "T3.30")
@pytest.mark.parametrize("how", ["stop", "timeout"])
@pytest.mark.parametrize("settling", [True, False])
def test_a_late_delivery_kept_for_a_retry_survives_the_end_of_the_call(
    how: str, settling: bool
) -> None:
    """It came back between two attempts; then the call ends before anybody took it."""
    source = ScriptedConnector(
        [transactions(1), Takes(12.0, transactions(2, "u"))], settling=settling
    )
    scene: list[Outcome] = []
    steps = {"fetch": {"max_attempts": 4, "timeout": 5.0, "backoff": 20.0}}
    policy = rules(
        size=2,
        concurrency=2,
        mode="continuous",
        steps=steps,
        timeout=14.0 if how == "timeout" else None,
    )

    def stop() -> None:
        scene[0].task.request_stop()

    then = stop if how == "stop" else "fine"
    outcome = consume(
        "sync", source, policy, meanwhile=scene.append, process={"t1": Takes(13.0, then)}
    )
    if settling:
        assert sorted(source.settled) == [("ack", "t1"), ("release", "u1"), ("release", "u2")]
    else:
        accounted = {*final_report(outcome).stranded, *outcome.calls("process")}
        assert accounted >= {"t1", "u1", "u2"}


class Endless:
    """A source whose answer never ends, whatever it is asked for; gives up after 1,000."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.fetches = 0
        self.closed = 0
        self.released: list[str] = []

    def _next(self) -> Transaction:
        assert len(self.given) < 1000, "the answer is read without a bound"
        self.given.append(f"t{len(self.given) + 1}")
        return Transaction(self.given[-1])

    def fetch_transactions(self, batch_size: int) -> Iterator[Transaction]:
        self.fetches += 1
        try:
            while True:
                yield self._next()
        finally:
            self.closed += 1

    async def fetch_transactions_async(self, batch_size: int) -> AsyncIterator[Transaction]:
        self.fetches += 1
        try:
            while True:
                yield self._next()
        finally:
            self.closed += 1


class EndlessSettling(Endless):
    """The same, and it takes back."""

    def release(self, transaction: Transaction) -> None:
        self.released.append(transaction.transaction_id)


@pytest.mark.req("T3.7", "T3.9", "RFC-004:13.2a", "R3-BA1")
@pytest.mark.parametrize(("limit", "size"), [(5, 5), (5, 2), (5, 100), (1, 1)])
def test_an_endless_answer_is_read_as_far_as_asked_for(
    colour: Colour, limit: int, size: int
) -> None:
    """Exactly the limit runs; the one that was read to see an end is named, and the rest closed."""
    source = Endless()
    outcome = consume(colour, source, rules(size=size, limit=limit))
    assert outcome.error is None
    assert outcome.calls("process") == [f"t{n}" for n in range(1, limit + 1)]
    assert len(source.given) == limit + 1
    assert outcome.report.stranded == (f"t{limit + 1}",)
    assert (source.fetches, source.closed) == (1, 1)


@pytest.mark.req("T3.7", "T3.9")
def test_what_was_read_ahead_is_handed_back(colour: Colour) -> None:
    """A source that takes back gets the one that nobody wanted."""
    source = EndlessSettling()
    outcome = consume(colour, source, rules(size=3, limit=5))
    assert source.released == ["t6"]
    assert (outcome.report, outcome.report.released, outcome.report.stranded) == (5, 1, ())


@pytest.mark.req("T3.9")
def test_an_endless_answer_can_be_stopped(colour: Colour) -> None:
    """Without a limit it is read batch by batch, so a stop between two is heard."""
    source = Endless()

    async def process(transaction: Transaction) -> None:
        if transaction.transaction_id == "t40":
            task.request_stop()

    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(size=10), task=task)
    assert outcome.report.succeeded == 40
    assert (outcome.report.stranded, source.closed) == (("t41",), 1)


@pytest.mark.req("T3.9")
def test_a_generator_that_cannot_be_closed_fails_nothing(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged: the transactions have their outcomes."""

    class Stubborn(Endless):
        def fetch_transactions(self, batch_size: int) -> Iterator[Transaction]:
            try:
                yield from transactions(9)
            finally:
                raise OSError("cannot roll back")

        fetch_transactions_async = fetch_transactions  # type: ignore[assignment]

    outcome = consume(colour, Stubborn(), rules(size=2, limit=2))
    assert (outcome.error, outcome.report.succeeded) == (None, 2)
    assert "could not be closed: OSError: cannot roll back" in caplog.text


@pytest.fixture
def notices() -> Iterator[list[Any]]:
    """What the engine tells about fetches: name, number of the attempt, kind of the failure."""
    heard: list[Any] = []

    def listen(notice: Any) -> None:
        if notice.name in ("fetch.began", "fetch.ended"):
            failure = notice.fields.get("failure")
            kind = None if failure is None else failure.kind.value
            heard.append((notice.name, notice["attempt"].number, kind))

    add_listener(listen)
    yield heard
    remove_listener(listen)


@pytest.mark.req("R0-MT1", "R0-TR1", "T3.19")
@pytest.mark.parametrize("answer", [None, [Transaction("late")]])
def test_each_fetch_attempt_is_told_once(colour: Colour, notices: list[Any], answer: Any) -> None:
    """A timeout too, in both colours: one beginning and one end, whatever the call does later."""
    source = ScriptedConnector([Takes(25.0, answer), Takes(25.0, answer)])
    steps = {"fetch": {"max_attempts": 2, "timeout": 10.0}}
    outcome = consume(colour, source, rules(steps=steps))
    assert isinstance(outcome.error, FetchTimeoutException)
    assert notices == [
        ("fetch.began", 0, None),
        ("fetch.ended", 0, "timeout"),
        ("fetch.began", 1, None),
        ("fetch.ended", 1, "timeout"),
    ]


@pytest.mark.req("R0-MT1", "T3.19")
def test_a_late_fetch_ends_the_attempt_that_waits_for_it(notices: list[Any]) -> None:
    """With threads the second attempt waits for the call of the first, and ends well."""
    source = ScriptedConnector([Takes(15.0, transactions(1))])
    steps = {"fetch": {"max_attempts": 2, "timeout": 10.0}}
    outcome = consume("sync", source, rules(steps=steps))
    assert outcome.report.succeeded == 1
    assert notices[:4] == [
        ("fetch.began", 0, None),
        ("fetch.ended", 0, "timeout"),
        ("fetch.began", 1, None),
        ("fetch.ended", 1, None),
    ]


@pytest.mark.req("T3.17", "RFC-004:15a")
@pytest.mark.parametrize("recovered", [transactions(1), None])
def test_a_recovered_fetch_error_is_no_cause(colour: Colour, recovered: Any) -> None:
    """The loop's timeout has nothing to do with a fetch that was repeated with success."""
    source = ScriptedConnector([OSError("passing"), recovered])
    steps = {"fetch": {"max_attempts": 2}}
    outcome = consume(colour, source, rules(steps=steps, streaming=True, timeout=5.0))
    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    assert outcome.error.__cause__ is None
