"""Scenes for end-to-end tests: real engines of both colours, watched as in a real process."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import ReadableSpan

from ergon_framework.task.ready import AsyncHybridTask, HybridTask
from ergon_framework.telemetry import TelemetrySettings, configure
from ergon_framework.telemetry.span_writer import ApiSpanWriter
from tests.engine.bodies import method
from tests.engine.colours import Colour
from tests.telemetry.conftest import Numbers, Recorder


class Watch:
    """What a watched process recorded."""

    def __init__(self, recorder: Recorder, numbers: Numbers) -> None:
        self.recorder = recorder
        self.numbers = numbers
        self.tracer = recorder.tracer
        self.one, self.named, self.spans = recorder.one, recorder.named, recorder.spans

    def says(self, name: str) -> dict[str, Any]:
        """The attributes of the only span of that name."""
        return dict(self.one(name).attributes or {})

    def tree(self, below: str | None = None) -> str:
        """The tree of all spans, or the only subtree whose root has that name."""
        lines = self.recorder.tree().splitlines()
        if below is None:
            return "\n".join(lines)
        (start,) = (n for n, line in enumerate(lines) if line.strip() == below)
        depth = indent(lines[start])
        inside = [lines[start]]
        for line in lines[start + 1 :]:
            if indent(line) <= depth:
                break
            inside.append(line)
        return "\n".join(line[depth:] for line in inside)


def indent(line: str) -> int:
    """Leading spaces."""
    return len(line) - len(line.lstrip())


def watch_process(
    recorder: Recorder, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watch]:
    """Let this process have a tracer provider and a meter provider, as an application would."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorder.provider)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: numbers.provider)
    if recorder.way == "api":
        monkeypatch.setattr("ergon_framework.telemetry.sink.best_writer", ApiSpanWriter)
    yield Watch(recorder, numbers)
    configure(TelemetrySettings())


def lines(text: str) -> str:
    """A tree as it is written in a test."""
    return dedent(text).strip()


def seconds(span: ReadableSpan) -> float:
    """How long it lasted, in virtual time; rounded, for the offset is a whole number."""
    return round(((span.end_time or 0) - (span.start_time or 0)) / 1e9, 3)


def failed(span: ReadableSpan) -> str | None:
    """The error text of a span that failed."""
    return None if span.status.is_ok or span.status.is_unset else span.status.description


def hybrid(colour: Colour, source: Any, **hooks: Any) -> Any:
    """A task that consumes and produces, with hooks written as coroutines."""
    base = HybridTask if colour == "sync" else AsyncHybridTask
    kind = type("Both", (base,), {name: method(colour, body) for name, body in hooks.items()})
    return kind({"source": source}, {})
