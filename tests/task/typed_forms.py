"""What type checkers must understand about consumers: read by them, never run.

``make check`` gives this file to mypy and to pyright. Each ``assert_type`` must hold, and each line
marked as an error must be one: an ignored error that is none is an error itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from ergon_framework import App, ConsumerTask, MemoryConnector, Transaction, consumer, task


@dataclass
class Order:
    """The payload of the forms below."""

    amount: int


app = App()
queue = MemoryConnector()

# ---- transactions -------------------------------------------------------------------------------

bare = Transaction("t1", {"amount": 5})
assert_type(bare, Transaction[Any])
assert_type(bare.payload, Any)
assert_type(bare.with_payload(Order(5)), Transaction[Order])


def take_typed(transaction: Transaction[Order]) -> int:
    """A typed transaction has a typed payload."""
    assert_type(transaction.payload, Order)
    return transaction.payload.amount


def take_bare(transaction: Transaction) -> None:
    """A bare one has whatever it has, as ever."""
    assert_type(transaction.payload, Any)


take_typed(bare)
take_bare(Transaction[Order]("t1", Order(5)))
wider: Transaction[object] = Transaction[Order]("t1", Order(5))


class Orders(ConsumerTask):
    """A class may narrow the payload of its hook."""

    def process_transaction(self, transaction: Transaction[Order]) -> int:
        """The amount."""
        return transaction.payload.amount


# ---- functions ----------------------------------------------------------------------------------


@consumer(queue, attempts=3, timeout=5, concurrency=8)
def charge(order: Order) -> str:
    """A plain function keeps its signature."""
    return str(order.amount)


@consumer("orders", batch=100, linger=0.5)
async def insert(orders: list[Order]) -> list[int]:
    """An async one does, too."""
    return [each.amount for each in orders]


@consumer(queue, name="refunds")
def refund(transaction: Transaction[Order], *, factor: int = 1) -> int:
    """So does one with a typed transaction."""
    assert_type(transaction.payload, Order)
    return transaction.payload.amount * factor


@app.consumer("orders", attempts=3, timeout=5, concurrency=8)
async def pay(order: Order) -> None:
    """One of an App as well."""


@app.consumer(queue, batch=100)
def count(orders: list[Order]) -> int:
    """And a batch consumer of an App."""
    return len(orders)


@charge.on_failure
def refused(transaction: Transaction, error: Exception) -> None:
    """A handler stays what it was."""


assert_type(charge(Order(5)), str)
assert_type(refund(Transaction[Order]("t1", Order(1)), factor=2), int)


async def await_it() -> None:
    """An async function is still awaited."""
    assert_type(await insert([Order(1)]), list[int])
    await pay(Order(1))
    assert_type(count([Order(1)]), int)


# ---- what must be refused -----------------------------------------------------------------------

charge("order")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
consumer(queue, attempts="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
count(Order(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.consumer(queue, atempts=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
consumer(queue, atempts=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
refund(Transaction[str]("t1", "x"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
task.RetryPolicies()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
