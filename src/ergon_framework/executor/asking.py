"""What a handler raises to ask for another try instead of failing."""

from __future__ import annotations

import math


class RetryLater(Exception):
    """Asks for another attempt, ``delay`` seconds from now; without one the policy decides when."""

    def __init__(self, message: str = "", delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = _checked(delay)

    def __str__(self) -> str:
        return str(self.args[0]) or "the handler asks for another attempt"


class Held(Exception):
    """Says that the work cannot begin before ``delay`` seconds have passed; it is no attempt.

    For a resource that is known to be away: a quota that is used up, a service that asks to wait.
    """

    def __init__(self, message: str, delay: float) -> None:
        super().__init__(message)
        self.delay = _checked(delay)

    def __str__(self) -> str:
        return str(self.args[0]) or "the work is held"


def _checked(delay: float | None) -> float | None:
    if delay is None:
        return None
    seconds = float(delay)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a delay is a number of seconds from 0 on, not {seconds}")
    return seconds
