from __future__ import annotations

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.errors import ExceptionType, TransactionException
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import TelemetrySettings
from tests.telemetry.conftest import Recorder
from tests.telemetry.fake_engine import DOWN, FakeEngine

TX = Transaction("t1", {"card": "4111-secret"}, {"token": "secret"}, source="orders")
REFUSED = Failure(Kind.REJECTED, "transaction", "unknown customer")


def attributes(span: ReadableSpan) -> dict[str, object]:
    """What a span says."""
    return dict(span.attributes or {})


def seconds(span: ReadableSpan) -> float:
    """How long a span lasted."""
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.end_time - span.start_time) / 1e9, 3)


@pytest.mark.req("RFC-004:12a", "RFC-004:12g", "RFC-004:3c", "R0-TR1", "R1-O1", "T3.14")
def test_consumer_tree(recorder: Recorder) -> None:
    """A successful transaction has the spans of RFC-004 section 12 below the loop."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.fetch(1)
    engine.succeed(TX)
    engine.end()

    assert recorder.tree().splitlines() == [
        "consume_transactions",
        "  fetch_transactions",
        "    fetch_transactions.attempt",
        "  start_processing",
        "    process",
        "      process.attempt",
        "    handle_success",
        "      handle_success.attempt",
    ]


@pytest.mark.req("RFC-005:14a", "RFC-005:14h", "R0-TR1", "R1-O1")
def test_producer_tree(recorder: Recorder) -> None:
    """A producer has the spans of RFC-005 section 14, and none for reading its input."""
    engine = FakeEngine(recorder.sink(), role="producer")
    engine.begin()
    engine.fetch(2)
    engine.succeed(TX)
    run = engine.take(Transaction("t2"))
    engine.attempt(run, "produce", failure=REFUSED)
    engine.attempt(run, "exception")
    engine.finish(run, "failed", REFUSED)
    engine.end()

    assert recorder.tree().splitlines() == [
        "produce_transactions",
        "  start_producing",
        "    produce",
        "      produce.attempt",
        "    handle_produce_success",
        "      handle_produce_success.attempt",
        "  start_producing",
        "    produce",
        "      produce.attempt",
        "    handle_produce_exception",
        "      handle_produce_exception.attempt",
    ]
    assert len({span.context.trace_id for span in recorder.spans()}) == 1


@pytest.mark.req("RFC-004:12a", "RFC-004:14b", "R0-TR1", "R0-I5", "R0-I6", "R1-CX3")
def test_each_attempt_has_its_own_span_in_one_trace(recorder: Recorder) -> None:
    """Retries share their step span, and everything of a call is one trace."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(TX)
    engine.attempt(run, "process", 0, failure=DOWN)
    engine.retry(run, "process", 0, delay=1.0)
    engine.attempt(run, "process", 1, failure=DOWN)
    engine.attempt(run, "exception", 0)
    engine.finish(run, "failed", DOWN)
    engine.end()

    assert recorder.tree().splitlines() == [
        "consume_transactions",
        "  start_processing",
        "    process",
        "      process.attempt",
        "      process.attempt",
        "    handle_exception",
        "      handle_exception.attempt",
    ]
    assert len({span.context.trace_id for span in recorder.spans()}) == 1
    numbers = [
        (attributes(span)["attempt"], attributes(span)["attempt_number"])
        for span in recorder.named("process.attempt")
    ]
    assert numbers == [(0, 1), (1, 2)]
    assert attributes(recorder.one("process"))["attempts"] == 2
    assert attributes(recorder.one("start_processing"))["transaction.attempt"] == 2


@pytest.mark.req("RFC-004:12b", "RFC-004:12c", "RFC-004:12d", "RFC-004:12e")
@pytest.mark.req("RFC-005:14b", "RFC-005:14d", "RFC-005:14e")
@pytest.mark.parametrize(("role", "step"), [("consumer", "process"), ("producer", "produce")])
def test_attempt_attributes(recorder: Recorder, role: str, step: str) -> None:
    """An attempt names its task, step, number, policy and transaction; unset is left out."""
    engine = FakeEngine(recorder.sink(), role=role)
    engine.begin()
    engine.succeed(TX)
    engine.end()

    assert attributes(recorder.one(f"{step}.attempt")) == {
        "task": "Orders",
        "ergon.task": "Orders",
        "step": step,
        "attempt": 0,
        "attempt_number": 1,
        "max_attempts": 3,
        "timeout": 5.0,
        "backoff": 1.0,
        "backoff_multiplier": 2.0,
        "transaction_id": "t1",
        "transaction.id": "t1",
        "result": "NoneType",
    }


@pytest.mark.req("RFC-004:12b", "RFC-004:12c", "RFC-004:12d")
def test_fetch_attributes(recorder: Recorder) -> None:
    """A fetch attempt has its policy and its sizes; the connector runs with its span current."""
    engine = FakeEngine(recorder.sink())
    seen: list[trace.Span] = []
    engine.begin()
    engine.fetch(3, body=lambda: seen.append(trace.get_current_span()))
    engine.end()

    attempt = recorder.one("fetch_transactions.attempt")
    assert seen[0].get_span_context() == attempt.context
    assert attributes(attempt) == {
        "task": "Orders",
        "ergon.task": "Orders",
        "step": "fetch",
        "attempt": 0,
        "attempt_number": 1,
        "max_attempts": 3,
        "timeout": 5.0,
        "backoff": 1.0,
        "backoff_multiplier": 2.0,
        "requested": 10,
        "delivered": 3,
        "messaging.system": "ergon",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
    }


def test_fetch_retries_share_one_fetch(recorder: Recorder) -> None:
    """Failed and hanging fetch attempts stand below one fetch, each with its error."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.fetch(0, 0, failure=DOWN)
    engine.fetch(0, 1, hangs=True)
    engine.fetch(2, 2)
    engine.fetch(0, 0, hangs=True)
    engine.end()

    first, second = recorder.named("fetch_transactions")
    attempts = recorder.named("fetch_transactions.attempt")
    assert attributes(first)["attempts"] == 3
    assert attributes(first)["delivered"] == 2
    assert first.status.status_code is StatusCode.UNSET
    assert [span.status.description for span in attempts] == [
        "ConnectionError: the host is down",
        "given up",
        None,
        "given up",
    ]
    assert attributes(second)["attempts"] == 1


@pytest.mark.req("RFC-005:14f", "R1-O2")
def test_loop_and_lifecycle_attributes(recorder: Recorder) -> None:
    """The loop has the limits of the call, the lifecycle the identity and batch of its work."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.fetch(1)
    engine.succeed(TX)
    engine.fetch(1)
    engine.succeed(Transaction("t2"))
    engine.end(report=Report())

    loop = attributes(recorder.one("consume_transactions"))
    assert {name: loop[name] for name in ("concurrency", "batch_size", "streaming", "mode")} == {
        "concurrency": 4,
        "batch_size": 10,
        "streaming": False,
        "mode": "batch",
    }
    assert loop["timeout"] == 60.0
    assert "limit" not in loop
    assert (loop["transactions.succeeded"], loop["stop_reason"]) == (2, "empty")
    first, second = recorder.named("start_processing")
    assert attributes(first) == {
        "task": "Orders",
        "ergon.task": "Orders",
        "transaction_id": "t1",
        "transaction.id": "t1",
        "transaction.source": "orders",
        "transaction.attempt": 1,
        "batch_index": 0,
        "outcome": "succeeded",
        "messaging.system": "ergon",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "Orders",
        "messaging.destination.name": "orders",
        "messaging.message.id": "t1",
    }
    assert first.kind is SpanKind.CONSUMER
    assert attributes(second)["batch_index"] == 1
    assert "transaction.source" not in attributes(second)


class Report:
    succeeded = 2
    stop_reason = "empty"


@pytest.mark.req("RFC-004:12f", "RFC-005:14c", "T3.15")
def test_failures_are_explained(recorder: Recorder) -> None:
    """A failed attempt, its step and its lifecycle carry message, type and category."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(TX)
    run.exception = TransactionException("unknown customer", ExceptionType.BUSINESS)
    engine.attempt(run, "process", failure=REFUSED, exception=run.exception)
    broken = TransactionException("KeyError: 'x'", cause=KeyError("x"))
    failure = Failure(Kind.TRANSIENT, "KeyError", "KeyError: 'x'")
    engine.attempt(run, "exception", failure=failure, exception=broken)
    engine.finish(run, "failed", REFUSED, failure)
    engine.end()

    for name in ("process.attempt", "process", "start_processing"):
        span = recorder.one(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "unknown customer"
        assert attributes(span)["exception.message"] == "unknown customer"
        assert attributes(span)["exception.type"] == "TransactionException"
        assert attributes(span)["exception.category"] == "business"
    handler = recorder.one("handle_exception.attempt")
    assert attributes(handler)["exception.type"] == "KeyError"
    assert attributes(handler)["exception.category"] == "system"
    lifecycle = attributes(recorder.one("start_processing"))
    assert lifecycle["handler.exception.message"] == "KeyError: 'x'"
    assert lifecycle["outcome"] == "failed"


def test_a_step_that_recovers_is_no_error(recorder: Recorder) -> None:
    """A retry that works leaves the error on the failed attempt only."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(TX)
    engine.attempt(run, "process", 0, failure=DOWN)
    engine.retry(run, "process", 0, delay=1.0)
    engine.attempt(run, "process", 1)
    engine.finish(run)
    engine.end()

    assert recorder.one("process").status.status_code is StatusCode.UNSET
    assert "exception.message" not in attributes(recorder.one("process"))
    states = [span.status.status_code for span in recorder.named("process.attempt")]
    assert states == [StatusCode.ERROR, StatusCode.UNSET]


@pytest.mark.req("T3.15")
def test_messages_are_shortened(recorder: Recorder) -> None:
    """An exception's message is cut to 500 characters."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(TX)
    engine.attempt(run, "process", failure=Failure(Kind.TRANSIENT, "ValueError", "x" * 5000))
    engine.finish(run, "failed", DOWN)
    engine.end()

    message = attributes(recorder.one("process.attempt"))["exception.message"]
    assert isinstance(message, str)
    assert len(message) == 500
    assert message.endswith("…")


@pytest.mark.req("R0-SEC", "T3.15")
def test_nothing_private_on_spans(recorder: Recorder) -> None:
    """Neither payload, metadata nor result content reaches any span."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.succeed(TX, body=lambda: {"iban": "secret"})
    engine.end()

    assert "secret" not in "".join(span.to_json() for span in recorder.spans())
    assert attributes(recorder.one("process.attempt"))["result"] == "dict"


@pytest.mark.req("R0-SEC")
def test_settings_may_show_payloads_and_results(recorder: Recorder) -> None:
    """With the settings for it the text is there, shortened; metadata still is not."""
    settings = TelemetrySettings(metrics=False, payloads=True, results=True)
    engine = FakeEngine(recorder.sink(settings))
    engine.begin()
    engine.succeed(TX, body=lambda: {"iban": "x" * 1000})
    engine.succeed(Transaction("t2", Unprintable()))
    engine.end()

    payloads = [
        attributes(span)["transaction.payload"] for span in recorder.named("start_processing")
    ]
    assert payloads[0] == "{'card': '4111-secret'}"
    assert payloads[1] == "<Unprintable: repr failed with ValueError>"
    result = attributes(recorder.named("process.attempt")[0])["result"]
    assert isinstance(result, str)
    assert (result[:9], len(result)) == ("{'iban': ", 500)
    assert "token" not in "".join(span.to_json() for span in recorder.spans())


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError


def test_times_follow_the_engines_clock(recorder: Recorder) -> None:
    """Spans last as long as the engine's clock says, waits between attempts included."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(TX)
    engine.attempt(run, "process", 0, failure=DOWN, seconds=2.0)
    engine.retry(run, "process", 0, delay=600.0)
    engine.attempt(run, "process", 1, seconds=3.0)
    engine.time += 0.5
    engine.attempt(run, "success", seconds=1.0)
    engine.finish(run)
    engine.end()

    assert [seconds(span) for span in recorder.named("process.attempt")] == [2.0, 3.0]
    assert seconds(recorder.one("process")) == 605.0
    assert seconds(recorder.one("handle_success")) == 1.0
    assert seconds(recorder.one("start_processing")) == 606.5
    assert seconds(recorder.one("consume_transactions")) == 606.5


def test_a_cut_off_attempt_ends_with_its_lifecycle(recorder: Recorder) -> None:
    """What is still open when the outcome comes, or waits for a retry, ends then and there."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    waiting, hanging = engine.take(TX), engine.take(Transaction("t2"))
    engine.attempt(waiting, "process", failure=DOWN)
    engine.retry(waiting, "process", 0, delay=5.0)
    engine.finish(waiting, "aborted")
    attempt = engine.enter(hanging, "process")
    engine.time += 2.0
    engine.finish(hanging, "aborted")
    engine.tell(attempt)
    engine.end(error=TimeoutError("over"))

    first, second = recorder.named("process")
    assert seconds(first) == 6.0
    assert seconds(second) == 2.0
    assert recorder.named("process.attempt")[1].status.description == "aborted"
    assert recorder.named("start_processing")[1].status.description == "aborted"
    assert recorder.one("consume_transactions").status.description == "TimeoutError: over"


@pytest.mark.req("T3.16")
def test_user_code_sees_its_attempt_and_its_baggage(recorder: Recorder) -> None:
    """The attempt's span is current in the hook, on top of the caller's context."""
    engine = FakeEngine(recorder.sink())
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        engine.begin()
        run = engine.take(TX)
    finally:
        context.detach(token)
    seen: list[object] = []

    def hook() -> None:
        seen.append(baggage.get_baggage("tenant"))
        with recorder.tracer.start_as_current_span("mine"):
            trace.get_current_span().add_event("hello")

    engine.attempt(run, "process", body=hook)
    engine.finish(run)
    engine.end()

    assert seen == ["acme"]
    mine = recorder.one("mine")
    assert mine.parent == recorder.one("process.attempt").context


@pytest.mark.req("R0-C3", "R1-CX2", "T3.16")
def test_nothing_leaks_out_of_an_attempt(recorder: Recorder) -> None:
    """After an attempt, and in the next one, there is no trace of its span or its variables."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run, other = engine.take(TX), engine.take(Transaction("t2"))
    seen: list[int] = []

    def note() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        context.attach(baggage.set_baggage("leak", str(len(seen))))
        assert baggage.get_baggage("leak") == str(len(seen))

    for which, number in ((run, 0), (run, 1), (other, 0)):
        engine.attempt(which, "process", number, body=note)
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert baggage.get_baggage("leak") is None
    assert len(set(seen)) == 3


def test_the_callers_span_is_the_parent(recorder: Recorder) -> None:
    """A loop begun inside a span, as in a hybrid task, becomes its child."""
    with recorder.tracer.start_as_current_span("caller"):
        engine = FakeEngine(recorder.sink(), role="producer")
        engine.begin()
    engine.succeed(TX)
    engine.end()

    assert recorder.tree().splitlines()[:3] == [
        "caller",
        "  produce_transactions",
        "    start_producing",
    ]


def test_user_code_may_write_on_the_attempt(recorder: Recorder) -> None:
    """Attributes, events, status and a name set by a hook are exported with ours."""

    def hook() -> None:
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("mine", [1, 2])
        span.set_attributes({"step": "renamed by the user"})
        span.add_event("half-way", {"n": 1})
        span.record_exception(ValueError("handled"))
        span.add_link(recorder.tracer.start_span("other").get_span_context())
        span.set_status(StatusCode.OK)

    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(TX)
    engine.attempt(run, "process", body=hook, failure=DOWN)
    engine.finish(run, "failed", DOWN)
    engine.end()

    span = recorder.one("process.attempt")
    assert attributes(span)["mine"] == (1, 2)
    assert attributes(span)["step"] == "renamed by the user"
    assert attributes(span)["exception.type"] == "ConnectionError"
    assert [event.name for event in span.events] == ["half-way", "exception"]
    assert len(span.links) == 1
    assert span.status.status_code is StatusCode.OK  # the user's word is final, as in the SDK


def test_user_code_may_end_the_attempt(recorder: Recorder) -> None:
    """A hook that ends the span it was given loses nothing but our last attributes."""
    engine = FakeEngine(recorder.sink())
    engine.begin()
    engine.succeed(TX, body=lambda: trace.get_current_span().end())
    engine.end()

    assert len(recorder.named("process.attempt")) == 1
    assert recorder.one("start_processing").status.status_code is StatusCode.UNSET


def test_late_and_unknown_notices_are_ignored(recorder: Recorder) -> None:
    """Notices about calls and runs the sink has not seen begin do no harm."""
    engine = FakeEngine(recorder.sink())
    run = engine.take(TX)
    engine.attempt(run, "process")
    engine.retry(run, "process", 0, 1.0)
    engine.finish(run)
    engine.fetch(1)
    engine.end()

    assert recorder.spans() == []
