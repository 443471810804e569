"""A call inside a job or transaction: what its caller left open comes from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ergon_framework.ports.context import UnitOfWork
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.pipeline.fingerprints import fingerprint

LONGEST_NAME = 255
LONGEST_EXECUTION_ID = 36
_MARK = 16  # hexadecimal digits of a request's fingerprint: few requests share one job


def surrounded(
    context: ProviderExecutionContext,
    around: UnitOfWork,
    lane: LaneKey,
    campaign_id: str | None,
    operation: str,
    payload: dict[str, Any],
) -> ProviderExecutionContext:
    """The context, completed. What the caller says counts; a deadline only ever gets earlier.

    One job may make several calls, so the idempotency key is the job's id and a mark of the
    request: the same at each attempt of the job, and another one for another request.
    """
    deadline = around.deadline
    if context.deadline is not None and (deadline is None or context.deadline < deadline):
        deadline = context.deadline
    key = context.idempotency_key
    if key is None:
        key = _key(around, fingerprint(lane, campaign_id, operation, payload))
    return replace(
        context,
        correlation_id=context.correlation_id or _name(around.correlation_id or around.id),
        idempotency_key=key,
        task_execution_id=context.task_execution_id or _name(around.id, LONGEST_EXECUTION_ID),
        task_name=context.task_name or _name(around.name),
        deadline=deadline,
        traceparent=context.traceparent or around.trace.get("traceparent"),
        max_attempts=_attempts(context, around),
    )


def _attempts(context: ProviderExecutionContext, around: UnitOfWork) -> int | None:
    """Whoever runs the unit is the one who tries again; a call inside it has one attempt."""
    if context.max_attempts is not None or not around.is_retried:
        return context.max_attempts
    return 1


def _key(around: UnitOfWork, request: str) -> str:
    key = f"{around.id}/{request[:_MARK]}"
    return key if len(key) <= LONGEST_NAME and key.isprintable() else request


def _name(text: str | None, longest: int = LONGEST_NAME) -> str | None:
    """A name that the provider's tables take, or none: a foreign one must not fail the call."""
    is_fine = text and len(text) <= longest and text.isprintable()
    return text if is_fine else None
