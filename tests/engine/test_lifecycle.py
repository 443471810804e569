"""The lifecycle of one transaction: which hook runs, how often, when, and with what."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.errors import ExceptionType, NonRetryableException, TransactionException
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import Takes, transactions
from tests.engine.bodies import Supply, by_hand, consumer, producer, refusal, rules, settled
from tests.engine.colours import Colour, consume, produce

THREE = {"max_attempts": 3}


def _system() -> TransactionException:
    return TransactionException("down", category=ExceptionType.SYSTEM)


def _timeout() -> TransactionException:
    return TransactionException("slow", category=ExceptionType.TIMEOUT)


@pytest.mark.req("RFC-004:6a", "RFC-004:6.1a", "RFC-004:6.2a", "RFC-004:3a", "R2-X1", "R0-I3")
def test_a_returned_value_goes_to_the_success_handler(colour: Colour) -> None:
    """Process, then the success handler with its result, and nothing else."""
    outcome = consume(colour, [transactions(1)], process="done")
    assert outcome.calls() == ["process:t1", "success:t1"]
    assert outcome.happened[1].argument == "done"
    assert (outcome.report, outcome.report.succeeded, outcome.report.failed) == (1, 1, 0)


@pytest.mark.req("RFC-005:6a", "RFC-005:7.1a", "RFC-005:8a", "RFC-005:3a", "RFC-005:17e", "R2-X1")
def test_a_produced_value_goes_to_the_success_handler(colour: Colour) -> None:
    """Produce, then the success handler with transaction and result."""
    outcome = produce(colour, transactions(1), produce="sent")
    assert outcome.calls() == ["produce:t1", "success:t1"]
    assert outcome.happened[1].argument == "sent"
    assert outcome.report.succeeded == 1


@pytest.mark.req("T3.34")
@pytest.mark.parametrize("value", [None, ValueError("only a value"), refusal(), False, 0])
def test_any_returned_value_is_a_success(colour: Colour, value: Any) -> None:
    """None, falsy values and exception objects are results; only raising is failing."""
    consumed = consume(colour, [transactions(1)], process=lambda: value)
    produced = produce(colour, transactions(1), produce=lambda: value)
    for outcome in (consumed, produced):
        assert outcome.report.succeeded == 1
        assert outcome.happened[-1].hook == "success"
        assert outcome.happened[-1].argument is value


@pytest.mark.req(
    "RFC-004:6.1b", "RFC-004:10e", "RFC-004:11.1b", "RFC-004:11.1c", "RFC-004:14c", "RFC-004:14d",
    "RFC-004:15b", "RFC-004:6.3a", "R0-I8", "R2-E1", "T3.6",
)  # fmt: skip
def test_business_is_never_retried(colour: Colour) -> None:
    """One attempt, no success handler, the exception handler once with that very exception."""
    refused = refusal()
    outcome = consume(colour, [transactions(1)], rules(steps={"process": THREE}), process=refused)
    assert outcome.calls() == ["process:t1", "exception:t1"]
    told = outcome.happened[1].argument
    assert told is refused
    assert (told.category, told.transaction_id) == (ExceptionType.BUSINESS, "t1")
    assert (outcome.report.failed, outcome.report.succeeded, outcome.report.timed_out) == (1, 0, 0)


@pytest.mark.req(
    "RFC-005:6a", "RFC-005:7.1b", "RFC-005:9a", "RFC-005:12a", "RFC-005:13b", "RFC-005:17d"
)
def test_business_in_produce_is_never_retried(colour: Colour) -> None:
    """The producer goes straight to its exception handler."""
    outcome = produce(colour, transactions(1), rules(steps={"produce": THREE}), produce=refusal())
    assert outcome.calls() == ["produce:t1", "exception:t1"]
    assert outcome.happened[1].argument.category is ExceptionType.BUSINESS


@pytest.mark.req("RFC-004:6.1c", "RFC-004:6.1d", "RFC-004:10f", "RFC-004:11.2b", "R2-E2")
@pytest.mark.parametrize("error", [_system, _timeout, lambda: ValueError("x"), lambda: OSError(5)])
def test_everything_else_is_retried_until_it_works(colour: Colour, error: Any) -> None:
    """Two failures and a success: three attempts, numbered from 0, one success handler."""
    policy = rules(steps={"process": THREE})
    outcome = consume(colour, [transactions(1)], policy, process=[error(), error(), "ok"])
    assert outcome.calls() == ["process:t1"] * 3 + ["success:t1"]
    assert [each.attempt for each in outcome.happened] == [0, 1, 2, 0]


@pytest.mark.req(
    "RFC-005:7.1c", "RFC-005:7.1d", "RFC-005:12b", "RFC-005:12e", "RFC-005:13c", "RFC-005:13d"
)
@pytest.mark.parametrize("error", [_system, _timeout, lambda: ValueError("x")])
def test_produce_is_retried_until_it_works(colour: Colour, error: Any) -> None:
    """Attempts are numbered from 0 and stop at the first success."""
    policy = rules(steps={"produce": THREE})
    outcome = produce(colour, transactions(1), policy, produce=[error(), "ok"])
    assert outcome.calls() == ["produce:t1"] * 2 + ["success:t1"]
    assert [each.attempt for each in outcome.happened] == [0, 1, 0]


@pytest.mark.req(
    "RFC-004:3f", "RFC-004:11", "RFC-004:11.1a", "RFC-004:11.2a", "R0-ERR", "R1-E1", "R1-E2",
    "T3.12",
)  # fmt: skip
@pytest.mark.parametrize(
    ("error", "category"),
    [
        (_system, "system"),
        (_timeout, "timeout"),
        (lambda: ValueError("x"), "system"),
        (lambda: TimeoutError("mine"), "system"),
        (lambda: ConnectionError("net"), "system"),
    ],
)
def test_the_exception_handler_is_told_category_id_and_cause(
    colour: Colour, error: Any, category: str
) -> None:
    """Whatever was raised arrives as a TransactionException of its transaction."""
    raised = error()
    policy = rules(steps={"process": {"max_attempts": 2}})
    outcome = consume(colour, [transactions(1)], policy, process=lambda: _throw(raised))
    assert outcome.calls() == ["process:t1"] * 2 + ["exception:t1"]
    told = outcome.happened[-1].argument
    assert isinstance(told, TransactionException)
    assert told.category.value == category
    assert told.transaction_id == "t1"
    if not isinstance(raised, TransactionException):
        assert told.__cause__ is raised


def _throw(error: BaseException) -> None:
    raise error


@pytest.mark.req(
    "RFC-004:3f", "RFC-004:11", "RFC-004:11.1a", "RFC-004:11.2a", "RFC-004:11.3a", "RFC-004:6.1d",
    "RFC-005:3g", "RFC-005:7.1d",
    "RFC-005:13b", "RFC-005:13c", "RFC-005:13d", "RFC-005:13e", "RFC-005:13f", "RFC-005:11e",
)  # fmt: skip
@pytest.mark.parametrize(
    ("what", "bound", "category"),
    [
        (refusal, {}, "business"),
        (_system, {}, "system"),
        (_timeout, {}, "timeout"),
        (lambda: KeyError("x"), {}, "system"),
        (lambda: Takes(100.0), {"step": 5.0}, "timeout"),
        (lambda: Takes(100.0), {"lifecycle": 5.0}, "timeout"),
    ],
    ids=["business", "system", "timeout", "raw", "step_timeout", "lifecycle_timeout"],
)
def test_every_failure_has_its_category(
    colour: Colour, what: Any, bound: dict[str, float], category: str
) -> None:
    """BUSINESS only if user code says so, TIMEOUT if it says so or the engine gave up."""
    retry = {"timeout": bound.get("step")}

    def policy(first: str) -> dict[str, Any]:
        steps = {first: retry, "exception": retry}
        return rules(max_abandoned=9, steps=steps, transaction_timeout=bound.get("lifecycle"))

    for outcome in (
        consume(colour, [transactions(1)], policy("process"), process=what()),
        produce(colour, transactions(1), policy("produce"), produce=what()),
    ):
        told = outcome.happened[-1].argument
        assert isinstance(told, TransactionException)
        assert (told.category.value, told.transaction_id) == (category, "t1")


@pytest.mark.req("RFC-005:13a", "RFC-005:13f", "RFC-005:13g", "RFC-005:9b", "RFC-005:3g")
def test_a_producers_handler_is_told_a_transaction_exception(colour: Colour) -> None:
    """A raw exception becomes SYSTEM with its cause, and does not leave the call."""
    raised = KeyError("missing")
    outcome = produce(colour, transactions(1), produce=raised)
    told = outcome.happened[-1].argument
    assert (told.category, told.transaction_id) == (ExceptionType.SYSTEM, "t1")
    assert told.__cause__ is raised
    assert outcome.error is None
    assert outcome.report.failed == 1


@pytest.mark.req("T3.12")
def test_a_users_timeout_error_does_not_count_as_timed_out(colour: Colour) -> None:
    """The category TIMEOUT from user code is a failure, not an engine timeout's count."""
    outcome = consume(colour, [transactions(1)], process=TimeoutError("mine"))
    assert (outcome.report.failed, outcome.report.timed_out) == (1, 0)


@pytest.mark.req(
    "RFC-004:6.2b", "RFC-004:6b", "RFC-004:15c", "RFC-004:10a", "R3-ST1", "R3-ST2", "R3-D5"
)
def test_a_failing_success_handler_uses_its_own_policy(colour: Colour) -> None:
    """Process is not run again, and each handler has its own number of attempts."""
    policy = rules(
        steps={"process": {"max_attempts": 5}, "success": THREE, "exception": {"max_attempts": 2}}
    )
    bad = ValueError("bad")
    outcome = consume(colour, [transactions(1)], policy, success=bad, exception=[bad, None])
    assert outcome.calls() == ["process:t1"] + ["success:t1"] * 3 + ["exception:t1"] * 2


@pytest.mark.req("RFC-004:6.2b", "RFC-005:8b", "RFC-005:8c", "RFC-005:8f", "T3.6")
@pytest.mark.parametrize(
    "kind", [refusal, lambda: ValueError("x"), lambda: NonRetryableException("n")]
)
def test_everything_from_a_success_handler_is_system_and_retried(colour: Colour, kind: Any) -> None:
    """BUSINESS included: retried by the success policy, then told as SYSTEM with its cause."""
    errors = [kind(), kind(), kind()]
    policy = rules(steps={"success": THREE})
    for outcome in (
        consume(colour, [transactions(1)], policy, success=errors),
        produce(colour, transactions(1), policy, success=[kind(), kind(), kind()]),
    ):
        assert outcome.calls("success") == ["t1"] * 3
        assert outcome.calls("exception") == ["t1"]
        told = outcome.happened[-1].argument
        assert told.category is ExceptionType.SYSTEM
        assert told.transaction_id == "t1"
        assert isinstance(told.__cause__ or told, type(errors[0]))
        assert outcome.report.failed == 1


@pytest.mark.req(
    "RFC-004:6.2c", "RFC-004:14d", "RFC-005:8d", "RFC-005:8e", "RFC-005:9c", "RFC-005:16d"
)
def test_an_exhausted_success_handler_falls_back_to_the_exception_handler(colour: Colour) -> None:
    """Once, and without running the first step again."""
    for outcome, first in (
        (
            consume(colour, [transactions(1)], rules(steps={"process": THREE}), success=OSError()),
            "process",
        ),
        (
            produce(colour, transactions(1), rules(steps={"produce": THREE}), success=OSError()),
            "produce",
        ),
    ):
        assert outcome.calls() == [f"{first}:t1", "success:t1", "exception:t1"]


@pytest.mark.req(
    "RFC-004:15a",
    "RFC-005:17c",
    "RFC-004:6.3b",
    "RFC-004:6.3c",
    "RFC-005:9d",
    "RFC-005:9e",
    "RFC-005:9f",
    "T3.18",
)
def test_a_failing_exception_handler_is_terminal_and_the_loop_goes_on(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """It is retried by its policy, logged, counted, and the next transaction is worked on."""
    policy = rules(size=2, steps={"exception": {"max_attempts": 2}})
    first, handler = {"t1": [ValueError("x")]}, [ValueError("handler")]
    for step, outcome in (
        ("process", consume(colour, [transactions(2)], policy, process=first, exception=handler)),
        ("produce", produce(colour, transactions(2), policy, produce=first, exception=handler)),
    ):
        assert outcome.calls() == [
            f"{step}:t1", "exception:t1", "exception:t1", f"{step}:t2", "success:t2",
        ]  # fmt: skip
        report = outcome.report
        assert (report, report.failed, report.succeeded, report.handler_failures) == (2, 1, 1, 1)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert sum("t1" in record.getMessage() for record in errors) == 2


@pytest.mark.req("T3.6")
def test_business_from_the_exception_handler_is_not_retried(colour: Colour) -> None:
    """The general rule holds there too."""
    policy = rules(steps={"exception": THREE})
    outcome = consume(colour, [transactions(1)], policy, process=refusal(), exception=refusal())
    assert outcome.calls() == ["process:t1", "exception:t1"]
    assert outcome.report.handler_failures == 1


@pytest.mark.req("T3.6")
def test_non_retryable_stops_retries_whatever_its_category(colour: Colour) -> None:
    """The extension for 'do not try again' that is not a business matter."""
    policy = rules(steps={"process": THREE})
    outcome = consume(colour, [transactions(1)], policy, process=NonRetryableException("gone"))
    assert outcome.calls() == ["process:t1", "exception:t1"]


@pytest.mark.req(
    "RFC-004:3g", "RFC-004:10c", "RFC-004:14e", "R3-BO", "RFC-005:12c", "RFC-005:16e", "R0-G4"
)
@pytest.mark.parametrize(
    ("cap", "waits"), [(0.0, [1.0, 3.0, 9.0, 27.0]), (5.0, [1.0, 3.0, 5.0, 5.0])]
)
def test_retries_wait_exactly_by_the_formula(
    colour: Colour, cap: float, waits: list[float]
) -> None:
    """backoff * multiplier ** k, clipped to the cap; nothing is waited after the last attempt."""
    retry = {"max_attempts": 5, "backoff": 1.0, "backoff_multiplier": 3.0, "backoff_cap": cap}
    instants = [sum(waits[:n]) for n in range(5)]
    consumed = consume(
        colour, [transactions(1)], rules(steps={"process": retry}), process=OSError()
    )
    produced = produce(colour, transactions(1), rules(steps={"produce": retry}), produce=OSError())
    assert consumed.times("process") == produced.times("produce") == instants
    assert consumed.times("exception") == produced.times("exception") == [instants[-1]]


@pytest.mark.req("R3-BO", "R3-ST1")
def test_handlers_wait_by_their_own_formula(colour: Colour) -> None:
    """Success and exception handlers each follow their own backoff."""
    policy = rules(
        steps={
            "success": {"max_attempts": 3, "backoff": 2.0},
            "exception": {"max_attempts": 2, "backoff": 7.0},
        }
    )
    outcome = consume(
        colour, [transactions(1)], policy, success=OSError(), exception=[OSError(), 1]
    )
    assert outcome.times("success") == [0.0, 2.0, 6.0]
    assert outcome.times("exception") == [6.0, 13.0]


@pytest.mark.req("T3.5", "R0-I3", "RFC-004:14d", "RFC-005:16c", "RFC-005:16d")
@pytest.mark.parametrize(
    "hooks",
    [
        {"process": refusal()},
        {"process": ValueError("x")},
        {"success": ValueError("x")},
        {"process": SystemError("odd")},
    ],
    ids=["business", "system", "success", "odd"],
)
def test_exactly_one_exception_phase_for_every_cause(colour: Colour, hooks: dict[str, Any]) -> None:
    """One outcome per transaction, whatever went wrong."""
    outcome = consume(colour, [transactions(3)], rules(size=3, concurrency=3), **hooks)
    assert sorted(outcome.calls("exception")) == ["t1", "t2", "t3"]
    assert outcome.report == outcome.report.failed == 3


@pytest.mark.req("RFC-005:2", "RFC-004:6a", "R0-L2", "R2-X2")
def test_handlers_are_optional(colour: Colour) -> None:
    """A task with only its one hook succeeds and fails as it should."""

    async def odd(transaction: Any) -> None:
        if transaction.payload % 2 == 0:
            raise ValueError("even")

    made = consumer(colour, Supply(transactions(4)), process=odd)
    consumed = consume(colour, None, rules(size=4), task=made)
    produced = produce(colour, transactions(4), task=producer(colour, produce=odd))
    for outcome in (consumed, produced):
        report = outcome.report
        assert outcome.error is None
        assert (report.succeeded, report.failed, report.handler_failures) == (2, 2, 0)


@pytest.mark.req("RFC-004:6.3c", "R1-E2")
def test_start_processing_answers_with_the_final_exception(colour: Colour) -> None:
    """(True, result) or (False, what was raised last)."""

    async def process(transaction: Any) -> str:
        if transaction.payload == 1:
            return "fine"
        raise ValueError("bad")

    async def exception(transaction: Any, exc: Any) -> None:
        if transaction.payload == 3:
            raise OSError("handler")

    task = consumer(colour, None, process=process, exception=exception)

    answers = []
    for transaction in transactions(3):
        clock = VirtualClock()
        if colour == "sync":
            with clock:
                answers.append(by_hand(settled(task._start_processing(transaction))))
        else:
            answers.append(clock.run(_later(task, transaction)))
    assert answers[0] == (True, "fine")
    assert answers[1][0] is False
    assert isinstance(answers[1][1], TransactionException)
    assert isinstance(answers[1][1].__cause__, ValueError)
    assert answers[2][0] is False
    assert isinstance(answers[2][1].__cause__, OSError)


async def _later(task: Any, transaction: Any) -> Any:
    return await task._start_processing(transaction)


@pytest.mark.req("T3.29", "R1-E2")
def test_a_shared_exception_instance_is_not_relabelled(colour: Colour) -> None:
    """One instance raised for two transactions: each handler hears of its own id."""
    shared = refusal("same object")
    outcome = consume(colour, [transactions(2)], rules(size=2), process=lambda: _throw(shared))
    told = [each.argument for each in outcome.happened if each.hook == "exception"]
    assert [each.transaction_id for each in told] == ["t1", "t2"]
    assert all(each.category is ExceptionType.BUSINESS for each in told)
    assert shared.transaction_id in (None, "t1")
    assert told[1] is not shared
    assert told[1].__cause__ is shared


@pytest.mark.req("R1-ID2", "R1-I2", "R1-I3", "R1-IM3", "R1-I1", "R0-X", "RFC-004:13.2a")
def test_every_attempt_gets_the_very_same_transaction(colour: Colour) -> None:
    """No attempt changes identity or payload: the object the connector gave is what hooks see."""
    seen: list[Any] = []

    async def process(transaction: Any) -> None:
        seen.append(transaction)
        raise ValueError("again")

    async def exception(transaction: Any, _exc: Any) -> None:
        seen.append(transaction)

    [given] = transactions(1)
    task = consumer(colour, Supply([given]), process=process, exception=exception)
    consume(colour, None, rules(steps={"process": THREE}), task=task)
    assert len(seen) == 4
    assert all(each is given for each in seen)


@pytest.mark.req("T3.28", "R1-IM3")
@pytest.mark.parametrize("copies", [True, False])
def test_payload_copies_are_an_option(colour: Colour, copies: bool) -> None:
    """With them a mutated payload never reaches the next attempt, the handler or the original."""
    seen: list[list[int]] = []

    async def first(transaction: Any) -> None:
        seen.append(list(transaction.payload))
        transaction.payload.append(1)
        raise ValueError("again")

    async def exception(transaction: Any, _exc: Any) -> None:
        seen.append(list(transaction.payload))

    given = Transaction("t1", [])
    task = consumer(colour, Supply([given]), process=first, exception=exception)
    steps = {"process": {"max_attempts": 2}}
    consume(colour, None, rules(steps=steps, payload_copies=copies), task=task)
    assert seen == ([[], [], []] if copies else [[], [1], [1, 1]])
    assert given.payload == ([] if copies else [1, 1])
    seen.clear()
    made = producer(colour, produce=first, exception=exception)
    policy = rules(steps={"produce": {"max_attempts": 2}}, payload_copies=copies)
    produce(colour, [Transaction("t1", [])], policy, task=made)
    assert seen == ([[], [], []] if copies else [[], [1], [1, 1]])
