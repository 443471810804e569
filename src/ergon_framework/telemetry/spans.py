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

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any

from opentelemetry.trace import Link, NonRecordingSpan, Span

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.attributes import (
    Attributes,
    failure_attributes,
    failure_message,
    shown,
)
from ergon_framework.telemetry.current import make_current
from ergon_framework.telemetry.fan_out import complain
from ergon_framework.telemetry.loop_spans import LoopSpans, StepSpan
from ergon_framework.telemetry.propagation import extract
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.writer import Below, SpanWriter

_HANDLERS = {"success", "exception"}
_NOTHING: Attributes = {}
_NO_LINKS: Sequence[Link] = ()


class LifecycleSpans(Below):
    """One transaction: its lifecycle span, the open step, the open attempt."""

    __slots__ = ("attempt", "key", "loop", "phase", "step", "work_attempts")

    def __init__(self, loop: LoopSpans, transaction: Transaction, at: float) -> None:
        self.loop = loop
        self.base = loop.base
        self.key = key = transaction.transaction_id
        self.phase = ""
        self.step: StepSpan | None = None
        self.attempt: Span | None = None
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
        attributes = {"outcome": outcome, "transaction.attempt": self.work_attempts, **trouble}
        loop.writer.finish(self.span, ended_at, attributes, error)


def _place(loop: LoopSpans, transaction: Transaction) -> tuple[Below, Sequence[Link]]:
    """Where a lifecycle hangs, and what it links to, if it came with a trace context."""
    incoming = extract(transaction)
    if incoming is None:
        return loop.below, _NO_LINKS
    if loop.settings.parent == "link":
        return loop.below, [Link(incoming)]
    return Below(NonRecordingSpan(incoming), loop.base), [Link(loop.below.parent)]


class SpanSink:
    """Turns notices into spans. One serves any number of calls.

    It is a sink by itself, for calls that have no other listener; what fails in here is told once.
    """

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

    def emit(self, notice: Notice) -> None:
        """Take what concerns spans."""
        handler = self.handlers.get(notice.name)
        if handler is not None:
            try:
                handler(notice)
            except Exception as error:
                complain(handler, error)

    def enter(self, attempt: Attempt, context: Context) -> None:
        """Make the attempt's span current in ``context``."""
        try:
            run = attempt.run
            if run is None:
                loop = self._loops.get(attempt.call.call_id)
                if loop is not None:
                    loop.enter_fetch(context)
            elif run.note is not None:
                make_current(run.note.enter(attempt), run.note.base, context)
        except Exception as error:
            complain(self.enter, error)

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

    def began(self, call: Call, run: Any) -> None:
        """A lifecycle started."""
        try:
            loop = self._loops.get(call.call_id)
            if loop is not None:
                if loop.rotate_at is not None:
                    loop.rotate(run.began_at)
                run.note = LifecycleSpans(loop, run.transaction, run.began_at)
        except Exception as error:
            complain(self.began, error)

    def left(
        self,
        attempt: Attempt,
        at: float,
        failure: Failure | None,
        exception: BaseException | None,
        result: Any,
    ) -> None:
        """A hook returned, raised or ran out of time."""
        run = attempt.run
        if run is not None and run.note is not None:
            try:
                run.note.attempt_ended(at, failure, exception, result)
            except Exception as error:
                complain(self.left, error)

    def ended(
        self,
        call: Call,
        run: Any,
        at: float,
        ending: str,
        failure: Failure | None,
        handler_failure: Failure | None,
    ) -> None:
        """A lifecycle reached its one outcome."""
        life: LifecycleSpans | None = run.note
        if life is None:
            return
        run.note = None
        try:
            if ending == "succeeded":
                life.ended(at, ending, _NOTHING, None)
            else:
                life.ended(at, ending, *_trouble(run, ending, failure, handler_failure))
        except Exception as error:
            complain(self.ended, error)

    def _retry_scheduled(self, notice: Notice) -> None:
        life: LifecycleSpans | None = notice["run"].note
        if life is not None:
            life.wait()

    def _transaction_began(self, notice: Notice) -> None:
        self.began(notice["call"], notice["run"])

    def _attempt_ended(self, notice: Notice) -> None:
        fields = notice.fields
        self.left(
            fields["attempt"],
            notice.at,
            fields["failure"],
            fields["exception"],
            fields["result"],
        )

    def _transaction_ended(self, notice: Notice) -> None:
        fields = notice.fields
        self.ended(
            fields["call"],
            fields["run"],
            notice.at,
            str(fields["ending"]),
            fields["failure"],
            fields["handler_failure"],
        )


def _trouble(
    run: Any, ending: str, failure: Failure | None, handler_failure: Failure | None
) -> tuple[Attributes, str]:
    """What a lifecycle that did not succeed says about it, and its error text."""
    trouble: Attributes = {}
    error = ending
    if failure is not None:
        trouble = failure_attributes(failure, run.exception)
        error = failure_message(failure, run.exception)
    if handler_failure is not None:
        trouble["handler.exception.message"] = failure_message(handler_failure)
    return trouble, error
