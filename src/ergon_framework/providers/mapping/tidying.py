"""Canonical errors as the pipeline needs them: whatever a provider's own classes do.

A provider may raise classes of its own below the canonical ones, whose fields are of any kind, are
missing, cannot be read or cannot be set. None of that may reach the caller of ``execute``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ergon_framework.providers.errors import ERROR_OF, ProviderError, ProviderInternalError
from ergon_framework.providers.finite import is_finite
from ergon_framework.providers.mapping.retry_after import parse_retry_after
from ergon_framework.providers.mapping.rules import Rule, canonical
from ergon_framework.providers.mapping.text import message_of


def tidy(
    error: Exception, rules: Sequence[Rule] = (), wall: Callable[[], float] = time.time
) -> ProviderError:
    """The canonical error for a raw one, with every field as it was agreed; it never raises."""
    try:
        return _tidied(canonical(error, rules, now=wall), wall)
    except Exception:
        return _rebuilt(error, wall)


def _tidied(error: ProviderError, wall: Callable[[], float]) -> ProviderError:
    made: Any = error
    if not isinstance(made.message, str) or not isinstance(made.details, dict):
        raise TypeError("its __init__ did not call super().__init__()")
    error.retry_after_seconds = _wait(error.retry_after_seconds, wall)
    error.http_status = _status(error.http_status)
    error.never_sent = bool(error.never_sent)
    return error


def _rebuilt(error: Exception, wall: Callable[[], float]) -> ProviderError:
    """The same as an error of the plain class, with as much of it as can be read."""
    reason, message = _read(error, "reason_code"), _read(error, "message")
    kind = ERROR_OF.get(reason, ProviderInternalError) if isinstance(reason, str) else None
    found = (kind or ProviderInternalError)(
        message if isinstance(message, str) else _text(error),
        http_status=_status(_read(error, "http_status")),
        retry_after_seconds=_wait(_read(error, "retry_after_seconds"), wall),
        never_sent=_read(error, "never_sent") is True,
        details={"error_type": type(error).__qualname__},
    )
    found.__cause__ = error
    return found


def _read(error: Exception, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # a property that raises
        return None


def _text(error: Exception) -> str:
    try:
        return message_of(error)
    except Exception:
        return type(error).__qualname__


def _wait(asked: Any, wall: Callable[[], float]) -> float | None:
    if isinstance(asked, str):  # a header passed on as it came
        asked = parse_retry_after(asked, wall())
    return max(0.0, asked) if is_finite(asked) else None


def _status(status: Any) -> int | None:
    return status if type(status) is int and 0 <= status < 1000 else None
