"""The one record that a task's call leaves in the log."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from typing import Any

import msgspec

from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.errors import Reason
from ergon_framework.providers.pipeline.redaction import message_of
from ergon_framework.providers.tasks import TaskCall, TaskEnd, TaskEnding

logger = logging.getLogger("ergon_framework.providers.task")

OUTCOMES = {
    TaskEnd.DONE: "success",
    TaskEnd.REPLAYED: "replayed",
    TaskEnd.DEFER: "deferred",
    TaskEnd.REQUEUE: "requeued",
    TaskEnd.FAILED: "failed",
    TaskEnd.DEAD: "dead_letter",
}
_LEVELS = {TaskEnd.FAILED: logging.WARNING, TaskEnd.DEAD: logging.WARNING}
_FRAMES = 5
_LONGEST = 255


def log_ending(task_name: str, call: TaskCall, lane: LaneKey, ending: TaskEnding) -> None:
    """Tell how a call ended: as JSON for people who search text, as fields for programs.

    Neither the payload nor the result is in it.
    """
    level = _LEVELS.get(ending.end, logging.INFO)
    if not logger.isEnabledFor(level):
        return
    fields = _envelope(task_name, call, lane, ending)
    text = msgspec.json.encode(fields).decode()
    with suppress(Exception):  # a host's own filter that raises must not undo what was done
        logger.log(level, "%s", text, extra={"ergon": fields})


def _envelope(task_name: str, call: TaskCall, lane: LaneKey, ending: TaskEnding) -> dict[str, Any]:
    result = ending.result
    fields: dict[str, Any] = {
        "tenant_id": _name(lane.tenant_id),
        "campaign_id": _name(call.campaign_id),
        "provider_name": lane.provider_name,
        "capability": lane.capability,
        "operation": _name(call.operation),
        "correlation_id": _name(result.correlation_id),
        "idempotency_key": ending.idempotency_key,
        "attempt": call.carried.attempts + result.attempts,
        "reason_code": result.reason_code,
        "outcome": OUTCOMES[ending.end],
        "task_name": task_name,
        "duration_ms": round(result.duration_ms, 3),
    }
    if result.error is not None:
        fields["error"] = message_of(result.error)
        fields["stop_reason"] = result.stop_reason
    if not ending.is_final:
        fields["again_in_seconds"] = round(ending.seconds, 3)
        fields["waits_for"] = ending.gate
    if ending.letter is not None:
        fields["dead_letter_id"] = ending.letter.dead_letter_id
        fields["undelivered"] = ending.undelivered
    if result.reason_code == Reason.INTERNAL_ERROR and result.error is not None:
        fields["where"] = _where(result.error)
    return fields


def _name(value: Any) -> str | None:
    """A name as it came, unless it is none: what a wrong call has in its place may be anything."""
    if value is None or (isinstance(value, str) and len(value) <= _LONGEST):
        return value
    return f"({type(value).__name__})"


def _where(error: BaseException) -> list[str]:
    """Files and lines, without what was in their variables: enough to find a defect."""
    raw = error.__cause__ or error
    frames = traceback.extract_tb(raw.__traceback__)[-_FRAMES:]
    return [f"{each.filename}:{each.lineno} in {each.name}" for each in frames]
