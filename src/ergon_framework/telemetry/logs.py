"""Log records that know which transaction they belong to.

Inside a lifecycle every record carries ``transaction_id``, ``trace_id``, ``span_id``, ``task``,
``component`` (the role), ``phase`` and ``attempt``; outside it stays plain. The values are taken
when the record is made, so they hold on other threads and in other processes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

from ergon_framework.ports.context import Attempt, current_attempt

FIELDS = ("transaction_id", "trace_id", "span_id", "task", "component", "phase", "attempt")
"""What a record made inside a lifecycle carries. A trace that does not exist is None."""

_lock = threading.Lock()


class _Yielding(dict[str, Any]):
    """A record's attributes, of which ours give way to those of the user's ``extra``.

    ``Logger.makeRecord`` refuses an ``extra`` whose key is already ``in`` the record. Our keys deny
    being there, so the user's value simply takes the place of ours; everything else sees them.
    """

    def __contains__(self, key: object) -> bool:
        return key not in FIELDS and dict.__contains__(self, key)

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))  # who reads a pickled record need not have Ergon


class _Factory:
    """A record factory that adds the fields to what another one makes."""

    def __init__(self, inner: Callable[..., logging.LogRecord]) -> None:
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.inner(*args, **kwargs)
        attempt = current_attempt()
        if attempt is not None:
            record.__dict__ = _Yielding({**log_fields(attempt), **record.__dict__})
        return record


def log_fields(attempt: Attempt) -> dict[str, Any]:
    """The fields of a record made in this attempt."""
    span = get_current_span().get_span_context()
    run = attempt.run  # None in a fetch, which works on no transaction yet
    return {
        "transaction_id": None if run is None else run.transaction.transaction_id,
        "trace_id": format_trace_id(span.trace_id) if span.is_valid else None,
        "span_id": format_span_id(span.span_id) if span.is_valid else None,
        "task": attempt.task,
        "component": attempt.call.role,
        "phase": attempt.phase,
        "attempt": attempt.number,
    }


def install_log_context() -> None:
    """Let log records carry the fields. Again is harmless; a factory set before is kept in use."""
    with _lock:
        current = logging.getLogRecordFactory()
        if not isinstance(current, _Factory):
            logging.setLogRecordFactory(_Factory(current))


def uninstall_log_context() -> None:
    """Go back to the factory before, unless somebody has replaced ours meanwhile."""
    with _lock:
        current = logging.getLogRecordFactory()
        if isinstance(current, _Factory):
            logging.setLogRecordFactory(current.inner)
