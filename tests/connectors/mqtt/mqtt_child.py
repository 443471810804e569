"""A consumer that notes what it has done, one by one, until it is killed."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from ergon_framework import Transaction
from ergon_framework.connector import MqttConnector
from ergon_framework.task import AsyncConsumerTask, ConsumerTask

POLICY = {"loop": {"streaming": True, "batch": {"size": 1}}}


def note(done: Path, transaction: Transaction) -> None:
    """Write its number down."""
    with done.open("a") as file:
        file.write(f"{transaction.payload}\n")
    threading.Event().wait(0.05)  # time for the acknowledgement of the one before


def main() -> None:
    """Consume for ever."""
    colour, url, client_id, done = *sys.argv[1:4], Path(sys.argv[4])

    class Noting(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            note(done, transaction)

    class AsyncNoting(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            note(done, transaction)

    connector = MqttConnector(url, client_id=client_id)
    if colour == "sync":
        Noting({"in": connector}).consume_transactions(POLICY)
    else:
        asyncio.run(AsyncNoting({"in": connector}).consume_transactions(POLICY))


main()
