"""Sets up an OpenTelemetry SDK that sends spans and metrics to a collector, or serves a page.

Nothing is set up that the user's code has set up already, and nothing that was not asked for. The
SDK is imported only then: it takes longer to load than some processes live.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from ergon_framework.errors import ConfigurationError, MissingExtraError, describe

logger = logging.getLogger("ergon.app")


VARIABLE = "ERGON_OTLP"
"""Passes the OTLP endpoint of a parent to a process without settings, such as an executor."""
HOST = "127.0.0.1"
"""Where the page for Prometheus is served; ``ergon serve`` has one that others may reach."""
SHUTDOWN_TIMEOUT = 2.0
"""Seconds that the end of a short process waits for what is not sent yet."""


def export(source: str, *, collector: str | None = None, port: int | None = None) -> None:
    """Set up the SDK for this process; ``source`` is the name of the process."""
    readers: list[Any] = []
    if collector is not None:
        _send_spans(collector, source)
        readers.append(_sender_of_metrics(collector))
    if port is not None:
        readers.append(_page_of_metrics(port))
    if readers:
        _measure(readers, source)


def check_packages(*, collector: str | None = None, port: int | None = None) -> None:
    """Raise MissingExtraError when :func:`export` would, for want of a package."""
    if collector is not None:
        with _needing("otel", "[telemetry] otlp"):
            import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    if port is not None:
        with _needing("prometheus", "[telemetry] prometheus_port"):
            import_module("opentelemetry.exporter.prometheus")
            import_module("prometheus_client")


@contextmanager
def export_environment(collector: str | None) -> Iterator[None]:
    """Processes started meanwhile learn of the collector."""
    before = os.environ.get(VARIABLE)
    if collector is not None:
        os.environ[VARIABLE] = collector
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        else:
            os.environ.pop(VARIABLE, None)


def finish(timeout: float = SHUTDOWN_TIMEOUT) -> None:
    """Send what is not sent yet, within ``timeout``: a collector may be down."""
    from opentelemetry import metrics, trace

    def flush() -> None:
        for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
            with suppress(Exception):  # the work is done, and the process ends
                getattr(provider, "force_flush", bool)()

    thread = threading.Thread(target=flush, name="ergon-sending", daemon=True)
    thread.start()
    thread.join(timeout)


def _send_spans(collector: str, source: str) -> None:
    from opentelemetry import trace

    with _needing("otel", "[telemetry] otlp"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # the user's code has one
    # Code that set the SDK up calls finish() with a time limit; an exit hook would wait longer.
    provider = TracerProvider(resource=_resource(source), shutdown_on_exit=False)
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
    if type(current).__module__.startswith(
        "opentelemetry.metrics"
    ):  # the stand-in of the API: no SDK was set up
        provider = MeterProvider(readers, resource=_resource(source), shutdown_on_exit=False)
        metrics.set_meter_provider(provider)
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
