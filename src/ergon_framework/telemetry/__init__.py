"""Notices become spans, metrics, log fields and journal entries; each output is optional.

Promises: with nothing configured the engine builds no notices; payloads, metadata and connector
options never appear; what fails in here is logged once and never fails the work. Only the
OpenTelemetry API is needed. Not promised: that a span is exported, which is up to the SDK.

Start with ``sink`` (what one engine call records) and ``notices`` (which listeners get a notice).
``spans`` has the tree of spans, ``metrics`` the instruments, ``prometheus_text`` their text format,
``logs`` the fields of log records, ``journal`` the background writer. ``tracing`` says which tracer
this process has and is what the other packages use; ``journal_tracing`` records spans without an
SDK; ``sdk_spans`` and ``span_writer`` write them fast; ``exporters`` sets an SDK up from the
settings. ``attributes`` and ``conventions`` have the names that spans and instruments use,
``propagation`` carries a trace in the metadata of transactions, and ``settings`` says how much is
recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.telemetry.logs import (
        JsonFormatter,
        install_log_context,
        uninstall_log_context,
    )
    from ergon_framework.telemetry.notices import Listener, add_listener, remove_listener
    from ergon_framework.telemetry.propagation import extract, inject, outgoing_metadata
    from ergon_framework.telemetry.settings import TelemetrySettings
    from ergon_framework.telemetry.sink import configure, is_tracing, make_sink

_HOMES = {
    "JsonFormatter": "telemetry.logs",
    "Listener": "telemetry.notices",
    "TelemetrySettings": "telemetry.settings",
    "add_listener": "telemetry.notices",
    "configure": "telemetry.sink",
    "extract": "telemetry.propagation",
    "inject": "telemetry.propagation",
    "install_log_context": "telemetry.logs",
    "is_tracing": "telemetry.sink",
    "make_sink": "telemetry.sink",
    "outgoing_metadata": "telemetry.propagation",
    "remove_listener": "telemetry.notices",
    "uninstall_log_context": "telemetry.logs",
}

__all__ = [
    "JsonFormatter",
    "Listener",
    "TelemetrySettings",
    "add_listener",
    "configure",
    "extract",
    "inject",
    "install_log_context",
    "is_tracing",
    "make_sink",
    "outgoing_metadata",
    "remove_listener",
    "uninstall_log_context",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
