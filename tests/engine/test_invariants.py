"""Whatever happens: one outcome, one settlement, one story in both colours."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.connector.transaction import Transaction
from ergon_framework.engine.thread_engine import ThreadEngine
from ergon_framework.errors import ExceptionType, FetchException, TransactionException
from ergon_framework.task.base import BaseTask
from ergon_framework.task.mixins.consumer import ConsumerMixin
from ergon_framework.task.mixins.producer import ProducerMixin
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import PRODUCER_HOOKS, consumer, final_report, producer, rules
from tests.engine.colours import Colour, Outcome, consume, produce

WAITS = (0.0, 1.7, 4.3, 11.9, 60.1)


def _entry(kind: str, seconds: float, offset: float) -> Any:
    """One entry of a script; offsets keep two transactions from ending at the same instant."""
    then: Any = {
        "ok": "ok",
        "business": TransactionException("no", category=ExceptionType.BUSINESS),
        "system": ValueError("x"),
    }[kind]
    return Takes(seconds + offset, then) if seconds else then


ENTRIES = st.tuples(st.sampled_from(["ok", "ok", "system", "business"]), st.sampled_from(WAITS))
SCRIPTS = st.lists(
    st.fixed_dictionaries(
        {
            "process": st.lists(ENTRIES, min_size=1, max_size=2),
            "success": st.lists(ENTRIES, min_size=1, max_size=2),
            "exception": st.lists(ENTRIES, min_size=1, max_size=2),
        }
    ),
    min_size=1,
    max_size=5,
)
POLICIES = st.fixed_dictionaries(
    {
        "size": st.integers(1, 4),
        "concurrency": st.integers(1, 3),
        "limit": st.sampled_from([None, None, 1, 3]),
        "timeout": st.sampled_from([None, None, 20.03]),
        "transaction_timeout": st.sampled_from([None, 9.07]),
    }
)
RETRIES = st.fixed_dictionaries(
    {
        "max_attempts": st.integers(1, 3),
        "timeout": st.sampled_from([None, 5.11]),
        "backoff": st.sampled_from([0.0, 2.13]),
    }
)


def _play(colour: Colour, script: list[Any], policy: dict[str, Any], retry: Any) -> Outcome:
    hooks: dict[str, Any] = {"process": {}, "success": {}, "exception": {}}
    for position, parts in enumerate(script):
        for hook, entries in parts.items():
            hooks[hook][f"t{position + 1}"] = [
                _entry(kind, seconds, (position + 1) * 0.0137) for kind, seconds in entries
            ]
    given_ = transactions(len(script))
    size = policy["size"]
    answers = [given_[n : n + size] for n in range(0, len(given_), size)]
    source = ScriptedConnector(answers, settling=True)
    steps = dict.fromkeys(("process", "success", "exception"), retry)
    return consume(colour, source, rules(max_abandoned=99, steps=steps, **policy), **hooks)


def _check(outcome: Outcome, policy: dict[str, Any]) -> None:
    report = final_report(outcome)
    delivered = {name for _verb, name in outcome.connector.settled}
    verbs = dict((name, verb) for verb, name in outcome.connector.settled)  # noqa: C402
    assert len(verbs) == len(outcome.connector.settled), "settled twice"
    assert report.stranded == ()
    begun = set(outcome.calls("process"))
    assert begun <= delivered
    counted = Counter(verbs.values())
    assert counted["ack"] == report.succeeded
    assert counted["nack"] == report.failed + report.timed_out
    assert report == report.succeeded + report.failed + report.timed_out
    if policy["limit"] is not None:
        assert len(begun) <= policy["limit"]
    phases = Counter(
        each.transaction_id
        for each in outcome.happened
        if each.hook == "exception" and each.attempt == 0
    )
    assert all(count == 1 for count in phases.values())
    for name, verb in verbs.items():
        if verb == "ack":
            assert phases[name] == 0
        if verb == "nack":
            assert phases[name] == 1
    attempts = Counter((each.hook, each.transaction_id) for each in outcome.happened)
    assert max(attempts.values(), default=0) <= 3


@pytest.mark.req("R0-I3", "R0-I2", "R0-G1", "RFC-004:14d", "T3.5", "T3.31", "RFC-004:5.1b", "R0-E")
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=SCRIPTS, policy=POLICIES, retry=RETRIES)
def test_every_scene_ends_well_and_alike_in_both_colours(
    script: list[Any], policy: dict[str, Any], retry: dict[str, Any]
) -> None:
    """Random scripts and policies: each delivery one ending and one settlement, twins agree."""
    stories = []
    for colour in ("sync", "async"):
        outcome = _play(colour, script, policy, retry)
        assert outcome.error is None or isinstance(outcome.error, TimeoutError)
        _check(outcome, policy)
        shape = final_report(outcome).to_dict()
        shape.pop("abandoned")  # a coroutine can be cancelled, a thread only abandoned
        shape["elapsed"] = round(shape["elapsed"], 6)
        story = sorted(
            (round(each.at, 6), each.hook, each.transaction_id, each.attempt)
            for each in outcome.happened
        )
        stories.append((story, shape, sorted(outcome.connector.settled), type(outcome.error)))
    assert stories[0] == stories[1]


@pytest.mark.req("T3.2", "T3.12", "RFC-004:5.1b")
@pytest.mark.parametrize(
    "policy",
    [
        rules(steps={"process": {"timeout": 5.0}}),
        rules(transaction_timeout=5.0),
        rules(steps={"process": {"timeout": 5.0}}, transaction_timeout=5.0),
    ],
    ids=["step", "lifecycle", "both"],
)
def test_a_call_that_ends_exactly_at_its_deadline_ends_alike(policy: dict[str, Any]) -> None:
    """The tie is decided the same way in both colours."""
    told = []
    for colour in ("sync", "async"):
        source = ScriptedConnector([transactions(1)], settling=True)
        outcome = consume(colour, source, policy, process=Takes(5.0, "ok"))
        report = final_report(outcome)
        counts = (report.succeeded, report.failed, report.timed_out, report.aborted)
        told.append((counts, source.settled, type(outcome.error), outcome.calls()))
    assert told[0] == told[1]


@pytest.mark.req("T3.28", "RFC-004:15a")
def test_a_payload_that_cannot_be_copied_fails_its_transaction_only(colour: Colour) -> None:
    """With payload_copies on, the loop survives and the handler is told."""
    good = Transaction("good", [1])
    bad = Transaction("bad", threading.Lock())
    outcome = consume(colour, [[bad, good]], rules(size=2, payload_copies=True))
    assert outcome.error is None
    assert outcome.calls("success") == ["good"]
    assert (outcome.report.failed, outcome.report.succeeded) == (1, 1)


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Picky(TransactionException):
    """A user's subclass with a constructor of its own."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}", category=ExceptionType.BUSINESS)


@pytest.mark.req("RFC-004:15a", "R0-ERR")
@pytest.mark.parametrize("hook", ["process", "success", "exception"])
def test_exceptions_with_odd_manners_do_no_harm(colour: Colour, hook: str) -> None:
    """A broken text, a picky constructor, groups, StopIteration: failures like any other."""
    odd = [Mute(), Picky(7), ExceptionGroup("many", [ValueError()]), StopAsyncIteration()]
    if colour == "sync":
        odd.append(StopIteration())
    for error in odd:
        hooks: dict[str, Any] = {hook: error}
        if hook == "exception":
            hooks["process"] = ValueError("first")
        outcome = consume(colour, [transactions(1)], rules(), **hooks)
        assert outcome.error is None
        assert outcome.report.failed == 1
        assert outcome.calls("exception") == ["t1"]
        if hook == "process":
            told = outcome.happened[-1].argument
            wanted = ExceptionType.BUSINESS if isinstance(error, Picky) else ExceptionType.SYSTEM
            assert told.category is wanted


class Strange(BaseException):
    """Neither an Exception nor one of the three the engine knows."""


@pytest.mark.req("T3.11", "RFC-004:15a")
@pytest.mark.parametrize("kind", [Strange, GeneratorExit])
def test_other_base_exceptions_neither_hang_nor_vanish(
    colour: Colour, kind: type[BaseException]
) -> None:
    """They leave the call, or are told to the handler; in no case is the transaction forgotten."""
    source = ScriptedConnector([transactions(2)], settling=True)
    outcome = consume(colour, source, rules(size=2), process={"t1": [kind()]})
    assert isinstance(outcome.error, kind) or outcome.calls("exception") == ["t1"]
    assert sorted(name for _verb, name in source.settled) == ["t1", "t2"]


@pytest.mark.req("T3.2", "T3.13", "R0-I3", "R0-G6")
def test_accounts_balance_when_timeouts_race_with_returns(colour: Colour) -> None:
    """Real clock, calls that end about when their time is over: every one has one outcome."""
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()
    pauses = [0.0, 0.0005, 0.001, 0.0015]
    members: dict[str, Any] = {}

    def count(_self: Any, transaction: Any, _second: Any) -> None:
        with lock:
            outcomes[transaction.transaction_id] += 1

    async def acount(_self: Any, transaction: Any, _second: Any) -> None:
        count(_self, transaction, _second)

    if colour == "sync":

        def send(_self: Any, transaction: Any) -> None:
            threading.Event().wait(pauses[transaction.payload % 4])

        members = {"produce": send, "success": count, "exception": count}
    else:

        async def asend(_self: Any, transaction: Any) -> None:
            await asyncio.sleep(pauses[transaction.payload % 4])

        members = {"produce": asend, "success": acount, "exception": acount}
    task = producer(colour)
    for name, function in members.items():
        setattr(type(task), PRODUCER_HOOKS[name], function)
    policy = rules(
        size=100, concurrency=8, max_abandoned=500, steps={"produce": {"timeout": 0.001}}
    )
    call = task.produce_transactions(transactions(300), policy)
    report = call if colour == "sync" else asyncio.run(call)
    assert report == 300
    assert set(outcomes.values()) == {1}
    assert len(outcomes) == 300


@pytest.mark.req("T3.27", "RFC-005:3d", "R1-I1")
def test_finished_transactions_are_let_go(colour: Colour) -> None:
    """Memory does not grow with the input: only a batch's worth stays alive."""
    alive: weakref.WeakSet[Transaction] = weakref.WeakSet()
    most = 0

    def items() -> Any:
        for n in range(2000):
            made = Transaction(f"t{n}", n)
            alive.add(made)
            yield made
            del made

    async def send(transaction: Any) -> None:
        nonlocal most
        if transaction.payload % 500 == 499:
            gc.collect()
            most = max(most, len(alive))
        if transaction.payload % 7 == 0:
            raise ValueError("x")

    produce(colour, items(), rules(size=10, concurrency=2), task=producer(colour, produce=send))
    assert 0 < most <= 10 + 2 + 4


@pytest.mark.req("T3.13", "T3.17")
def test_a_stubborn_coroutine_delays_the_loop_timeout_by_the_grace_only() -> None:
    """cancel_grace is the most by which the bound is exceeded."""

    async def stubborn(_transaction: Any) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 100
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                continue

    task = producer("async", produce=stubborn)
    policy = rules(timeout=5.0, cancel_grace=2.0)
    outcome = produce("async", transactions(2), policy, task=task)
    report = final_report(outcome)
    assert isinstance(outcome.error, TimeoutError)
    assert report.elapsed == 7.0
    assert (report.aborted, report.abandoned) == (1, 1)


@pytest.mark.req("T3.13")
def test_asyncio_means_inside_a_hook_still_work() -> None:
    """timeout, TaskGroup, shield and child tasks behave; the hook's context reaches children."""
    note: contextvars.ContextVar[str] = contextvars.ContextVar("note", default="none")
    seen: list[Any] = []

    async def child() -> None:
        await asyncio.sleep(1)
        seen.append(note.get())

    async def send(transaction: Any) -> None:
        note.set(transaction.transaction_id)
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(10)
        except TimeoutError:
            seen.append("own timeout")
        await asyncio.shield(asyncio.create_task(child()))
        assert note.get() == transaction.transaction_id

    task = producer("async", produce=send)
    policy = rules(size=2, concurrency=2, steps={"produce": {"timeout": 50.0}})
    outcome = produce("async", transactions(2), policy, task=task)
    assert outcome.report.succeeded == 2
    assert Counter(seen) == {"t1": 3, "t2": 3, "own timeout": 2}


async def _fails() -> None:
    await asyncio.sleep(1)
    raise LookupError("in a group")


async def _group(*others: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails())
        for each in others:
            group.create_task(each)


@pytest.mark.req("T3.13")
@pytest.mark.parametrize("is_caught", [True, False], ids=["caught", "raised"])
@pytest.mark.parametrize("where", ["process", "fetch", "ack"])
def test_a_task_group_that_fails_is_no_cancellation_of_the_call(
    where: str, is_caught: bool
) -> None:
    """It cancels the task it is in, and before Python 3.13 does not take that back."""

    async def work(place: str) -> None:
        if place == where:
            try:
                await _group(asyncio.sleep(50), asyncio.sleep(60))
            except* LookupError:
                if not is_caught:
                    raise
            await asyncio.sleep(1)

    class Source(ScriptedConnector):
        async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Any:
            if not self.fetches:
                await work("fetch")
            return await super().fetch_transactions_async(batch_size, **extra)

        async def ack_async(self, transaction: Any) -> None:
            if transaction.transaction_id == "t1":
                await work("ack")

    async def process(transaction: Any) -> None:
        if transaction.transaction_id == "t1":
            await work("process")

    source = Source([transactions(3)])
    policy = rules(size=3, settlement_attempts=1)
    outcome = consume("async", source, policy, task=consumer("async", source, process=process))
    if where == "fetch" and not is_caught:
        assert isinstance(outcome.error, FetchException)
        return
    assert outcome.error is None
    is_failed = not is_caught
    assert outcome.report.failed == (is_failed and where == "process")
    assert outcome.report.succeeded == 3 - outcome.report.failed
    assert outcome.report.settlement_failures == (is_failed and where == "ack")


@pytest.mark.req("T3.13")
def test_a_cancellation_during_a_task_group_that_fails_ends_the_call() -> None:
    """What comes from outside counts, also while the group's own is on its way."""

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(10)

    async def process(_transaction: Any) -> None:
        await _group(stubborn())

    async def scenario(task: Any) -> None:
        call = asyncio.ensure_future(task.consume_transactions())
        await asyncio.sleep(3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    source = ScriptedConnector([transactions(1)], settling=True)
    with VirtualClock() as clock:
        clock.run(scenario(consumer("async", source, process=process)))
    assert source.settled == [("release", "t1")]


@pytest.mark.req("T3.13", "T3.2")
def test_the_cap_of_abandoned_calls_holds_for_coroutines_too() -> None:
    """Stubborn coroutines are counted, and at the cap nothing new starts until one returns."""
    starts: list[float] = []

    async def stubborn(transaction: Any) -> None:
        loop = asyncio.get_running_loop()
        starts.append(loop.time())
        end = loop.time() + (40 if transaction.payload < 3 else 0)
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                continue

    task = producer("async", produce=stubborn)
    policy = rules(size=4, max_abandoned=2, cancel_grace=1.0, steps={"produce": {"timeout": 4.0}})
    outcome = produce("async", transactions(4), policy, task=task)
    assert starts == [0.0, 5.0, 40.0, 40.0]
    assert outcome.report.succeeded == 2


@pytest.fixture
def restless() -> Any:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.req("T3.18", "R0-G6")
@pytest.mark.usefixtures("restless")
def test_the_report_misses_no_worker_that_is_just_leaving() -> None:
    """Many short calls with many workers: the number is right every time."""

    class Short(ProducerMixin, BaseTask):
        def produce_transaction(self, transaction: Transaction) -> None:
            threading.Event().wait(0.0001)

    counts = Counter(
        int(Short().produce_transactions(transactions(8), rules(size=8, concurrency=8)))
        for _ in range(60)
    )
    assert counts == {8: 60}


@pytest.mark.req("T3.18", "R0-G6")
def test_the_report_is_made_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves moves its counts; read in between they would be in neither place."""
    held: list[bool] = []
    original = ThreadEngine.report

    def report(self: ThreadEngine) -> Any:
        held.append(self.lock.locked())
        return original(self)

    monkeypatch.setattr(ThreadEngine, "report", report)
    assert produce("sync", transactions(2), rules(size=2)).report == 2
    assert held
    assert all(held)


@pytest.mark.req("T3.30", "R0-G6")
@pytest.mark.usefixtures("restless")
def test_a_stop_among_busy_threads_is_always_graceful() -> None:
    """Workers let ids go while the stop sweeps up what has not begun: all adds up."""
    for _ in range(30):
        source = ScriptedConnector([transactions(60)], settling=True)

        class Busy(ConsumerMixin, BaseTask):
            def process_transaction(self, transaction: Transaction) -> None:
                if transaction.payload == 20:
                    self.request_stop()

        task = Busy({"source": source}, {})
        report = task.consume_transactions(rules(size=60, concurrency=6))
        assert sorted(name for _verb, name in source.settled) == sorted(
            f"t{n}" for n in range(1, 61)
        )
        assert report + report.released == 60


@pytest.mark.req("T3.2", "T3.5", "R0-G6")
@pytest.mark.usefixtures("restless")
def test_a_step_that_ended_in_time_is_not_taken_for_the_next_one() -> None:
    """The deadline of process must not be held against the success handler that follows it."""
    ends: dict[str, list[str]] = {}
    lock = threading.Lock()

    class Close(ProducerMixin, BaseTask):
        def produce_transaction(self, transaction: Transaction) -> None:
            threading.Event().wait(0.0008 + transaction.payload % 5 * 0.00005)

        def handle_produce_success(self, transaction: Transaction, _result: Any) -> None:
            self._note(transaction, "success")

        def handle_produce_exception(self, transaction: Transaction, _exc: Any) -> None:
            self._note(transaction, "exception")

        def _note(self, transaction: Transaction, what: str) -> None:
            with lock:
                ends.setdefault(transaction.transaction_id, []).append(what)

    policy = rules(
        size=400, concurrency=8, max_abandoned=999, steps={"produce": {"timeout": 0.001}}
    )
    report = Close().produce_transactions(transactions(400), policy)
    assert report == 400
    assert {len(each) for each in ends.values()} == {1}
    assert sum(each == ["success"] for each in ends.values()) == report.succeeded
