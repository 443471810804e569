"""Metrics as text beside prometheus_client, and spans beside those of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions

from library_parts.compare import Call, compare

FAMILIES, SERIES = 40, 8
AT = 1_800_000_000_000_000_000
ATTRIBUTES: dict[str, Any] = {
    "ergon.transaction.id": "t-1",
    "ergon.attempt": 1,
    "ergon.queue": "mail",
    "ergon.handler": "mail.send",
}


def metrics(options: RunOptions) -> Iterator[Record]:
    """The answer to a scrape: 40 gauges with eight series each, made anew each time."""
    labels = [{"queue": f"queue-{n}", "state": "pending"} for n in range(SERIES)]

    def ours() -> Call:
        from ergon_framework.telemetry.prometheus_text import Family, text_of

        def call() -> bytes:
            families = [
                Family(f"ergon_jobs_{n}", "gauge", "Jobs by state.", [(each, n) for each in labels])
                for n in range(FAMILIES)
            ]
            return text_of(families).encode()

        return call

    def with_prometheus_client() -> Call:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import GaugeMetricFamily

        class Collector:
            def collect(self) -> Iterator[GaugeMetricFamily]:
                for n in range(FAMILIES):
                    name = f"ergon_jobs_{n}"
                    family = GaugeMetricFamily(name, "Jobs by state.", labels=["queue", "state"])
                    for each in labels:
                        family.add_metric([each["queue"], each["state"]], n)
                    yield family

        registry = CollectorRegistry()
        registry.register(Collector())
        return lambda: generate_latest(registry)

    others = {"prometheus_client": with_prometheus_client}
    yield from compare("metrics", options, ours, others)


def spans(options: RunOptions) -> Iterator[Record]:
    """One span below another, started and ended at given instants, with attributes."""

    def made(kind: str) -> Call:
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        from ergon_framework.telemetry.sdk_spans import SdkSpanWriter, can_be_lean
        from ergon_framework.telemetry.span_writer import ApiSpanWriter, SpanParent, SpanWriter

        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SpanProcessor())
        tracer = provider.get_tracer("benchmark")
        below = SpanParent(tracer.start_span("parent", Context()), Context())
        writer: SpanWriter = ApiSpanWriter(tracer)
        if kind == "lean":
            if not can_be_lean(tracer):
                raise ImportError("this release of the SDK is written to by its API alone")
            writer = SdkSpanWriter(tracer)

        def call() -> None:
            span = writer.start("ergon.transaction", below, AT, dict(ATTRIBUTES))
            writer.finish(span, AT + 1000, {"ergon.outcome": "success"})

        return call

    others = {"OpenTelemetry SDK": lambda: made("plain")}
    yield from compare("spans", options, lambda: made("lean"), others)
