"""Spans in the journal without an SDK, of traces that began at an edge of ours or came in."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.ports.journal import SpanRecord
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.task.ready import AsyncHybridTask, HybridTask
from ergon_framework.telemetry import (
    TelemetrySettings,
    configure,
    is_tracing,
    make_sink,
    outgoing_metadata,
    tracing,
)
from ergon_framework.telemetry.journal import (
    VARIABLE,
    JournalListener,
    record_spans,
    record_to_parent,
)
from ergon_framework.telemetry.journal_tracing import MAX_ATTRIBUTES, MAX_TEXT
from ergon_framework.telemetry.notices import Listener
from ergon_framework.telemetry.spans import SpanSink
from ergon_framework.telemetry.tracing import (
    end_span,
    record_span,
    span_at_edge,
    start_span,
    trace_headers,
)
from tests.telemetry.conftest import UseProvider

pytestmark = pytest.mark.req("ONE:trace")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"
BROKEN = ["", "00", "00-zz", f"00-{'0' * 32}-b7ad6b7169203331-01", "ff-" + PARENT[3:], "x" * 9999]


class Joining(MemoryConnector):
    """A source whose transactions are part of the traces they bring."""

    joins_trace = True


class Copying(HybridTask):
    """Notes what it would send out."""

    sent: list[dict[str, str]]

    def process_transaction(self, transaction: Transaction) -> None:
        """Nothing but a look."""
        self.sent.append(outgoing_metadata())


class AsyncCopying(AsyncHybridTask):
    """The same with asyncio."""

    sent: list[dict[str, str]]

    async def process_transaction(self, transaction: Transaction) -> None:
        """Nothing but a look."""
        self.sent.append(outgoing_metadata())


def consumed(colour: str, connector: MemoryConnector) -> list[dict[str, str]]:
    """Consume everything; what each transaction would have sent out."""
    task = (Copying if colour == "sync" else AsyncCopying)({"memory": connector}, {})
    task.sent = []
    done = task.consume_transactions({"loop": {"streaming": False}})
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    return task.sent


def test_a_trace_begins_at_an_edge_and_nowhere_else(kept: list[SpanRecord]) -> None:
    """Publishing and enqueuing may begin one; what else has no parent is no span."""
    with span_at_edge("provider.call", SpanKind.CLIENT, {}) as span:
        assert not span.is_recording()
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {"rrq.job_id": "j1"}) as span:
        assert span.is_recording()
        with span_at_edge("provider.call", SpanKind.CLIENT, {}):
            pass
    call, enqueue = kept
    assert (enqueue.name, enqueue.parent_id, enqueue.unit) == ("job.enqueue", "", "j1")
    assert (call.trace_id, call.parent_id) == (enqueue.trace_id, enqueue.span_id)
    assert len(enqueue.trace_id) == 32
    assert enqueue.began_at <= call.began_at <= call.ended_at <= enqueue.ended_at


def test_many_at_once_begin_no_trace(kept: list[SpanRecord]) -> None:
    """An edge that only joins has no span of its own outside of a trace."""
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}, begins=False) as span:
        assert not span.is_recording()
    assert kept == []


def test_a_sender_who_does_not_record_is_followed_in_that(kept: list[SpanRecord]) -> None:
    """Nothing is kept of an unsampled trace, and it is handed on as it came."""
    carrier = {"traceparent": UNSAMPLED}
    assert start_span("job.run", SpanKind.CONSUMER, {}, carrier) is None
    with span_at_edge("boundary.publish", SpanKind.PRODUCER, {}, carrier) as span:
        assert trace_headers(span) == carrier
    assert kept == []


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_context_is_ignored(text: str, kept: list[SpanRecord]) -> None:
    """It begins a trace at an edge, and elsewhere there is none."""
    carrier = {"traceparent": text, "tracestate": "=,="}
    assert start_span("job.run", SpanKind.CONSUMER, {}, carrier) is None
    record_span("boundary.append", SpanKind.SERVER, carrier, 1.0, {})
    with span_at_edge("boundary.publish", SpanKind.PRODUCER, {}, carrier):
        pass
    (span,) = kept
    assert span.parent_id == ""


@pytest.mark.parametrize("odd", [None, 7, b"x", [PARENT]])
def test_a_context_of_another_type_is_ignored(odd: Any, kept: list[SpanRecord]) -> None:
    """A carrier may hold anything."""
    assert start_span("job.run", SpanKind.CONSUMER, {}, {"traceparent": odd}) is None
    assert kept == []


def test_a_failure_is_told_by_its_class_alone(kept: list[SpanRecord]) -> None:
    """The text of an exception may hold a payload."""
    with suppress(LookupError), span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        raise LookupError("secret")
    (span,) = kept
    assert span.failure == "LookupError"
    assert "secret" not in repr(span)


def test_a_span_ends_once_and_is_bounded(kept: list[SpanRecord]) -> None:
    """What comes after the end, and what is too much, is left out."""
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {"long": "x" * 9999}) as span:
        for number in range(1000):
            span.set_attribute(f"n{number}", number)
        span.add_event("event")
        span.record_exception(ValueError("secret"))
        span.update_name("other")
        end_span(span, "odd")
        end_span(span)
        span.set_attribute("late", 1)
        span.update_name("late")
    (found,) = kept
    assert (found.name, found.failure) == ("other", "odd")
    assert len(found.attributes) <= MAX_ATTRIBUTES
    assert len(found.attributes["long"]) == MAX_TEXT
    assert "secret" not in repr(found)


def test_foreign_tracers_hand_the_trace_on(kept: list[SpanRecord]) -> None:
    """Spans of other libraries are not kept, and do not cut the trace."""
    journal: Any = tracing.journal_provider()
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}) as span:
        with journal.get_tracer("theirs").start_as_current_span("theirs") as inner:
            assert trace_headers(inner) == trace_headers(span)
            with span_at_edge("provider.call", SpanKind.CLIENT, {}):
                pass
        with journal.get_tracer("ergon").start_as_current_span("ours"):
            pass
    call, ours, enqueue = kept
    assert call.parent_id == ours.parent_id == enqueue.span_id


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_transaction_joins_the_trace_it_brings(colour: str, kept: list[SpanRecord]) -> None:
    """From a source that says so: its lifecycle hangs below the sender; the others have no span."""
    source = Joining([Transaction("t1", metadata={"traceparent": PARENT}), Transaction("t2")])
    sent = consumed(colour, source)
    by_name = {span.name: span for span in kept}
    assert by_name.keys() == {"start_processing", "process", "process.attempt", "settle"}
    assert {span.trace_id for span in kept} == {TRACE}
    assert by_name["start_processing"].parent_id == PARENT[36:52]
    assert by_name["process.attempt"].parent_id == by_name["process"].span_id
    assert by_name["start_processing"].unit == "t1"
    assert sent == [{"traceparent": f"00-{TRACE}-{by_name['process.attempt'].span_id}-01"}, {}]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("parent", ["link", "parent"])
def test_others_join_when_the_settings_say_so(
    colour: str, parent: str, kept: list[SpanRecord]
) -> None:
    """With "link" a call has no spans and no sink, and the context is handed on all the same."""
    configure(TelemetrySettings(parent=parent))
    sent = consumed(colour, MemoryConnector([Transaction("t", metadata={"traceparent": PARENT})]))
    assert bool(kept) == (parent == "parent")
    assert sent[0]["traceparent"][3:35] == TRACE


def test_a_call_that_cannot_have_traces_has_no_sink(kept: list[SpanRecord]) -> None:
    """So it keeps the engine's short way; inside of a trace it has one."""
    assert make_sink() is None
    assert not is_tracing()
    assert isinstance(make_sink(joins_trace=True), SpanSink)
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        assert isinstance(make_sink(), SpanSink)
        assert is_tracing()
    configure(TelemetrySettings(spans=False))
    assert make_sink(joins_trace=True) is None
    assert not is_tracing()


def test_spans_that_are_switched_off_are_nowhere(kept: list[SpanRecord]) -> None:
    """``spans = false`` counts for edges too."""
    configure(TelemetrySettings(spans=False))
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        pass
    assert kept == []


def test_an_sdk_takes_over_and_the_journal_hears_of_its_spans(
    kept: list[SpanRecord], use_provider: UseProvider
) -> None:
    """Set up at any time; only our own spans are kept, each once, with failures."""
    provider = TracerProvider(shutdown_on_exit=False)
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        pass
    use_provider(provider)
    with (
        suppress(LookupError),
        span_at_edge("job.enqueue", SpanKind.PRODUCER, {"rrq.job_id": "j"}) as own,
    ):
        with provider.get_tracer("theirs").start_as_current_span("theirs"):
            pass
        raise LookupError("secret")
    _, told = kept
    assert (told.name, told.unit, told.failure) == ("job.enqueue", "j", "LookupError")
    assert told.span_id == f"{own.get_span_context().span_id:016x}"


class Spiteful(SpanProcessor):
    """Fails whenever it is told of a span."""

    def __init__(self, moment: str, error: type[Exception]) -> None:
        self._moment = moment
        self._error = error

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """At the beginning, if that is its moment."""
        if self._moment == "start":
            raise self._error

    def on_end(self, span: Any) -> None:
        """At the end."""
        if self._moment == "end":
            raise self._error


@pytest.mark.parametrize("moment", ["start", "end"])
def test_an_sdk_that_fails_does_not_fail_the_work(
    moment: str, use_provider: UseProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """A processor of the user's may raise anything; it is said once."""
    # Each kind of error is logged once in a process: here it is one that nobody has seen before.
    unseen = type(f"Unseen{uuid.uuid4().hex}", (RuntimeError,), {})
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Spiteful(moment, unseen))
    use_provider(provider)
    done = []
    for _ in range(2):
        with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
            done.append(1)
        record_span("boundary.append", SpanKind.SERVER, {"traceparent": PARENT}, 1.0, {})
    assert done == [1, 1]
    assert [unseen.__name__ in record.getMessage() for record in caplog.records] == [True]


def test_a_trail_that_is_over_hears_nothing_more(tmp_path: Path, use_provider: UseProvider) -> None:
    """An SDK keeps its processors for ever; each span goes to the journal of its time."""
    use_provider(TracerProvider(shutdown_on_exit=False))
    heard: dict[str, list[SpanRecord]] = {"first": [], "second": []}
    for name, spans in heard.items():
        with (
            record_spans(spans.append, name, tmp_path),
            span_at_edge("job.enqueue", SpanKind.PRODUCER, {}),
        ):
            pass
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        pass
    assert [[span.source for span in spans] for spans in heard.values()] == [["first"], ["second"]]


@pytest.mark.parametrize("joins", [True, False])
def test_with_an_sdk_a_loops_own_trace_is_not_kept(
    joins: bool, kept: list[SpanRecord], use_provider: UseProvider
) -> None:
    """One trace for thousands of units explains none; those that bring a trace are kept."""
    provider = TracerProvider(shutdown_on_exit=False)
    use_provider(provider)
    kind = Joining if joins else MemoryConnector
    source = kind([Transaction("t1", metadata={"traceparent": PARENT}), Transaction("t2")])
    consumed("sync", source)
    assert {span.name for span in kept} == (
        {"start_processing", "process", "process.attempt", "settle"} if joins else set()
    )
    assert {span.trace_id for span in kept} == ({TRACE} if joins else set())


def test_a_disabled_sdk_leaves_the_trail(
    kept: list[SpanRecord], monkeypatch: pytest.MonkeyPatch, use_provider: UseProvider
) -> None:
    """A provider whose tracers do nothing is no reason to lose the trace."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    use_provider(TracerProvider(shutdown_on_exit=False))
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {}):
        pass
    assert len(kept) == 1


def test_nobody_traces_and_nothing_happens() -> None:
    """Without an SDK and a journal an edge has no span, and what came in is handed on."""
    context = SpanContext(int(TRACE, 16), 7, True, TraceFlags(1))
    with (
        trace.use_span(NonRecordingSpan(context)),
        span_at_edge("job.enqueue", SpanKind.PRODUCER, {}) as span,
    ):
        assert not span.is_recording()
        assert outgoing_metadata()["traceparent"].startswith(f"00-{TRACE}-{7:016x}")
    assert start_span("job.run", SpanKind.CONSUMER, {}, {"traceparent": PARENT}) is None


def test_children_learn_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable, which is as it was when the process no longer follows."""
    monkeypatch.delenv(VARIABLE, raising=False)
    path = tmp_path / "journal.db"
    with record_spans(print, "here", path):
        assert os.environ[VARIABLE] == f"sqlite:///{path}"
        assert tracing.journal_provider() is not None
        with record_spans(print, "inside", tmp_path / "other.db"):
            pass
        assert os.environ[VARIABLE] == f"sqlite:///{path}"
    assert VARIABLE not in os.environ
    assert tracing.journal_provider() is None


@pytest.mark.parametrize("named", ["", "none", "sqlite:////nowhere/at/all/journal.db", "odd:x"])
def test_a_child_without_a_journal_writes_none(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd or useless name harms nothing."""
    monkeypatch.setenv(VARIABLE, named)
    assert record_to_parent("child") is None
    assert tracing.journal_provider() is None


def test_a_child_writes_the_spans_of_its_parents_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """They are there when the writer is closed."""
    path = tmp_path / "journal.db"
    monkeypatch.setenv(VARIABLE, f"sqlite:///{path}")
    before, listeners = tracing.journal_provider(), list[Listener]()
    writer = record_to_parent("executor 1", listen=listeners.append)
    request.addfinalizer(lambda: tracing.set_journal_provider(before))
    assert writer is not None
    assert [type(each) for each in listeners] == [JournalListener]
    with span_at_edge("job.enqueue", SpanKind.PRODUCER, {"rrq.job_id": "j1"}) as span:
        pass
    writer.close()
    with SqliteJournal(path, read_only=True) as journal:
        (trace_id,) = journal.traces_of("j1")
        (found,) = journal.trace(trace_id)
    assert found.span_id == f"{span.get_span_context().span_id:016x}"
    assert found.source == "executor 1"
