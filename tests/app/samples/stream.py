"""Tasks that never end by themselves. What happens is printed, and a pipe is the only gate."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.ports.notice import Notice
from ergon_framework.task.ready import AsyncConsumerTask, ConsumerTask
from ergon_framework.telemetry import add_listener

policy = {"loop": {"streaming": True, "empty_queue": {"backoff": 0.05}}}


def tell(text: str) -> None:
    """Print a line."""
    os.write(1, f"{text}\n".encode())  # past every buffer, whole lines even from threads


def tell_stop(notice: Notice) -> None:
    """Print that the engine was asked to stop."""
    if notice.name == "stop.asked":
        tell("stop asked")


def one_of_many() -> dict[str, Any]:
    """A source with more than will ever be read."""
    tell(f"worker {os.environ.get('ERGON_WORKER_ID')} {os.getpid()}")
    add_listener(tell_stop)
    return {"source": MemoryConnector([Transaction(f"t{n}") for n in range(100)])}


def pass_gate() -> None:
    """Wait until somebody opens the named pipe for writing."""
    with open(os.environ["GATE"]):
        return


class Gated(ConsumerTask):
    """Waits at the gate with its first transaction."""

    build_connectors = staticmethod(one_of_many)

    def process_transaction(self, transaction: Transaction) -> None:
        tell(f"began {transaction.id}")
        pass_gate()
        tell(f"ended {transaction.id}")


class AsyncGated(AsyncConsumerTask):
    """The same with coroutines."""

    build_connectors = staticmethod(one_of_many)

    async def process_transaction(self, transaction: Transaction) -> None:
        tell(f"began {transaction.id}")
        await asyncio.to_thread(pass_gate)
        tell(f"ended {transaction.id}")


class Idle(ConsumerTask):
    """Has nothing to do."""

    @staticmethod
    def build_connectors() -> dict[str, Any]:
        tell(f"worker {os.environ.get('ERGON_WORKER_ID')} {os.getpid()}")
        return {"source": MemoryConnector()}

    def process_transaction(self, transaction: Transaction) -> None:
        raise NotImplementedError
