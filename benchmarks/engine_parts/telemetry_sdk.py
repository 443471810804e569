"""An OpenTelemetry SDK that records everything and exports it to nowhere."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from engine_parts.rounds import Instrumentation


class _SpansToNowhere(SpanExporter):
    def __init__(self) -> None:
        self.seen = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.seen += len(spans)
        return SpanExportResult.SUCCESS


class _MetricsToNowhere(MetricExporter):
    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: Any
    ) -> MetricExportResult:
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None:
        return None


class SdkInstrumentation(Instrumentation):
    """Installs the global providers and counts the spans of each runner."""

    def __init__(self, *, with_metrics: bool) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._exporter = _SpansToNowhere()
        self._provider = TracerProvider()
        # A queue long enough that nobody is helped by spans falling out of it.
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=16384))
        trace.set_tracer_provider(self._provider)
        if with_metrics:
            reader = PeriodicExportingMetricReader(_MetricsToNowhere())
            metrics.set_meter_provider(MeterProvider([reader]))

    def run_and_count(self, work: Callable[[], None], count: int) -> dict[str, Any]:
        """How many spans one transaction leaves."""
        self._provider.force_flush()
        before = self._exporter.seen
        work()
        self._provider.force_flush()
        return {"spans_per_transaction": (self._exporter.seen - before) // count}

    def before_turn(self) -> None:
        """Send off what the last turn left behind."""
        self._provider.force_flush()
        gc.collect()
