"""Continues the trace a request came with: the span ``rrq.executor``, current in the handler.

Imported at the first need: OpenTelemetry takes longer to load than an executor to start. Where no
SDK is set up, spans go to the journal that the worker named; without one nothing is recorded, but
what the handler sends out still belongs to the trace.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from opentelemetry import context as api
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from ergon_framework.core.executor_protocol import Outcome, Request
from ergon_framework.core.executor_protocol import Status as OutcomeStatus
from ergon_framework.telemetry.conventions import messaging_attributes
from ergon_framework.telemetry.journal import JournalWriter, record_to_parent
from ergon_framework.telemetry.tracing import SCOPE, journal_provider, tracer

SPAN = "rrq.executor"
_FAILURES = (OutcomeStatus.ERROR, OutcomeStatus.TIMEOUT)


def begin(request: Request) -> trace.Span:
    """A span for this request, current from here on in the calling context."""
    _writer()
    about = request.context
    parent = propagate.extract(about.trace_context or {}, api.get_current())
    attributes: dict[str, Any] = {
        "rrq.job_id": request.job_id,
        "rrq.function": request.function_name,
        "rrq.queue": about.queue_name,
        "rrq.attempt": about.attempt,
        **messaging_attributes("run", "process", about.queue_name, request.job_id),
    }
    if about.worker_id is not None:
        attributes["rrq.worker_id"] = about.worker_id
    span = (tracer() or trace.get_tracer(SCOPE)).start_span(
        SPAN, parent, kind=SpanKind.CONSUMER, attributes=attributes
    )
    # Never detached: the context belongs to this request alone and goes with it.
    api.attach(trace.set_span_in_context(span, parent))
    return span


def end(span: trace.Span, outcome: Outcome) -> None:
    """End the span. Texts of errors may hold payloads, so only the class is recorded."""
    span.set_attribute("rrq.outcome", str(outcome.status))
    if outcome.error_type is not None and outcome.status is not OutcomeStatus.SUCCESS:
        span.set_attribute("error.type", outcome.error_type)
    if outcome.status in _FAILURES:
        span.set_status(Status(StatusCode.ERROR, outcome.error_type or str(outcome.status)))
    span.end()


def finish() -> None:
    """Write what is not written yet: the process ends."""
    writer = _writer()
    if writer is not None:
        writer.close()


@cache
def _writer() -> JournalWriter | None:
    return record_to_parent(f"executor {os.getpid()}") if journal_provider() is None else None
