from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from opentelemetry.trace import NoOpTracerProvider

from ergon_framework.errors import SettingsError
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import (
    TelemetrySettings,
    add_listener,
    make_sink,
    notices,
    remove_listener,
)
from ergon_framework.telemetry.notices import Listener, has_listeners
from ergon_framework.telemetry.spans import LifecycleSpans, LoopSpans, SpanSink
from tests.telemetry.conftest import Recorder
from tests.telemetry.fake_engine import FakeEngine


@pytest.fixture(autouse=True)
def _no_complaints_yet() -> Iterator[None]:
    notices.log_once.forget()
    yield
    notices.log_once.forget()


def tell(engine: FakeEngine) -> None:
    """A whole call with one transaction."""
    engine.begin()
    engine.succeed(Transaction("t1"))
    engine.end()


def test_nothing_configured_makes_no_sink() -> None:
    """Without providers and listeners the engine is given nothing to tell."""
    assert make_sink() is None
    assert make_sink(tracer_provider=NoOpTracerProvider()) is None


def test_switched_off_parts_make_no_sink() -> None:
    """Settings that want neither spans nor metrics need no sink."""
    settings = TelemetrySettings(spans=False, metrics=False)
    assert make_sink(settings, tracer_provider=Recorder("lean").provider) is None


def test_a_disabled_sdk_makes_no_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SDK_DISABLED is respected: its tracers record nothing."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert make_sink(tracer_provider=Recorder("lean").provider) is None


@pytest.mark.req("R0-LG1")
def test_log_fields_come_with_the_first_call() -> None:
    """Records get their ids without any set-up, unless the settings say no."""
    seen: list[bool] = []

    def log() -> None:
        seen.append(hasattr(logging.makeLogRecord({}), "transaction_id"))

    for settings in (TelemetrySettings(logs=False), TelemetrySettings()):
        engine = FakeEngine(make_sink(settings, listeners=[lambda _: None]))
        engine.begin()
        engine.succeed(Transaction("t1"), body=log)
        engine.end()
    assert seen == [False, True]


def test_listeners_hear_everything_in_order() -> None:
    """A listener gets every notice of the call it was given to."""
    heard: list[Notice] = []
    tell(FakeEngine(make_sink(listeners=[heard.append])))

    assert [notice.name for notice in heard] == [
        "call.began",
        "transaction.began",
        "attempt.ended",
        "attempt.ended",
        "transaction.ended",
        "call.ended",
    ]


def test_lifecycles_may_be_told_directly(recorder: Recorder) -> None:
    """The same story without notices reaches spans and listeners alike."""
    heard: list[Notice] = []
    for is_direct in (False, True):
        sink = make_sink(listeners=[heard.append], tracer_provider=recorder.provider)
        tell(FakeEngine(sink, is_direct=is_direct))

    shapes = [(notice.name, notice.at, sorted(notice.fields)) for notice in heard]
    assert shapes[:6] == shapes[6:]
    tree = recorder.tree().splitlines()
    assert tree[:6] == tree[6:]


def test_spans_alone_are_the_sink(recorder: Recorder) -> None:
    """With nobody else to tell there is nothing between the engine and the spans."""
    alone = make_sink(TelemetrySettings(metrics=False), tracer_provider=recorder.provider)
    assert isinstance(alone, SpanSink)
    alone.emit(Notice("job.leased", 0.0, {}))
    tell(FakeEngine(alone, is_direct=True))
    assert len(recorder.spans()) == 6


@pytest.mark.parametrize("is_direct", [False, True])
def test_each_defect_of_spans_is_told_once(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_direct: bool,
) -> None:
    """Whatever part of a lifecycle's spans fails, the work goes on and the log is not flooded."""
    sink = make_sink(TelemetrySettings(metrics=False), tracer_provider=recorder.provider)
    engine = FakeEngine(sink, is_direct=is_direct)
    engine.begin()
    for name in ("attempt_ended", "ended", "__init__"):
        monkeypatch.setattr(LifecycleSpans, name, None)
        engine.succeed(Transaction("t1"))
        engine.succeed(Transaction("t1"))
        monkeypatch.undo()
    monkeypatch.setattr(LoopSpans, "ended", None)
    engine.end()
    complaints = [record.getMessage().split()[0] for record in caplog.records]
    assert complaints == [f"SpanSink.{name}" for name in ("left", "ended", "began", "_call_ended")]


def test_process_wide_listeners() -> None:
    """A listener of the process hears calls that begin after it came, and none after it left."""
    heard: list[Notice] = []
    add_listener(heard.append)
    add_listener(heard.append)
    try:
        tell(FakeEngine(make_sink()))
        assert len(heard) == 6
    finally:
        remove_listener(heard.append)
    remove_listener(heard.append)
    assert make_sink() is None


class Raises:
    """A listener that cannot say what it passes over."""

    @property
    def passes_over(self) -> set[str]:
        """Fails."""
        raise ValueError("broken display")

    def __call__(self, notice: Notice) -> None:
        """Take nothing."""


@pytest.mark.parametrize(
    ("listener", "is_heard"),
    [
        (Mock(passes_over={"job.completed"}), False),
        (Mock(passes_over=frozenset({"job.completed", "job.late"})), False),
        (Mock(passes_over={"job"}), True),
        (Mock(spec=[]), True),
        (Mock(), True),
        (Mock(passes_over=None), True),
        (Mock(passes_over="job.completed"), True),
        (Mock(passes_over=["job.completed"]), True),
        (Raises(), True),
    ],
)
def test_only_a_set_names_what_a_listener_goes_without(listener: Listener, is_heard: bool) -> None:
    """Whatever else it has by that name fails nobody: a worker asks between its store and it."""
    add_listener(listener)
    try:
        assert has_listeners()
        assert has_listeners("job.completed") is is_heard
        assert has_listeners("job.dead_lettered")
    finally:
        remove_listener(listener)


def test_a_failing_listener_harms_nobody(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """What a listener raises is logged once; spans, other listeners and the work go on."""
    heard: list[Notice] = []

    def broken(notice: Notice) -> None:
        raise ValueError("broken display")

    sink = make_sink(listeners=[broken, heard.append], tracer_provider=recorder.provider)
    for _ in range(2):
        tell(FakeEngine(sink))

    assert len(heard) == 12
    assert len(recorder.named("process.attempt")) == 2
    complaints = [record for record in caplog.records if "broken" in record.getMessage()]
    assert len(complaints) == 1
    assert complaints[0].exc_info is not None


def test_a_failing_span_harms_nobody(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect in the span writer neither reaches user code nor the listeners."""
    heard: list[Notice] = []
    sink = make_sink(listeners=[heard.append], tracer_provider=recorder.provider)
    engine = FakeEngine(sink)
    engine.begin()
    monkeypatch.setattr("ergon_framework.telemetry.spans.make_current", None)
    ran: list[int] = []
    engine.succeed(Transaction("t1"), body=lambda: ran.append(1))
    engine.end()

    assert ran == [1]
    assert len(heard) == 6
    assert [record.name for record in caplog.records] == ["ergon_framework.telemetry"]


def test_unknown_notices_reach_listeners_only(recorder: Recorder) -> None:
    """Names that other parts add to the catalogue pass through."""
    heard: list[Notice] = []
    sink = make_sink(listeners=[heard.append], tracer_provider=recorder.provider)
    assert sink is not None
    sink.emit(Notice("job.leased", 0.0, {}))
    assert [notice.name for notice in heard] == ["job.leased"]


@pytest.mark.parametrize(
    "wrong",
    [{"parent": "child"}, {"rotate": "daily"}, {"rotate": 0.0}, {"rotate": float("nan")}],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    """A setting that means nothing is refused with what would be right."""
    with pytest.raises(SettingsError, match=r"telemetry\.(parent|rotate) is .* \(use "):
        TelemetrySettings(**wrong)  # type: ignore[arg-type]


def test_the_sdk_is_not_imported() -> None:
    """Only the OpenTelemetry API is loaded until somebody configures more."""
    program = (
        "import sys, ergon_framework.telemetry as t; assert t.make_sink() is None; "
        "print([m for m in sys.modules if m.startswith('opentelemetry.sdk')])"
    )
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "[]"
