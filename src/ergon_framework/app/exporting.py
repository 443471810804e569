"""Where spans and metrics go, as the settings say: to a collector, or to a page for Prometheus.

Nothing is set up that the user's code has set up already, and nothing without a setting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ergon_framework.app.sections import Settings, TelemetrySettings
from ergon_framework.errors import ConfigurationError, MissingExtraError, describe

logger = logging.getLogger("ergon.app")

HOST = "127.0.0.1"
"""Where the page for Prometheus is served; ``ergon serve`` has one that others may reach."""


def export(telemetry: TelemetrySettings, source: str) -> None:
    """Set up the OpenTelemetry SDK for this process; ``source`` says who it is."""
    readers: list[Any] = []
    if telemetry.otlp is not None:
        _send_spans(telemetry.otlp, source)
        readers.append(_sender_of_metrics(telemetry.otlp))
    if telemetry.prometheus_port is not None:
        readers.append(_page_of_metrics(telemetry.prometheus_port))
    if readers:
        _measure(readers, source)


def _send_spans(collector: str, source: str) -> None:
    from opentelemetry import trace

    with _needing("otel", "[telemetry] otlp"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # the user's code has one
    provider = TracerProvider(resource=_resource(source))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
    trace.set_tracer_provider(provider)


def _sender_of_metrics(collector: str) -> Any:
    with _needing("otel", "[telemetry] otlp"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    return PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector}/v1/metrics"))


def _page_of_metrics(port: int) -> Any:
    with _needing("prometheus", "[telemetry] prometheus_port"):
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import start_http_server
    try:
        start_http_server(port, addr=HOST)
    except OSError as error:
        raise ConfigurationError(
            f"the page for Prometheus cannot be served on {HOST}:{port}: {describe(error)}",
            remedy="each process needs a port of its own; ergon serve has one page for all stores",
        ) from error
    return PrometheusMetricReader()


def _measure(readers: list[Any], source: str) -> None:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    current = metrics.get_meter_provider()
    if type(current).__module__.startswith("opentelemetry.metrics"):  # nobody's: the API's own
        metrics.set_meter_provider(MeterProvider(readers, resource=_resource(source)))
    else:
        logger.warning("the settings ask for metrics, but the program has set up its own")


def _resource(source: str) -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": "ergon", "service.instance.id": source})


@contextmanager
def _needing(extra: str, setting: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{setting} needs packages that are not installed ({describe(error)})",
            remedy=f'pip install "ergon-framework[{extra}]"',
        ) from error


@contextmanager
def observed(settings: Settings, source: str) -> Iterator[None]:
    """What this process tells is exported and kept; every process of ours runs inside of it."""
    from ergon_framework.app.journal import journalling

    export(settings.telemetry, source)
    with journalling(settings, source):
        yield
