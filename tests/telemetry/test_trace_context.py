"""Trace context that comes with transactions, leaves with them, and rotates."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import TelemetrySettings, extract, inject, outgoing_metadata
from tests.telemetry.conftest import Recorder
from tests.telemetry.fake_engine import FakeEngine

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
FAR = Transaction("t1", metadata={"traceparent": PARENT, "tracestate": "vendor=1"})


def hex_ids(context: SpanContext | None) -> tuple[str, str] | None:
    """Trace id and span id as they are written."""
    return context and (f"{context.trace_id:032x}", f"{context.span_id:016x}")


@pytest.mark.req("R1-CX1")
@pytest.mark.parametrize(
    ("transaction", "expected"),
    [
        (FAR, (TRACE, "b7ad6b7169203331")),
        (Transaction("t", trace_id=PARENT), (TRACE, "b7ad6b7169203331")),
        (Transaction("t", trace_id=TRACE), (TRACE, TRACE[16:])),
        (Transaction("t"), None),
        (Transaction("t", trace_id="not a trace"), None),
        (Transaction("t", trace_id="0" * 32), None),
        (Transaction("t", metadata={"traceparent": b"\xff"}), None),
        (Transaction("t", metadata={"traceparent": "00-zz"}, trace_id=TRACE), None),
        (
            Transaction("t", metadata={"traceparent": PARENT, "tracestate": 7}),
            (TRACE, "b7ad6b7169203331"),
        ),
    ],
)
def test_extract(transaction: Transaction, expected: tuple[str, str] | None) -> None:
    """A trace context is found in the metadata or the trace id; nonsense is ignored."""
    assert hex_ids(extract(transaction)) == expected


@pytest.mark.req("R1-O1", "T3.14")
def test_incoming_context_is_linked(recorder: Recorder) -> None:
    """By default a lifecycle stays below its loop and links to where it came from."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.succeed(FAR)
    engine.end()

    span = recorder.one("start_processing")
    assert span.parent == recorder.one("consume_transactions").context
    assert [hex_ids(link.context) for link in span.links] == [(TRACE, "b7ad6b7169203331")]
    assert span.links[0].context.trace_state.get("vendor") == "1"


@pytest.mark.req("R1-O1", "R0-I6", "T3.14")
def test_incoming_context_as_parent(recorder: Recorder) -> None:
    """With parent="parent" the whole subtree joins the incoming trace and links to its loop."""
    engine = FakeEngine(recorder.sink(TelemetrySettings(metrics=False, parent="parent")))
    engine.begin()
    engine.succeed(FAR)
    engine.succeed(Transaction("t2"))
    engine.end()

    span, plain = recorder.named("start_processing")
    loop = recorder.one("consume_transactions").context
    assert hex_ids(span.parent) == (TRACE, "b7ad6b7169203331")
    assert [link.context for link in span.links] == [loop]
    assert plain.parent == loop
    below = recorder.named("process.attempt")[0]
    assert f"{below.context.trace_id:032x}" == TRACE
    assert below.context.trace_state.get("vendor") == "1"


@pytest.mark.req("R1-I4")
def test_outgoing_transactions_carry_the_current_span(recorder: Recorder) -> None:
    """What a hook sends out continues the trace of the attempt that made it."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(FAR)
    child = engine.attempt(run, "process", body=lambda: inject(FAR.derive({"n": 1})))
    engine.finish(run)
    engine.end()

    attempt = recorder.one("process.attempt").context
    assert hex_ids(extract(child)) == hex_ids(attempt)
    assert child.trace_id == f"{attempt.trace_id:032x}"
    assert (child.parent_id, child.payload) == ("t1", {"n": 1})
    assert child.transaction_id != "t1"


@pytest.mark.req("R1-I4")
def test_context_travels_on_without_any_sdk() -> None:
    """Where nothing records spans, the incoming context is handed on as it came."""
    engine = FakeEngine(Deaf())
    engine.begin()
    run = engine.take(FAR)
    sent = engine.attempt(run, "process", body=outgoing_metadata)

    assert sent == {"traceparent": PARENT, "tracestate": "vendor=1"}


class Deaf:
    def emit(self, notice: object) -> None:
        pass

    def enter(self, attempt: object, context: object) -> None:
        pass


def test_inject_replaces_an_older_context(recorder: Recorder) -> None:
    """A transaction that is passed on keeps its id and its metadata but not its old trace."""
    passed = Transaction("t1", 1, {"traceparent": PARENT, "tracestate": "old=1", "keep": "me"})
    with recorder.tracer.start_as_current_span("send") as span:
        sent = inject(passed)

    assert hex_ids(extract(sent)) == hex_ids(span.get_span_context())
    assert set(sent.metadata) == {"traceparent", "keep"}
    assert (sent.transaction_id, sent.payload) == ("t1", 1)
    assert sent.created_at == passed.created_at


def test_inject_without_context_changes_nothing() -> None:
    """With no current span and no attempt there is nothing to carry."""
    transaction = Transaction("t1")
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert inject(transaction) is transaction
    assert outgoing_metadata() == {}


@pytest.mark.req("T3.14")
def test_rotation_by_time(recorder: Recorder) -> None:
    """A loop span is replaced after so many seconds; work in flight stays where it began."""
    engine = FakeEngine(
        recorder.sink(TelemetrySettings(metrics=False, rotate=10.0)), streaming=True
    )
    engine.begin()
    early = engine.take(Transaction("early"))
    engine.time += 10.0
    late = engine.take(Transaction("late"))
    engine.finish(early)
    engine.finish(late)
    engine.end()

    first, second = recorder.named("consume_transactions")
    assert dict(first.attributes or {})["rotated"] is True
    assert [link.context for link in second.links] == [first.context]
    assert first.context.trace_id != second.context.trace_id
    parents = {
        dict(span.attributes or {})["transaction_id"]: span.parent
        for span in recorder.named("start_processing")
    }
    assert parents == {"early": first.context, "late": second.context}


@pytest.mark.req("T3.14")
def test_rotation_by_batch(recorder: Recorder) -> None:
    """A loop span per batch holds the batch's fetch and its transactions."""
    engine = FakeEngine(recorder.sink(TelemetrySettings(metrics=False, rotate="batch")))
    engine.begin()
    for name in ("a", "b"):
        engine.fetch(0)
        engine.fetch(1)
        engine.succeed(Transaction(name))
    engine.end()

    lifecycle = ["start_processing", "  process", "    process.attempt"]
    lifecycle += ["  handle_success", "    handle_success.attempt"]
    fetch = ["fetch_transactions", "  fetch_transactions.attempt"]
    batch = ["consume_transactions", *("  " + line for line in fetch + fetch + lifecycle)]
    assert recorder.tree().splitlines() == batch + batch


@pytest.mark.req("T3.14")
def test_no_rotation_by_default(recorder: Recorder) -> None:
    """A streaming loop is one span however long it lasts."""
    engine = FakeEngine(recorder.sink(), streaming=True)
    engine.begin()
    for _ in range(3):
        engine.fetch(1)
        engine.succeed(Transaction("t"))
        engine.time += 86400.0
    engine.end()

    assert len(recorder.named("consume_transactions")) == 1
