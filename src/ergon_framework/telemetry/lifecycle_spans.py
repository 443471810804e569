"""The spans of one transaction: its lifecycle, the step it stands in, the attempt under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.trace import Link, NonRecordingSpan, Span

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.attributes import (
    SETTLE_SPAN,
    Attributes,
    failure_attributes,
    failure_message,
    shown,
)
from ergon_framework.telemetry.loop_spans import LoopSpans, StepSpan
from ergon_framework.telemetry.propagation import extract
from ergon_framework.telemetry.writer import Below

_HANDLERS = {"success", "exception"}
_NOTHING: Attributes = {}
_NO_LINKS: Sequence[Link] = ()


class LifecycleSpans(Below):
    """One transaction: its lifecycle span, the open step, the open attempt."""

    __slots__ = ("attempt", "key", "loop", "phase", "settling", "step", "work_attempts")

    def __init__(self, loop: LoopSpans, transaction: Transaction, at: float) -> None:
        self.loop = loop
        self.base = loop.base
        self.key = key = transaction.transaction_id
        self.phase = ""
        self.step: StepSpan | None = None
        self.attempt: Span | None = None
        self.settling: Span | None = None
        self.work_attempts = 0
        attributes = {**loop.shared, "transaction_id": key, "transaction.id": key}
        if transaction.source is not None:
            attributes["transaction.source"] = transaction.source
        if loop.batch is not None:
            attributes["batch_index"] = loop.batch
        if loop.settings.payloads:
            attributes["transaction.payload"] = shown(transaction.payload)
        below, links = loop.below, _NO_LINKS
        if transaction.trace_id is not None or transaction.metadata:
            below, links = _place(loop, transaction)
        name, kind = loop.lifecycle
        started_at = loop.offset + int(at * 1e9)
        self.span = loop.writer.start(name, below, started_at, attributes, links, kind)
        self.parent = self.span.get_span_context()

    def enter(self, attempt: Attempt) -> Span:
        """An attempt starts; the first one of a phase begins its step."""
        if attempt.phase == SETTLE_SPAN:
            return self._settling(attempt)
        loop, step, phase, number = self.loop, self.step, attempt.phase, attempt.number
        at = loop.offset + int(attempt.began_at * 1e9)
        if step is None or phase != self.phase:
            step = self._open_step(phase, at)
        step.attempts = number + 1
        step.last_at = None
        if phase not in _HANDLERS:
            self.work_attempts = number + 1
        attributes = {**step.shared, "attempt": number, "attempt_number": number + 1}
        span = self.attempt = loop.writer.start(loop.steps[phase][1], step, at, attributes)
        return span

    def _open_step(self, phase: str, at: int) -> StepSpan:
        loop, key = self.loop, self.key
        if self.step is not None:
            self.step.finish(loop.writer, at, _NOTHING)
        name, _, shared = loop.steps[phase]
        shared = {**shared, "transaction_id": key, "transaction.id": key}
        self.phase = phase
        step = self.step = StepSpan(loop.writer.start(name, self, at, shared), loop.base, shared)
        return step

    def attempt_ended(
        self, at: float, failure: Failure | None, exception: BaseException | None, result: Any
    ) -> None:
        """The hook returned, raised or ran out of time."""
        step, span = self.step, self.attempt
        if step is None or span is None:
            return
        loop = self.loop
        self.attempt = None
        step.last_at = loop.offset + int(at * 1e9)
        if failure is None:
            step.trouble = None
            text = shown(result) if loop.settings.results else type(result).__name__
            loop.writer.finish(span, step.last_at, {"result": text})
        else:
            error = failure_message(failure, exception)
            step.trouble = (failure_attributes(failure, exception), error)
            loop.writer.finish(span, step.last_at, *step.trouble)

    def _settling(self, attempt: Attempt) -> Span:
        """The source is about to be told of the outcome, perhaps not for the first time."""
        span, loop = self.settling, self.loop
        if span is None:
            at = loop.offset + int(attempt.began_at * 1e9)
            if self.step is not None:
                self.step.finish(loop.writer, at, _NOTHING)
                self.step = None
            shared = {**loop.shared, "transaction_id": self.key, "transaction.id": self.key}
            span = self.settling = loop.writer.start(SETTLE_SPAN, self, at, shared)
        return span

    def settled(self, at: float, verb: str, attempts: int, failure: Failure | None) -> None:
        """The source has heard of the outcome, or will not."""
        span, self.settling = self.settling, None
        if span is not None:
            finish_settling(self.loop, span, at, verb, attempts, failure)

    def wait(self) -> None:
        """Another attempt will follow: the step goes on."""
        if self.step is not None:
            self.step.last_at = None

    def ended(self, at: float, outcome: str, trouble: Attributes, error: str | None) -> None:
        """The one outcome is known. An attempt still open was cut off."""
        loop = self.loop
        ended_at = loop.offset + int(at * 1e9)
        if self.attempt is not None:
            loop.writer.finish(self.attempt, ended_at, trouble, error or "cut off")
            self.attempt = None
        if self.step is not None:
            self.step.finish(loop.writer, ended_at, _NOTHING)
            self.step = None
        if self.settling is not None:
            loop.writer.finish(self.settling, ended_at, _NOTHING, "cut off")
            self.settling = None
        attributes = {"outcome": outcome, "transaction.attempt": self.work_attempts, **trouble}
        loop.writer.finish(self.span, ended_at, attributes, error)


def finish_settling(
    loop: LoopSpans, span: Span, at: float, verb: str, attempts: int, failure: Failure | None
) -> None:
    """End the span of a settlement."""
    attributes: Attributes = {"settlement.verb": verb, "attempts": attempts}
    error = None
    if failure is not None:
        attributes |= failure_attributes(failure)
        error = failure_message(failure)
    loop.writer.finish(span, loop.ns(at), attributes, error)


def _place(loop: LoopSpans, transaction: Transaction) -> tuple[Below, Sequence[Link]]:
    """Where a lifecycle hangs, and what it links to, if it came with a trace context."""
    incoming = extract(transaction)
    if incoming is None:
        return loop.below, _NO_LINKS
    if not loop.joins:
        return loop.below, [Link(incoming)]
    return Below(NonRecordingSpan(incoming), loop.base), [Link(loop.below.parent)]
