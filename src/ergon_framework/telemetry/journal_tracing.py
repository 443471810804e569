"""A tracer provider that needs no SDK and keeps the spans of traced units for the journal.

A trace begins only at our edges, where a unit enters: a fact is published, a job is enqueued. What
arrives with a trace goes on with it, if its sender wanted it recorded. A span that has neither is
not recorded at all, so untraced work costs nothing. Only Ergon's own spans are kept. Beside an SDK,
a span processor hands the SDK's spans to the journal too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)

from ergon_framework.ports.journal import SpanRecord
from ergon_framework.telemetry.tracing import EDGES, SCOPE, is_loop_trace, journal_provider

UNIT_ATTRIBUTES = ("rrq.job_id", "ergon.message_id", "transaction_id", "ergon.correlation_id")
"""The attributes that name the unit a span is about."""
MAX_ATTRIBUTES = 64
MAX_TEXT = 500
MAX_FAILURE_TEXT = 80

Keep = Callable[[SpanRecord], None]
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

_ids = random.Random()  # noqa: S311 - of our own: a program may seed the common one
os.register_at_fork(after_in_child=_ids.seed)


class JournalTracerProvider(trace.TracerProvider):
    """Gives tracers whose spans are handed to ``keep`` when they end; it must not block."""

    def __init__(self, keep: Keep, source: str) -> None:
        self.keep = keep
        self.source = source
        self._tracer = JournalTracer(self)
        self._others = _PassThroughTracer()
        self._accompanied: Any = None

    def get_tracer(self, instrumenting_module_name: str, *_: Any, **__: Any) -> trace.Tracer:
        """A tracer that records for Ergon's instrumentation scopes; others only propagate the
        trace.
        """
        return self._tracer if instrumenting_module_name == SCOPE else self._others

    def follow_provider(self, provider: trace.TracerProvider) -> None:
        """Also record the spans of an SDK's tracer provider, from now on."""
        if self._accompanied is provider:
            return
        self._accompanied = provider
        add = getattr(provider, "add_span_processor", None)
        if add is not None:
            add(_span_processor(self))


def _span_processor(followed: JournalTracerProvider) -> Any:
    """A processor for an SDK's provider that keeps our spans in the journal too.

    Its class is made here, where there is an SDK: this module is imported without one.
    """
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

    class JournalSpanProcessor(SpanProcessor):
        """Keeps what belongs to the trace of a unit; a loop's own trace is left to the SDK."""

        def on_end(self, span: ReadableSpan) -> None:
            """Record the span, if it is one of ours."""
            scope, context = span.instrumentation_scope, span.get_span_context()
            if scope is None or scope.name != SCOPE or context is None:
                return
            if journal_provider() is not followed:
                return  # its time is over: an SDK has no way to let go of a processor
            if is_loop_trace(context.trace_id) and span.name not in EDGES:
                return
            failure = None
            if span.status.status_code is StatusCode.ERROR:
                failure = span.status.description or "failed"
            began_at = span.start_time or 0
            followed.keep(
                span_record(
                    followed.source,
                    span.name,
                    (context, span.parent),
                    (began_at, span.end_time or began_at),
                    span.attributes or {},
                    failure,
                )
            )

    return JournalSpanProcessor()


class _PassThroughTracer(trace.Tracer):
    """Records nothing, and keeps the trace that is current."""

    def start_span(self, name: str, context: Context | None = None, *_: Any, **__: Any) -> Span:
        """The span that is current."""
        return NonRecordingSpan(get_current_span(context).get_span_context())

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, context: Context | None = None, *rest: Any, **options: Any
    ) -> Iterator[Span]:
        """Start a span and make it current."""
        with trace.use_span(self.start_span(name, context, *rest, **options)) as span:
            yield span


class JournalTracer(_PassThroughTracer):
    """Starts spans of traces that are recorded, and of those that begin at an edge."""

    def __init__(self, provider: JournalTracerProvider) -> None:
        self._provider = provider

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        *_: Any,
        **__: Any,
    ) -> Span:
        """A span below the current one; without one, a new trace at an edge and nothing else."""
        parent = get_current_span(context).get_span_context()
        if not parent.is_valid:
            if name not in EDGES:
                return INVALID_SPAN
            made = SpanContext(_new_id(128), _new_id(64), False, _SAMPLED)
            return JournalSpan(self._provider, name, made, None, start_time, attributes)
        if not parent.trace_flags.sampled:
            return NonRecordingSpan(parent)
        made = SpanContext(
            parent.trace_id, _new_id(64), False, parent.trace_flags, parent.trace_state
        )
        return JournalSpan(self._provider, name, made, parent, start_time, attributes)

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, *rest: Any, **options: Any
    ) -> Iterator[Span]:
        """Start one that is current inside the block and ends with it."""
        with trace.use_span(self.start_span(name, *rest, **options), end_on_exit=True) as span:
            yield span


class JournalSpan(Span):
    """A span that the journal keeps. Events and links are not kept."""

    def __init__(
        self,
        provider: JournalTracerProvider,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        began_at: int | None,
        attributes: Mapping[str, Any] | None,
    ) -> None:
        self._provider = provider
        self._name = name
        self._context = context
        self._parent = parent
        self._began_at = time_ns() if began_at is None else began_at
        self._attributes: dict[str, Any] = dict(attributes) if attributes else {}
        self._failure: str | None = None
        self._is_ended = False

    def get_span_context(self) -> SpanContext:
        """The span's identity."""
        return self._context

    def is_recording(self) -> bool:
        """Whether the span has not ended."""
        return not self._is_ended

    def set_attribute(self, key: str, value: Any) -> None:
        """Note something, as long as there is room."""
        if not self._is_ended and len(self._attributes) < MAX_ATTRIBUTES:
            self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Events are not kept."""

    def update_name(self, name: str) -> None:
        """Call it otherwise."""
        if not self._is_ended:
            self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Note whether the span failed, with the description."""
        if isinstance(status, Status):
            self.set_status(status.status_code, status.description)
        elif not self._is_ended and status is not StatusCode.UNSET:
            self._failure = (description or "failed") if status is StatusCode.ERROR else None

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        """Note the class of an exception. Its text may hold a payload."""
        self.set_attribute("exception.type", type(exception).__qualname__)

    def end(self, end_time: int | None = None) -> None:
        """Hand it over, once."""
        if self._is_ended:
            return
        self._is_ended = True
        ended_at = time_ns() if end_time is None else end_time
        self._provider.keep(
            span_record(
                self._provider.source,
                self._name,
                (self._context, self._parent),
                (self._began_at, ended_at),
                self._attributes,
                self._failure,
            )
        )


def span_record(
    source: str,
    name: str,
    family: tuple[SpanContext, SpanContext | None],
    times: tuple[int, int],
    attributes: Mapping[str, Any],
    failure: str | None,
) -> SpanRecord:
    """A span that has ended, as a journal keeps it."""
    own, parent = family
    plain = {key: _plain(value) for key, value in attributes.items()}
    if failure is not None:
        failure = str(plain.get("exception.type") or plain.get("error.type") or failure)
    return SpanRecord(
        trace_id=f"{own.trace_id:032x}",
        span_id=f"{own.span_id:016x}",
        parent_id="" if parent is None else f"{parent.span_id:016x}",
        name=name,
        source=source,
        unit=next((str(plain[key]) for key in UNIT_ATTRIBUTES if key in plain), ""),
        began_at=times[0] / 1e9,
        ended_at=times[1] / 1e9,
        failure=(failure or "")[:MAX_FAILURE_TEXT],
        attributes=plain,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value[:MAX_ATTRIBUTES]]
    return str(value)[:MAX_TEXT]


def _new_id(bits: int) -> int:
    # Zero stands for no id, in traces as in spans.
    return _ids.getrandbits(bits) or 1
