from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from ergon_framework.ports.journal import SpanRecord
from ergon_framework.ports.notice import Sink
from ergon_framework.telemetry import (
    TelemetrySettings,
    configure,
    make_sink,
    tracing,
    uninstall_log_context,
)
from ergon_framework.telemetry.journal_tracing import JournalTracerProvider
from ergon_framework.telemetry.notices import NoticeDispatcher
from ergon_framework.telemetry.span_writer import ApiSpanWriter
from ergon_framework.telemetry.spans import SpanSink


class Recorder:
    """A real tracer provider of the SDK that keeps its spans in memory."""

    def __init__(self, way: str, sampler: Sampler | None = None) -> None:
        self.way = way
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def sink(self, settings: TelemetrySettings | None = None) -> Sink | None:
        """A sink that writes spans in the way this recorder stands for."""
        chosen = settings or TelemetrySettings(metrics=False)
        if self.way == "lean":
            return make_sink(chosen, tracer_provider=self.provider)
        writer = ApiSpanWriter(self.provider.get_tracer("ergon"))
        return NoticeDispatcher(SpanSink(writer, chosen), (), ())

    def spans(self) -> list[ReadableSpan]:
        """All that was exported, by start time; a parent comes before its children."""
        depth = {_id(span): span for span in self.exporter.get_finished_spans()}

        def rank(span: ReadableSpan) -> tuple[int, int]:
            steps, above = 0, span.parent
            while above is not None and above.span_id in depth:
                steps, above = steps + 1, depth[above.span_id].parent
            return (span.start_time or 0, steps)

        return sorted(depth.values(), key=rank)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of one name, in the order of their start."""
        return [span for span in self.spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        (span,) = self.named(name)
        return span

    def tree(self) -> str:
        """Names of spans, indented below their parents."""
        spans = self.spans()
        known = {_id(span) for span in spans}

        def lines(parent: int | None, indent: str) -> Iterator[str]:
            for span in spans:
                above = span.parent.span_id if span.parent else None
                if (above if above in known else None) == parent:
                    yield indent + span.name
                    yield from lines(_id(span), indent + "  ")

        return "\n".join(lines(None, ""))


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


@pytest.fixture(params=["lean", "api"])
def recorder(request: pytest.FixtureRequest) -> Recorder:
    """Every test that asks for this runs with both ways of writing spans."""
    return Recorder(request.param)


@pytest.fixture(autouse=True)
def _plain_logging() -> Iterator[None]:
    yield
    uninstall_log_context()


@dataclass
class Numbers:
    """A real meter provider of the SDK that keeps its numbers in memory."""

    provider: MeterProvider
    reader: InMemoryMetricReader

    def points(self, name: str) -> dict[tuple[tuple[str, object], ...], object]:
        """Labels to value, or to (count, sum) for a histogram."""
        data = self.reader.get_metrics_data()
        found: dict[tuple[tuple[str, object], ...], object] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            labels = tuple(sorted((point.attributes or {}).items()))
                            found[labels] = _value(point)
        return found

    def names(self) -> set[str]:
        """Every metric there is."""
        data = self.reader.get_metrics_data()
        return {
            metric.name
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def _value(point: Any) -> object:
    return (point.count, point.sum) if hasattr(point, "bucket_counts") else point.value


@pytest.fixture
def numbers() -> Iterator[Numbers]:
    """A meter provider of its own for each test."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield Numbers(provider, reader)
    provider.shutdown()


UseProvider = Callable[[TracerProvider], None]


@pytest.fixture
def use_provider(monkeypatch: pytest.MonkeyPatch) -> UseProvider:
    """Makes a provider the global one for the test; the API lets a process do that only once."""
    return lambda provider: monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


@pytest.fixture
def kept() -> Iterator[list[SpanRecord]]:
    """The spans of a journal that is set for the test."""
    spans: list[SpanRecord] = []
    before = tracing.journal_provider()
    tracing.set_journal_provider(JournalTracerProvider(spans.append, "here"))
    yield spans
    tracing.set_journal_provider(before)
    configure(TelemetrySettings())
