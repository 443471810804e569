"""Log records as JSON, one object per line, without what looks like a secret."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from ergon_framework import redaction
from ergon_framework.errors import describe
from ergon_framework.telemetry.logs import FIELDS

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, the fields of a lifecycle, then ``extra``.

    A value that JSON cannot hold is written as text; no record is ever lost for its content.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        shape = self._shape(record)
        extra = {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD and name not in shape and value is not None
        }
        shape = _shown(shape)
        try:
            return _dumps({**shape, **_shown(extra)})
        except Exception:
            return _dumps({**shape, **{str(name): _text(extra[name]) for name in extra}})

    def _shape(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC)
        shape: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                shape[name] = value if isinstance(value, int) else str(value)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            shape["exception"] = record.exc_text
        if record.stack_info:
            shape["stack"] = record.stack_info
        return shape


def _shown(value: Any, name: str = "") -> Any:
    """The same without secrets: those that a name tells, and those that are known by their form."""
    if isinstance(value, dict):
        return {key: _shown(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each, name) for each in value]
    if isinstance(value, str):
        return "***" if name and redaction.is_secret(name) else redaction.text(value)
    return value


def _dumps(shape: dict[str, Any]) -> str:
    return json.dumps(shape, default=str, allow_nan=False)


def _text(value: Any) -> str:
    try:
        return redaction.text(repr(value))
    except Exception as error:
        return describe(error)
