"""Which span processors are called for lean spans, and when they are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    Span,
    SpanProcessor,
    Tracer,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ergon_framework.telemetry.sdk_spans import SdkSpanWriter, SpanProcessors, only_passes_on
from ergon_framework.telemetry.sink import best_writer
from ergon_framework.telemetry.span_writer import SpanParent, SpanWriter


@pytest.fixture
def batching() -> Iterator[BatchSpanProcessor]:
    """A processor of the SDK whose thread ends with the test."""
    processor = BatchSpanProcessor(InMemorySpanExporter())
    yield processor
    end(processor)


def end(processor: SpanProcessor) -> None:
    """Shut it down."""
    processor.shutdown()


class Calls(SpanProcessor):
    """Writes down what it is called with."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.heard.append(("start", span.name))

    def _on_ending(self, span: Span) -> None:
        self.heard.append(("ending", span.name))

    def on_end(self, span: ReadableSpan) -> None:
        self.heard.append(("end", span.name))


ENDS = [("ending", "s"), ("end", "s")] if hasattr(SpanProcessor, "_on_ending") else [("end", "s")]
ALL = [("start", "s"), *ENDS]


def writer_of(provider: TracerProvider) -> tuple[SpanWriter, SpanParent]:
    """The fast writer of a provider, and a place for its spans."""
    tracer = provider.get_tracer("ergon")
    writer = best_writer(tracer)
    assert isinstance(writer, SdkSpanWriter)
    return writer, SpanParent(tracer.start_span("root", Context()), Context())


def write(writer: SpanWriter, below: SpanParent) -> None:
    """One span."""
    writer.finish(writer.start("s", below, 1, {}), 2, {})


def only(calls: Calls) -> list[tuple[str, str]]:
    """What was heard of the span that was written."""
    return [each for each in calls.heard if each[1] == "s"]


@pytest.mark.parametrize("group", [None, ConcurrentMultiSpanProcessor])
def test_whoever_listens_is_called(group: Any) -> None:
    """A processor of the user's hears of start, ending and end, however the SDK calls it."""
    provider = TracerProvider(
        active_span_processor=group() if group else None, shutdown_on_exit=False
    )
    calls = Calls()
    provider.add_span_processor(calls)
    write(*writer_of(provider))
    assert only(calls) == ALL
    provider.shutdown()


def test_whoever_comes_later_is_called_too() -> None:
    """A processor added after the first spans hears of those that follow."""
    provider = TracerProvider(shutdown_on_exit=False)
    writer, below = writer_of(provider)
    write(writer, below)
    calls = Calls()
    provider.add_span_processor(calls)
    write(writer, below)
    assert only(calls) == ALL


def test_one_that_comes_during_a_span_hears_its_end() -> None:
    """As with the SDK's own spans, its end is told to whoever is there then."""
    provider = TracerProvider(shutdown_on_exit=False)
    writer, below = writer_of(provider)
    span = writer.start("s", below, 1, {})
    calls = Calls()
    provider.add_span_processor(calls)
    writer.finish(span, 2, {})
    assert only(calls) == ENDS


def test_exporting_processors_are_spared() -> None:
    """Those of the SDK ignore starting and ending spans, and are not asked to."""
    for processor in (
        BatchSpanProcessor(InMemorySpanExporter()),
        SimpleSpanProcessor(InMemorySpanExporter()),
        SpanProcessor(),
    ):
        hears = SpanProcessors(processor)
        assert (hears.starting, hears.ending) == ((), ())
        assert len(hears.ended) == 1
        end(processor)


def test_methods_of_their_own_are_not_overlooked(batching: BatchSpanProcessor) -> None:
    """A subclass, and an object with a method put on it, are called like any other."""

    class Louder(BatchSpanProcessor):
        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            pass

    louder = Louder(InMemorySpanExporter())
    hears = SpanProcessors(louder)
    assert hears.starting == (louder.on_start,)
    assert hears.ended == (louder.on_end,)
    end(louder)

    calls = Calls()
    batching.on_start = calls.on_start  # type: ignore[method-assign]
    batching.on_end = calls.on_end  # type: ignore[method-assign]
    hears = SpanProcessors(batching)
    assert (hears.starting, hears.ended) == ((calls.on_start,), (calls.on_end,))


def test_a_processor_that_does_more_is_asked_itself(batching: BatchSpanProcessor) -> None:
    """Only an SDK whose batching processor just passes spans on is shortened."""

    class Counting(BatchSpanProcessor):
        count = 0

        def on_end(self, span: ReadableSpan) -> None:
            self.count += 1
            super().on_end(span)

    is_shortened = only_passes_on(BatchSpanProcessor)
    assert (SpanProcessors(batching).ended == (batching.on_end,)) is not is_shortened
    assert not only_passes_on(Counting)
    assert SpanProcessors(batching, is_shortened=False).ended == (batching.on_end,)


def test_an_sdk_without_the_ending_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the SDK does not tell of ending spans, neither do we."""
    monkeypatch.delattr(SpanProcessor, "_on_ending", raising=False)
    assert SpanProcessors(Calls()).ending == ()


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


def test_nothing_is_exported_after_the_end() -> None:
    """A provider that was shut down takes no more spans, and nobody fails for it."""
    provider, kept = TracerProvider(shutdown_on_exit=False), Kept()
    provider.add_span_processor(BatchSpanProcessor(kept))
    writer, below = writer_of(provider)
    write(writer, below)
    provider.shutdown()
    write(writer, below)
    assert kept.names == ["s"]


def test_a_tracer_that_is_switched_off_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK that can switch tracers off is obeyed by what begins afterwards."""
    if not hasattr(Tracer, "_is_enabled"):
        pytest.skip("this release of the SDK cannot")
    provider, calls = TracerProvider(shutdown_on_exit=False), Calls()
    provider.add_span_processor(calls)
    writer, below = writer_of(provider)
    monkeypatch.setattr(Tracer, "_is_enabled", lambda _: False)
    write(writer, below)
    assert only(calls) == []
