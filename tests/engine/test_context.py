"""Context: shared by the attempts of a transaction, leaked to nobody."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

import pytest
from pydantic import BaseModel

from ergon_framework.connector.transaction import Transaction
from ergon_framework.ports.context import current_attempt
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.mixins.policies import ConsumerPolicy
from ergon_framework.testing.scripted import ScriptedConnector, transactions
from tests.engine.bodies import Supply, consumer, nap, producer, rules
from tests.engine.colours import Colour, consume, produce

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour_of_a_hook", default="none")


@pytest.mark.req("T3.16", "RFC-004:14b", "RFC-004:10d", "RFC-004:3i", "R0-C2", "R0-I5", "R1-CX3")
def test_every_hook_sees_the_callers_context(colour: Colour) -> None:
    """All attempts and handlers, on whatever worker."""
    seen: list[str] = []

    async def process(_transaction: Any) -> None:
        seen.append(COLOUR.get())
        raise ValueError("again")

    async def exception(_transaction: Any, _exc: Any) -> None:
        seen.append(COLOUR.get())

    source = Supply(transactions(3))
    task = consumer(colour, source, process=process, exception=exception)
    policy = rules(size=3, concurrency=3, steps={"process": {"max_attempts": 2, "backoff": 1.0}})
    token = COLOUR.set("red")
    try:
        consume(colour, source, policy, task=task)
    finally:
        COLOUR.reset(token)
    assert seen == ["red"] * 9


@pytest.mark.req(
    "T3.16", "R0-C3", "R1-CX2", "RFC-004:15g", "RFC-004:16c", "RFC-004:16d", "RFC-004:3a"
)
def test_what_a_hook_sets_is_seen_by_nobody_else(colour: Colour) -> None:
    """Not by the next attempt, the handler, the next transaction on that worker or the caller."""
    seen: list[str] = []

    async def process(transaction: Any) -> str:
        seen.append(COLOUR.get())
        COLOUR.set(transaction.transaction_id)
        await nap(1.0)
        assert COLOUR.get() == transaction.transaction_id
        if transaction.payload % 2:
            raise ValueError("again")
        return "ok"

    async def success(transaction: Any, _result: Any) -> None:
        seen.append(COLOUR.get())
        COLOUR.set("success")

    async def exception(transaction: Any, _exc: Any) -> None:
        seen.append(COLOUR.get())
        COLOUR.set("exception")

    source = Supply(transactions(6))
    task = consumer(colour, source, process=process, success=success, exception=exception)
    policy = rules(size=3, concurrency=2, steps={"process": {"max_attempts": 2}})
    outcome = consume(colour, source, policy, task=task)
    assert (outcome.report.succeeded, outcome.report.failed) == (3, 3)
    assert seen == ["none"] * len(seen)
    assert len(seen) == 3 * 2 + 3 + 6
    assert COLOUR.get() == "none"


@pytest.mark.req(
    "RFC-005:18a",
    "RFC-005:18d",
    "RFC-005:10.2b",
    "RFC-005:10.3b",
    "RFC-005:12d",
    "RFC-005:3e",
    "RFC-005:16b",
)
def test_producers_isolate_alike(colour: Colour) -> None:
    """The caller's context comes in, nothing comes out."""
    seen: list[str] = []

    async def send(transaction: Any) -> None:
        seen.append(COLOUR.get())
        COLOUR.set(transaction.transaction_id)
        await nap(1.0)
        raise ValueError("again")

    task = producer(colour, produce=send)
    policy = rules(size=2, concurrency=2, steps={"produce": {"max_attempts": 2}})
    token = COLOUR.set("blue")
    try:
        produce(colour, transactions(4), policy, task=task)
        assert COLOUR.get() == "blue"
    finally:
        COLOUR.reset(token)
    assert seen == ["blue"] * 8


@pytest.mark.req("RFC-004:3a", "RFC-004:16d", "RFC-005:3a", "RFC-005:18d")
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_results_and_exceptions_do_not_mix(colour: Colour, role: str) -> None:
    """Of six at once, each handler is given what its own transaction came to, also when retried."""
    told: list[tuple[str, str]] = []

    async def work(transaction: Any) -> str:
        await nap(float(7 - transaction.payload))  # they end in another order than they began
        if transaction.payload % 2:
            raise ValueError(transaction.transaction_id)
        return str(transaction.transaction_id)

    def note(transaction: Transaction, given: str) -> None:
        told.append((transaction.transaction_id, given))
        if transaction.attempt_count == 1:
            raise OSError("once more, after others have ended")

    async def success(transaction: Any, result: str) -> None:
        note(transaction, result)

    async def exception(transaction: Any, exc: Any) -> None:
        note(transaction, str(exc.__cause__))

    retry = {"max_attempts": 2, "backoff": 9.0}
    policy = rules(size=6, concurrency=6, steps={"success": retry, "exception": retry})
    given = transactions(6)
    if role == "consumer":
        source = Supply(given)
        task = consumer(colour, source, process=work, success=success, exception=exception)
        outcome = consume(colour, source, policy, task=task)
    else:
        task = producer(colour, produce=work, success=success, exception=exception)
        outcome = produce(colour, given, policy, task=task)
    assert (outcome.report.succeeded, outcome.report.failed) == (3, 3)
    ids = [each.transaction_id for each in given]
    assert sorted(told) == [(each, each) for each in ids for _ in range(2)]


@pytest.mark.req("T3.16", "R0-C3")
def test_a_connectors_context_does_not_leak_into_hooks(colour: Colour) -> None:
    """What fetch sets stays there."""
    seen: list[str] = []

    class Setting:
        calls = 0

        def _answer(self) -> Any:
            seen.append(COLOUR.get())
            COLOUR.set("fetch")
            self.calls += 1
            return transactions(1) if self.calls == 1 else None

        def fetch_transactions(self, batch_size: int) -> Any:
            return self._answer()

        async def fetch_transactions_async(self, batch_size: int) -> Any:
            return self._answer()

    async def process(_transaction: Any) -> None:
        seen.append(COLOUR.get())

    task = consumer(colour, Setting(), process=process)
    consume(colour, None, task=task)
    assert seen == ["none"] * 3


@pytest.mark.req("T3.16", "T3.2")
def test_a_replacement_worker_has_the_same_context(colour: Colour) -> None:
    """After a timeout the retry runs elsewhere with the caller's context only."""
    seen: list[str] = []

    async def process(_transaction: Any) -> None:
        seen.append(COLOUR.get())
        COLOUR.set("zombie")
        if len(seen) < 3:
            await nap(100.0)

    source = Supply(transactions(1))
    task = consumer(colour, source, process=process)
    policy = rules(max_abandoned=9, steps={"process": {"max_attempts": 3, "timeout": 5.0}})
    token = COLOUR.set("green")
    try:
        outcome = consume(colour, source, policy, task=task)
    finally:
        COLOUR.reset(token)
    assert seen == ["green"] * 3
    assert outcome.report.succeeded == 1


@pytest.mark.req("R0-C1", "R1-ID2", "RFC-004:10b", "RFC-005:12e")
def test_current_attempt_knows_where_it_is(colour: Colour) -> None:
    """Transaction, phase, number and task, in every hook; None outside."""
    seen: list[Any] = []

    def note(transaction: Transaction) -> None:
        attempt = current_attempt()
        assert attempt is not None
        assert attempt.transaction is transaction
        seen.append((attempt.phase, attempt.number, attempt.task, transaction.attempt_count))

    async def process(transaction: Any) -> None:
        note(transaction)
        raise ValueError("again")

    async def exception(transaction: Any, _exc: Any) -> None:
        note(transaction)

    source = Supply(transactions(1))
    task = consumer(colour, source, process=process, exception=exception)
    consume(colour, source, rules(steps={"process": {"max_attempts": 2}}), task=task)
    assert seen == [
        ("process", 0, "Scene", 1),
        ("process", 1, "Scene", 2),
        ("exception", 0, "Scene", 1),
    ]
    assert current_attempt() is None


@pytest.mark.req("R0-C1")
def test_current_attempt_in_a_producer(colour: Colour) -> None:
    """Phases are named after the producer's steps."""
    seen: list[Any] = []

    async def note(*_args: Any) -> None:
        attempt = current_attempt()
        assert attempt is not None
        seen.append((attempt.phase, attempt.number))

    task = producer(colour, produce=note, success=note)
    produce(colour, transactions(1), task=task)
    assert seen == [("produce", 0), ("success", 0)]


@pytest.mark.req("R0-C1")
def test_remaining_is_none_without_a_timeout(colour: Colour) -> None:
    """And counts down to the nearer of step and lifecycle with one."""
    seen: list[float | None] = []

    async def process(_transaction: Any) -> None:
        attempt = current_attempt()
        assert attempt is not None
        seen.append(attempt.remaining())
        await nap(2.0)
        seen.append(attempt.remaining())

    for timeout in (None, 9.0):
        source = Supply(transactions(1))
        consume(
            colour,
            source,
            rules(transaction_timeout=timeout),
            task=consumer(colour, source, process=process),
        )
    source = Supply(transactions(1))
    policy = rules(transaction_timeout=9.0, steps={"process": {"timeout": 5.0}})
    consume(colour, source, policy, task=consumer(colour, source, process=process))
    assert seen == [None, None, 9.0, 7.0, 5.0, 3.0]


@pytest.mark.req("R3-K1", "R3-K4", "R0-SEC", "R2-D3")
def test_a_task_is_given_no_policy(colour: Colour) -> None:
    """Nothing on the task or its transactions leads to a policy object."""
    found: list[Any] = []

    async def process(transaction: Any) -> None:
        held = [*vars(task).values(), transaction.payload, transaction.metadata]
        found.extend(each for each in held if isinstance(each, BaseModel))

    source = Supply(transactions(1))
    task = consumer(colour, source, process=process)
    consume(colour, source, ConsumerPolicy(), task=task)
    assert found == []


@pytest.mark.req("RFC-004:16b", "RFC-005:18b", "RFC-005:18c", "R0-SEC")
def test_payloads_and_metadata_are_not_logged(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures, timeouts and stranded ones are logged by id only."""
    caplog.set_level(logging.DEBUG)
    secret = [
        Transaction(f"t{n}", {"card": "4111-secret"}, {"token": "meta-secret"}) for n in (1, 2, 3)
    ]

    async def process(transaction: Any) -> None:
        if transaction.transaction_id == "t1":
            raise ValueError("bad")
        await nap(100.0)

    async def exception(transaction: Any, _exc: Any) -> None:
        raise OSError("handler")

    source = ScriptedConnector([secret])
    task = consumer(colour, source, process=process, exception=exception)
    policy = rules(size=3, limit=2, transaction_timeout=5.0, extra={"password": "extra-secret"})
    consume(colour, source, policy, task=task)
    source = ScriptedConnector([secret])
    consume(colour, source, rules(limit=1), task=consumer(colour, source, process=process))
    for text in ("handler failed", "t1 failed", "could not be handed back"):
        assert text in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.req("RFC-005:18b")
def test_producers_log_no_payloads_and_no_metadata(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is logged of a producer: failures, handlers, timeouts, repeats, what is left."""
    caplog.set_level(logging.DEBUG)
    given = [Transaction(f"t{n}", {"card": "secret"}, {"token": "secret"}) for n in range(1, 7)]

    async def send(transaction: Any) -> None:
        if transaction.transaction_id == "t1":
            raise ValueError("bad")
        await nap(100.0)

    async def handle(_transaction: Any, _exc: Any) -> None:
        raise OSError("handler")

    policy = rules(size=3, limit=3, transaction_timeout=5.0)
    handling = producer(colour, produce=send, exception=handle)
    produce(colour, [*given[:2], *given], policy, task=handling)
    produce(colour, given, rules(size=2, timeout=7.0), task=producer(colour, produce=send))
    told = caplog.text
    for text in ("handler failed", "t1 failed", "without an outcome", "already produced"):
        assert text in told
    assert "secret" not in told


@pytest.mark.req("R1-E3", "RFC-004:15a", "RFC-005:17c")
def test_failures_nobody_handles_are_logged_with_their_id(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an exception handler every failed transaction can be found in the log."""

    async def fail(_transaction: Any) -> None:
        raise ValueError("broken")

    source = Supply(transactions(2))
    consume(colour, source, rules(size=2), task=consumer(colour, source, process=fail))
    produce(colour, transactions(2, "p"), task=producer(colour, produce=fail))
    for name in ("t1", "t2", "p1", "p2"):
        told = [each for each in caplog.records if name in each.getMessage()]
        assert told
        assert told[0].levelname == "ERROR"
        assert "broken" in told[0].getMessage()


@pytest.mark.req("T3.16", "R0-C2")
@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
def test_settlement_sees_the_callers_context(colour: Colour, verb: str) -> None:
    """Also a release at the end of the call, from whatever thread it comes."""
    seen: list[str] = []

    class Watching(ScriptedConnector):
        def note(self, *_args: Any) -> None:
            seen.append(COLOUR.get())

    setattr(Watching, verb, Watching.note)
    source = Watching([transactions(2)])
    hooks: dict[str, Any] = {"process": ValueError("x")} if verb == "nack" else {}
    token = COLOUR.set("grey")
    try:
        consume(colour, source, rules(size=2, limit=1), **hooks)
    finally:
        COLOUR.reset(token)
    assert seen == ["grey"]


@pytest.mark.req("T3.16", "R0-C2")
def test_lazy_input_and_lazy_batches_see_the_callers_context(colour: Colour) -> None:
    """A generator's body runs where the engine reads it: still with the caller's context."""
    seen: list[str] = []

    def items() -> Any:
        seen.append(COLOUR.get())
        yield from transactions(1)

    token = COLOUR.set("pink")
    try:
        produce(colour, items())
        consume(colour, [items()])
    finally:
        COLOUR.reset(token)
    assert seen == ["pink", "pink"]


@pytest.mark.req("R2-DI2", "R2-D2", "R0-S", "R0-L4", "R0-I10")
def test_connectors_and_services_are_injected_by_name(colour: Colour) -> None:
    """As read-only mappings and as attributes; the engine leaves services alone."""
    kind = BaseTask if colour == "sync" else BaseAsyncTask
    service, connector = object(), object()
    task = kind(connectors={"orders": connector}, services={"mail": service})
    assert task.connectors["orders"] is connector
    assert task.services["mail"] is service
    assert task.orders_connector is connector
    assert task.mail_service is service
    with pytest.raises(AttributeError):
        _ = task.unknown_service
    with pytest.raises(TypeError):
        task.connectors["other"] = connector  # type: ignore[index]
