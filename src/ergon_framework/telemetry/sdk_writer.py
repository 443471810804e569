"""Writes spans past the slow parts of the OpenTelemetry SDK, where that is known to be safe.

The identifiers, the sampling decision and the processors are the SDK's own; only its costly
constructor is avoided, by :class:`~ergon_framework.telemetry.lean_span.LeanSpan`. That is done only
when all it relies on is as expected: a plain tracer, limits our attributes cannot exceed, a sampler
that follows the parent, and a trial that exports the same spans both ways. Otherwise
:class:`~ergon_framework.telemetry.writer.ApiWriter` does the work. Import this module only where
the absence of the SDK is provided for.
"""

# ruff: noqa: SLF001 - what makes lean spans safe is told by the SDK's private names only

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind

from ergon_framework.telemetry.audience import Audience
from ergon_framework.telemetry.lean_span import lean_spans_of
from ergon_framework.telemetry.writer import ApiWriter, Below

_MOST_ATTRIBUTES = 32  # more than any of our spans has
_INTERNAL = SpanKind.INTERNAL  # members of an enumeration are slow to reach
_new = tuple.__new__


class SdkWriter:
    """Writes lean spans below local parents, and leaves everything else to the API."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._api = ApiWriter(tracer)
        self._drops_unsampled = tracer.sampler is not ALWAYS_ON
        self._new_id = tracer.id_generator.generate_span_id
        self._audience = Audience(tracer.span_processor)
        self._lean = lean_spans_of(tracer, self._audience)
        self._begin = self._lean.begin

    def start(
        self,
        name: str,
        below: Below,
        at: int,
        attributes: dict[str, Any],
        links: Sequence[Link] = (),
        kind: SpanKind = _INTERNAL,
    ) -> Span:
        """Start a span."""
        parent = below.parent
        if type(below.span) is not self._lean and not self._is_sampled(parent):
            return self._start_otherwise(name, below, at, attributes, links, kind)
        # What SpanContext(...) makes of ids that are known to be valid.
        shape = (parent[0], self._new_id(), False, parent[3], parent[4], True)
        context = _new(SpanContext, shape)
        resource = self._tracer.resource
        span = self._begin(name, context, parent, at, attributes, resource, links, kind)
        audience = self._audience
        if audience.members is not audience.group._span_processors:
            audience.look()
        for tell in audience.starting:
            tell(span, parent_context=below.context)
        return span

    def finish(
        self, span: Span, at: int, attributes: Mapping[str, Any], error: str | None = None
    ) -> None:
        """End it with its last attributes, and as failed when there is an error text."""
        if type(span) is self._lean:  # isinstance() is slow for abstract classes
            span.finish(at, attributes, error)
        else:
            self._api.finish(span, at, attributes, error)

    def _is_sampled(self, parent: SpanContext) -> bool:
        """Whether a span below it is sure to be recorded."""
        is_local = parent.is_valid and not parent.is_remote
        return is_local and parent.trace_flags.sampled and _is_enabled(self._tracer)

    def _start_otherwise(
        self,
        name: str,
        below: Below,
        at: int,
        attributes: dict[str, Any],
        links: Sequence[Link],
        kind: SpanKind,
    ) -> Span:
        parent = below.parent
        is_local = parent.is_valid and not parent.is_remote
        if is_local and self._drops_unsampled and not parent.trace_flags.sampled:
            return NonRecordingSpan(
                SpanContext(
                    parent.trace_id, self._new_id(), False, parent.trace_flags, parent.trace_state
                )
            )
        return self._api.start(name, below, at, attributes, links, kind)


def can_be_lean(tracer: object) -> TypeGuard[Tracer]:
    """Whether lean spans of this tracer would come out as its own do."""
    if type(tracer) is not Tracer:
        return False  # a subclass or a wrapper may do more than we know of
    limits = tracer._span_limits
    most = limits.max_span_attributes
    return (
        (most is None or most >= _MOST_ATTRIBUTES)
        and limits.max_span_attribute_length is None
        and _follows_parent(tracer.sampler)
        and _is_unwatched(tracer)
        and _trial()
    )


def _is_unwatched(tracer: Tracer) -> bool:
    """Whether the SDK does not count this tracer's spans."""
    counting = type(getattr(tracer, "_tracer_metrics", None)).__name__
    return counting in {"NoneType", "NoOpTracerMetrics"}


def _is_enabled(tracer: Tracer) -> bool:
    is_enabled = getattr(tracer, "_is_enabled", None)  # newer releases can switch a tracer off
    return is_enabled is None or bool(is_enabled())


def _follows_parent(sampler: object) -> bool:
    return sampler is ALWAYS_ON or (
        type(sampler) is ParentBased
        and sampler._local_parent_sampled is ALWAYS_ON
        and sampler._local_parent_not_sampled is ALWAYS_OFF
    )


class _Kept(SpanProcessor):
    """Keeps what it is given, for the trial."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@cache
def _trial() -> bool:
    """Write spans both ways and compare: another release of the SDK may work differently."""
    provider = TracerProvider(ALWAYS_ON, Resource.get_empty(), shutdown_on_exit=False)
    kept = _Kept()
    provider.add_span_processor(kept)
    tracer = provider.get_tracer("ergon.trial")
    if not isinstance(tracer, Tracer):
        return False
    root = tracer.start_span("root", Context())
    below = Below(root, Context())
    for writer in (ApiWriter(tracer), SdkWriter(tracer)):
        link = Link(root.get_span_context())
        span = writer.start("touched", below, 1, {"early": 1}, [link], SpanKind.CONSUMER)
        span.set_attribute("during", 2)
        span.add_event("event", {"n": 3}, 4)
        writer.finish(span, 5, {"late": 6}, "error")
        span = writer.start("untouched", below, 1, {"early": 1})
        writer.finish(span, 5, {"late": 6})
    shapes = [_shape(span) for span in kept.spans]
    return len(shapes) == 4 and shapes[:2] == shapes[2:]


def _shape(span: ReadableSpan) -> tuple[object, ...]:
    """All that an exporter reads, but for the span's own id."""
    context = span.get_span_context()
    return (
        (span.name, span.kind, span.parent, span.start_time, span.end_time),
        (span.status.status_code, span.status.description, dict(span.attributes or {})),
        [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events],
        [(link.context, dict(link.attributes or {})) for link in span.links],
        (span.dropped_attributes, span.dropped_events, span.dropped_links),
        (span.resource, span.instrumentation_scope),
        None if context is None else (context.trace_id, context.trace_flags, context.trace_state),
    )
