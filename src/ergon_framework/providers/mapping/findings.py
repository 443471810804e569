"""What can be told from a raw exception, before it becomes a canonical error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ergon_framework.providers.errors import Reason


class Finding(NamedTuple):
    """What an exception says about the call that raised it."""

    reason: Reason
    never_sent: bool = False
    http_status: int | None = None
    retry_after: float | None = None
    text: str = ""
    """Better than the exception's own words; empty when those will do."""


Look: TypeAlias = Callable[[Exception, Callable[[], float]], Finding | None]
"""Reads an exception that does not tell everything by its type; given the wall clock."""

TIMEOUT = Finding(Reason.TIMEOUT)
TIMEOUT_UNSENT = Finding(Reason.TIMEOUT, never_sent=True)
BROKEN = Finding(Reason.CONNECTION_ERROR)
UNREACHED = Finding(Reason.CONNECTION_ERROR, never_sent=True)
DENIED = Finding(Reason.AUTH_FAILED)
REFUSED = Finding(Reason.BAD_REQUEST)
REFUSED_UNSENT = Finding(Reason.BAD_REQUEST, never_sent=True)
INVALID = Finding(Reason.RESPONSE_INVALID)
DOWN = Finding(Reason.DEPENDENCY_UNAVAILABLE)
DEFECT = Finding(Reason.INTERNAL_ERROR)


def attribute(holder: object, name: str) -> object:
    """An attribute, or None: an exception's properties may raise what they like."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None
