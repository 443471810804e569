"""When a provider wants to be called again: ``Retry-After`` and other headers of its answer.

Nothing here raises: a header that makes no sense is as good as none.
"""

from __future__ import annotations

import math
import re
from datetime import UTC

_NUMBER = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?")

_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
_RESETS = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
_REMAINING = ("ratelimit-remaining", "x-ratelimit-remaining", "x-rate-limit-remaining")

_FIRST_INSTANT = 1e9
"""A reset above this many seconds is an instant, not a wait of thirty years …"""
_FIRST_INSTANT_MS = 1e11
"""… and above this, one in milliseconds."""


def retry_after_seconds(headers: object, now: float, *, is_throttled: bool = False) -> float | None:
    """How long to wait from ``now`` (seconds since 1970), or None when the response does not say.

    Many APIs send with every answer when their window resets: that counts only when the call
    ``is_throttled``, and not while the answer says that requests are left.
    """
    for name in _MILLISECONDS:
        wait = _number(header(headers, name))
        if wait is not None:
            return max(0.0, wait / 1000)
    asked = parse_retry_after(header(headers, "retry-after"), now)
    if asked is None and is_throttled and not _has_rest(headers):
        return _reset(headers, now)
    return asked


def parse_retry_after(value: str | None, now: float) -> float | None:
    """The seconds that a Retry-After header asks for: a number, or a date minus ``now``."""
    if not value:
        return None
    number = _number(value)
    if number is not None:
        return max(0.0, number)
    instant = _http_date(value)
    return None if instant is None else max(0.0, instant - now)


def is_used_up(headers: object) -> bool:
    """Whether the headers say that nothing is left of a rate limit."""
    return _remaining(headers) == 0


def header(headers: object, name: str) -> str | None:
    """A header by its lower-case name, from any kind of mapping."""
    try:
        value = headers.get(name)  # type: ignore[attr-defined]
        if value is None and isinstance(headers, dict):  # the only kind that minds the case
            value = next((v for k, v in headers.items() if str(k).lower() == name), None)
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        return None if value is None else str(value).strip()
    # Clients bring mappings of their own. A header that cannot be read says nothing about a wait.
    except Exception:
        return None


def _has_rest(headers: object) -> bool:
    remaining = _remaining(headers)
    return remaining is not None and remaining > 0


def _remaining(headers: object) -> float | None:
    return _first_number(headers, _REMAINING)


def _reset(headers: object, now: float) -> float | None:
    value = _first_number(headers, _RESETS)
    if value is None:
        return None
    if value >= _FIRST_INSTANT_MS:
        value /= 1000
    return max(0.0, value - now if value >= _FIRST_INSTANT else value)


def _first_number(headers: object, names: tuple[str, ...]) -> float | None:
    numbers = (_number(header(headers, name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(text: str | None) -> float | None:
    return float(text) if text and _NUMBER.fullmatch(text) else None


def _http_date(text: str) -> float | None:
    # Imported here: a provider that is never throttled does without the mail package.
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
        instant = date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    # Providers write anything here, and the parser raises many things about it.
    except Exception:
        return None
    return instant if math.isfinite(instant) else None
