"""Handlers in a process with an OpenTelemetry SDK; spans go to the standard error when they end."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from ergon_framework.executor import Registry


class Exporter(SpanExporter):
    """One line of JSON per span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write them."""
        for each in spans:
            sys.stderr.write(f"span {each.to_json(indent=None)}\n")
            sys.stderr.flush()
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Exporter()))
trace.set_tracer_provider(provider)
registry = Registry()


@registry.handler
def work(secret: str) -> dict[str, str]:
    """Make a span of one's own, and send the trace on."""
    with trace.get_tracer("sample").start_as_current_span("inner"):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
    return carrier


@registry.handler
async def fail(secret: str) -> None:
    """Fail with a text that nobody should see in a trace."""
    raise LookupError(secret)
