"""What may stand in each field of a job. Each check takes the field's name and its value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.jobs.names import FORBIDDEN, Check, refusal

DAY = 86_400.0
TEN_YEARS = 3653 * DAY
LONGEST_ID = 200
LONGEST_TRACE = 16 * 1024

Instant: TypeAlias = float | datetime | str


def whole(low: int, high: int) -> Check:
    """A whole number between two others."""

    def check(field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refusal(field, "must be a whole number", f"give one from {low} to {high}")
        if not low <= value <= high:
            raise refusal(field, f"is {_short(value)}", f"give a number from {low} to {high}")
        return int(value)

    return check


def seconds(low: float, high: float, *, is_above: bool = False) -> Check:
    """A duration; ``is_above`` excludes the lower bound itself."""
    bounds = f"{'more than' if is_above else 'at least'} {low:g} and at most {high:g}"

    def check(field: str, value: Any) -> float:
        number = _number(field, value)
        if not low <= number <= high or (is_above and number == low):
            raise refusal(field, f"is {number:g} seconds", f"give {bounds}")
        return number

    return check


def instant(field: str, value: Any) -> float:
    """A point in time as seconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            remedy = "give it one, for example datetime.now(UTC)"
            raise refusal(field, "is a datetime without a time zone", remedy)
        return value.timestamp()
    if isinstance(value, str):
        try:
            return parse_rfc3339(value)
        except ValueError as error:
            remedy = "write it like 2030-01-31T12:00:00Z"
            raise refusal(field, f"is no point in time: {error}", remedy) from error
    return _number(field, value)


def choice(kinds: type[StrEnum]) -> Check:
    """One of a few words."""
    words = ", ".join(kinds)

    def check(field: str, value: Any) -> StrEnum:
        try:
            return kinds(value)
        except ValueError as error:
            raise refusal(field, f"is not one of {words}", "use one of these words") from error

    return check


def trace(field: str, value: Any) -> dict[str, str]:
    """A trace context: a few lines of text under text."""
    remedy = "give what a propagator injects, for example traceparent and tracestate"
    if not isinstance(value, Mapping):
        raise refusal(field, "must be a dict", remedy)
    size = 0
    for key, item in value.items():
        if not (isinstance(key, str) and isinstance(item, str)):
            raise refusal(field, "must hold text under text", remedy)
        if FORBIDDEN.search(key) or FORBIDDEN.search(item):
            raise refusal(field, "holds a control character", remedy)
        size += len(key) + len(item)
    if size > LONGEST_TRACE:
        raise refusal(field, f"has more than {LONGEST_TRACE:,} characters", remedy)
    return dict(value)


def _number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(field, f"must be a number, not {type(value).__name__}", "give seconds")
    try:
        number = float(value)
    except OverflowError as error:
        raise refusal(field, "is too large", "give seconds") from error
    if not math.isfinite(number):
        raise refusal(field, "must be a finite number", "give seconds")
    return number


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**12 else "too large"
