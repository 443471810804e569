"""The fast way of writing spans: that it equals the plain one, and when it is not taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, context
from opentelemetry.context import Context
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    Tracer,
    TracerProvider,
)
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
)

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import TelemetrySettings, make_sink, sdk_spans
from ergon_framework.telemetry.sdk_spans import LeanSpan, SdkSpanWriter
from ergon_framework.telemetry.sink import best_writer
from ergon_framework.telemetry.span_writer import ApiSpanWriter, SpanParent, SpanWriter
from tests.telemetry.conftest import Recorder
from tests.telemetry.fake_engine import DOWN, FakeEngine

TIMEOUT = Failure(Kind.TIMEOUT, "step_timeout", "the attempt ran out of time")


def tell_a_long_story(recorder: Recorder) -> list[object]:
    """A call with everything in it; what came out, but for ids and the wall clock."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.fetch(0, failure=DOWN)
    engine.fetch(2, 1)
    engine.succeed(Transaction("a", source="s", trace_id="0af7651916cd43dd8448eb211c80319c"))
    run = engine.take(Transaction("b"))
    engine.attempt(run, "process", 0, failure=TIMEOUT)
    engine.retry(run, "process", 0, 2.0)
    engine.attempt(run, "process", 1, failure=DOWN, exception=ConnectionError("down"))
    engine.attempt(run, "exception", failure=DOWN)
    engine.finish(run, "failed", DOWN, DOWN)
    engine.end(error=TimeoutError("over"))
    spans = recorder.spans()
    base = spans[0].start_time or 0
    names = {span.context.span_id: span.name for span in spans}
    return [shape(span, base, names) for span in spans]


def shape(span: ReadableSpan, base: int, names: dict[int, str]) -> tuple[object, ...]:
    """All that is comparable between two recordings."""
    attributes = {k: v for k, v in (span.attributes or {}).items() if k != "ergon.call_id"}
    return (
        (span.name, span.kind, (span.start_time or 0) - base, (span.end_time or 0) - base),
        span.parent and (names.get(span.parent.span_id), span.parent.is_remote),
        (span.status.status_code, span.status.description, attributes),
        [(link.context.trace_id, dict(link.attributes or {})) for link in span.links],
        [event.name for event in span.events],
        (span.context.trace_flags, span.context.trace_state, span.context.is_remote),
        (span.dropped_attributes, span.dropped_events, span.dropped_links),
        (span.instrumentation_scope and span.instrumentation_scope.name),
        span.resource.attributes["service.name"],
    )


def test_both_ways_export_the_same_spans() -> None:
    """The fast writer and the plain one tell the same story, field by field."""
    lean = tell_a_long_story(Recorder("lean"))
    assert lean == tell_a_long_story(Recorder("api"))
    assert len(lean) == 15


_values = st.one_of(st.text(max_size=5), st.integers(-9, 9), st.booleans(), st.floats(0, 9))
_named = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), _values, max_size=3)
_calls = st.one_of(
    st.tuples(st.just("set_attribute"), st.sampled_from(["a", "b", "e"]), _values),
    st.tuples(st.just("set_attributes"), _named),
    st.tuples(st.just("add_event"), st.text(max_size=4), _named, st.integers(1, 9)),
    st.tuples(st.just("update_name"), st.text(max_size=4)),
    st.tuples(st.just("set_status"), st.sampled_from(StatusCode), st.just("because")),
    st.tuples(st.just("add_link"), st.just(SpanContext(1, 2, is_remote=True)), _named),
    st.tuples(st.just("end"), st.integers(1, 9)),
)


@given(_named, st.lists(_calls, max_size=6), _named, st.none() | st.text(max_size=4))
@settings(max_examples=100, deadline=None)
def test_both_ways_agree_whatever_user_code_does_to_a_span(
    early: dict[str, Any], calls: list[tuple[Any, ...]], late: dict[str, Any], error: str | None
) -> None:
    """Attributes, events, links, names and ends in any order: both exports are the same."""
    tracer, kept = kept_tracer()
    kept.spans.clear()
    below = SpanParent(tracer.start_span("parent", Context()), Context())
    for writer in (ApiSpanWriter(tracer), SdkSpanWriter(tracer)):
        span = writer.start("child", below, 1, dict(early))
        for name, *words in calls:
            getattr(span, name)(*words)
        writer.finish(span, 10, late, error)
    lean, plain = (shape(span, 0, {}) for span in kept.spans)
    assert lean == plain


class Kept(SpanProcessor):
    """Keeps what has ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@cache
def kept_tracer() -> tuple[Tracer, Kept]:
    """A tracer whose spans are kept, made once: finding out about its resource takes long."""
    provider = TracerProvider(shutdown_on_exit=False)
    kept = Kept()
    provider.add_span_processor(kept)
    tracer = provider.get_tracer("ergon")
    assert isinstance(tracer, Tracer)
    return tracer, kept


def writer_for(**options: object) -> SpanWriter:
    """The writer chosen for such a provider."""
    provider = TracerProvider(shutdown_on_exit=False, **options)  # type: ignore[arg-type]
    return best_writer(provider.get_tracer("ergon"))


@pytest.mark.parametrize(
    "sampler",
    [ALWAYS_ON, ParentBased(ALWAYS_ON), ParentBased(TraceIdRatioBased(0.5))],
    ids=lambda sampler: sampler.get_description()[:30],
)
def test_fast_with_samplers_that_follow_the_parent(sampler: object) -> None:
    """The usual samplers allow the fast way."""
    assert isinstance(writer_for(sampler=sampler), SdkSpanWriter)


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": TraceIdRatioBased(0.5)},
        {"sampler": ParentBased(ALWAYS_ON, local_parent_sampled=TraceIdRatioBased(0.5))},
        {"span_limits": SpanLimits(max_span_attributes=3)},
        {"span_limits": SpanLimits(max_span_attribute_length=20)},
    ],
    ids=["ratio", "own-local-sampler", "few-attributes", "short-attributes"],
)
def test_plain_when_the_sdk_would_decide_otherwise(options: dict[str, object]) -> None:
    """A sampler with a mind of its own, or tight limits, are left to the SDK."""
    assert isinstance(writer_for(**options), ApiSpanWriter)


def test_plain_for_tracers_we_do_not_know() -> None:
    """A tracer that is more than the SDK's own is used through the API only."""

    class Wrapped(Tracer):
        pass

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("ergon")
    tracer.__class__ = Wrapped
    assert isinstance(best_writer(tracer), ApiSpanWriter)


@pytest.fixture
def fresh_trial() -> Iterator[None]:
    """Forget the outcome of the trial before and after."""
    sdk_spans.lean_spans_match.cache_clear()
    yield
    sdk_spans.lean_spans_match.cache_clear()


@pytest.mark.usefixtures("fresh_trial")
@pytest.mark.parametrize("way", ["differs", "raises"])
def test_plain_when_the_trial_fails(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A release of the SDK in which lean spans come out differently, or break, is noticed."""

    def forgetful(span: LeanSpan, *_: object) -> None:
        if way == "raises":
            raise AttributeError("_span_limits")
        SdkSpan.end(span)  # without the last attributes

    monkeypatch.setattr(LeanSpan, "finish", forgetful)
    assert isinstance(writer_for(), ApiSpanWriter)


def test_plain_without_an_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracer of another make works although the SDK is not installed."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("ergon")
    monkeypatch.setitem(sys.modules, "ergon_framework.telemetry.sdk_spans", None)
    assert isinstance(best_writer(tracer), ApiSpanWriter)


@pytest.mark.parametrize("sampler", [ParentBased(ALWAYS_OFF), ALWAYS_OFF])
def test_unsampled_traces_record_nothing(sampler: Sampler) -> None:
    """Spans that are not sampled cost little, export nothing and still have ids for the logs."""
    recorder = Recorder("lean", sampler)
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(Transaction("t"))
    seen: list[SpanContext] = []

    def note() -> SpanContext:
        return get_current_span().get_span_context()

    for number in range(2):
        engine.attempt(run, "process", number, body=lambda: seen.append(note()))
    engine.finish(run)
    engine.end()

    assert recorder.spans() == []
    assert [each.is_valid for each in seen] == [True, True]
    assert not any(each.trace_flags.sampled for each in seen)
    assert len({each.trace_id for each in seen}) == 1


def test_an_unsampled_remote_parent_is_obeyed() -> None:
    """With parent="parent" the sender's decision not to sample holds."""
    recorder = Recorder("lean")
    engine = FakeEngine(recorder.sink(TelemetrySettings(metrics=False, parent="parent")))
    engine.begin()
    engine.succeed(Transaction("t", trace_id=f"00-{'1' * 32}-{'2' * 16}-00"))
    engine.end()

    assert [span.name for span in recorder.spans()] == ["consume_transactions"]


def test_always_on_samples_below_an_unsampled_caller() -> None:
    """A sampler that always samples does so below a parent that was not."""
    recorder = Recorder("lean", ALWAYS_ON)
    unsampled = NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(0)))
    tracer = recorder.provider.get_tracer("ergon")
    writer = best_writer(tracer)
    span = writer.start("child", SpanParent(unsampled, Context()), 1, {})
    writer.finish(span, 2, {})

    assert isinstance(writer, SdkSpanWriter)
    assert recorder.one("child").parent == unsampled.get_span_context()


class Watching(SpanProcessor):
    """Reads and writes spans as they start, as processors for baggage do."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attribute("tenant", str(baggage.get_baggage("tenant", parent_context)))
        span.set_attribute("seen", len(span.attributes or {}))


def test_processors_may_write_on_starting_spans(recorder: Recorder) -> None:
    """A span processor sees each span start, with its attributes and the caller's baggage."""
    recorder.provider.add_span_processor(Watching())
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    engine = FakeEngine(recorder.sink())
    engine.begin()
    context.detach(token)
    engine.succeed(Transaction("t"))
    engine.end()

    attributes = [dict(span.attributes or {}) for span in recorder.spans()]
    assert {found["tenant"] for found in attributes} == {"acme"}
    assert all(int(str(found["seen"])) > 4 for found in attributes)


def test_a_lean_span_behaves_like_a_span() -> None:
    """Reading, renaming and ending a lean span work, and nothing changes after its end."""
    recorder = Recorder("lean")
    tracer = recorder.provider.get_tracer("ergon")
    writer = SdkSpanWriter(tracer)  # type: ignore[arg-type]
    below = SpanParent(tracer.start_span("root"), Context())
    span = writer.start("first", below, 1, {"a": 1}, kind=SpanKind.CLIENT)
    assert isinstance(span, LeanSpan)
    assert (dict(span.attributes or {}), span.events, span.links) == ({"a": 1}, (), ())
    span.update_name("second")
    with span:
        span.set_attribute("b", 2)
    span.set_attribute("c", 3)
    writer.finish(span, 5, {"d": 4})

    assert not span.is_recording()
    exported = recorder.one("second")
    assert dict(exported.attributes or {}) == {"a": 1, "b": 2}
    assert exported.kind is SpanKind.CLIENT


def test_one_writer_per_provider() -> None:
    """Making a sink again for the same provider asks it for nothing new."""
    recorder = Recorder("lean")
    first, second = recorder.sink(), recorder.sink()
    assert first is not second
    provider = CountingProvider()
    for _ in range(3):
        assert make_sink(tracer_provider=provider) is not None
    assert provider.asked == 1


class CountingProvider(TracerProvider):
    asked = 0

    def get_tracer(self, *args: object, **kwargs: object) -> Tracer:
        self.asked += 1
        return super().get_tracer("ergon")  # type: ignore[return-value]
