"""Errors that know what kind of failure they are: a provider call that was refused, for one."""

from __future__ import annotations

import math
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.errors import ErgonError, plain


def known_failure(error: BaseException) -> Failure | None:
    """The failure of such an error; None for all others, and for one that says nonsense.

    Whoever asks is in the middle of another failure, so nothing here raises.
    """
    if not issubclass(type(error), ErgonError):
        return None
    asked: Any = error
    try:
        if asked.failure_kind is None:
            return None
        gate, text = asked.details.get("gate"), plain(str(error))
        text = f"{gate}: {text}" if gate else text
        return Failure(Kind(asked.failure_kind), plain(str(asked.code)), text, _seconds(asked))
    except BaseException:  # a class of the user's may answer anything, or raise
        return None


def _seconds(error: ErgonError) -> float | None:
    asked = error.retry_after_seconds
    is_number = isinstance(asked, int | float) and not isinstance(asked, bool)
    return max(0.0, float(asked)) if is_number and math.isfinite(asked) else None  # type: ignore[arg-type]
