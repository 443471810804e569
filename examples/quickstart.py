"""A whole small program: orders are charged at a bank that is not always there.

Run it with ``python examples/quickstart.py``; ``test_quickstart.py`` shows how to test it.
"""

from __future__ import annotations

from ergon_framework import (
    ConsumerPolicy,
    ConsumerTask,
    ExceptionType,
    MemoryConnector,
    Transaction,
    TransactionException,
)
from ergon_framework.task import ConsumerSteps, ProcessPolicy, RetryPolicy

POLICY = ConsumerPolicy(
    steps=ConsumerSteps(
        process=ProcessPolicy(retry=RetryPolicy(max_attempts=3, timeout=5.0, backoff=0.5))
    )
)
"""Three attempts of at most five seconds, with waits of half a second and a second in between."""


class Bank:
    """A service: it talks to somebody else's system. This one loses the first call."""

    def __init__(self) -> None:
        self._calls = 0

    def charge(self, customer: str, amount: int) -> str:
        """The number of the receipt."""
        self._calls += 1
        if self._calls == 1:
            raise ConnectionError("the bank hung up")
        return f"R{self._calls}"


class Orders(ConsumerTask):
    """Charges each order. Domain logic only: no loop, no retry, no timeout."""

    def process_transaction(self, transaction: Transaction) -> str:
        """Charge the order; what it returns goes to the success handler."""
        order = transaction.payload
        if order["amount"] <= 0:
            raise TransactionException("nothing to charge", ExceptionType.BUSINESS)
        receipt: str = self.bank_service.charge(order["customer"], order["amount"])
        return receipt

    def handle_transaction_success(self, transaction: Transaction, result: str) -> None:
        """Tell the customer."""
        print(f"{transaction.id}: charged, receipt {result}")

    def handle_transaction_exception(
        self, transaction: Transaction, exc: TransactionException
    ) -> None:
        """Tell the clerk."""
        print(f"{transaction.id}: not charged ({exc.category.value}: {exc})")


def main() -> None:
    """Charge three orders."""
    queue = MemoryConnector(
        [
            Transaction("order-1", {"customer": "ada", "amount": 30}),
            Transaction("order-2", {"customer": "bob", "amount": 0}),
            Transaction("order-3", {"customer": "cyd", "amount": 12}),
        ]
    )
    orders = Orders(connectors={"orders": queue}, services={"bank": Bank()})
    report = orders.consume_transactions(POLICY)
    print(f"{int(report)} orders: {report.succeeded} charged, {report.failed} not")


if __name__ == "__main__":
    main()
