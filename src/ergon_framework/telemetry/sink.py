"""Makes the sink of an engine call from what is configured in the process, or none at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace

from ergon_framework.ports.sink import Sink
from ergon_framework.telemetry.fan_out import FanOut, Listener, has_listeners
from ergon_framework.telemetry.logs import install_log_context
from ergon_framework.telemetry.metrics import Instruments, MetricSink
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.spans import SpanSink
from ergon_framework.telemetry.writer import SpanWriter, best_writer

SCOPE = "ergon"
"""The instrumentation scope of all spans and metrics."""

_chosen = TelemetrySettings()
_writers: WeakKeyDictionary[Any, SpanWriter | None] = WeakKeyDictionary()
_instruments: WeakKeyDictionary[Any, Instruments] = WeakKeyDictionary()
_lock = threading.Lock()
_T = TypeVar("_T")


def configure(settings: TelemetrySettings) -> None:
    """What the calls of this process record from now on, unless they are given settings."""
    global _chosen  # noqa: PLW0603 - one process has one set of switches
    _chosen = settings


def is_tracing() -> bool:
    """Whether spans are recorded in this process."""
    return _chosen.spans and _is_real(trace.get_tracer_provider())


def make_sink(
    settings: TelemetrySettings | None = None,
    listeners: Iterable[Listener] = (),
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Sink | None:
    """The sink for an engine call; None when nobody would read it.

    Providers default to the ones configured globally. With neither a real tracer provider, nor a
    real meter provider, nor a listener, the engine builds no notices at all. Log records get their
    ids either way, unless ``settings.logs`` is off.
    """
    chosen = settings or _chosen
    if chosen.logs:
        install_log_context()
    spans = _spans(chosen, tracer_provider or trace.get_tracer_provider())
    numbers = _numbers(chosen, meter_provider or metrics.get_meter_provider())
    told = tuple(listeners)
    if spans is None and numbers is None and not told and not has_listeners():
        return None
    if spans is not None and numbers is None and not told and not has_listeners():
        return spans
    return FanOut(spans, () if numbers is None else (numbers,), told)


def _spans(settings: TelemetrySettings, provider: trace.TracerProvider) -> SpanSink | None:
    if not settings.spans or not _is_real(provider):
        return None
    writer = _once(_writers, provider, _writer)
    return None if writer is None else SpanSink(writer, settings)


def _writer(provider: trace.TracerProvider) -> SpanWriter | None:
    tracer = provider.get_tracer(SCOPE)
    return best_writer(tracer) if _is_real(tracer) else None


def _numbers(settings: TelemetrySettings, provider: metrics.MeterProvider) -> MetricSink | None:
    if not settings.metrics or not _is_real(provider):
        return None
    return MetricSink(_once(_instruments, provider, lambda it: Instruments(it.get_meter(SCOPE))))


def _is_real(thing: object) -> bool:
    # The API's own classes are stand-ins: proxies of a provider that never came, and no-ops.
    return not type(thing).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _once(made: WeakKeyDictionary[Any, _T], provider: Any, make: Callable[[Any], _T]) -> _T:
    """What belongs to a provider, made at the first need of it."""
    with _lock:
        if provider not in made:
            made[provider] = make(provider)
        return made[provider]
