"""A consumer that notes what it has done, one by one, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ergon_framework import Transaction
from ergon_framework.connector import RabbitConnector
from ergon_framework.task import AsyncConsumerTask, ConsumerTask

POLICY = {"loop": {"streaming": True, "batch": {"size": 1}}}


def note(done: Path, transaction: Transaction) -> None:
    """Write its number down."""
    with done.open("a") as file:
        file.write(f"{transaction.payload}\n")


def main() -> None:
    """Consume for ever."""
    colour, url, done = sys.argv[1], sys.argv[2], Path(sys.argv[3])

    class Noting(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            note(done, transaction)

    class AsyncNoting(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            note(done, transaction)

    connector = RabbitConnector(url)
    if colour == "sync":
        Noting({"in": connector}).consume_transactions(POLICY)
    else:
        asyncio.run(AsyncNoting({"in": connector}).consume_transactions(POLICY))


main()
