"""A structlog processor that adds the ids of the unit of work to every event.

::

    import structlog
    from ergon_framework.integrations.structlog import add_unit

    structlog.configure(processors=[add_unit, structlog.processors.JSONRenderer()])

A processor is a plain function, so structlog itself is not imported here. Importing this module
makes provider calls keep their ids in a context variable; without it they do not spend the time.

An event inside a hook of a task or a job's handler gets ``unit_kind`` (``transaction`` or ``job``),
``unit_name``, ``unit_id``, ``attempt_number`` (from 1), ``correlation_id``, and ``trace_id`` and
``span_id`` of the trace it belongs to. An attempt of a provider call adds ``call_name``,
``call_id`` and ``call_attempt``; outside of any other unit the call is the unit itself. What is not
known is left out. A key that the event has already stays as it is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ergon_framework.ports.context import current_unit
from ergon_framework.ports.unit_of_work import CALLING, OBSERVERS, UnitOfWork

__all__ = ["add_unit", "name_calls"]

logger = logging.getLogger("ergon.integrations.structlog")

_NOTHING = nullcontext()
_warned: list[str] = []


def _idle_observer(_: UnitOfWork) -> AbstractContextManager[object]:
    """An observer that does nothing. Provider calls set ``CALLING`` only while there is an
    observer.
    """
    return _NOTHING


def name_calls(*, on: bool = True) -> None:
    """Whether log lines get the ids of provider calls. Importing this module turns it on."""
    while _idle_observer in OBSERVERS:
        OBSERVERS.remove(_idle_observer)
    if on:
        OBSERVERS.append(_idle_observer)


name_calls()


def add_unit(
    _logger: Any, _method_name: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """The event with the ids of the unit that it happens in; unchanged outside of any.

    Behind a renderer there is only text, to which nothing can be added: it stays as it is too, and
    a warning says so once. No log line fails a unit.
    """
    unit, call = current_unit(), CALLING.get()
    if unit is None and call is None:
        return event_dict
    given: object = event_dict
    if not isinstance(given, MutableMapping):
        _warn_once(type(given).__name__)
        return event_dict
    for name, value in _fields(unit, call):
        if value is not None:
            event_dict.setdefault(name, value)
    return event_dict


def _warn_once(kind: str) -> None:
    if _warned:
        return
    _warned.append(kind)  # Set before the warning, which may itself pass through here.
    logger.warning(
        "add_unit got %s and not the fields of an event, so log lines have no ids of their unit;"
        " write it before the renderer: processors=[add_unit, JSONRenderer()]",
        kind,
    )


def _fields(unit: UnitOfWork | None, call: UnitOfWork | None) -> Iterator[tuple[str, Any]]:
    whole = unit or call
    if whole is not None:
        yield "unit_kind", whole.kind
        yield "unit_name", whole.name
        yield "unit_id", whole.id
        yield "attempt_number", whole.attempt
        yield "correlation_id", whole.correlation_id
        trace_id, span_id = _trace(whole)
        yield "trace_id", trace_id
        yield "span_id", span_id
    if call is not None:
        yield "call_name", call.name
        yield "call_id", call.id
        yield "call_attempt", call.attempt


def _trace(unit: UnitOfWork) -> tuple[str | None, str | None]:
    """The current span, else the span that the unit came with."""
    # An executor without traces never loads OpenTelemetry, and need not do so for a log line.
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            return api.format_trace_id(span.trace_id), api.format_span_id(span.span_id)
    parts = unit.trace.get("traceparent", "").split("-")
    # in the form of W3C Trace Context
    return (parts[1], parts[2]) if len(parts) == 4 else (None, None)
