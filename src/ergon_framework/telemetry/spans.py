"""Notices become spans, in the tree of RFC-004 section 12 and RFC-005 section 14.

::

    consume_transactions                      produce_transactions
    ├ fetch_transactions                      └ start_producing
    │   └ fetch_transactions.attempt              ├ produce
    └ start_processing                            │   └ produce.attempt
        ├ process                                 ├ handle_produce_success
        │   └ process.attempt                     │   └ handle_produce_success.attempt
        ├ handle_success                          └ handle_produce_exception
        │   └ handle_success.attempt                  └ handle_produce_exception.attempt
        └ handle_exception
            └ handle_exception.attempt

The attempt's span is current while user code runs. The state of a lifecycle travels in
``run.note``, which one driver owns at a time, so lifecycles share nothing and need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any

from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.attributes import (
    Attributes,
    failure_attributes,
    failure_message,
    shown,
    transaction_attributes,
)
from ergon_framework.telemetry.loop_spans import LoopSpans, StepSpan, make_current
from ergon_framework.telemetry.propagation import extract
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.writer import Below, SpanWriter

_KIND = {"consumer": SpanKind.CONSUMER, "producer": SpanKind.PRODUCER}
_HANDLERS = {"success", "exception"}


class LifecycleSpans:
    """One transaction: its lifecycle span, the open step, the open attempt."""

    __slots__ = ("attempt", "below", "ids", "loop", "phase", "step", "work_attempts")

    def __init__(self, loop: LoopSpans, transaction: Transaction, at: float) -> None:
        self.loop = loop
        identity = transaction.transaction_id
        self.ids = {"transaction_id": identity, "transaction.id": identity}
        self.phase = ""
        self.step: StepSpan | None = None
        self.attempt: Span | None = None
        self.work_attempts = 0
        attributes = transaction_attributes(loop.call, transaction)
        if loop.batch is not None:
            attributes["batch_index"] = loop.batch
        if loop.settings.payloads:
            attributes["transaction.payload"] = shown(transaction.payload)
        self.below = Below(self._start(transaction, loop.ns(at), attributes), loop.base)

    def _start(self, transaction: Transaction, at: int, attributes: Attributes) -> Span:
        loop = self.loop
        below, links = loop.below, []
        incoming = extract(transaction)
        if incoming is not None and loop.settings.parent == "parent":
            links = [Link(below.span.get_span_context())]
            below = Below(NonRecordingSpan(incoming), loop.base)
        elif incoming is not None:
            links = [Link(incoming)]
        kind = _KIND[loop.call.role]
        return loop.writer.start(loop.lifecycle_name, below, at, attributes, links, kind)

    def enter(self, attempt: Attempt) -> Span:
        """An attempt starts; the first one of a phase begins its step."""
        at = self.loop.ns(attempt.began_at)
        step = self.step
        if step is None or attempt.phase != self.phase:
            step = self._open_step(attempt.phase, at)
        number = attempt.number
        step.attempts = number + 1
        step.last_at = None
        if attempt.phase not in _HANDLERS:
            self.work_attempts = number + 1
        attributes = {**step.shared, "attempt": number, "attempt_number": number + 1}
        name = self.loop.steps[attempt.phase][1]
        self.attempt = self.loop.writer.start(name, step.below, at, attributes)
        return self.attempt

    def _open_step(self, phase: str, at: int) -> StepSpan:
        self._close_step(at)
        loop = self.loop
        name, _, shared = loop.steps[phase]
        shared = {**shared, **self.ids}
        self.phase = phase
        self.step = StepSpan(loop.writer.start(name, self.below, at, shared), loop.base, shared)
        return self.step

    def attempt_ended(
        self, at: float, failure: Failure | None, exception: BaseException | None, result: Any
    ) -> None:
        """The hook returned, raised or ran out of time."""
        step, span = self.step, self.attempt
        if step is None or span is None:
            return
        loop = self.loop
        self.attempt = None
        step.last_at = loop.ns(at)
        if failure is None:
            step.trouble = None
            text = shown(result) if loop.settings.results else type(result).__name__
            loop.writer.finish(span, step.last_at, {"result": text})
        else:
            error = failure_message(failure, exception)
            step.trouble = (failure_attributes(failure, exception), error)
            loop.writer.finish(span, step.last_at, *step.trouble)

    def wait(self) -> None:
        """Another attempt will follow: the step goes on."""
        if self.step is not None:
            self.step.last_at = None

    def ended(self, at: float, outcome: str, trouble: Attributes, error: str | None) -> None:
        """The one outcome is known. An attempt still open was cut off."""
        loop = self.loop
        ended_at = loop.ns(at)
        if self.attempt is not None:
            loop.writer.finish(self.attempt, ended_at, trouble, error or "cut off")
            self.attempt = None
        self._close_step(ended_at)
        attributes = {"outcome": outcome, "transaction.attempt": self.work_attempts, **trouble}
        loop.writer.finish(self.below.span, ended_at, attributes, error)

    def _close_step(self, at: int) -> None:
        if self.step is not None:
            self.step.finish(self.loop.writer, at, {})
            self.step = None


class SpanSink:
    """Turns notices into spans. One serves any number of calls."""

    def __init__(self, writer: SpanWriter, settings: TelemetrySettings) -> None:
        self._writer = writer
        self._settings = settings
        self._loops: dict[str, LoopSpans] = {}
        self.handlers: Mapping[str, Callable[[Notice], None]] = {
            "call.began": self._call_began,
            "call.ended": self._call_ended,
            "fetch.began": self._fetch_began,
            "fetch.ended": self._fetch_ended,
            "transaction.began": self._transaction_began,
            "attempt.ended": self._attempt_ended,
            "retry.scheduled": self._retry_scheduled,
            "transaction.ended": self._transaction_ended,
        }

    def enter(self, attempt: Attempt, context: Context) -> None:
        """Make the attempt's span current in ``context``."""
        if attempt.phase == "fetch":
            loop = self._loops.get(attempt.call.call_id)
            if loop is not None:
                loop.enter_fetch(context)
            return
        life: LifecycleSpans | None = attempt.run.note
        if life is not None:
            make_current(life.enter(attempt), context)

    def _call_began(self, notice: Notice) -> None:
        call = notice["call"]
        loop = LoopSpans(call, notice.at, self._writer, self._settings)
        self._loops[call.call_id] = loop

    def _call_ended(self, notice: Notice) -> None:
        loop = self._loops.pop(notice["call"].call_id, None)
        if loop is not None:
            loop.ended(notice.at, notice["report"], notice["error"])

    def _fetch_began(self, notice: Notice) -> None:
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None:
            loop.fetch_began(notice.at, notice["attempt"].number, notice["requested"])

    def _fetch_ended(self, notice: Notice) -> None:
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None:
            loop.fetch_ended(notice.at, notice["delivered"], notice["failure"])

    def _transaction_began(self, notice: Notice) -> None:
        run = notice["run"]
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None:
            loop.rotate(notice.at)
            run.note = LifecycleSpans(loop, run.transaction, notice.at)

    def _attempt_ended(self, notice: Notice) -> None:
        run = notice["attempt"].run
        if run is not None and run.note is not None:
            fields = notice.fields
            run.note.attempt_ended(
                notice.at, fields["failure"], fields["exception"], fields["result"]
            )

    def _retry_scheduled(self, notice: Notice) -> None:
        life: LifecycleSpans | None = notice["run"].note
        if life is not None:
            life.wait()

    def _transaction_ended(self, notice: Notice) -> None:
        run = notice["run"]
        life: LifecycleSpans | None = run.note
        if life is None:
            return
        run.note = None
        failure: Failure | None = notice["failure"]
        outcome = str(notice["ending"])
        trouble: Attributes = {}
        error = None if outcome == "succeeded" else outcome
        if failure is not None:
            exception = getattr(run, "exception", None)
            trouble = failure_attributes(failure, exception)
            error = failure_message(failure, exception)
        if notice["handler_failure"] is not None:
            trouble["handler.exception.message"] = failure_message(notice["handler_failure"])
        life.ended(notice.at, outcome, trouble, error)
