"""What a transaction held is let go of when it ends, by counting references and not by luck."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from tests.engine.bodies import consumer, nap, refusal, rules
from tests.engine.colours import Colour, consume

COUNT = 12
MOST = 3
"""Payloads that may live at once where one transaction runs at a time: the one before, this one,
and the one that the source has just made."""


class Payload:
    """Something large."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    logging.disable()  # the log that pytest keeps would hold on to exceptions
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


class Counting:
    """A source of one transaction at a time that counts how many payloads are alive."""

    def __init__(self, *, breaks: bool = False, settles: bool = False) -> None:
        self._left = COUNT
        self._breaks = breaks
        self._alive: weakref.WeakSet[Payload] = weakref.WeakSet()
        self.peak = 0
        if settles:
            self.ack = self.nack = self._refuse

    def _refuse(self, _transaction: Any, _exc: Any = None) -> None:
        raise OSError("not now")

    def _next(self) -> Iterator[Transaction]:
        if self._left:
            self._left -= 1
            payload = Payload()
            self._alive.add(payload)
            self.peak = max(self.peak, len(self._alive))
            yield Transaction(f"t{self._left}", payload)
        if self._breaks:
            raise OSError("half-way")

    def fetch_transactions(self, batch_size: int) -> Iterator[Transaction]:
        return self._next()

    async def fetch_transactions_async(self, batch_size: int) -> Iterator[Transaction]:
        return self._next()


async def _fails(transaction: Transaction) -> None:
    kept = transaction.payload  # as any hook's local variables do
    raise OSError(f"no {type(kept).__name__}")


async def _fails_later(transaction: Transaction) -> None:
    await nap(1.0)
    await _fails(transaction)


async def _refuses(transaction: Transaction) -> None:
    raise refusal()


async def _works(transaction: Transaction) -> Any:
    return transaction.payload


async def _handler_fails(transaction: Transaction, about: Any) -> None:
    await _fails(transaction)


BODIES: dict[str, dict[str, Any]] = {
    "process": {"process": _fails},
    "business": {"process": _refuses},
    "later": {"process": _fails_later},
    "success": {"process": _works, "success": _handler_fails},
    "exception": {"process": _fails, "exception": _handler_fails},
}


@pytest.mark.req("T3.27", "R0-C3")
@pytest.mark.parametrize("retries", [1, 3])
@pytest.mark.parametrize("body", BODIES)
def test_a_failed_transaction_is_let_go_of(colour: Colour, body: str, retries: int) -> None:
    """One at a time, the memory in use does not grow with the number of failures."""
    source = Counting()
    task = consumer(colour, source, **BODIES[body])
    retry = {"max_attempts": retries}
    policy = rules(steps={"process": retry, "success": retry, "exception": retry})
    outcome = consume(colour, source, policy, task=task)
    assert outcome.report.failed == COUNT
    assert source.peak <= MOST


@pytest.mark.req("T3.27")
def test_what_a_broken_fetch_brought_is_let_go_of(colour: Colour) -> None:
    """The error of a fetch does not hold on to what came with it."""
    source = Counting(breaks=True)
    task = consumer(colour, source, process=_works)
    policy = rules(size=2, streaming=True, limit=COUNT, steps={"fetch": {"max_attempts": 1000}})
    outcome = consume(colour, source, policy, task=task)
    assert outcome.report.succeeded == COUNT
    assert source.peak <= MOST


@pytest.mark.req("T3.27")
@pytest.mark.parametrize("process", [_works, _fails])
def test_a_settlement_that_failed_holds_on_to_nothing(colour: Colour, process: Any) -> None:
    """Neither an ack nor a nack that raised."""
    source = Counting(settles=True)
    task = consumer(colour, source, process=process)
    outcome = consume(colour, source, rules(), task=task)
    assert outcome.report.settlement_failures == COUNT
    assert source.peak <= MOST
