"""The work, and everything that can go wrong with it.

An order says for each task what happens to it there: ``{"order": 7, "Packer": "stuck"}``. Real
hooks would talk to a database or an API; these wait a moment, or get into the trouble the order
names.
"""

from __future__ import annotations

import asyncio
import threading
import time
from enum import StrEnum

from ergon_framework import ExceptionType, Transaction, TransactionException


class Trouble(StrEnum):
    """What may happen to an order in one task."""

    FLAKY = "flaky"  # fails twice, then works
    STUCK = "stuck"  # never comes back
    REFUSED = "refused"  # a business failure: trying again is useless
    BROKEN = "broken"  # an exception nobody expected, every time
    CURSED = "cursed"  # refused, and the exception handler crashes on it


ATTEMPTS = 3
"""How often an order is tried. A flaky one works the last time."""

SELLING = dict(zip((5, 2, 17, 23, 28), Trouble, strict=True))
PACKING = dict(zip((7, 3, 15, 21, 26), Trouble, strict=True))
"""Which orders get into which trouble. The packer never sees those that could not be sold."""


def orders(prefix: str, count: int, seller: str, packer: str) -> list[Transaction]:
    """``count`` orders for a producer, which passes them on to a consumer."""
    return [
        Transaction(
            f"{prefix}-{number:02}",
            {"order": number, seller: SELLING.get(number), packer: PACKING.get(number)},
        )
        for number in range(1, count + 1)
    ]


def work(task: object, transaction: Transaction) -> str:
    """Do the work of a threaded task."""
    trouble = _meet(task, transaction)
    if trouble is Trouble.STUCK:
        threading.Event().wait()  # hangs for ever, as a call without a timeout does
    time.sleep(_pace(transaction))
    return "done"


async def work_async(task: object, transaction: Transaction) -> str:
    """Do the work of an asyncio task."""
    trouble = _meet(task, transaction)
    if trouble is Trouble.STUCK:
        await asyncio.Event().wait()
    await asyncio.sleep(_pace(transaction))
    return "done"


def give_up(task: object, transaction: Transaction) -> None:
    """What both kinds of exception handlers do: nothing, unless the order is cursed."""
    if _trouble(task, transaction) is Trouble.CURSED:
        raise RuntimeError("the handler crashed")


def _meet(task: object, transaction: Transaction) -> Trouble | None:
    """Raise what the order's trouble raises at this attempt."""
    trouble = _trouble(task, transaction)
    if trouble is Trouble.FLAKY and transaction.attempt_count < ATTEMPTS:
        raise ConnectionError("the other side hung up")
    if trouble is Trouble.BROKEN:
        raise KeyError("price")
    if trouble in {Trouble.REFUSED, Trouble.CURSED}:
        raise TransactionException("the article is unknown", ExceptionType.BUSINESS)
    return trouble


def _trouble(task: object, transaction: Transaction) -> Trouble | None:
    name = transaction.payload[type(task).__name__]
    return None if name is None else Trouble(name)


def _pace(transaction: Transaction) -> float:
    """Between 0.1 and 0.25 seconds, the same in every run."""
    order: int = transaction.payload["order"]
    return 0.1 + order * 7 % 16 / 100
