"""The spans of one consume or produce call: the loop, and its fetches."""

from __future__ import annotations

import threading
import time
from contextvars import Context
from typing import Any

from opentelemetry.context import Context as OtelContext
from opentelemetry.context import get_current
from opentelemetry.trace import Link, Span, SpanKind, get_current_span

from ergon_framework.core.failure import Failure
from ergon_framework.errors import describe
from ergon_framework.ports.context import Call
from ergon_framework.telemetry import loop_traces
from ergon_framework.telemetry.attributes import (
    FETCH_SPAN,
    LIFECYCLE_SPAN,
    LOOP_SPAN,
    STEP_SPAN,
    Attributes,
    failure_attributes,
    failure_message,
    loop_attributes,
    report_attributes,
    shorten,
    step_attributes,
    task_attributes,
)
from ergon_framework.telemetry.current import make_current
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.writer import Below, SpanWriter

_KIND = {"consumer": SpanKind.CONSUMER, "producer": SpanKind.PRODUCER}
_NO_TROUBLE: tuple[Attributes, None] = ({}, None)


class StepSpan(Below):
    """An open step: its span, and what its last attempt came to."""

    __slots__ = ("attempts", "last_at", "shared", "trouble")

    def __init__(self, span: Span, base: OtelContext, shared: Attributes) -> None:
        self.span = span  # as Below does; super() would cost more than all of this
        self.parent = span.get_span_context()
        self.base = base
        self.shared = shared  # attributes of each of its attempts
        self.attempts = 0
        self.last_at: int | None = None  # None while an attempt or a wait for one is under way
        self.trouble: tuple[Attributes, str] | None = None

    def finish(self, writer: SpanWriter, at: int, attributes: Attributes) -> None:
        """End the span when its last attempt ended, or at ``at`` when it was cut short."""
        trouble, error = self.trouble or _NO_TROUBLE
        writer.finish(
            self.span,
            at if self.last_at is None else self.last_at,
            {"attempts": self.attempts, **attributes, **trouble},
            error,
        )


class LoopSpans:
    """One call. Made and begun in the caller's context, whose current span becomes the parent."""

    def __init__(
        self, call: Call, at: float, writer: SpanWriter, settings: TelemetrySettings
    ) -> None:
        self.call = call
        self.writer = writer
        self.settings = settings
        self.joins = settings.parent == "parent" or call.settings.get("joins_trace") is True
        self.base = get_current()
        self.shared = task_attributes(call)
        self.lifecycle = (LIFECYCLE_SPAN[call.role], _KIND[call.role])
        self.steps = {
            phase: (name, f"{name}.attempt", step_attributes(call, phase))
            for phase, name in STEP_SPAN[call.role].items()
        }
        # Offsets are taken once, so that spans follow the engine's clock even when it is virtual.
        self.offset = time.time_ns() - int(at * 1e9)
        self._parent = Below(get_current_span(), self.base)
        # The 0-based index of the batch in work; only where one ends before the next begins.
        self.batch: int | None = None
        self._in_batches = call.settings.get("mode", "batch") == "batch"
        self._batches = 0  # deliveries so far
        self._batches_before = 0  # … and before the loop span of now
        self._lock = threading.Lock()
        self.rotate_at: float | None = None
        self._fetch: StepSpan | None = None
        self._fetch_attempt: Span | None = None
        self._attributes = loop_attributes(call)
        self._fetch_attributes = step_attributes(call, "fetch")
        self._begin(at, [])

    def ns(self, at: float) -> int:
        """An instant of the engine's clock as nanoseconds since the epoch."""
        return self.offset + int(at * 1e9)

    def ended(self, at: float, report: Any, error: BaseException | None) -> None:
        """The call is over."""
        self._close_fetch(at, {})
        message = None if error is None else shorten(describe(error))
        attributes = report_attributes(report)
        if error is not None:
            attributes["exception.type"] = type(error).__qualname__
            attributes["exception.message"] = message
        self.writer.finish(self.below.span, self.ns(at), attributes, message)

    def rotate(self, at: float) -> None:
        """Begin a new loop span if the settings say that it is time."""
        if not self._is_due(at):
            return
        with self._lock:  # workers and the fetching thread may come here together
            if not self._is_due(at):
                return
            former = self.below.span
            self._begin(at, [Link(former.get_span_context())])
        self.writer.finish(former, self.ns(at), {"rotated": True})

    def _is_due(self, at: float) -> bool:
        due = self.rotate_at
        return due is not None and at >= due

    def fetch_began(self, at: float, number: int, requested: Any) -> None:
        """A fetch attempt starts; the first one of a row begins a fetch."""
        if self.settings.rotate == "batch" and self._batches > self._batches_before:
            self.rotate_at = at
        if not self.is_quiet:
            self.rotate(at)
        if self._in_batches:
            self.batch = self._batches
        if self.is_quiet or self.call.role == "producer":
            return  # a producer is given its input: the specification knows no fetch there
        self._close_fetch_attempt(at)
        if number == 0:
            self._close_fetch(at, {})
        step = self._fetch
        if step is None:
            asked = {} if requested is None else {"requested": requested}
            shared = {**self._fetch_attributes, **asked}
            span = self.writer.start(FETCH_SPAN, self.below, self.ns(at), shared)
            step = self._fetch = StepSpan(span, self.base, shared)
        step.attempts = number + 1
        step.last_at = None
        self._fetch_attempt = self.writer.start(
            f"{FETCH_SPAN}.attempt",
            step,
            self.ns(at),
            {**step.shared, "attempt": number, "attempt_number": number + 1},
        )

    def fetch_ended(self, at: float, delivered: int | None, failure: Failure | None) -> None:
        """A fetch attempt ended. After a failure another may follow, so the fetch stays open."""
        if delivered:
            self._batches += 1
        step, span = self._fetch, self._fetch_attempt
        if step is None or span is None:
            return
        self._fetch_attempt = None
        step.last_at = self.ns(at)
        got = {} if delivered is None else {"delivered": delivered}
        if failure is None:
            step.trouble = None
            self.writer.finish(span, step.last_at, got)
            self._close_fetch(at, got)
        else:
            step.trouble = ({**got, **failure_attributes(failure)}, failure_message(failure))
            self.writer.finish(span, step.last_at, *step.trouble)

    def enter_fetch(self, context: Context) -> None:
        """The connector is about to be called in ``context``."""
        if self._fetch_attempt is not None:
            make_current(self._fetch_attempt, self.base, context)

    def _begin(self, at: float, links: list[Link]) -> None:
        name = LOOP_SPAN[self.call.role]
        attributes = dict(self._attributes)
        span = self.writer.start(name, self._parent, self.ns(at), attributes, links)
        self.below = Below(span, self.base)
        # Of no trace at all, as on the trail: then only those who bring a trace have spans.
        self.is_quiet = not self.below.parent.is_valid
        if not self.is_quiet and not self._parent.parent.is_valid:
            loop_traces.add(self.below.parent.trace_id)
        self._batches_before = self._batches
        every = self.settings.rotate
        self.rotate_at = None if self.is_quiet or isinstance(every, str) else at + every

    def _close_fetch_attempt(self, at: float) -> None:
        """A fetch that hangs ends unheard, when the next thing is tried."""
        if self._fetch_attempt is not None:
            self.writer.finish(self._fetch_attempt, self.ns(at), {}, "given up")
            self._fetch_attempt = None

    def _close_fetch(self, at: float, attributes: Attributes) -> None:
        self._close_fetch_attempt(at)
        if self._fetch is not None:
            self._fetch.finish(self.writer, self.ns(at), attributes)
            self._fetch = None
