"""Tasks and handlers for a settings file with a part of every kind."""

from __future__ import annotations

from typing import Any

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.executor import Registry
from ergon_framework.task.ready import ConsumerTask

registry = Registry()


class Stream(ConsumerTask):
    """Looks for work until it is stopped."""

    @staticmethod
    def build_connectors() -> dict[str, Any]:
        return {"source": MemoryConnector()}

    def process_transaction(self, transaction: Transaction) -> None:
        raise NotImplementedError


class Batch(Stream):
    """Finds nothing to do, and is done."""


class Broken(Stream):
    """Cannot be read."""

    @staticmethod
    def build_connectors() -> dict[str, Any]:
        source = MemoryConnector()
        source.close()
        return {"source": source}
