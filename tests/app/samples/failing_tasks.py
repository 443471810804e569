"""Tasks that break in several ways."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.task.ready import ConsumerTask


class CrashesOnce(ConsumerTask):
    """Kills its process in its first life, as a defect in native code would."""

    @staticmethod
    def build_connectors() -> dict[str, Any]:
        return {"source": MemoryConnector([Transaction("t0")])}

    def process_transaction(self, transaction: Transaction) -> None:
        life = Path(os.environ["LIVES"]) / os.environ["ERGON_WORKER_ID"]
        if not life.exists():
            life.touch()
            os.kill(os.getpid(), 9)


class Unreachable(ConsumerTask):
    """Its source cannot be read."""

    @staticmethod
    def build_connectors() -> dict[str, Any]:
        source = MemoryConnector()
        source.close()
        return {"source": source}

    def process_transaction(self, transaction: Transaction) -> None:
        raise NotImplementedError
