"""Consumes a Redis stream in a child process, and writes down what it began and settled.

    python consume.py URL DIARY SECONDS

Each unit takes so many seconds. It runs until it is ended, however that is.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from ergon_framework import ConsumerTask, Transaction
from ergon_framework.connector import from_url


class Diary(ConsumerTask):
    """Handles units by writing their ids down."""

    file: int
    seconds: float

    def process_transaction(self, transaction: Transaction) -> None:
        self.write("began", transaction)
        threading.Event().wait(self.seconds)

    def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
        self.write("done", transaction)

    def write(self, verb: str, transaction: Transaction) -> None:
        os.write(self.file, f"{verb} {transaction.transaction_id}\n".encode())


if __name__ == "__main__":
    url, path, seconds = sys.argv[1:]
    Diary.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    Diary.seconds = float(seconds)
    loop = {
        "streaming": True,
        "mode": "continuous",
        "batch": {"size": 10},
        "concurrency": {"value": 4},
        "empty_queue": {"backoff": 0.05, "backoff_cap": 0.1},
    }
    Diary({"in": from_url(url)}).consume_transactions({"loop": loop})
