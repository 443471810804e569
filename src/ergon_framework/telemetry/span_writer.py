"""How a span is written: the protocol, and the writer that uses the OpenTelemetry API alone.

A transaction has five spans, and the constructor of the SDK's span costs more than everything else
the engine does. So ``sdk_spans`` has a second writer, whose spans have the same content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, set_span_in_context


class SpanParent:
    """Where new spans hang: their parent, and the context (baggage included) it stands in."""

    __slots__ = ("base", "parent", "span")

    def __init__(self, span: Span, base: Context) -> None:
        self.span = span
        self.parent = span.get_span_context()
        self.base = base

    @property
    def context(self) -> Context:
        """The context in which the parent is current, made on the first request."""
        return set_span_in_context(self.span, self.base)


class SpanWriter(Protocol):
    """Starts and ends spans at given instants, in nanoseconds since the epoch."""

    def start(
        self,
        name: str,
        below: SpanParent,
        at: int,
        attributes: dict[str, Any],
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Start a span. The attributes are the writer's from now on."""

    def finish(
        self, span: Span, at: int, attributes: Mapping[str, Any], error: str | None = None
    ) -> None:
        """End the span with its last attributes, as failed if there is an error text."""


class ApiSpanWriter:
    """Writes spans with nothing but the OpenTelemetry API."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start(
        self,
        name: str,
        below: SpanParent,
        at: int,
        attributes: dict[str, Any],
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Start a span."""
        return self._tracer.start_span(
            name,
            context=below.context,
            kind=kind,
            attributes=attributes,
            links=links,
            start_time=at,
        )

    def finish(
        self, span: Span, at: int, attributes: Mapping[str, Any], error: str | None = None
    ) -> None:
        """End the span with its last attributes, as failed if there is an error text."""
        if not span.is_recording():
            return  # not sampled, or user code ended it
        if attributes:
            span.set_attributes(attributes)
        if error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end(at)
