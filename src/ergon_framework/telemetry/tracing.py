"""Which tracer records the spans of this process, and spans at the edges of the other packages.

The tracer is the SDK's, else that of the journal, else there is none. The journal's provider never
takes the global provider's place: an SDK that a program sets up later is used from then on. When no
spans are recorded, asking for one costs a look-up. A span that cannot be written is logged once,
and the work goes on without it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import time_ns
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
)

from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry.propagation import extract, outgoing, read, written

__all__ = [
    "EDGES",
    "MAX_LOOP_TRACES",
    "SCOPE",
    "JournalProvider",
    "SpanKind",
    "dispatching",
    "end_span",
    "is_loop_trace",
    "is_real",
    "is_traced",
    "journal_provider",
    "may_begin",
    "may_have_sdk",
    "real_provider",
    "record_span",
    "remember_loop_trace",
    "set_journal_provider",
    "span_at_edge",
    "start_root",
    "start_span",
    "switch_spans",
    "trace_headers",
    "tracer",
]

logger = logging.getLogger("ergon_framework.telemetry")


SCOPE = "ergon"
"""The instrumentation scope of all spans and metrics."""
EDGES = frozenset({"boundary.publish", "boundary.spool", "job.enqueue"})
"""The spans that may be the first of a trace."""

_IS_NAMED = OTEL_PYTHON_TRACER_PROVIDER in os.environ  # then the API loads it at the first question


class JournalProvider(Protocol):
    """A provider of our own, which records spans also beside another provider."""

    def get_tracer(self, instrumenting_module_name: str) -> trace.Tracer:
        """A tracer, as in the API of OpenTelemetry."""

    def follow_provider(self, provider: trace.TracerProvider) -> None:
        """Also record the spans of another tracer provider; adding one twice does no harm."""


_journal_provider: JournalProvider | None = None
_is_on = True
_last: tuple[object, trace.Tracer] | None = None  # to make a tracer takes longer than a span


def switch_spans(*, is_on: bool) -> None:
    """Whether spans are wanted at all."""
    global _is_on  # noqa: PLW0603 - one process has one set of switches
    _is_on = is_on


def set_journal_provider(provider: JournalProvider | None) -> None:
    """Where spans go when no SDK is set up; None: nowhere."""
    global _journal_provider  # noqa: PLW0603 - one process has one journal
    _journal_provider = provider


def journal_provider() -> JournalProvider | None:
    """What :func:`set_journal_provider` was given last."""
    return _journal_provider


def real_provider() -> trace.TracerProvider | None:
    """The provider that a program has set up, if any."""
    found = trace.get_tracer_provider()
    return found if is_real(found) else None


def tracer() -> trace.Tracer | None:
    """The tracer of our spans; None when they would not be kept."""
    if not _is_on:
        return None
    provider = real_provider() if may_have_sdk() else None
    if provider is not None:
        # An SDK that a program sets up later takes the spans over; the journal has to get them too,
        # too.
        if _journal_provider is not None:
            _journal_provider.follow_provider(provider)
        found = _tracer_of(provider)
        if is_real(found):
            return found
    return None if _journal_provider is None else _journal_provider.get_tracer(SCOPE)


def is_traced() -> bool:
    """Whether spans can be recorded. Every provider call checks it."""
    return _journal_provider is not None or may_have_sdk()


def may_have_sdk() -> bool:
    """Whether a provider may have been set up; the API itself takes longer to say no."""
    try:
        # Read without the API's function, which looks into the environment to say no: every call
        # asks.
        return trace._TRACER_PROVIDER is not None or _IS_NAMED  # noqa: SLF001
    except AttributeError:  # an API that keeps its provider elsewhere
        return True


def is_real(thing: object) -> bool:
    """Whether a tracer or provider is a real one, and not a stand-in of the API."""
    return not type(thing).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _tracer_of(provider: Any) -> trace.Tracer:
    global _last  # noqa: PLW0603 - replaced as a whole
    last = _last
    if last is not None and last[0] is provider:
        return last[1]
    made: trace.Tracer = provider.get_tracer(SCOPE)
    _last = (provider, made)
    return made


MAX_LOOP_TRACES = 1024
"""Traces that are remembered; a loop that rotates its span begins a new one each time."""

_loop_trace_order: deque[int] = deque()
_loop_traces: set[int] = set()


def remember_loop_trace(trace_id: int) -> None:
    """A loop has begun a trace of its own."""
    if trace_id in _loop_traces:
        return
    _loop_traces.add(trace_id)
    _loop_trace_order.append(trace_id)
    # A loop that runs for years begins many traces: only the latest can still be asked for.
    while len(_loop_trace_order) > MAX_LOOP_TRACES:
        _loop_traces.discard(_loop_trace_order.popleft())


def is_loop_trace(trace_id: int) -> bool:
    """Whether a trace is that of a loop."""
    return trace_id in _loop_traces


_NOWHERE: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)


def span_at_edge(
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    carrier: Mapping[str, Any] | None = None,
    *,
    begins: bool = True,
) -> AbstractContextManager[Span]:
    """A span that is current in the block; it ends with it, as failed when the block raises.

    It hangs below what is current, else below what ``carrier`` says. Where there is neither, it is
    the first of a trace; with ``begins=False`` there is none then.
    """
    chosen = tracer()
    if chosen is None:
        return _NOWHERE
    # What is current goes before what was carried: code that runs now knows its parent better.
    above = outgoing() or (None if carrier is None else read(carrier))
    if above is None and not (begins and may_begin(name)):
        return _NOWHERE
    return _current(chosen, name, kind, attributes, above)


def dispatching(
    name: str, unit: str, transactions: Sequence[Transaction]
) -> AbstractContextManager[Span]:
    """The span in which a connector hands transactions over.

    ``unit`` is the attribute that names one. Alone it may begin a trace, and goes on with its own;
    many at once only join the current one.
    """
    # Many at once have traces of their own; none of them can be the parent of all.
    if len(transactions) != 1 or not isinstance(transactions[0], Transaction):
        return span_at_edge(
            name, SpanKind.PRODUCER, {"ergon.count": len(transactions)}, begins=False
        )
    (alone,) = transactions
    found = extract(alone)
    carrier = None if found is None else written(found)
    return span_at_edge(name, SpanKind.PRODUCER, {unit: alone.transaction_id}, carrier)


def may_begin(name: str) -> bool:
    """Whether a span of that name may be the first of its trace."""
    return name in EDGES or may_have_sdk()


@contextmanager
def _current(
    chosen: trace.Tracer,
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    above: SpanContext | None,
) -> Iterator[Span]:
    span = _started(chosen, name, _below(above), kind, attributes)
    # A span that is not recorded must not replace the context that is propagated.
    current = span if span.get_span_context().is_valid else get_current_span()
    with trace.use_span(current, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except BaseException as error:
            end_span(span, type(error).__name__)
            raise
    end_span(span)


def start_span(
    name: str, kind: SpanKind, attributes: Mapping[str, Any], carrier: Mapping[str, Any]
) -> Span | None:
    """A span below what ``carrier`` says, current nowhere; None when it would not be recorded."""
    chosen = tracer()
    above = None if chosen is None else read(carrier)
    if chosen is None or above is None:
        return None
    # Not below what happens to be current: this span goes on with a trace from elsewhere.
    span = _started(chosen, name, _below(above, Context()), kind, attributes)
    return span if span.is_recording() else None


def start_root(name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Span | None:
    """The first span of a new trace, whatever is current; None when it would not be recorded."""
    chosen = tracer()
    if chosen is None:
        return None
    span = _started(chosen, name, Context(), kind, attributes)
    return span if span.is_recording() else None


def end_span(
    span: Span,
    failure: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    at: int | None = None,
) -> None:
    """End the span. ``failure`` is a word, never a text that could hold a payload."""
    # An unrecorded span costs nothing more; its attributes would be thrown away.
    if not span.is_recording():
        return
    try:
        if attributes:
            span.set_attributes(attributes)
        if failure is not None:
            span.set_attribute("error.type", failure)
            span.set_status(StatusCode.ERROR, failure)
        span.end(at)
    except Exception as error:  # a processor of the user's
        _log_once(type(error).__qualname__)


def record_span(
    name: str,
    kind: SpanKind,
    carrier: Mapping[str, Any],
    seconds: float,
    attributes: Mapping[str, Any],
    failure: str | None = None,
    ago: float = 0.0,
) -> None:
    """A span of something that has taken so many seconds and has ended, now or a while ago."""
    chosen = tracer()
    above = None if chosen is None else read(carrier)
    if chosen is None or above is None:
        return
    now = time_ns() - int(ago * 1e9)
    began_at = now - int(seconds * 1e9)
    span = _started(chosen, name, _below(above, Context()), kind, attributes, began_at)
    end_span(span, failure, at=now)


def trace_headers(span: Span) -> dict[str, str]:
    """``traceparent`` and ``tracestate`` that make others go on below this span; may be empty."""
    context = span.get_span_context()
    return written(context) if context.is_valid else {}


def _below(above: SpanContext | None, base: Context | None = None) -> Context:
    """The current context, or another one, with that span current in it."""
    current = get_current() if base is None else base
    if above is None:
        return current
    known = get_current_span(current)
    # The span itself, where it is at hand: a stand-in records nothing.
    if known.get_span_context() == above:
        return current
    return set_span_in_context(NonRecordingSpan(above), current)


def _started(
    chosen: trace.Tracer,
    name: str,
    context: Context,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    at: int | None = None,
) -> Span:
    try:
        return chosen.start_span(name, context, kind=kind, attributes=attributes, start_time=at)
    except Exception as error:  # a sampler or processor of the user's
        _log_once(type(error).__qualname__)
        return INVALID_SPAN


@cache
def _log_once(kind: str) -> None:
    logger.error("a span cannot be written: %s; said once", kind)
