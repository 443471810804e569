"""Ergon: a framework and runtime for work that must not get lost.

The names below are the public surface; they are imported at their first use, so that
``import ergon_framework`` stays cheap.

Where to look first:

- ``task``: tasks as users write them; ``engine`` runs them; ``connector``: one package per system
- ``jobs``: the durable queue and its workers; ``executor``: the processes that run handlers
- ``boundary``: facts between sites; ``providers``: guarded calls of providers
- ``core`` decides and does no I/O; ``ports`` is what packages promise each other; ``storage`` is
  what all stores stand on
- ``app`` puts a program together; ``cli`` and ``web`` are around it; ``telemetry`` reports
- ``compat``, ``integrations``: Celery's API and other frameworks; ``testing``: for users' tests
- ``errors``, ``redaction``: every error that users see, and keeping secrets out of text
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.app.application import App
    from ergon_framework.connector.boundary import BoundaryConnector, Zone
    from ergon_framework.connector.jobs import JobsConnector
    from ergon_framework.connector.jsonl import JsonlConnector
    from ergon_framework.connector.memory import MemoryConnector
    from ergon_framework.core.loop import StopReason
    from ergon_framework.engine.report import Report
    from ergon_framework.errors import (
        Business,
        Discard,
        ErgonError,
        ExceptionType,
        FetchException,
        NonRetryableException,
        Retry,
        Snooze,
        TransactionException,
    )
    from ergon_framework.executor import JobContext, Registry, current_job
    from ergon_framework.jobs.async_client import AsyncJobClient
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.context import current_attempt
    from ergon_framework.ports.lifespan import INJECTED
    from ergon_framework.ports.transaction import Transaction
    from ergon_framework.ports.unit_of_work import UnitOfWork
    from ergon_framework.providers.base import ProviderBase
    from ergon_framework.providers.functions import Provider
    from ergon_framework.task.functions import consumer
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
    "INJECTED": "ports.lifespan",
    "App": "app.application",
    "AsyncConsumerTask": "task.ready",
    "AsyncHybridTask": "task.ready",
    "AsyncJobClient": "jobs.async_client",
    "AsyncProducerTask": "task.ready",
    "BoundaryConnector": "connector.boundary",
    "Business": "errors",
    "ConsumerPolicy": "task.mixins.policies",
    "ConsumerTask": "task.ready",
    "Discard": "errors",
    "ErgonError": "errors",
    "ExceptionType": "errors",
    "FetchException": "errors",
    "HybridTask": "task.ready",
    "JobClient": "jobs.client",
    "JobContext": "executor",
    "JobsConnector": "connector.jobs",
    "JsonlConnector": "connector.jsonl",
    "MemoryConnector": "connector.memory",
    "NonRetryableException": "errors",
    "ProducerPolicy": "task.mixins.policies",
    "ProducerTask": "task.ready",
    "Provider": "providers.functions",
    "ProviderBase": "providers.base",
    "Registry": "executor",
    "Report": "engine.report",
    "Retry": "errors",
    "Snooze": "errors",
    "StopReason": "core.loop",
    "Transaction": "ports.transaction",
    "TransactionException": "errors",
    "UnitOfWork": "ports.unit_of_work",
    "Zone": "connector.boundary",
    "consumer": "task.functions",
    "current_attempt": "ports.context",
    "current_job": "executor",
}

__all__ = [
    "INJECTED",
    "App",
    "AsyncConsumerTask",
    "AsyncHybridTask",
    "AsyncJobClient",
    "AsyncProducerTask",
    "BoundaryConnector",
    "Business",
    "ConsumerPolicy",
    "ConsumerTask",
    "Discard",
    "ErgonError",
    "ExceptionType",
    "FetchException",
    "HybridTask",
    "JobClient",
    "JobContext",
    "JobsConnector",
    "JsonlConnector",
    "MemoryConnector",
    "NonRetryableException",
    "ProducerPolicy",
    "ProducerTask",
    "Provider",
    "ProviderBase",
    "Registry",
    "Report",
    "Retry",
    "Snooze",
    "StopReason",
    "Transaction",
    "TransactionException",
    "UnitOfWork",
    "Zone",
    "consumer",
    "current_attempt",
    "current_job",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
