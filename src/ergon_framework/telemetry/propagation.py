"""Trace context that travels with transactions, as W3C ``traceparent`` in their metadata.

Incoming: :func:`extract`. Outgoing: :func:`inject` puts the current span (or, where nothing records
spans, the context the current transaction came with) on a transaction before it leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ergon_framework.ports.context import current_attempt
from ergon_framework.ports.transaction import Transaction

_W3C = TraceContextTextMapPropagator()
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_LOW_64_BITS = (1 << 64) - 1


def extract(transaction: Transaction) -> SpanContext | None:
    """The trace context a transaction arrived with, or None.

    It is read from ``metadata["traceparent"]`` (with ``tracestate``), else from ``trace_id``, which
    may hold a whole ``traceparent`` or a bare trace id. What cannot be read is ignored.
    """
    metadata = transaction.metadata
    header = metadata.get("traceparent") if metadata else None
    if header is None:
        header = transaction.trace_id
    if not isinstance(header, str):
        return None
    if _TRACE_ID.fullmatch(header):
        return _of_trace_id(int(header, 16))
    return read({"traceparent": header, "tracestate": metadata.get("tracestate")})


def read(carrier: Mapping[str, Any]) -> SpanContext | None:
    """The trace context in ``traceparent`` and ``tracestate``; None when it cannot be read."""
    plain = {name: carrier.get(name) for name in ("traceparent", "tracestate")}
    words = {name: value for name, value in plain.items() if isinstance(value, str)}
    if "traceparent" not in words:
        return None
    found = get_current_span(_W3C.extract(words, Context())).get_span_context()
    return found if found.is_valid else None


def outgoing_metadata() -> dict[str, str]:
    """``traceparent`` and ``tracestate`` for what the current code sends out; may be empty."""
    context = outgoing()
    return {} if context is None else written(context)


def written(context: SpanContext) -> dict[str, str]:
    """A trace context as it travels."""
    # The words of the W3C propagator. It is asked only to read: writing is done for each attempt
    # of each producer, and the way through its layers costs more than a span.
    trace_id, span_id, flags = context.trace_id, context.span_id, context.trace_flags
    carrier = {"traceparent": f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"}
    if context.trace_state:
        carrier["tracestate"] = context.trace_state.to_header()
    return carrier


def inject(transaction: Transaction, carrier: dict[str, str] | None = None) -> Transaction:
    """The same transaction carrying the current trace context; unchanged when there is none.

    To send many at once, read :func:`outgoing_metadata` once and give it as ``carrier``.
    """
    carrier = outgoing_metadata() if carrier is None else carrier
    if not carrier:
        return transaction
    metadata = {**transaction.metadata, **carrier} if transaction.metadata else {**carrier}
    if "tracestate" not in carrier:
        metadata.pop("tracestate", None)
    return transaction.with_trace(metadata, carrier["traceparent"][3:35])


def outgoing() -> SpanContext | None:
    """The trace that the current code is part of."""
    current = get_current_span().get_span_context()
    if current.is_valid:
        return current
    attempt = current_attempt()
    if attempt is None or attempt.run is None:
        return None
    return extract(attempt.transaction)


def _of_trace_id(trace_id: int) -> SpanContext | None:
    # A bare trace id names no span. Its low half stands in for one: the same on every machine, and
    # backends find the trace by its id alone.
    context = SpanContext(
        trace_id, trace_id & _LOW_64_BITS, is_remote=True, trace_flags=TraceFlags(1)
    )
    return context if context.is_valid else None
