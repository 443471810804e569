"""How to test a task: no broker, no waiting, no mocks of the framework.

``pytest examples/test_quickstart.py`` takes a few milliseconds, although one of the tests waits for
sixteen and a half seconds of virtual time.
"""
# ruff: noqa: S101 - asserting is what tests do

from __future__ import annotations

from typing import Any

from ergon_framework import MemoryConnector, Transaction
from ergon_framework.testing import VirtualClock
from examples.quickstart import POLICY, Orders


class FakeBank:
    """Answers each call with the next of its answers: a value, or an exception to raise."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def charge(self, _customer: str, _amount: int) -> Any:
        """The next answer."""
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def an_order(amount: int) -> MemoryConnector:
    """A queue with one order in it."""
    return MemoryConnector([Transaction("order-1", {"customer": "ada", "amount": amount})])


def test_a_lost_connection_is_tried_again() -> None:
    """Two failures cost half a second and a second of waiting; then the order is charged."""
    bank = FakeBank(ConnectionError(), ConnectionError(), "R1")
    with VirtualClock() as clock:
        report = Orders({"orders": an_order(30)}, {"bank": bank}).consume_transactions(POLICY)
    assert report.succeeded == 1
    assert clock.now() == 1.5


def test_an_order_without_an_amount_is_refused_at_once() -> None:
    """A business failure never reaches the bank, and the queue keeps the order with its reason."""
    bank, queue = FakeBank(), an_order(0)
    report = Orders({"orders": queue}, {"bank": bank}).consume_transactions(POLICY)
    assert report.failed == 1
    assert bank.calls == 0
    [(transaction, reason)] = queue.dead
    assert transaction.id == "order-1"
    assert "nothing to charge" in reason


def test_a_bank_that_never_answers_is_given_up() -> None:
    """Three attempts of five seconds and two waits, then the order has timed out."""
    with VirtualClock() as clock:
        bank = FakeBank(clock.hang, clock.hang, clock.hang)
        report = Orders({"orders": an_order(30)}, {"bank": bank}).consume_transactions(POLICY)
    assert report.timed_out == 1
    assert report.elapsed == 3 * 5.0 + 0.5 + 1.0
