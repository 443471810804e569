"""Log records with the ids of their transaction, and a formatter that writes JSON lines.

Inside a lifecycle every record carries ``transaction_id``, ``trace_id``, ``span_id``, ``task``,
``component`` (the role), ``phase`` and ``attempt``; outside it stays plain. The values are taken
when the record is made, so they hold on other threads and in other processes.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

from ergon_framework.errors import describe
from ergon_framework.ports.context import Attempt, current_attempt
from ergon_framework.redaction import is_secret, redacted_text

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
        return (dict, (dict(self),))  # a reader of the pickled record may not have Ergon installed


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
    """Add the context fields to all log records. May be called twice; a factory set before stays in
    use.
    """
    with _lock:
        current = logging.getLogRecordFactory()
        if not isinstance(current, _Factory):
            logging.setLogRecordFactory(_Factory(current))


def uninstall_log_context() -> None:
    """Restore the factory from before, unless other code has replaced ours meanwhile."""
    with _lock:
        current = logging.getLogRecordFactory()
        if isinstance(current, _Factory):
            logging.setLogRecordFactory(current.inner)


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, the fields of a lifecycle, then ``extra``.

    A value that JSON cannot hold is written as text; no record is ever lost for its content.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        document = self._document(record)
        extra = {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD and name not in document and value is not None
        }
        document = _shown(document)
        try:
            return _dumps({**document, **_shown(extra)})
        except Exception:
            return _dumps({**document, **{str(name): _text(extra[name]) for name in extra}})

    def _document(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                document[name] = value if isinstance(value, int) else str(value)
        if record.exc_info and not record.exc_text:
            # Kept in the record, as the standard formatter does: a second handler need not format
            # it again.
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            document["exception"] = record.exc_text
        if record.stack_info:
            document["stack"] = record.stack_info
        return document


def _shown(value: Any, name: str = "") -> Any:
    """A value without secrets, which are recognised by their name or their form."""
    if isinstance(value, dict):
        return {key: _shown(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each, name) for each in value]
    if isinstance(value, str):
        return "***" if name and is_secret(name) else redacted_text(value)
    return value


def _dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, default=str, allow_nan=False)


def _text(value: Any) -> str:
    try:
        return redacted_text(repr(value))
    except Exception as error:
        return describe(error)
