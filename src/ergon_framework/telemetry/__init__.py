"""Notices become spans, metrics and log fields; each output is optional.

Promises: with nothing configured the engine builds no notices; payloads, metadata and connector
options never appear; what fails in here is logged once and never fails the work. Only the
OpenTelemetry API is needed. Not promised: that a span is exported; that is the SDK's part.
"""

from __future__ import annotations

from ergon_framework.telemetry.fan_out import Listener, add_listener, remove_listener
from ergon_framework.telemetry.json_lines import JsonFormatter
from ergon_framework.telemetry.logs import install_log_context, uninstall_log_context
from ergon_framework.telemetry.propagation import extract, inject, outgoing_metadata
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.sink import configure, is_tracing, make_sink

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
