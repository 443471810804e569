"""All four kinds of work in one App: python examples/four_kinds.py"""

from __future__ import annotations

from dataclasses import dataclass

from ergon_framework import App, Business, MemoryConnector, Transaction

app = App()  # ergon.db and ergon.zones, beside this file
rates = app.provider("rates", capability="exchange", quota="1000/day", attempts=3, timeout=5)
plant = app.zone("plant")
orders = MemoryConnector(
    [
        Transaction("o-1", {"id": "WO-1", "amount": 5}),
        Transaction("o-2", {"id": "WO-2", "amount": 0}),
        Transaction("o-3", {"id": "WO-3"}),  # no amount
    ]
)


@dataclass
class Order:
    """What an order looks like; a payload that does not fit is a business failure."""

    id: str
    amount: int


@rates.call
def eur_usd(*, timeout: float) -> float:
    """A real one would ask a server here, and give it this timeout."""
    return 1.08


@app.job(attempts=5, timeout=30)
def invoice(order: str, *, usd: float) -> str:
    """Runs in a process of its own; publishes what became of the order."""
    plant.publish(f"order:{order}", "invoiced", {"usd": usd}, to="hq", id=("invoiced", order, 1))
    return f"{order}: {usd:.2f} USD"


@app.consumer(orders, attempts=3, timeout=5, concurrency=8)
def charge(order: Order) -> None:
    """One message."""
    if order.amount <= 0:
        raise Business("nothing to charge")
    invoice.options(unique=order.id).enqueue(order.id, usd=order.amount * eur_usd())


if __name__ == "__main__":
    report = app.run(burst=True)  # without burst it runs until Ctrl-C
    print(f"{report.consumers['charge'].succeeded} charged, {report.jobs.completed} invoiced")
    for transaction, why in orders.dead:
        print(f"{transaction.transaction_id} refused: {why}")
    for fact in plant.read("books"):
        print("told to hq:", fact.payload["subject"], fact.payload["object_json"])
