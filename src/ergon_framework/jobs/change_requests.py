"""Checks who asks for a change of stored jobs, why, and for which instant.

A change of one job, of many jobs, and a dry run of either use these checks, so all refuse the same.
"""

from __future__ import annotations

import getpass
import os
import socket

from ergon_framework.core.job import CancelRequested, RequeueRequested
from ergon_framework.ports.job_fields import CHECKS, TEN_YEARS, Instant, instant, refusal, text

_actor, _reason = text(), text(1000)


def cancellation(by: str | None, reason: str) -> CancelRequested:
    """Who cancels a job and why, as the job's history records it."""
    asked_by = requester() if by is None else _actor("by", by)
    return CancelRequested(asked_by, checked_reason(reason))


def checked_reason(reason: str) -> str:
    """The reason of a change, checked, as the job's history records it."""
    return _reason("reason", reason) if reason else ""


def requeueing(by: str | None) -> RequeueRequested:
    """Who sends a job back, as the job's history records it; empty without a name."""
    return RequeueRequested("" if by is None else _actor("by", by))


def due_instant(run_at: Instant | None, delay: float | None, now: float) -> float:
    """The instant at which a waiting job is to run."""
    if (run_at is None) == (delay is None):
        raise refusal("run_at", "or delay is wanted, one of the two", "say when it is to run")
    if delay is not None:
        seconds: float = CHECKS["delay"]("delay", delay)
        return now + seconds
    found = instant("run_at", run_at)
    if found > now + TEN_YEARS:
        raise refusal("run_at", "lies more than ten years ahead", "is it in seconds?")
    return found


def requester() -> str:
    """Who asks, when the caller gave no name: the user of this process, and the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # The user has no name, which happens in containers.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
