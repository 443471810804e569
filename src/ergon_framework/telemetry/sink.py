"""Makes the sink of an engine call from what is configured in the process, or none at all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace

from ergon_framework.ports.notice import Sink
from ergon_framework.telemetry.conventions import messaging_instruments
from ergon_framework.telemetry.logs import install_log_context
from ergon_framework.telemetry.metrics import Instruments, MetricSink
from ergon_framework.telemetry.notices import Listener, NoticeDispatcher, has_listeners
from ergon_framework.telemetry.propagation import outgoing
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.span_writer import ApiSpanWriter, SpanWriter
from ergon_framework.telemetry.spans import SpanSink
from ergon_framework.telemetry.tracing import (
    SCOPE,
    is_real,
    journal_provider,
    real_provider,
    switch_spans,
)

logger = logging.getLogger("ergon_framework.telemetry")

_chosen = TelemetrySettings()
_writers: WeakKeyDictionary[Any, SpanWriter | None] = WeakKeyDictionary()
_instruments: WeakKeyDictionary[Any, Instruments] = WeakKeyDictionary()
_lock = threading.Lock()
_T = TypeVar("_T")


def configure(settings: TelemetrySettings) -> None:
    """What the calls of this process record from now on, unless they are given settings."""
    global _chosen  # noqa: PLW0603 - one process has one set of switches
    _chosen = settings
    switch_spans(is_on=settings.spans)


def is_tracing() -> bool:
    """Whether spans are recorded in this process; by the journal, only within a trace."""
    if not _chosen.spans:
        return False
    return real_provider() is not None or (
        journal_provider() is not None and outgoing() is not None
    )


def make_sink(
    settings: TelemetrySettings | None = None,
    listeners: Iterable[Listener] = (),
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    joins_trace: bool = False,
) -> Sink | None:
    """The sink for an engine call; None when it would have no reader.

    Providers default to the ones configured globally. With neither a real tracer provider, nor a
    real meter provider, nor a listener, the engine builds no notices at all. Log records get their
    ids either way, unless ``settings.logs`` is off. ``joins_trace`` says that transactions may
    bring traces which they are part of: without an SDK, only such calls have spans.
    """
    chosen = settings or _chosen
    if chosen.logs:
        install_log_context()
    joins = joins_trace or chosen.parent == "parent"
    spans = _spans(chosen, tracer_provider or _provider(joins=joins))
    numbers = _numbers(chosen, meter_provider or metrics.get_meter_provider())
    given = tuple(listeners)
    if spans is None and numbers is None and not given and not has_listeners():
        return None
    if spans is not None and numbers is None and not given and not has_listeners():
        # The spans are a sink by themselves: a dispatcher around them would cost something at each
        # notice.
        return spans
    return NoticeDispatcher(spans, () if numbers is None else (numbers,), given)


def _provider(*, joins: bool) -> Any:
    """The SDK's provider; else the journal's, for a call in which there can be traces."""
    real, follower = real_provider(), journal_provider()
    if real is not None:
        if follower is not None:
            follower.follow_provider(real)
        return real
    return follower if joins or trace.get_current_span().is_recording() else None


def _spans(settings: TelemetrySettings, provider: Any) -> SpanSink | None:
    if provider is None or not settings.spans or not is_real(provider):
        return None
    writer = _once(_writers, provider, _writer)
    return None if writer is None else SpanSink(writer, settings)


def _writer(provider: trace.TracerProvider) -> SpanWriter | None:
    tracer = provider.get_tracer(SCOPE)
    return best_writer(tracer) if is_real(tracer) else None


def _numbers(settings: TelemetrySettings, provider: metrics.MeterProvider) -> MetricSink | None:
    if not settings.metrics or not is_real(provider):
        return None
    made = _once(_instruments, provider, lambda it: Instruments(it.get_meter(SCOPE)))
    messaging = messaging_instruments(provider)
    return MetricSink(made, messaging, conventions=settings.conventions)


def _once(made: WeakKeyDictionary[Any, _T], provider: Any, make: Callable[[Any], _T]) -> _T:
    """What belongs to a provider, made at the first need of it."""
    with _lock:
        if provider not in made:
            made[provider] = make(provider)
        return made[provider]


def best_writer(tracer: trace.Tracer) -> SpanWriter:
    """The fast writer where it is known to be safe, else the plain one."""
    try:
        from ergon_framework.telemetry.sdk_spans import SdkSpanWriter, can_be_lean

        if can_be_lean(tracer):
            return SdkSpanWriter(tracer)
    except Exception:  # no SDK, or one whose insides are not what we know: the API always works
        logger.debug("spans are written through the OpenTelemetry API", exc_info=True)
    return ApiSpanWriter(tracer)
