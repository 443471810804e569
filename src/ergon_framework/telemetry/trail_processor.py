"""Ergon's spans of an SDK, for the journal too. Import it only where there is an SDK."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import StatusCode

from ergon_framework.telemetry.loop_traces import is_loop
from ergon_framework.telemetry.tracers import SCOPE, trail
from ergon_framework.telemetry.trail import EDGES, Trail, record


class TrailProcessor(SpanProcessor):
    """Keeps what belongs to the trace of a unit; a loop's own trace is left to the SDK."""

    def __init__(self, followed: Trail) -> None:
        self._trail = followed

    def on_end(self, span: ReadableSpan) -> None:
        """Hand it over, if it is one of ours."""
        scope, context = span.instrumentation_scope, span.get_span_context()
        if scope is None or scope.name != SCOPE or context is None:
            return
        if trail() is not self._trail:
            return  # its time is over: an SDK has no way to let go of a processor
        if is_loop(context.trace_id) and span.name not in EDGES:
            return
        failure = None
        if span.status.status_code is StatusCode.ERROR:
            failure = span.status.description or "failed"
        began_at = span.start_time or 0
        self._trail.keep(
            record(
                self._trail.source,
                span.name,
                (context, span.parent),
                (began_at, span.end_time or began_at),
                span.attributes or {},
                failure,
            )
        )
