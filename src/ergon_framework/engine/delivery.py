"""What a fetch brought: transactions, an error, or some of each. Nothing is ever dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.engine.classify import is_outbreak
from ergon_framework.errors import FetchException
from ergon_framework.ports.transaction import Transaction


@dataclass(slots=True)
class Delivery:
    """The outcome of one fetch. ``is_defect``: asking again would only bring the same nonsense."""

    requested: int
    transactions: list[Transaction] = field(default_factory=list)
    error: BaseException | None = None
    is_defect: bool = False

    def drain(self) -> list[Transaction]:
        """Take what is there. A fetch under way may bring more; each item is taken once."""
        return [self.transactions.pop(0) for _ in range(len(self.transactions))]


def sort_out(answer: object, delivery: Delivery) -> Delivery:
    """Read a connector's answer into ``delivery``: None is empty, a generator is used up.

    Valid transactions are kept even when others in the same answer are not: they may have left the
    source already, and dropping them would lose them.
    """
    if answer is None:
        return delivery
    if isinstance(answer, str | bytes | dict | Transaction) or not isinstance(answer, Iterable):
        delivery.error = FetchException(
            f"the connector returned {type(answer).__name__} instead of a list of transactions",
            remedy="return a list of Transaction, or None when there is nothing",
        )
        delivery.is_defect = True
        if isinstance(answer, Transaction):
            delivery.transactions.append(answer)
        return delivery
    if type(answer) is list and set(map(type, answer)) == {Transaction}:
        delivery.transactions = answer.copy()
    else:
        _use_up(answer, delivery)
    return delivery


def put(item: object, position: int, delivery: Delivery) -> None:
    """Keep one item of a batch, or note that it is none."""
    if isinstance(item, Transaction):
        delivery.transactions.append(item)
    elif delivery.error is None:
        delivery.error = FetchException(
            f"item {position} of the batch is {type(item).__name__}, not a Transaction",
            remedy="wrap each item: Transaction(transaction_id=..., payload=item)",
        )
        delivery.is_defect = True


def _use_up(answer: Iterable[Any], delivery: Delivery) -> None:
    try:
        for position, item in enumerate(answer):
            put(item, position, delivery)
    except BaseException as error:  # a generator may raise half-way; what it gave so far is kept
        if delivery.error is None or is_outbreak(error):
            delivery.error, delivery.is_defect = error, False
