"""Adds payments to a balance, each once, and dies after an effect, before its source is told.

    python inbox_child.py SOURCE TARGET DIARY

Each payment whose id ends with 7 kills the process after its effect was committed, the first time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psycopg

from ergon_framework import ConsumerTask
from ergon_framework.connector.postgres import PostgresConnector
from ergon_framework.ports.transaction import Transaction

COLUMNS = "status, error, attempts, lease, visible_at"
NEW = "INSERT INTO inbox VALUES ('balance', %s) ON CONFLICT DO NOTHING"
ADD = "UPDATE balances SET amount = amount + %s"


class PaymentConsumer(ConsumerTask):
    """The effect and the id of its message are one transaction."""

    diary: Path
    target: str

    def process_transaction(self, transaction: Transaction) -> None:
        with self.diary.open("a") as file:
            file.write(f"began {transaction.transaction_id}\n")
        with psycopg.connect(self.target) as db:
            is_new = db.execute(NEW, (transaction.transaction_id,)).rowcount
            if is_new:
                db.execute(ADD, (transaction.payload["amount"],))
        if is_new and transaction.transaction_id.endswith("7"):
            os.kill(os.getpid(), signal.SIGKILL)


def main(source: str, target: str, diary: str) -> None:
    """Consume what there is."""
    with PostgresConnector(source, table="payments", columns=COLUMNS, lease=0.5) as payments:
        task = PaymentConsumer({"in": payments})
        task.diary, task.target = Path(diary), target
        loop = {"concurrency": {"value": 4}, "batch": {"size": 4}}
        task.consume_transactions({"loop": loop})


if __name__ == "__main__":
    main(*sys.argv[1:])
