"""Tasks that come to an end by themselves."""

from __future__ import annotations

from typing import Any

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.task.exceptions import ExceptionType, TransactionException
from ergon_framework.task.ready import (
    AsyncConsumerTask,
    ConsumerTask,
)


def three_orders() -> dict[str, MemoryConnector]:
    """A source with three orders."""
    return {"orders": MemoryConnector([Transaction(f"t{n}", {"n": n}) for n in range(3)])}


class Orders(ConsumerTask):
    """Accepts all orders but the one with the number 1."""

    build_connectors = staticmethod(three_orders)

    def process_transaction(self, transaction: Transaction) -> Any:
        if transaction.payload["n"] == 1:
            raise TransactionException("out of stock", category=ExceptionType.BUSINESS)
        return {"accepted": transaction.payload["n"]}


class AsyncOrders(AsyncConsumerTask):
    """The same with coroutines."""

    build_connectors = staticmethod(three_orders)

    async def process_transaction(self, transaction: Transaction) -> Any:
        if transaction.payload["n"] == 1:
            raise TransactionException("out of stock", category=ExceptionType.BUSINESS)
        return {"accepted": transaction.payload["n"]}
