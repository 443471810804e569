from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ergon_framework.errors import Discard
from ergon_framework.executor import Held, Registry, RetryLater, tracing
from tests.executor.link import Child, Link, runtime_command

pytestmark = [pytest.mark.req("EXEC:Tracing", "JOBS:executor")]

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "secret-value"  # noqa: S105


def carried() -> dict[str, str]:
    """What would be sent out here."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def registry_of_all() -> Registry:
    """A handler for each outcome."""
    registry = Registry()

    def work(secret: str) -> dict[str, str]:
        return carried()

    async def awork(secret: str) -> dict[str, str]:
        return carried()

    def fail(secret: str) -> None:
        raise LookupError(secret)

    def later(secret: str) -> None:
        raise RetryLater(secret)

    def held(secret: str) -> None:
        raise Held(secret, 1)

    def slow(secret: str) -> None:
        raise TimeoutError(secret)

    def discard(secret: str) -> None:
        raise Discard(secret)

    for each in (work, awork, fail, later, held, slow, discard):
        registry.add(each)
    return registry


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """An SDK whose spans are kept in memory."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.mark.parametrize("name", ["work", "awork"])
def test_the_trace_of_a_request_is_continued(name: str, spans: InMemorySpanExporter) -> None:
    """One span of kind consumer, below the sender's, current while the handler runs."""
    with Link(registry_of_all()) as link:
        told = link.ask(
            name, SECRET, job_id="j", _trace_context=CARRIER, _attempt=2, _worker_id="w"
        )
    (span,) = spans.get_finished_spans()
    assert span.name == "rrq.executor"
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert told["result"]["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert dict(span.attributes or {}) == {
        "rrq.job_id": "j",
        "rrq.function": name,
        "rrq.queue": "default",
        "rrq.attempt": 2,
        "rrq.worker_id": "w",
        "rrq.outcome": "success",
        "messaging.system": "ergon",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": "j",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_discarded_job_is_no_error_of_the_trace(spans: InMemorySpanExporter) -> None:
    """Whoever counts spans with an error type does not count it."""
    with Link(registry_of_all()) as link:
        assert link.ask("discard", SECRET, _trace_context=CARRIER)["status"] == "success"
    (span,) = spans.get_finished_spans()
    assert "error.type" not in (span.attributes or {})
    assert span.status.status_code is StatusCode.UNSET
    assert SECRET not in span.to_json()


@pytest.mark.parametrize(
    ("name", "outcome", "kind", "is_failure"),
    [
        ("fail", "error", "LookupError", True),
        ("slow", "timeout", "TimeoutError", True),
        ("later", "retry", "RetryLater", False),
        ("held", "retry", "held", False),
    ],
)
def test_a_failure_is_told_by_its_class_alone(
    name: str, outcome: str, kind: str, is_failure: bool, spans: InMemorySpanExporter
) -> None:
    """Neither arguments nor results nor texts are in a span."""
    with Link(registry_of_all()) as link:
        assert link.ask(name, SECRET, _trace_context=CARRIER)["error_message"] == SECRET
    (span,) = spans.get_finished_spans()
    attributes = span.attributes or {}
    assert (attributes["rrq.outcome"], attributes["error.type"]) == (outcome, kind)
    assert (span.status.status_code is StatusCode.ERROR) is is_failure
    assert SECRET not in span.to_json()


def test_requests_of_one_process_do_not_mix(spans: InMemorySpanExporter) -> None:
    """The context of one is gone when the next begins."""
    other = {"traceparent": f"00-{'1' * 32}-{PARENT}-01"}
    with Link(registry_of_all()) as link:
        first = link.ask("work", "x", _trace_context=CARRIER)["result"]
        second = link.ask("work", "x", _trace_context=other)["result"]
    assert (first["traceparent"][3:35], second["traceparent"][3:35]) == (TRACE, "1" * 32)
    assert trace.get_current_span().get_span_context().is_valid is False


def test_without_an_sdk_the_trace_is_passed_on() -> None:
    """What the handler sends out belongs to the sender's trace."""
    with Link(registry_of_all()) as link:
        assert link.ask("work", "x", _trace_context=CARRIER)["result"] == CARRIER
        assert link.ask("work", "x", _trace_context={"traceparent": "junk"})["result"] == {}


def test_trouble_with_tracing_is_not_the_jobs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told on the standard error, and the handler runs."""

    def broken(*_: Any) -> None:
        raise RuntimeError("no tracer")

    monkeypatch.setattr(tracing, "begin", broken)
    with Link(registry_of_all()) as link:
        assert link.ask("work", "x", _trace_context=CARRIER)["status"] == "success"
    assert "the trace cannot be continued: no tracer" in capfd.readouterr().err


@pytest.mark.slow
def test_a_process_with_an_sdk_records_every_request() -> None:
    """Also those that came without a trace."""
    with Child(runtime_command("traced:registry")) as executor:
        told = executor.ask("work", SECRET, _trace_context=CARRIER)
        executor.ask("fail", SECRET)
        executor.end_input()
        assert executor.code() == 0
        lines = [line for line in executor.errors().splitlines() if line.startswith("span ")]
    spans = [json.loads(line.removeprefix("span ")) for line in lines]
    inner, outer, failed = spans
    assert [each["name"] for each in spans] == ["inner", "rrq.executor", "rrq.executor"]
    assert inner["parent_id"] == outer["context"]["span_id"]
    assert told["result"]["traceparent"].split("-")[1] == TRACE
    assert failed["parent_id"] is None
    assert failed["status"]["status_code"] == "ERROR"
    assert SECRET not in json.dumps(spans)
