"""One transaction by hand."""

from __future__ import annotations

import pytest

from ergon_framework.app.console import ExitCode
from ergon_framework.app.imports import load
from ergon_framework.app.run_once import (
    NotFoundError,
    SingleOutcome,
    process_by_id,
    process_one,
    transaction_from,
)
from ergon_framework.app.signals import Shutdown
from ergon_framework.errors import ConfigurationError, EnvelopeError, WiringError
from tests.app.workplace import Workplace

MODULE = """
from threading import Event

GATE = Event()

def source():
    return {"source": MemoryConnector([Transaction("known", {"n": 7})])}

class Orders(ConsumerTask):
    build_connectors = staticmethod(source)

    def process_transaction(self, transaction):
        if transaction.payload["n"] < 0:
            raise TransactionException("negative", category=ExceptionType.BUSINESS)
        return transaction.payload["n"]

class AsyncOrders(AsyncConsumerTask):
    build_connectors = staticmethod(source)

    async def process_transaction(self, transaction):
        return transaction.payload["n"]

class Sender(ProducerTask):
    def produce_transaction(self, transaction):
        return "sent"

    def transactions(self):
        return []

class Slow(ConsumerTask):
    build_connectors = staticmethod(source)

    def process_transaction(self, transaction):
        GATE.wait(60)

class Simple:
    def fetch_transactions(self, batch_size, **extra):
        return []

class NoLookUp(ConsumerTask):
    build_connectors = staticmethod(lambda: {"simple": Simple()})

    def process_transaction(self, transaction):
        return None

class Odd(Simple):
    def fetch_transaction_by_id(self, transaction_id):
        return {"id": transaction_id}

class OddLookUp(NoLookUp):
    build_connectors = staticmethod(lambda: {"odd": Odd()})

class Leaving(ConsumerTask):
    build_connectors = staticmethod(source)

    def process_transaction(self, transaction):
        raise transaction.payload["n"] and SystemExit(5) or KeyboardInterrupt

class AsyncLeaving(AsyncConsumerTask):
    build_connectors = staticmethod(source)

    async def process_transaction(self, transaction):
        raise transaction.payload["n"] and SystemExit(5) or KeyboardInterrupt

class Plain(BaseTask):
    def execute(self):
        return None

policy = POLICY
consumer_policy = policy
producer_policy = {}
"""
POLICIES = {"Slow": '{"steps": {"process": {"retry": {"timeout": 0.01}}}}'}
"""No other task has a bound: the machine may be busy for longer than that."""


def process(workplace: Workplace, task: str, payload: str = '{"n": 5}') -> SingleOutcome:
    """The outcome of one transaction."""
    workplace.module(MODULE.replace("POLICY", POLICIES.get(task, "{}")))
    wiring = workplace.wire(f"shop:{task}")
    with Shutdown() as shutdown:
        return process_one(wiring, transaction_from(payload, "t1", None), shutdown)


def look_up(workplace: Workplace, task: str, transaction_id: str = "known") -> SingleOutcome:
    """The outcome of a transaction found by its id."""
    workplace.module(MODULE.replace("POLICY", "{}"))
    wiring = workplace.wire(f"shop:{task}")
    with Shutdown() as shutdown:
        return process_by_id(wiring, transaction_id, shutdown)


@pytest.mark.parametrize(
    ("task", "result"), [("Orders", 5), ("AsyncOrders", 5), ("Sender", "sent")]
)
def test_a_transaction_succeeds(workplace: Workplace, task: str, result: object) -> None:
    """Its result is kept to itself unless somebody asks to see it."""
    outcome = process(workplace, task)
    assert (outcome.outcome, outcome.exit_code) == ("succeeded", ExitCode.DONE)
    assert outcome.result == result
    assert outcome.to_dict() == {
        "transaction_id": "t1",
        "outcome": "succeeded",
        "exit_code": 0,
        "result_type": type(result).__name__,
        "error": None,
    }
    assert outcome.to_dict(shows_result=True)["result"] == result


class Shy:
    def __repr__(self) -> str:
        raise ValueError("not for you")


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (8, 8),
        (None, None),
        ({"n": [1, 2.5]}, {"n": [1, 2.5]}),
        ({1}, "{1}"),
        (float("nan"), "nan"),
        ("\ud800", r"'\ud800'"),
        pytest.param(10**5000, "<int without a repr: ValueError: Exceeds", id="long"),
        (Shy(), "<Shy without a repr: ValueError: not for you>"),
    ],
)
def test_results_as_json(result: object, shown: object) -> None:
    """A value stays what it is if JSON has it; of all else there is a text."""
    outcome = SingleOutcome("t1", "succeeded", ExitCode.DONE, result)
    found = outcome.to_dict(shows_result=True)["result"]
    assert type(found) is type(shown)
    assert found == shown or str(found).startswith(str(shown))


@pytest.mark.parametrize("task", ["Leaving", "AsyncLeaving"])
@pytest.mark.parametrize(
    ("payload", "outcome", "code", "error"),
    [
        ('{"n": 1}', "failed", ExitCode.FAILED, SystemExit),
        ('{"n": 0}', "aborted", 130, KeyboardInterrupt),
    ],
)
def test_a_hook_that_wants_to_leave(
    workplace: Workplace,
    task: str,
    payload: str,
    outcome: str,
    code: int,
    error: type[BaseException],
) -> None:
    """The transaction has the outcome that it has in a run, and the exit code is one of ours."""
    found = process(workplace, task, payload)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert isinstance(found.error, error)


def test_a_transaction_fails(workplace: Workplace) -> None:
    """The exit code says so, and the error has the product's shape."""
    outcome = process(workplace, "Orders", '{"n": -1}')
    assert (outcome.outcome, outcome.exit_code) == ("failed", ExitCode.FAILED)
    error = outcome.to_dict()["error"]
    assert (error["message"], error["details"]["category"]) == ("negative", "business")


def test_a_transaction_runs_out_of_time(workplace: Workplace) -> None:
    """The task's policy applies, as it does in a run."""
    assert process(workplace, "Slow").outcome == "timed_out"
    load("shop:GATE").set()


@pytest.mark.parametrize("task", ["Orders", "AsyncOrders"])
def test_by_id(workplace: Workplace, task: str) -> None:
    """The connector finds it."""
    assert look_up(workplace, task).result == 7


def test_by_an_id_nobody_knows(workplace: Workplace) -> None:
    """That is no wrong use: the source just does not have it."""
    with pytest.raises(NotFoundError, match="has no transaction 'lost'"):
        look_up(workplace, "Orders", "lost")


@pytest.mark.parametrize(
    ("task", "error", "text"),
    [
        ("NoLookUp", WiringError, "it has no fetch_transaction_by_id"),
        ("OddLookUp", EnvelopeError, "found dict, which is no Transaction"),
        ("Plain", WiringError, "neither consumes nor produces"),
    ],
)
def test_tasks_that_cannot_look_up(
    workplace: Workplace, task: str, error: type[Exception], text: str
) -> None:
    """Each reason is told."""
    with pytest.raises(error, match=text):
        look_up(workplace, task)


@pytest.mark.parametrize(
    ("payload", "metadata", "text"),
    [
        ("{", None, "the payload is not JSON: .* at line 1, column 2"),
        ("", None, "the payload is not JSON"),
        ("NaN", None, "NaN is not JSON"),
        ("[" * 100_000, None, "the payload is not JSON"),
        ("1", "[]", "metadata must be a JSON object, not list"),
        ("1", "{secret", "the metadata is not JSON"),
    ],
)
def test_bad_texts(payload: str, metadata: str | None, text: str) -> None:
    """What is wrong is told without repeating the content."""
    with pytest.raises((ConfigurationError, EnvelopeError), match=text) as caught:
        transaction_from(payload, None, metadata)
    assert "secret" not in str(caught.value)


def test_an_id_is_made_up_when_none_is_given() -> None:
    """Two transactions without one differ."""
    first, second = (transaction_from("1", None, '{"a": 1}') for _ in range(2))
    assert first.transaction_id != second.transaction_id
    assert first.metadata == {"a": 1}
    with pytest.raises(EnvelopeError):
        transaction_from("1", "", None)
