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
        ├ handle_exception
        │   └ handle_exception.attempt
        └ settle

``LoopSpans`` writes the spans of one consume or produce call, ``LifecycleSpans`` those of one
transaction, and ``SpanSink`` calls both as notices arrive. The attempt's span is current while user
code runs. The state of a lifecycle travels in ``run.note``, which one driver owns at a time, so
lifecycles share nothing and need no lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, ContextVar
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.context import Context as OtelContext
from opentelemetry.context import get_current
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanKind,
    get_current_span,
    set_span_in_context,
)

from ergon_framework.core.failure import Failure
from ergon_framework.errors import describe
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.attributes import (
    FETCH_SPAN,
    LIFECYCLE_SPAN,
    LOOP_SPAN,
    SETTLE_SPAN,
    STEP_SPAN,
    Attributes,
    failure_attributes,
    failure_message,
    loop_attributes,
    report_attributes,
    shorten,
    shown,
    step_attributes,
    task_attributes,
)
from ergon_framework.telemetry.conventions import lifecycle_attributes, messaging_attributes
from ergon_framework.telemetry.notices import log_once
from ergon_framework.telemetry.propagation import extract
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.span_writer import SpanParent, SpanWriter
from ergon_framework.telemetry.tracing import remember_loop_trace


def make_current(span: Span, base: OtelContext, context: Context) -> None:
    """Make a span current inside a private context, beside the baggage of the call."""
    # Never detached: the context is thrown away after the attempt, and code that outlives it
    # (an abandoned thread) keeps seeing its own span.
    context.run(_attach, OtelContext({**base, _SPAN: span}))


def _way_to_attach() -> Callable[[OtelContext], Any]:
    """The setter of the context variable, else the public function."""
    otel_context.get_current()  # old releases choose their implementation at the first use
    runtime = getattr(otel_context, "_RUNTIME_CONTEXT", None)
    variable = getattr(runtime, "_current_context", None)
    is_usual = type(runtime).__name__ == "ContextVarsRuntimeContext"
    return variable.set if is_usual and isinstance(variable, ContextVar) else otel_context.attach


(_SPAN,) = set_span_in_context(INVALID_SPAN, OtelContext())  # the key a span stands under
_attach = _way_to_attach()


_KIND = {"consumer": SpanKind.CONSUMER, "producer": SpanKind.PRODUCER}
_NO_TROUBLE: tuple[Attributes, None] = ({}, None)


class StepSpan(SpanParent):
    """An open step: its span, and what its last attempt came to."""

    __slots__ = ("attempts", "last_at", "shared", "trouble")

    def __init__(self, span: Span, base: OtelContext, shared: Attributes) -> None:
        self.span = span  # as SpanParent does; super() would cost more than all of this
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
    """The spans of one call, begun in the caller's context: its current span is the parent."""

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
        self.shared_by_lifecycles = {**self.shared, **lifecycle_attributes(call)}
        self.steps = {
            phase: (name, f"{name}.attempt", step_attributes(call, phase))
            for phase, name in STEP_SPAN[call.role].items()
        }
        # Offsets are taken once, so that spans follow the engine's clock even when it is virtual.
        self.offset = time.time_ns() - int(at * 1e9)
        self._parent = SpanParent(get_current_span(), self.base)
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
        self._fetch_attributes = {
            **step_attributes(call, "fetch"),
            **messaging_attributes("receive", "receive"),
        }
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
        """Begin a new loop span if ``rotate`` says that it is due."""
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
        self.below = SpanParent(span, self.base)
        # No trace of its own, as with the journal: only transactions that bring a trace have spans.
        self.is_quiet = not self.below.parent.is_valid
        if not self.is_quiet and not self._parent.parent.is_valid:
            remember_loop_trace(self.below.parent.trace_id)
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


_HANDLERS = {"success", "exception"}
_NOTHING: Attributes = {}
_NO_LINKS: Sequence[Link] = ()


class LifecycleSpans(SpanParent):
    """The spans of one transaction: its lifecycle, the open step, the open attempt."""

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
        attributes = {
            **loop.shared_by_lifecycles,
            "transaction_id": key,
            "transaction.id": key,
            "messaging.message.id": key,
        }
        if transaction.source is not None:
            attributes["transaction.source"] = transaction.source
            attributes["messaging.destination.name"] = transaction.source
        if loop.batch is not None:
            attributes["batch_index"] = loop.batch
        if loop.settings.payloads:
            attributes["transaction.payload"] = shown(transaction.payload)
        below, links = loop.below, _NO_LINKS
        # Looked for only where there may be one: most transactions of a batch carry no trace.
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
        # A step ends where the next one begins: there is no event for the end of a step.
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
        """An attempt to settle with the source begins, perhaps not the first."""
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
        """The settlement has succeeded or was given up."""
        span, self.settling = self.settling, None
        if span is not None:
            finish_settling(self.loop, span, at, verb, attempts, failure)

    def wait(self) -> None:
        """Keep the span of the step open, as another attempt will follow."""
        if self.step is not None:
            self.step.last_at = None

    def ended(self, at: float, outcome: str, trouble: Attributes, error: str | None) -> None:
        """The one outcome is known. An attempt still open was cut off."""
        loop = self.loop
        ended_at = loop.offset + int(at * 1e9)
        # A deadline or an abort ends a run without its attempt having ended.
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
    attributes |= messaging_attributes(verb, "settle")
    error = None
    if failure is not None:
        attributes |= failure_attributes(failure)
        error = failure_message(failure)
    loop.writer.finish(span, loop.ns(at), attributes, error)


def _place(loop: LoopSpans, transaction: Transaction) -> tuple[SpanParent, Sequence[Link]]:
    """Where a lifecycle hangs, and what it links to, if it came with a trace context."""
    incoming = extract(transaction)
    if incoming is None:
        return loop.below, _NO_LINKS
    if not loop.joins:
        return loop.below, [Link(incoming)]
    return SpanParent(NonRecordingSpan(incoming), loop.base), [Link(loop.below.parent)]


class SpanSink:
    """Turns notices into spans. One serves any number of calls.

    It can be the only sink of a call. A failure in here is logged once.
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
            "settlement.ended": self._settlement_ended,
        }

    def emit(self, notice: Notice) -> None:
        """Handle the notices that concern spans."""
        handler = self.handlers.get(notice.name)
        if handler is not None:
            # A span must never cost a transaction.
            try:
                handler(notice)
            except Exception as error:
                log_once(handler, error)

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
            log_once(self.enter, error)

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
                # A loop that idles makes no spans of its own, but a transaction that brings a trace
                # is part of that trace.
                if loop.is_quiet and extract(run.transaction) is None:
                    return
                if loop.rotate_at is not None:
                    loop.rotate(run.began_at)
                run.note = LifecycleSpans(loop, run.transaction, run.began_at)
        except Exception as error:
            log_once(self.began, error)

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
                log_once(self.left, error)

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
        # Whatever fails below: the run must not be ended twice.
        run.note = None
        try:
            if ending == "succeeded":
                life.ended(at, ending, _NOTHING, None)
            elif ending == "discarded":  # nothing failed
                life.ended(at, ending, _trouble(run, ending, failure, None)[0], None)
            else:
                life.ended(at, ending, *_trouble(run, ending, failure, handler_failure))
        except Exception as error:
            log_once(self.ended, error)

    def _settlement_ended(self, notice: Notice) -> None:
        run, settled = notice["run"], (notice["verb"], notice["attempts"], notice["failure"])
        if run is not None:
            if run.note is not None:
                run.note.settled(notice.at, *settled)
            return
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None and not loop.is_quiet:  # a release at the end of the call
            key = notice["transaction_id"]
            shared = {**loop.shared, "transaction_id": key, "transaction.id": key}
            at = loop.ns(notice["began_at"])
            span = self._writer.start(SETTLE_SPAN, loop.below, at, shared)
            finish_settling(loop, span, notice.at, *settled)

    def _retry_scheduled(self, notice: Notice) -> None:
        if notice["phase"] == SETTLE_SPAN:
            return
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
