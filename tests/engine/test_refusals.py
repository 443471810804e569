"""What is refused or named clearly: hooks, arguments, categories, reports, frozen transactions."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework.core.transaction_lifecycle import (
    BEGAN,
    LifecycleCursor,
    LifecycleRule,
    TimedOut,
    TimeoutScope,
    advance,
    deadline,
)
from ergon_framework.engine.intake import BatchReader, FetchResult
from ergon_framework.errors import (
    ExceptionType,
    FetchException,
    HookError,
    TransactionException,
    WiringError,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.utils import (
    run_with_timeout,
    run_with_timeout_async,
    with_context,
    with_context_async,
)
from ergon_framework.task.ready import AsyncProducerTask, ProducerTask
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import AsyncScriptedConsumer, ScriptedConnector, transactions
from tests.engine.colours import Colour, consume


async def _five() -> int:
    return 5


def test_the_helpers_take_their_timeout_by_name() -> None:
    """The most natural spelling of all."""
    assert run_with_timeout(lambda: 5, timeout=50) == 5
    assert run_with_timeout(max, None, 3, 4) == 4
    assert asyncio.run(run_with_timeout_async(_five, timeout=50)) == 5
    for wrong in (0, -1, True, "x", 10**400):
        with pytest.raises(ValueError, match="positive number of seconds"):
            run_with_timeout(lambda: 5, timeout=wrong)  # type: ignore[arg-type]


@pytest.mark.req("RFC-004:12h", "RFC-004:12i", "RFC-005:14g")
def test_a_function_can_be_bound_to_a_given_context() -> None:
    """OpenTelemetry's own context, or Python's."""
    from opentelemetry import context as otel

    given = otel.set_value("who", "ada")
    assert with_context(given, lambda: otel.get_value("who"))() == "ada"
    assert otel.get_value("who") is None

    async def who() -> object:
        return otel.get_value("who")

    assert asyncio.run(with_context_async(given, who)()) == "ada"  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a function, or a context and a function"):
        with_context(given, "no function")  # type: ignore[call-overload]


@pytest.mark.req("T3.35")
def test_a_hook_that_is_a_generator_is_refused() -> None:
    """None of its body would run, and the transaction would count as succeeded."""

    class Yields(ConsumerMixin, BaseTask):
        def process_transaction(self, transaction: Transaction) -> Iterator[int]:
            yield 1

    with pytest.raises(HookError, match="is a generator"):
        Yields({"c": ScriptedConnector([transactions(1)])}).consume_transactions()

    class AsyncYields(AsyncConsumerMixin, BaseAsyncTask):
        async def process_transaction(self, transaction: Transaction) -> Any:
            yield 1

    with pytest.raises(HookError, match="is a generator"):
        asyncio.run(AsyncYields({"c": ScriptedConnector()}).consume_transactions())


def test_a_coroutine_nobody_awaits_is_a_failure() -> None:
    """A synchronous hook that returns one has not done its work."""
    outcome = consume(
        "sync",
        [transactions(1)],
        {"steps": {"process": {"retry": {"max_attempts": 5}}}},
        process=[_five],
    )
    assert (outcome.report.succeeded, outcome.report.failed) == (0, 1)
    assert outcome.calls("process") == ["t1"]
    assert "returned a coroutine" in str(outcome.happened[-1].argument)


@pytest.mark.req("T3.11")
def test_hooks_that_exit_together_do_not_cut_off_the_rest(colour: Colour) -> None:
    """Two SystemExits are the normal case, and no second Ctrl-C."""
    hooks = {"t1": [SystemExit(5)], "t2": [SystemExit(6)], "t3": ["fine"], "t4": ["fine"]}
    policy = {"loop": {"batch": {"size": 4}, "concurrency": {"value": 4}}}
    outcome = consume(colour, [transactions(4)], policy, process=hooks)
    assert isinstance(outcome.error, SystemExit)
    assert sorted(outcome.calls("exception")) == ["t1", "t2"]
    assert sorted(outcome.calls("success")) == ["t3", "t4"]


def test_a_category_may_be_written_in_capitals_and_come_first() -> None:
    """As the RFCs write it."""
    assert TransactionException("m", category="BUSINESS").category is ExceptionType.BUSINESS
    first = TransactionException(ExceptionType.TIMEOUT, "too slow")
    assert (first.category, first.message) == (ExceptionType.TIMEOUT, "too slow")
    with pytest.raises(ValueError, match="use business, system or timeout"):
        TransactionException("m", category="odd")


NACKS: list[tuple[str, str]] = [
    ("transaction", "()"),
    ("transaction, exc", "(exc)"),
    ("transaction, why", "(exc)"),
    ("transaction, requeue=True", "(True)"),
    ("transaction, requeue=True, reason=None", "(True, exc)"),
    ("transaction, *, exc=None", "(exc)"),
    ("transaction, **more", "({'exc': exc})"),
    ("transaction, *more", "((exc,))"),
]


@pytest.mark.parametrize(("signature", "expected"), NACKS)
def test_nack_gets_the_reason_where_it_asks_for_one(
    colour: Colour, signature: str, expected: str
) -> None:
    """And never as something else, such as ``requeue``."""
    names = [part.strip(" *").split("=")[0] for part in signature.split(",")]
    shown = ", ".join(name for name in names[1:] if name)
    told: list[Any] = []
    space: dict[str, Any] = {"told": told}
    exec(  # noqa: S102 - the signatures are the test's own
        f"def nack(self, {signature}): told.append(({shown}{',' if shown else ''}))", space
    )
    source = ScriptedConnector([transactions(1)])
    source.nack = space["nack"].__get__(source)  # type: ignore[attr-defined]
    consume(colour, source, process=[ValueError("x")])
    (given,) = told
    text = str(given).replace("TransactionException('ValueError: x')", "exc").replace(",)", ")")
    assert text == expected.replace("((exc,))", "((exc))")


@pytest.mark.req("T3.35")
def test_a_fetch_that_cannot_take_its_arguments_is_refused_before_work() -> None:
    """Hooks are checked; so is the connector."""

    class Bare:
        def fetch_transactions(self) -> None: ...

    class Strict:
        def fetch_transactions(self, batch_size: int) -> None: ...

    task: Any = consume("sync", Bare())
    assert isinstance(task.error, WiringError)
    task = consume("sync", Strict(), {"steps": {"fetch": {"extra": {"queue": "q"}}}})
    assert "cannot be called with (batch_size, queue)" in str(task.error)


def test_a_producer_without_transactions_says_so() -> None:
    """The name to define stands in the message."""
    with pytest.raises(HookError, match="def transactions"):
        ProducerTask().execute()
    with pytest.raises(HookError, match="def transactions"):
        asyncio.run(AsyncProducerTask().execute())


def test_a_virtual_clock_refuses_an_event_loop_in_real_time() -> None:
    """A schedule of ten minutes would take ten minutes."""
    with VirtualClock(), pytest.raises(WiringError, match=r"clock\.run"):
        asyncio.run(AsyncScriptedConsumer({"c": ScriptedConnector()}).consume_transactions())


def test_a_report_cannot_be_changed() -> None:
    """Like policies and transactions."""
    report = consume("sync", [transactions(1)]).report
    with pytest.raises(AttributeError, match="cannot be changed"):
        report.succeeded = 3


@pytest.mark.req("RFC-004:7.1d")
def test_a_fetch_failure_has_no_inner_context() -> None:
    """No detail of the engine stands between the user and the cause."""
    for colour in ("sync", "async"):
        outcome = consume(colour, [OSError("gone")])
        assert type(outcome.error) is FetchException
        cause = outcome.error.__cause__
        assert isinstance(cause, OSError)
        assert cause.__context__ is None


@pytest.mark.req("T3.4")
def test_an_expiry_noticed_late_leaves_the_handler_its_time() -> None:
    """Blocking code may hold an event loop for longer than any timeout."""
    rule, cursor = LifecycleRule(timeout=1.0), LifecycleCursor(0.0)
    advance(rule, cursor, BEGAN, 0.0, 0.0)
    advance(rule, cursor, TimedOut(TimeoutScope.LIFECYCLE), 2.5, 0.0)
    assert deadline(rule, cursor) == 3.5


def test_nonsense_is_not_forgotten_when_the_generator_raises_afterwards() -> None:
    """The first error tells more; only an interruption is more important."""

    def odd(last: BaseException) -> Iterator[Any]:
        yield 7
        raise last

    first = BatchReader(lambda _: odd(ConnectionError("gone"))).read(2, FetchResult(2))
    assert first.is_defect
    assert "item 0" in str(first.error)
    second = BatchReader(lambda _: odd(KeyboardInterrupt())).read(2, FetchResult(2))
    assert isinstance(second.error, KeyboardInterrupt)


def test_no_thread_is_left_behind() -> None:
    """After a call its workers end."""
    before = set(threading.enumerate())
    consume("sync", [transactions(20)], {"loop": {"batch": {"size": 20}}})
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
    assert set(threading.enumerate()) <= before
    assert sys.getswitchinterval() > 0


@pytest.mark.req("R1-IM1")
@pytest.mark.parametrize("kind", [ValueError, AttributeError, TypeError])
def test_a_frozen_transaction_raises_what_frozen_things_raise(kind: type[Exception]) -> None:
    """Pydantic models, dataclasses and tuples disagree; code written for any of them works."""
    with pytest.raises(kind):
        Transaction("t1").payload = 1
    with pytest.raises(kind):
        del Transaction("t1").payload
