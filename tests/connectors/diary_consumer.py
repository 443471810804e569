"""A consumer in a process of its own, which a test kills.

    python diary_consumer.py MODULE:CLASS OPTIONS DIARY

It writes the id of each transaction into its diary when the work begins, and when it has ended.
OPTIONS are the arguments of the connector as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ergon_framework import AsyncConsumerTask, ConsumerTask
from ergon_framework.ports.transaction import Transaction

STREAMING = {"loop": {"streaming": True, "concurrency": {"value": 4}, "batch": {"size": 4}}}


class DiaryTask(ConsumerTask):
    """Takes a moment for each transaction, and writes down what it does."""

    diary: Path
    seconds: float = 0.02

    def process_transaction(self, transaction: Transaction) -> None:
        self.note("began", transaction.transaction_id)
        threading.Event().wait(self.seconds)
        self.note("ended", transaction.transaction_id)

    def note(self, what: str, identity: str) -> None:
        """One line, in one write: several processes may share the file."""
        with self.diary.open("a") as file:
            file.write(f"{what} {identity}\n")


class AsyncDiaryTask(AsyncConsumerTask):
    """The same in an event loop."""

    diary: Path

    async def process_transaction(self, transaction: Transaction) -> None:
        with self.diary.open("a") as file:
            file.write(f"ended {transaction.transaction_id}\n")


def noted(diary: Path, what: str) -> Counter[str]:
    """How often each id stands in a diary with this word."""
    lines = diary.read_text().splitlines() if diary.exists() else []
    pairs = (line.split(" ", 1) for line in lines)
    return Counter(identity for word, identity in pairs if word == what)


def diary_task(connector: Any, diary: Path) -> DiaryTask:
    """A task that consumes from a connector."""
    task = DiaryTask({"in": connector})
    task.diary = diary
    return task


@contextmanager
def consuming(connector: Any, diary: Path, seconds: float = 0.02) -> Iterator[None]:
    """Consume in a thread until the block ends."""
    task = diary_task(connector, diary)
    task.seconds = seconds
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task.consume_transactions, STREAMING)
        try:
            yield
        finally:
            task.request_stop()
            running.result(60)


@contextmanager
def consuming_in(colour: str, connector: Any, diary: Path) -> Iterator[None]:
    """Consume in a thread, or in an event loop of its own."""
    if colour == "sync":
        with consuming(connector, diary):
            yield
        return
    task = AsyncDiaryTask({"in": connector})
    task.diary = diary
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, task.consume_transactions(STREAMING))
        try:
            yield
        finally:
            task.request_stop()
            running.result(60)


def main(kind: str, options: str, diary: str) -> None:
    """Consume until somebody kills us."""
    module, _, name = kind.partition(":")
    connector = getattr(import_module(module), name)(**json.loads(options))
    diary_task(connector, Path(diary)).consume_transactions(STREAMING)


if __name__ == "__main__":
    main(*sys.argv[1:])
