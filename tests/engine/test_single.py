"""One lifecycle by itself, and deadlines on the happy path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ergon_framework.errors import EnvelopeError, ExceptionType, TransactionException
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import (
    AsyncScriptedConsumer,
    AsyncScriptedProducer,
    ScriptedConsumer,
    ScriptedProducer,
    Takes,
    transactions,
)
from tests.engine.colours import Colour, consume

REFUSED = TransactionException("no", category=ExceptionType.BUSINESS)


def _one(colour: Colour, role: str, transaction: Any, **hooks: Any) -> tuple[bool, Any]:
    if role == "consumer":
        kind: Any = ScriptedConsumer if colour == "sync" else AsyncScriptedConsumer
        answer = kind({}, {}, **hooks)._start_processing(transaction)
    else:
        kind = ScriptedProducer if colour == "sync" else AsyncScriptedProducer
        answer = kind({}, {}, **hooks)._start_producing(transaction)
    result: tuple[bool, Any] = asyncio.run(answer) if colour == "async" else answer
    return result


@pytest.mark.req("R1-E2")
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_one_lifecycle_answers_with_its_result_or_its_exception(colour: Colour, role: str) -> None:
    """(True, result) after a success, (False, the exception) after a failure."""
    step = "process" if role == "consumer" else "produce"
    (one,) = transactions(1)
    assert _one(colour, role, one, **{step: ["done"]}) == (True, "done")
    is_ok, error = _one(colour, role, one, **{step: [REFUSED]})
    assert not is_ok
    assert error.category is ExceptionType.BUSINESS
    assert error.transaction_id == "t1"


@pytest.mark.req("RFC-004:6.3c", "RFC-005:9e")
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_the_final_exception_of_a_failed_handler_is_returned(colour: Colour, role: str) -> None:
    """When the exception handler fails too, its own exception is the final one."""
    step = "process" if role == "consumer" else "produce"
    hooks: dict[str, Any] = {step: [ValueError("first")], "exception": [KeyError("second")]}
    is_ok, error = _one(colour, role, transactions(1)[0], **hooks)
    assert not is_ok
    assert isinstance(error.cause, KeyError)


@pytest.mark.req("RFC-004:3f", "RFC-004:11.3a", "RFC-005:11e", "RFC-005:13e")
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_an_exception_handler_that_hangs_ends_in_a_timeout(colour: Colour, role: str) -> None:
    """The final exception is of the category TIMEOUT, whatever had led to the handler."""
    step, method = ("process", "processing") if role == "consumer" else ("produce", "producing")
    kinds: dict[str, Any] = {
        "consumer": (ScriptedConsumer, AsyncScriptedConsumer),
        "producer": (ScriptedProducer, AsyncScriptedProducer),
    }
    hooks: dict[str, Any] = {step: [ValueError("first")], "exception": [Takes(1000.0)]}
    task = kinds[role][colour == "async"]({}, {}, **hooks)
    begin = getattr(task, f"_start_{method}")
    policy = {"steps": {"exception": {"retry": {"timeout": 5.0}}}}
    clock = VirtualClock()
    if colour == "async":
        is_ok, error = clock.run(begin(transactions(1)[0], policy))
    else:
        with clock:
            is_ok, error = begin(transactions(1)[0], policy)
        clock.advance(1e6)
    assert not is_ok
    assert isinstance(error, TransactionException)
    assert error.category is ExceptionType.TIMEOUT


@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_one_lifecycle_needs_a_transaction(role: str) -> None:
    """Anything else is refused before a hook is called."""
    with pytest.raises(EnvelopeError, match="a Transaction is needed, not dict"):
        _one("sync", role, {"id": "t1"})


@pytest.mark.req("RFC-004:9a", "RFC-004:9d")
def test_a_step_is_timed_from_its_own_beginning(colour: Colour) -> None:
    """A slow process without a timeout takes nothing from the success handler's time."""
    outcome = consume(
        colour,
        [[Transaction("t1")]],
        {"steps": {"success": {"retry": {"timeout": 5.0}}}},
        process=[Takes(60.0, "slow")],
        success=[Takes(4.0)],
    )
    assert outcome.report.succeeded == 1
    assert outcome.calls() == ["process:t1", "success:t1"]
