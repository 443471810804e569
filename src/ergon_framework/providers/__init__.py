"""Guarded calls of providers: retries within a deadline, circuit breakers, quotas.

Promises: a call ends in one result with one canonical error at most; circuits and quotas hold
across processes that share a store; a store that is down delays no call. Not promised: exactly one
call per key.

Start with ``functions`` (a provider whose calls are functions), ``base`` (the class below it) and
``pipeline`` (one call, step by step). ``calls`` has what the decorators give, ``signatures`` makes
payloads of arguments, ``http_transport`` guards clients of httpx. ``errors`` and ``decisions`` say
what can go wrong and what follows, ``mapping`` turns exceptions into those errors. ``retry``,
``circuit_breaker`` and ``quota`` are the gates, and ``shared_circuit`` is what the processes of a
store share of a circuit. ``recorder``, ``write_behind`` and ``spill`` bring attempts to a store,
and ``retention`` deletes what is old; ``store_urls`` opens one of ``stores``, ``migrations`` and
``models`` have their tables. ``tasks``, ``runner``, ``delivery`` and ``celery_task`` run calls as
tasks of a queue; ``celery_worker`` is what its processes do beside them. ``service``, ``api`` and
``health_routes`` serve the health of providers to whom ``authorization`` lets, in the documents of
``schemas``. ``execution`` has what goes into a call and comes out of it; ``validation`` and
``declared_options`` refuse what cannot be meant, ``redaction`` takes secrets away, ``telemetry``
reports, and ``threads`` runs what may block. ``synthetic`` providers fail as a script says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.core.circuit_breaker import CircuitState
    from ergon_framework.core.provider_call import RetryBudget
    from ergon_framework.ports.providerstore import DeadLetter, LaneHealth, LaneKey, ProviderStore
    from ergon_framework.providers.api import Authorize, create_router
    from ergon_framework.providers.base import ProviderBase
    from ergon_framework.providers.calls import (
        AsyncProviderCall,
        AsyncProviderStream,
        CallOptions,
        ProviderCall,
        ProviderStream,
    )
    from ergon_framework.providers.celery_task import CeleryProviderTask
    from ergon_framework.providers.circuit_breaker import CircuitBreaker
    from ergon_framework.providers.decisions import DECISIONS, Decision, DecisionOptions, Reason
    from ergon_framework.providers.errors import (
        ERROR_OF,
        ProviderAuthError,
        ProviderBadRequestError,
        ProviderCircuitOpenError,
        ProviderConnectionError,
        ProviderDependencyError,
        ProviderError,
        ProviderInternalError,
        ProviderQuotaExceededError,
        ProviderRateLimitError,
        ProviderResponseFormatError,
        ProviderTimeoutError,
    )
    from ergon_framework.providers.execution import (
        ProviderAttempt,
        ProviderExecutionContext,
        ProviderExecutionResult,
        QuotaSnapshot,
    )
    from ergon_framework.providers.functions import Provider
    from ergon_framework.providers.http_transport import (
        CircuitOpenTransportError,
        DependencyTransportError,
        ProviderTransportError,
        QuotaExceededTransportError,
        RateLimitTransportError,
        TimeoutTransportError,
    )
    from ergon_framework.providers.mapping import Rule, canonical, unmapped_types
    from ergon_framework.providers.quota import QuotaPolicy
    from ergon_framework.providers.recorder import recorder_of
    from ergon_framework.providers.retry import RetryOutcome, RetryPolicy
    from ergon_framework.providers.runner import ProviderTaskRunner
    from ergon_framework.providers.schemas import (
        DeadLetterMessage,
        ProviderHealthDetail,
        ProviderHealthError,
        ProviderHealthItem,
        ProviderHealthLevel,
        ProviderHealthSummary,
    )
    from ergon_framework.providers.service import ProviderHealthService, summary_json
    from ergon_framework.providers.store_urls import open_store
    from ergon_framework.providers.stores.memory import MemoryProviderStore
    from ergon_framework.providers.synthetic import (
        Fault,
        FaultProfile,
        SyntheticHTTPError,
        SyntheticProvider,
    )
    from ergon_framework.providers.tasks import (
        CallProgress,
        ComputedKeys,
        FinalFailure,
        KeepResults,
        ResultCipher,
        TaskCall,
        TaskEnd,
        TaskEnding,
        TaskGate,
        TaskOptions,
    )

_HOMES = {
    "CircuitState": "core.circuit_breaker",
    "RetryBudget": "core.provider_call",
    "DeadLetter": "ports.providerstore",
    "LaneHealth": "ports.providerstore",
    "LaneKey": "ports.providerstore",
    "ProviderStore": "ports.providerstore",
    "Authorize": "providers.api",
    "create_router": "providers.api",
    "ProviderBase": "providers.base",
    "AsyncProviderCall": "providers.calls",
    "AsyncProviderStream": "providers.calls",
    "CallOptions": "providers.calls",
    "ProviderCall": "providers.calls",
    "ProviderStream": "providers.calls",
    "CeleryProviderTask": "providers.celery_task",
    "CircuitBreaker": "providers.circuit_breaker",
    "DECISIONS": "providers.decisions",
    "Decision": "providers.decisions",
    "DecisionOptions": "providers.decisions",
    "Reason": "providers.decisions",
    "ERROR_OF": "providers.errors",
    "ProviderAuthError": "providers.errors",
    "ProviderBadRequestError": "providers.errors",
    "ProviderCircuitOpenError": "providers.errors",
    "ProviderConnectionError": "providers.errors",
    "ProviderDependencyError": "providers.errors",
    "ProviderError": "providers.errors",
    "ProviderInternalError": "providers.errors",
    "ProviderQuotaExceededError": "providers.errors",
    "ProviderRateLimitError": "providers.errors",
    "ProviderResponseFormatError": "providers.errors",
    "ProviderTimeoutError": "providers.errors",
    "ProviderAttempt": "providers.execution",
    "ProviderExecutionContext": "providers.execution",
    "ProviderExecutionResult": "providers.execution",
    "QuotaSnapshot": "providers.execution",
    "Fault": "providers.synthetic",
    "FaultProfile": "providers.synthetic",
    "Provider": "providers.functions",
    "CircuitOpenTransportError": "providers.http_transport",
    "DependencyTransportError": "providers.http_transport",
    "ProviderTransportError": "providers.http_transport",
    "QuotaExceededTransportError": "providers.http_transport",
    "RateLimitTransportError": "providers.http_transport",
    "TimeoutTransportError": "providers.http_transport",
    "Rule": "providers.mapping",
    "canonical": "providers.mapping",
    "unmapped_types": "providers.mapping",
    "QuotaPolicy": "providers.quota",
    "recorder_of": "providers.recorder",
    "RetryOutcome": "providers.retry",
    "RetryPolicy": "providers.retry",
    "ProviderTaskRunner": "providers.runner",
    "DeadLetterMessage": "providers.schemas",
    "ProviderHealthDetail": "providers.schemas",
    "ProviderHealthError": "providers.schemas",
    "ProviderHealthItem": "providers.schemas",
    "ProviderHealthLevel": "providers.schemas",
    "ProviderHealthSummary": "providers.schemas",
    "ProviderHealthService": "providers.service",
    "summary_json": "providers.service",
    "open_store": "providers.store_urls",
    "MemoryProviderStore": "providers.stores.memory",
    "SyntheticHTTPError": "providers.synthetic",
    "SyntheticProvider": "providers.synthetic",
    "CallProgress": "providers.tasks",
    "ComputedKeys": "providers.tasks",
    "FinalFailure": "providers.tasks",
    "KeepResults": "providers.tasks",
    "ResultCipher": "providers.tasks",
    "TaskCall": "providers.tasks",
    "TaskEnd": "providers.tasks",
    "TaskEnding": "providers.tasks",
    "TaskGate": "providers.tasks",
    "TaskOptions": "providers.tasks",
}
"""The module of each public name, below ``ergon_framework``; imported at its first use."""

__all__ = [
    "DECISIONS",
    "ERROR_OF",
    "AsyncProviderCall",
    "AsyncProviderStream",
    "Authorize",
    "CallOptions",
    "CallProgress",
    "CeleryProviderTask",
    "CircuitBreaker",
    "CircuitOpenTransportError",
    "CircuitState",
    "ComputedKeys",
    "DeadLetter",
    "DeadLetterMessage",
    "Decision",
    "DecisionOptions",
    "DependencyTransportError",
    "Fault",
    "FaultProfile",
    "FinalFailure",
    "KeepResults",
    "LaneHealth",
    "LaneKey",
    "MemoryProviderStore",
    "Provider",
    "ProviderAttempt",
    "ProviderAuthError",
    "ProviderBadRequestError",
    "ProviderBase",
    "ProviderCall",
    "ProviderCircuitOpenError",
    "ProviderConnectionError",
    "ProviderDependencyError",
    "ProviderError",
    "ProviderExecutionContext",
    "ProviderExecutionResult",
    "ProviderHealthDetail",
    "ProviderHealthError",
    "ProviderHealthItem",
    "ProviderHealthLevel",
    "ProviderHealthService",
    "ProviderHealthSummary",
    "ProviderInternalError",
    "ProviderQuotaExceededError",
    "ProviderRateLimitError",
    "ProviderResponseFormatError",
    "ProviderStore",
    "ProviderStream",
    "ProviderTaskRunner",
    "ProviderTimeoutError",
    "ProviderTransportError",
    "QuotaExceededTransportError",
    "QuotaPolicy",
    "QuotaSnapshot",
    "RateLimitTransportError",
    "Reason",
    "ResultCipher",
    "RetryBudget",
    "RetryOutcome",
    "RetryPolicy",
    "Rule",
    "SyntheticHTTPError",
    "SyntheticProvider",
    "TaskCall",
    "TaskEnd",
    "TaskEnding",
    "TaskGate",
    "TaskOptions",
    "TimeoutTransportError",
    "canonical",
    "create_router",
    "open_store",
    "recorder_of",
    "summary_json",
    "unmapped_types",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
