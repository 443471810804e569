"""Ergon: a framework and runtime for work that must not get lost.

The names below are the public surface; they are imported at their first use, so that
``import ergon_framework`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ergon_framework.app.application import App
    from ergon_framework.core.loop import StopReason
    from ergon_framework.engine.report import Report
    from ergon_framework.errors import (
        ErgonError,
        ExceptionType,
        FetchException,
        NonRetryableException,
        TransactionException,
    )
    from ergon_framework.ports.context import current_attempt
    from ergon_framework.ports.transaction import Transaction
    from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
    from ergon_framework.task.ready import (
        AsyncConsumerTask,
        AsyncHybridTask,
        AsyncProducerTask,
        ConsumerTask,
        HybridTask,
        ProducerTask,
    )

_HOMES = {
    "App": "app.application",
    "Report": "engine.report",
    "StopReason": "core.loop",
    "ErgonError": "errors",
    "ExceptionType": "errors",
    "FetchException": "errors",
    "NonRetryableException": "errors",
    "TransactionException": "errors",
    "current_attempt": "ports.context",
    "Transaction": "ports.transaction",
    "ConsumerPolicy": "task.mixins.policies",
    "ProducerPolicy": "task.mixins.policies",
    "AsyncConsumerTask": "task.ready",
    "AsyncHybridTask": "task.ready",
    "AsyncProducerTask": "task.ready",
    "ConsumerTask": "task.ready",
    "HybridTask": "task.ready",
    "ProducerTask": "task.ready",
}

__all__ = [
    "App",
    "AsyncConsumerTask",
    "AsyncHybridTask",
    "AsyncProducerTask",
    "ConsumerPolicy",
    "ConsumerTask",
    "ErgonError",
    "ExceptionType",
    "FetchException",
    "HybridTask",
    "NonRetryableException",
    "ProducerPolicy",
    "ProducerTask",
    "Report",
    "StopReason",
    "Transaction",
    "TransactionException",
    "current_attempt",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
