"""A consumer of a topic in a process of its own, which a test kills.

    python kafka_consumer.py URL DIARY SETTINGS

It writes the id of each transaction into its diary when it begins, and again when it has ended.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from ergon_framework import ConsumerTask
from ergon_framework.connector.kafka import KafkaConnector
from ergon_framework.ports.transaction import Transaction


class Work(ConsumerTask):
    """Takes a moment for each transaction."""

    diary: Path

    def process_transaction(self, transaction: Transaction) -> None:
        self._write(f"began {transaction.transaction_id}\n")
        threading.Event().wait(0.02)
        self._write(f"ended {transaction.transaction_id}\n")

    def _write(self, line: str) -> None:
        with self.diary.open("a") as file:
            file.write(line)


def main(url: str, diary: str, settings: str) -> None:
    """Consume until somebody kills us."""
    task = Work({"in": KafkaConnector(url, client=json.loads(settings))})
    task.diary = Path(diary)
    policy = {"streaming": True, "concurrency": {"value": 4}, "mode": "continuous"}
    task.consume_transactions({"loop": policy})


if __name__ == "__main__":
    main(*sys.argv[1:])
