"""What a handler sees of its job, and what it raises to ask for another attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol

import msgspec

from ergon_framework.core.executor_protocol import check_progress
from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.errors import JobCancelled, Retry, Snooze
from ergon_framework.ports.unit_of_work import RUNNING

_NOTHING: Mapping[str, str] = MappingProxyType({})
CORRELATION = "correlation_id"
"""Where a job's correlation id travels: in the propagation carrier, beside the trace."""


class StopFlag:
    """Whether a job is to be cancelled. Any thread may set it."""

    __slots__ = ("is_stopped",)

    def __init__(self) -> None:
        self.is_stopped = False

    def __repr__(self) -> str:
        return f"StopFlag(is_stopped={self.is_stopped})"


NOT_STOPPED = StopFlag()
"""The flag of a job that cannot be cancelled: one that a test made."""


class JobContext(msgspec.Struct, frozen=True, kw_only=True):
    """The job a handler runs; a parameter annotated with it receives it, wherever it stands.

    Times of the day are parsed when they are asked for. Everything but the id has a default, so
    that a test can call a handler with ``JobContext(job_id="1")``.
    """

    job_id: str
    handler: str = ""
    attempt: int = 1
    queue_name: str = "default"
    enqueue_time: str | None = None
    deadline_time: str | None = None
    trace_context: Mapping[str, str] = _NOTHING
    worker_id: str | None = None
    ends_at: float | None = None
    """The deadline on the monotonic clock, which does not jump when the time is set."""
    stop: StopFlag = NOT_STOPPED
    """The flag that says whether the job was asked to stop."""
    reporter: Callable[[float | None, str], None] | None = None
    """Called by :meth:`progress`; None in a test."""

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Tell how far the job is: a part from 0 to 1, a few words, or both.

        Plain and async handlers may call it as often as they like: it never waits, and about one
        report in a second is sent, the last one always.
        """
        check_progress(fraction, message)
        if self.reporter is not None:
            self.reporter(fraction, message)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody wants the job cancelled: a plain handler asks now and then, and ends.

        An async one is cancelled as well, and need not ask.
        """
        return self.stop.is_stopped

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled if somebody wants the job cancelled."""
        if self.stop.is_stopped:
            raise JobCancelled

    @property
    def enqueued_at(self) -> datetime | None:
        """When the job was enqueued."""
        return _moment(self.enqueue_time)

    @property
    def deadline(self) -> datetime | None:
        """When the attempt is cut off, by the clock of the orchestrator."""
        return _moment(self.deadline_time)

    @property
    def correlation(self) -> str | None:
        """The id that ties this job to others, if its sender gave one."""
        return self.trace_context.get(CORRELATION)

    def remaining(self) -> float | None:
        """Seconds until the deadline, never below 0; None where there is none."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


class HasContext(Protocol):
    """An object with a job's context, which is created when it is first read."""

    @property
    def context(self) -> JobContext:
        """What is known about the job."""
        ...


def current_job() -> JobContext | None:
    """The job of the handler that is running here; None outside of one."""
    context = getattr(RUNNING.get(), "context", None)
    return context if isinstance(context, JobContext) else None


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromtimestamp(parse_rfc3339(text), UTC)


class RetryLater(Retry):
    """:class:`~ergon_framework.errors.Retry` under its first name, with ``delay`` for ``after``."""

    def __init__(self, message: str = "", delay: float | None = None) -> None:
        super().__init__(message, delay)
        self.delay = self.retry_after_seconds


class Held(Snooze):
    """:class:`~ergon_framework.errors.Snooze` under its first name, with the message first."""

    def __init__(self, message: str, delay: float) -> None:
        super().__init__(delay, message)
        self.delay = self.retry_after_seconds
