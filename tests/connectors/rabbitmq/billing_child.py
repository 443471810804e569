"""A consumer whose effect and whose note of the message are one database transaction."""

from __future__ import annotations

import asyncio
import sys

import psycopg

from ergon_framework import AsyncConsumerTask, ConsumerTask, Transaction
from ergon_framework.connector import RabbitConnector

POLICY = {"loop": {"streaming": True, "batch": {"size": 4}, "concurrency": {"value": 4}}}


def bill(books: str, order: Transaction) -> None:
    """Add the amount, once."""
    with psycopg.connect(books) as database:
        is_new = database.execute(
            "INSERT INTO inbox VALUES (%s) ON CONFLICT DO NOTHING", (order.transaction_id,)
        ).rowcount
        if is_new:
            database.execute("UPDATE total SET amount = amount + %s", (order.payload,))


def main() -> None:
    """Consume for ever."""
    colour, url, books = sys.argv[1:]

    class Billing(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            bill(books, transaction)

    class AsyncBilling(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            await asyncio.to_thread(bill, books, transaction)

    connector = RabbitConnector(url)
    if colour == "sync":
        Billing({"in": connector}).consume_transactions(POLICY)
    else:
        asyncio.run(AsyncBilling({"in": connector}).consume_transactions(POLICY))


main()
