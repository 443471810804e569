"""What counts as a number in settings and in what callers pass."""

from __future__ import annotations

import math
from typing import Any


def is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold; no truth value, and nothing without end."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False
