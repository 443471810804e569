"""Errors that know what kind of failure they are: a provider call that was refused, for one."""

from __future__ import annotations

import math

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.errors import ErgonError


def known_failure(error: BaseException) -> Failure | None:
    """The failure of such an error; None for all others, and for one that says nonsense.

    Whoever asks is in the middle of another failure, so nothing here raises.
    """
    if not isinstance(error, ErgonError):
        return None
    try:
        if error.failure_kind is None:
            return None
        gate = error.details.get("gate")
        text = f"{gate}: {error}" if gate else str(error)
        return Failure(Kind(error.failure_kind), str(error.code), text, _seconds(error))
    except Exception:  # a class of the user's may answer anything, or raise
        return None


def _seconds(error: ErgonError) -> float | None:
    asked = error.retry_after_seconds
    is_number = isinstance(asked, int | float) and not isinstance(asked, bool)
    return max(0.0, float(asked)) if is_number and math.isfinite(asked) else None  # type: ignore[arg-type]
