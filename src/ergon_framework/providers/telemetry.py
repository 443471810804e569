"""Spans, notices and log records of provider calls and tasks.

The span of a call is ``provider.call``; below it is one for each attempt, if it took more than one.
It says who was called and how that ended: no payload, no tenant, no text of an error.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from opentelemetry.trace import Span

from ergon_framework.ports.providerstore import AttemptOutcome, AttemptRow, LaneKey
from ergon_framework.ports.unit_of_work import UnitOfWork, observed
from ergon_framework.providers.errors import Reason
from ergon_framework.providers.execution import (
    OnFailure,
    ProviderAttempt,
    ProviderExecutionContext,
    ProviderExecutionResult,
)
from ergon_framework.providers.redaction import safe_message
from ergon_framework.providers.tasks import TaskCall, TaskEnd, TaskEnding
from ergon_framework.telemetry.conventions import (
    call_attributes,
    call_instruments,
    may_have_meters,
)
from ergon_framework.telemetry.notices import emit as emit_notice
from ergon_framework.telemetry.notices import has_listeners
from ergon_framework.telemetry.propagation import outgoing
from ergon_framework.telemetry.tracing import (
    SpanKind,
    end_span,
    may_begin,
    record_span,
    span_at_edge,
    trace_headers,
)

logger = logging.getLogger("ergon_framework.providers")


_GOOD = frozenset({"circuit.half_opened", "circuit.closed", "records.replayed", "store.back"})
"""Notices that call for no action."""
_OVER = frozenset({AttemptOutcome.FAILED.value, AttemptOutcome.DEAD_LETTER.value})


def emit(name: str, /, **fields: object) -> None:
    """Report a change of state; they are rare enough to be logged as well."""
    key = fields.pop("key", None)
    if isinstance(key, tuple):
        tenant_id, provider_name, capability = key
        fields.update(tenant_id=tenant_id, provider_name=provider_name, capability=capability)
    emit_notice(name, **fields)
    level = logging.INFO if name in _GOOD else logging.WARNING
    with suppress(Exception):  # a filter of the host's that raises is no failure of a call
        if logger.isEnabledFor(level):
            words = " ".join(f"{field}={value}" for field, value in fields.items())
            logger.log(level, "%s %s", name, words, extra={"ergon": fields})


def are_calls_told() -> bool:
    """Whether the end of calls is observed, by listeners or metrics."""
    return has_listeners() or (may_have_meters() and call_instruments() is not None)


def emit_calls(rows: Iterable[AttemptRow]) -> None:
    """Report the calls among these rows that failed; the rows themselves are the record."""
    measure = call_instruments()
    if measure is not None:
        rows = tuple(rows)
        for row in rows:
            if row.attempt_number:  # a refusal is no attempt
                about = call_attributes(row.provider_name, row.capability, row.operation)
                seconds = row.duration_ms / 1000
                measure.called(about, seconds, row.reason_code, row.http_status)
    if not has_listeners():
        return
    for row in rows:
        if row.outcome in _OVER:
            name = "provider.failed" if row.attempt_number else "provider.refused"
            fields = {
                "call_id": row.correlation_id,
                "tenant_id": row.tenant_id,
                "provider_name": row.provider_name,
                "capability": row.capability,
                "operation": row.operation,
                "reason_code": row.reason_code,
                "attempt": row.attempt_number,
            }
            emit_notice(name, **fields)


def observed_attempts(
    implementation: Callable[..., Any], provider: str, capability: str, *, is_async: bool
) -> Callable[..., Any]:
    """The attempts of a provider, with the observers of this process around each."""

    def unit_of(given: Mapping[str, Any]) -> UnitOfWork:
        return attempt_unit(provider, capability, given["operation"], given["context"])

    return observed(implementation, unit_of, is_async=is_async)


def attempt_unit(
    provider: str, capability: str, operation: str, context: ProviderExecutionContext
) -> UnitOfWork:
    """An attempt as observers see it."""
    name = f"{provider}/{capability}/{operation}"
    return UnitOfWork("call", context.correlation_id or "", name, context.attempt, context.deadline)


_NAME = "provider.call"


class NamedProvider(Protocol):
    """The provider that is called."""

    provider_name: str
    capability: str


class TracedProvider(NamedProvider, Protocol):
    """What is needed of one."""

    def execute_delivery(self, ending: OnFailure | None, *call: Any) -> ProviderExecutionResult:
        """Make a call."""

    def aexecute_delivery(
        self, ending: OnFailure | None, *call: Any
    ) -> Coroutine[Any, Any, ProviderExecutionResult]:
        """Make a call, for asyncio."""


def traced_execute(
    provider: TracedProvider, ending: OnFailure | None, *call: Any
) -> ProviderExecutionResult:
    """Make a call, in a span; it is tenant, campaign, operation, payload and context."""
    if _is_alone(call):
        return provider.execute_delivery(ending, *call)
    with _calling(provider, call) as (span, context):
        return end_call(span, provider.execute_delivery(ending, *call[:-1], context))


async def traced_aexecute(
    provider: TracedProvider, ending: OnFailure | None, *call: Any
) -> ProviderExecutionResult:
    """Like ``traced_execute``, on asyncio."""
    if _is_alone(call):
        return await provider.aexecute_delivery(ending, *call)
    with _calling(provider, call) as (span, context):
        return end_call(span, await provider.aexecute_delivery(ending, *call[:-1], context))


def traced_stream(
    provider: NamedProvider, call: tuple[Any, ...]
) -> AbstractContextManager[tuple[Span, Any]] | None:
    """The span of a stream and the context of its call; None where it is part of no trace.

    It has to be entered and left in a context that the reader of the stream does not have.
    """
    return None if _is_alone(call) else _calling(provider, call)


def _is_alone(call: tuple[Any, ...]) -> bool:
    """Whether the call is part of no trace, and begins none."""
    has_own = getattr(call[-1], "traceparent", None) is not None
    return not has_own and outgoing() is None and not may_begin(_NAME)


@contextmanager
def _calling(provider: NamedProvider, call: tuple[Any, ...]) -> Iterator[tuple[Span, Any]]:
    _tenant, _campaign, operation, _payload, context = call
    attributes = _who(provider.provider_name, provider.capability, operation)
    given = getattr(context, "traceparent", None)
    carrier = {"traceparent": given} if isinstance(given, str) else None
    with span_at_edge(_NAME, SpanKind.CLIENT, attributes, carrier) as span:
        if span.is_recording() and isinstance(context, ProviderExecutionContext):
            context = replace(context, traceparent=trace_headers(span)["traceparent"])
        yield span, context


def end_call(span: Span, result: ProviderExecutionResult) -> ProviderExecutionResult:
    """Write the result of a call to its span; returns the result."""
    if not span.is_recording():
        return result
    if len(result.attempt_log) > 1:
        _emit_attempts(span, result)
    end_span(span, _failure(result), _how(result))
    return result


def _who(provider_name: str, capability: str, operation: str) -> dict[str, str]:
    return {
        "ergon.provider": str(provider_name),
        "ergon.capability": str(capability),
        "ergon.operation": str(operation),
        **call_attributes(provider_name, capability, operation),
    }


def _how(result: ProviderExecutionResult) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "ergon.attempts": result.attempts,
        "ergon.breaker_state": str(result.breaker_state),
        "ergon.stop_reason": result.stop_reason,
        "ergon.correlation_id": result.correlation_id,
    }
    if result.reason_code is not None:
        attributes["ergon.reason_code"] = str(result.reason_code)
    if result.http_status is not None:
        attributes["http.response.status_code"] = result.http_status
    return attributes


def _failure(result: ProviderExecutionResult) -> str | None:
    return None if result.success else str(result.reason_code or result.stop_reason)


def _of_attempt(each: ProviderAttempt) -> dict[str, Any]:
    attributes: dict[str, Any] = {"ergon.attempt": each.number}
    if each.number > 1:
        attributes["http.request.resend_count"] = each.number - 1
    if each.http_status is not None:
        attributes["http.response.status_code"] = each.http_status
    return attributes


def _emit_attempts(span: Span, result: ProviderExecutionResult) -> None:
    carrier, last = trace_headers(span), result.attempt_log[-1]
    over_at = last.started_at + last.duration_ms / 1000
    for each in result.attempt_log:
        seconds = each.duration_ms / 1000
        record_span(
            "provider.attempt",
            SpanKind.INTERNAL,
            carrier,
            seconds,
            _of_attempt(each),
            each.reason_code,
            ago=over_at - each.started_at - seconds,
        )


task_logger = logging.getLogger("ergon_framework.providers.task")

OUTCOMES = {
    TaskEnd.DONE: "success",
    TaskEnd.REPLAYED: "replayed",
    TaskEnd.DEFER: "deferred",
    TaskEnd.REQUEUE: "requeued",
    TaskEnd.FAILED: "failed",
    TaskEnd.DEAD: "dead_letter",
}
_LEVELS = {TaskEnd.FAILED: logging.WARNING, TaskEnd.DEAD: logging.WARNING}
_MAX_FRAMES = 5
_MAX_TEXT = 255


def log_ending(task_name: str, call: TaskCall, lane: LaneKey, ending: TaskEnding) -> None:
    """Log how a call ended: as JSON in the text, and as fields for programs.

    Neither the payload nor the result is in it.
    """
    level = _LEVELS.get(ending.end, logging.INFO)
    if not task_logger.isEnabledFor(level):
        return
    fields = _envelope(task_name, call, lane, ending)
    text = msgspec.json.encode(fields).decode()
    with suppress(Exception):  # a host's own filter that raises must not undo what was done
        task_logger.log(level, "%s", text, extra={"ergon": fields})


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
        fields["error"] = safe_message(result.error)
        fields["stop_reason"] = result.stop_reason
    if result.is_outcome_unknown_before:
        fields["is_outcome_unknown_before"] = True
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
    if value is None or (isinstance(value, str) and len(value) <= _MAX_TEXT):
        return value
    return f"({type(value).__name__})"


def _where(error: BaseException) -> list[str]:
    """Files and lines, without what was in their variables: enough to find a defect."""
    raw = error.__cause__ or error
    frames = traceback.extract_tb(raw.__traceback__)[-_MAX_FRAMES:]
    return [f"{each.filename}:{each.lineno} in {each.name}" for each in frames]
