"""How long the doctor waits for one answer, whatever the store itself would wait for."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.task.mixins.utils import run_with_timeout

TIMEOUT = 5.0
"""Seconds for each part and server."""
_REMEDY = "see that the server runs and can be reached, or allow more: --timeout SECONDS"


def in_time(check: str, look: Callable[[], Finding], timeout: float) -> Finding:
    """What a look at one thing finds, or that it took too long."""
    try:
        return run_with_timeout(look, timeout)
    except TimeoutError:
        return overdue(check, timeout)


def overdue(check: str, timeout: float) -> Finding:
    """The finding about what did not answer."""
    return Finding(check, Status.BAD, f"did not answer within {timeout:g} s", _REMEDY)
