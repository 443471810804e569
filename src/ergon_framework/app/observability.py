"""Logging, and telemetry from its beginning to the last flush."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ergon_framework.app.console import follow
from ergon_framework.app.imports import load
from ergon_framework.core.text import one_line, whole_record
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    SettingsError,
    WiringError,
    describe,
)
from ergon_framework.redaction import redacted_text
from ergon_framework.telemetry import JsonFormatter

if TYPE_CHECKING:
    from ergon_framework.app.settings.sections import Settings

logger = logging.getLogger("ergon.app")

FLUSH_TIMEOUT = 5.0
"""Seconds each provider has to send what it holds. A collector that is down must not keep us."""
LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _TextFormatter(logging.Formatter):
    """One readable line, with the transaction it belongs to.

    What others said may be in it: it can neither steer a terminal nor begin a record, and what
    looks like a secret is left out, in tracebacks too.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = whole_record(redacted_text(super().format(record)))
        transaction_id = getattr(record, "transaction_id", None)
        return f"{line} [{one_line(str(transaction_id))}]" if transaction_id else line


def set_up_logging(level: str, format: str, root: logging.Logger | None = None) -> None:
    """Send log records to the standard error stream, unless the user's code has set up its own."""
    for what, value, known in (("level", level, LEVELS), ("format", format, FORMATS)):
        if value.lower() not in known:
            raise ConfigurationError(
                f"the log {what} {value!r} is unknown", remedy=f"use one of {', '.join(known)}"
            )
    root = logging.getLogger() if root is None else root
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if format == "json" else _TextFormatter(_TEXT))
        # Only without handlers: a program that has set up its own logging would see each record
        # twice.
        root.addHandler(handler)
        root.setLevel(level.upper())
        if format == "json":
            follow(handler)


def show_executors() -> None:
    """Show what handlers print, unless the user's code has set up logging itself."""
    spoken = logging.getLogger("ergon.executors")
    if not logging.getLogger().handlers and not spoken.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        spoken.addHandler(handler)
        spoken.setLevel(logging.INFO)
        spoken.propagate = False


def finish_telemetry(
    providers: Iterable[Any] | None = None, timeout: float = FLUSH_TIMEOUT
) -> None:
    """Flush and shut down what the user's code has configured. It never fails the run."""
    for provider in _providers() if providers is None else providers:
        for name in ("force_flush", "shutdown"):
            method = getattr(provider, name, None)
            if not callable(method):
                continue
            # Late: it loads asyncio, and few commands have anything to flush.
            from ergon_framework.task.mixins.utils import run_with_timeout

            try:
                run_with_timeout(method, timeout)
            except Exception as error:
                kind = type(provider).__name__
                logger.warning("%s of %s failed: %s", name, kind, describe(error))
                # No shutdown after a flush that failed: it would wait for the same collector as
                # long again.
                break


def _providers() -> Iterator[Any]:
    from opentelemetry import metrics, trace
    from opentelemetry._logs import get_logger_provider

    yield trace.get_tracer_provider()
    yield metrics.get_meter_provider()
    yield get_logger_provider()


@contextmanager
def observed(settings: Settings, source: str) -> Iterator[None]:
    """Export the telemetry of this process and write its journal; every process of ours does so."""
    from ergon_framework.app.journal import journalling  # late, as all of logging is set up before
    from ergon_framework.telemetry.exporters import export, export_environment

    telemetry = settings.telemetry
    run_setup(telemetry.setup)  # first: what it sets up is used, and not set up again
    export(source, collector=telemetry.otlp, port=telemetry.prometheus_port)
    with export_environment(telemetry.otlp), journalling(settings, source):
        yield


@contextmanager
def observed_briefly(settings: Settings, source: str) -> Iterator[None]:
    """Set up telemetry for a short command: no metrics page, and everything is sent at its end."""
    from ergon_framework.app.journal import journalling
    from ergon_framework.telemetry.exporters import export, finish

    collector = settings.telemetry.otlp
    export(source, collector=collector)
    try:
        with journalling(settings, source):
            yield
    finally:
        if collector is not None:
            finish()


def run_setup(reference: str | None) -> None:
    """Call the function that ``[telemetry] setup`` names, such as one that sets up Sentry."""
    if reference is None:
        return
    function = find_setup(reference)
    try:
        function()
    except ErgonError:
        raise
    except Exception as error:
        raise WiringError(
            f"telemetry.setup: {reference} raised {describe(error)}",
            remedy="it is called without arguments when a process starts; let it succeed there",
        ) from error


def find_setup(reference: str) -> Callable[[], object]:
    """The function that ``[telemetry] setup`` names; importing its module runs the user's code."""
    found = load(reference)
    if not callable(found):
        raise WiringError(
            f"telemetry.setup: {reference} is a {type(found).__name__}, which cannot be called",
            remedy="name a function without arguments",
        )
    return cast("Callable[[], object]", found)


def check_page(settings: Settings, processes: int) -> None:
    """Refuse one port for several processes: only the first of them could serve its page."""
    port = settings.telemetry.prometheus_port
    if port is not None and processes > 1:
        raise SettingsError(
            f"telemetry.prometheus_port: {processes} processes cannot share the port {port}",
            remedy="leave it out: /metrics of ergon serve tells about all of them; or start each by"
            " itself, with ERGON_TELEMETRY__PROMETHEUS_PORT of its own",
        )
