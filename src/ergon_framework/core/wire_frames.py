"""The frames of Executor Protocol v1, as the two roles see them.

Reprs show only fields that hold nobody's data: no arguments, results or error messages.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec

PROTOCOL_VERSION = "1"

HANDLER_NOT_FOUND = "handler_not_found"
"""The error type of an executor that has no such handler: nobody tries again."""

HELD = "held"
"""The error type of a retry that was refused by a gate before anything was attempted."""

ATTEMPTS = "ergon_attempts"
"""In the trace's carrier: how many attempts a job has, told where that is 1."""

INVALID_REQUEST = "invalid_request"
"""The error type of the answer to a line that is no request."""

UNSUPPORTED_VERSION = "unsupported_protocol_version"
"""The error type of the answer to a request in another version of the protocol."""

UNKNOWN_JOB = "unknown"
"""The job id in the answer to a line in which none can be read."""


class Status(StrEnum):
    """What became of one attempt, as the executor sees it."""

    SUCCESS = "success"
    RETRY = "retry"
    TIMEOUT = "timeout"
    ERROR = "error"


class Discreet(msgspec.Struct, frozen=True):
    """A record whose repr shows only the fields it names."""

    _shown: ClassVar[tuple[str, ...]] = ()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self._shown]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class RequestContext(msgspec.Struct, frozen=True):
    """What an executor is told about the attempt, besides what to run."""

    job_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    enqueue_time: str
    queue_name: str
    deadline: str | None = None
    trace_context: dict[str, str] | None = None
    worker_id: str | None = None


class Request(Discreet, frozen=True):
    """One attempt of one job, as an executor reads it."""

    _shown = ("job_id", "function_name")

    job_id: str
    function_name: str
    context: RequestContext
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    protocol_version: str = PROTOCOL_VERSION


class Outcome(Discreet, frozen=True):
    """The one answer to a request, as an executor writes it."""

    _shown = ("job_id", "status", "error_type", "retry_after_seconds")

    job_id: str
    status: Status
    result: Any = None
    error_message: str | None = None
    error_type: str | None = None
    retry_after_seconds: float | None = None
    error_traceback: str | msgspec.UnsetType = msgspec.UNSET  # of our own: others ignore it


class Refusal(msgspec.Struct, frozen=True):
    """A line that is no request this executor can read, and the answer to it."""

    outcome: Outcome


class Reply(Discreet, frozen=True):
    """An outcome as the orchestrator reads it: its result is JSON that nobody has looked into."""

    _shown = ("job_id", "status", "error_type", "retry_after_seconds")

    job_id: str
    status: Status
    result: bytes = b"null"
    error_message: str | None = None
    error_type: str | None = None
    retry_after_seconds: float | None = None
    error_traceback: str | None = None


class Stray(msgspec.Struct, frozen=True):
    """A line that is no outcome: why, its bytes, and the job it names if one can be read."""

    reason: str
    size: int
    job_id: str | None = None
