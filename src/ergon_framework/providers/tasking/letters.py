"""Dead letters of tasks: how one is written, and how it reads on the dead-letter queue."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.ports.providerstore import DeadLetter, LaneKey
from ergon_framework.providers.pipeline.redaction import strip_secrets
from ergon_framework.providers.tasks import GivenUp, TaskCall

SCHEMA_VERSION = 1
"""Of the message on the dead-letter queue."""

_NAMES = uuid.UUID("5f0c1f8e-9c0b-5f3e-8a51-1d6f3b1f7c52")
_LONGEST_TRACE = 255


def dead_letter_id(call_id: str, redrive_count: int) -> str:
    """The same for every try to bury one call, so that nobody counts it twice."""
    return str(uuid.uuid5(_NAMES, f"{call_id}\n{redrive_count}"))


def sent_id(letter_id: str, redrive_count: int) -> str:
    """Under which a call is sent again, by however many relays."""
    return str(uuid.uuid5(_NAMES, f"sent again\n{letter_id}\n{redrive_count}"))


def kept_payload(
    payload: dict[str, Any], largest: int, secret_names: frozenset[str]
) -> tuple[dict[str, Any] | None, bool]:
    """What a letter keeps of a payload in plain JSON, and whether secrets were left out.

    None when it is too large.
    """
    kept, has_secrets = strip_secrets(payload, secret_names)
    return (kept if len(msgspec.json.encode(kept)) <= largest else None), has_secrets


def new_letter(
    call: TaskCall,
    lane: LaneKey,
    names: LetterNames,
    end: GivenUp,
    kept: tuple[dict[str, Any] | None, bool],
) -> DeadLetter:
    """The letter of a call that is given up."""
    trace = call.traceparent
    return DeadLetter(
        dead_letter_id=dead_letter_id(names.call_id, call.carried.redrive_count),
        tenant_id=lane.tenant_id,
        campaign_id=call.campaign_id,
        task_name=names.task_name,
        provider_name=lane.provider_name,
        capability=lane.capability,
        operation=call.operation,
        idempotency_key=names.idempotency_key,
        correlation_id=names.correlation_id,
        reason_code=end.reason_code,
        error_type=end.error_type,
        error_message=end.message,
        attempts=end.attempts,
        occurred_at=end.occurred_at,
        http_status=end.http_status,
        retryable=end.retryable,
        traceparent=trace if trace is not None and len(trace) <= _LONGEST_TRACE else None,
        redrive_count=call.carried.redrive_count,
        payload=kept[0],
        has_secrets=kept[1],
    )


class LetterNames(msgspec.Struct, frozen=True):
    """Under which names a call goes."""

    task_name: str
    call_id: str
    idempotency_key: str
    correlation_id: str


def letter_message(letter: DeadLetter) -> dict[str, Any]:
    """A letter as the dead-letter queue carries it: no payload, and the instant as text."""
    return {
        "dead_letter_id": letter.dead_letter_id,
        "schema_version": SCHEMA_VERSION,
        "tenant_id": letter.tenant_id,
        "campaign_id": letter.campaign_id,
        "task_name": letter.task_name,
        "provider_name": letter.provider_name,
        "capability": letter.capability,
        "operation": letter.operation,
        "idempotency_key": letter.idempotency_key,
        "correlation_id": letter.correlation_id,
        "reason_code": letter.reason_code,
        "error_type": letter.error_type,
        "error_message": letter.error_message,
        "attempts": letter.attempts,
        "occurred_at": format_rfc3339(letter.occurred_at),
        "http_status": letter.http_status,
        "retryable": letter.retryable,
        "traceparent": letter.traceparent,
        "redrive_count": letter.redrive_count,
    }


def why_not_sendable(letter: DeadLetter) -> str | None:
    """Why a letter cannot be made into a call again; None when it can."""
    if letter.payload is None:
        return "its payload was too large to be kept"
    if letter.has_secrets:
        return "its payload had secrets, which are not kept"
    return None
