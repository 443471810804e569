"""The spans of a job: ``job.enqueue`` where it is stored, ``job.run`` for each attempt.

The span of an attempt is a child of the enqueuing span, so that retries stand side by side, and it
is the parent of the executor's span. A job without a trace context has no spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from opentelemetry.trace import INVALID_SPAN, Span, get_current_span

from ergon_framework.core.executor_protocol import ATTEMPTS
from ergon_framework.core.job import (
    Discarded,
    Failed,
    HeldBack,
    JobEvent,
    ProcessDied,
    Released,
    Unread,
)
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.context import current_attempt
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.telemetry.conventions import messaging_attributes, messaging_instruments
from ergon_framework.telemetry.notices import has_listeners
from ergon_framework.telemetry.tracing import (
    SpanKind,
    end_span,
    span_at_edge,
    start_root,
    start_span,
    trace_headers,
    tracer,
)


def is_observed() -> bool:
    """Whether an enqueue is part of a trace or an attempt, or a listener wants to know of it."""
    return (
        tracer() is not None
        or get_current_span() is not INVALID_SPAN
        or current_attempt() is not None
        or messaging_instruments() is not None
        or has_listeners("job.enqueued")
    )


def enqueue_span(
    options: Mapping[str, Any], *, begins: bool = True
) -> AbstractContextManager[Span]:
    """The span in which jobs are stored. Many jobs stored at once begin no trace, because they
    share nothing.
    """
    given = options.get("trace_context")
    carrier = given if isinstance(given, Mapping) else None
    return span_at_edge("job.enqueue", SpanKind.PRODUCER, {}, carrier, begins=begins)


def with_trace_context(span: Span, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a job whose own trace context, if it has one, is continued below a span."""
    given = options.get("trace_context")
    if not isinstance(given, Mapping) or not span.is_recording():
        return options
    return {**options, "trace_context": {**given, **trace_headers(span)}}


def describe_enqueue(span: Span, job: NewJob, job_id: str, *, is_new: bool) -> None:
    """Describe in the span what was stored, or that a duplicate was found."""
    span.set_attribute("rrq.job_id", job_id)
    span.set_attribute("rrq.function", job.handler)
    span.set_attribute("rrq.queue", job.queue)
    span.set_attribute("ergon.is_new", is_new)
    span.set_attributes(messaging_attributes("enqueue", "send", job.queue, job_id))


def firing(schedule: str, jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[Span]]:
    """The jobs of a schedule, each in a trace of its own, and the spans to end once they are
    stored.

    Several workers may try to fire. The spans of those that come too late are never ended.
    """
    spans = [_fire_span(schedule, job) for job in jobs]
    traced = [
        job if span is None else msgspec.structs.replace(job, trace_context=trace_headers(span))
        for job, span in zip(jobs, spans, strict=True)
    ]
    return traced, [span for span in spans if span is not None]


def _fire_span(schedule: str, job: NewJob) -> Span | None:
    about = {"rrq.job_id": job.id, "rrq.function": job.handler, "rrq.queue": job.queue}
    about["ergon.schedule"] = schedule
    about |= messaging_attributes("enqueue", "send", job.queue, job.id)
    return start_root("job.enqueue", SpanKind.PRODUCER, about)


def fired(spans: Sequence[Span]) -> None:
    """End the spans, now that the jobs are stored."""
    for span in spans:
        end_span(span)


def set_out(claim: Claim, worker: str) -> dict[str, str] | None:
    """Begin the span of an attempt. Returns the trace context that its executor is given."""
    job = claim.job
    carrier = job.trace_context
    if carrier:
        attributes = {
            "rrq.job_id": job.id,
            "rrq.function": claim.handler,
            "rrq.queue": job.queue,
            "rrq.attempt": job.attempts + 1,
            "rrq.worker_id": worker,
            **messaging_attributes("run", "process", job.queue, job.id),
        }
        claim.span = start_span("job.run", SpanKind.CONSUMER, attributes, carrier)
        if claim.span is not None:
            carrier = {**carrier, **trace_headers(claim.span)}
    if job.correlation_id is None:
        return carrier
    # Version 1 of the protocol has no other field for it.
    return {**(carrier or {}), "correlation_id": job.correlation_id}


def request_carrier(claim: Claim, settler: Settler, worker: str) -> dict[str, str] | None:
    """The trace context of a request, with the job's number of attempts if that is one.

    A provider call inside a handler does not retry by itself when the job is retried as a whole. An
    ``ATTEMPTS`` of 1 tells it that it may. Version 1 of the protocol has no other field for this.
    """
    job = claim.job
    is_single = settler.rule_of(job).retry.attempts == 1
    if not is_single and job.trace_context is None and job.correlation_id is None:
        return None  # Most jobs have no span, and nothing is to be done.
    carrier = set_out(claim, worker)
    if is_single == (carrier is not None and ATTEMPTS in carrier):
        return carrier
    others = {key: value for key, value in (carrier or {}).items() if key != ATTEMPTS}
    return {**others, ATTEMPTS: "1"} if is_single else others


def came_back(claim: Claim, event: JobEvent) -> None:
    """End the span of an attempt with its outcome."""
    span, claim.span = claim.span, None
    if span is not None:
        outcome, failure = _span_outcome(event)
        end_span(span, failure, {"rrq.outcome": outcome})


def _span_outcome(event: JobEvent) -> tuple[str, str | None]:
    if isinstance(event, Failed):
        return "failed", event.failure.code
    if isinstance(event, ProcessDied):
        return "died", "executor_died"
    if isinstance(event, HeldBack):
        return "held", None
    if isinstance(event, Discarded):
        return "discarded", None
    return ("released" if isinstance(event, Released | Unread) else "success"), None
