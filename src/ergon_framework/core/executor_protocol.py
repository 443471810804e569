"""Executor Protocol v1 without I/O: bytes in, frames out, for both of its roles.

The orchestrator writes one request per line and reads outcomes; an executor does the reverse. A
session is fed the bytes that a pipe delivered and returns whole frames: the same bytes give the
same frames, however they were cut into reads. No input raises. A line that is no frame becomes a
frame of its own (``Refusal``, ``Stray``), and the next line is read as if nothing had happened.

Lines are cut at 0x0A and nowhere else, and are bounded in length: U+2028 and similar separators are
ordinary characters of JSON text, so ``str.splitlines`` would cut inside a frame. The ``repr`` of a
frame shows only fields that hold no user data: no arguments, results or error messages.

Rules for editors: reasons never quote what a line holds. Fields may be added, never demanded: an
executor that knows nothing but the specification must work for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from ergon_framework.core.rfc3339 import (
    format_rfc3339,
    parse_rfc3339,
)

__all__ = [
    "ATTEMPTS",
    "CANCELLED",
    "DISCARDED",
    "HANDLER_NOT_FOUND",
    "HELD",
    "INVALID_REQUEST",
    "MAX_LINE",
    "PROTOCOL_VERSION",
    "UNKNOWN_JOB",
    "UNSUPPORTED_VERSION",
    "ExecutorSession",
    "LineSplitter",
    "OrchestratorSession",
    "Outcome",
    "ProgressReport",
    "Refusal",
    "Reply",
    "Request",
    "RequestContext",
    "Status",
    "Stray",
    "TooLong",
    "cancelled_job",
    "check_progress",
    "encode_cancel",
    "encode_outcome",
    "encode_progress",
    "encode_request",
    "reported_progress",
]


PROTOCOL_VERSION = "1"

HANDLER_NOT_FOUND = "handler_not_found"
"""The error type of an executor that has no such handler; the job is not retried."""

HELD = "held"
"""The error type of a retry that was refused by a gate before anything was attempted."""

DISCARDED = "discarded"
"""The error type of a success without a result: the handler gave the job up as pointless.

To an orchestrator that does not know it, such a job has succeeded with null.
"""

CANCELLED = "cancelled"
"""The error type of a handler that has ended because its job was to be cancelled."""

ATTEMPTS = "ergon_attempts"
"""Key in the trace carrier: the maximum of attempts of a job, sent only where that is 1."""

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
    """The context of an attempt that a request carries, besides what to run."""

    job_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    enqueue_time: str
    queue_name: str
    deadline: str | None = None
    trace_context: dict[str, str] | None = None
    worker_id: str | None = None


class Request(Discreet, frozen=True, gc=False):
    """One attempt of one job, as an executor reads it. Nothing that it holds can hold it."""

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
    """An outcome as the orchestrator reads it: its result is JSON that was not decoded."""

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


NOT_THROUGH = "is not through yet"
"""How a line on the standard error stream ends that names what an executor still has to close, when
it is asked to end."""
MAX_LINE = 16 * 1024 * 1024
"""The longest line that is read, in bytes without its newline."""

HEAD = 4096
"""How much of a line that is not kept is looked at for a job id."""


class TooLong(Discreet, frozen=True):
    """A line over the limit, given up after ``seen`` bytes; ``head`` is how it began."""

    _shown = ("seen",)

    seen: int
    head: bytes = b""


class LineSplitter:
    """Bytes in, whole lines out; holds at most ``limit`` bytes of a line that has not ended."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._is_skipping = False  # the rest of a line that was too long

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that these bytes end, without their newline and one carriage return."""
        pieces = data.split(b"\n")
        rest = pieces.pop()
        lines: list[bytes | TooLong] = []
        if pieces and (self._begun or self._is_skipping):
            lines += self._finish(pieces.pop(0))
        # Only then may a line need more than the cut. A batch of plain lines costs no call per
        # line.
        if b"\r" in data or len(data) > self._limit:
            lines += map(self._line, pieces)
        else:
            lines += pieces
        if rest:
            lines += self._hold(rest)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """The last line, if the input ended without a newline."""
        return list(self._finish(b""))

    @property
    def buffered(self) -> int:
        """How many bytes are held of a line that has not ended."""
        return len(self._begun)

    @property
    def is_skipping(self) -> bool:
        """Whether a line that was given up has not ended."""
        return self._is_skipping

    def _finish(self, piece: bytes) -> Iterable[bytes | TooLong]:
        """The line that was begun, now that its last piece is there."""
        line, self._begun = bytes(self._begun) + piece, bytearray()
        was_skipping, self._is_skipping = self._is_skipping, False
        return () if was_skipping or not line else (self._line(line),)

    def _hold(self, piece: bytes) -> Iterable[bytes | TooLong]:
        """Keep the piece of a line that goes on, or give the line up."""
        if self._is_skipping:
            return ()
        self._begun += piece
        if len(self._begun) <= self._limit:
            return ()
        line, self._begun = bytes(self._begun), bytearray()
        self._is_skipping = True
        return (self._line(line),)

    def _line(self, line: bytes) -> bytes | TooLong:
        if len(line) > self._limit:  # its carriage return counts: it came before the newline did
            return TooLong(self._limit + 1, line[: min(HEAD, self._limit)])
        return line[:-1] if line[-1:] == b"\r" else line


_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_ENCODER = msgspec.json.Encoder()
_Frame = TypeVar("_Frame")


# --- the executor's role ------------------------------------------------------------------------


class ExecutorSession:
    """What an executor reads: requests, and answers ready to be sent to all other lines."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._lines = LineSplitter(limit)

    def feed(self, data: bytes) -> list[Request | Refusal]:
        """The requests that these bytes complete; blank lines are skipped."""
        return _frames(self._lines.feed(data), _request, _refuse_long)

    def end(self) -> list[Request | Refusal]:
        """The last request, if the input ended without a newline."""
        return _frames(self._lines.end(), _request, _refuse_long)


def encode_outcome(outcome: Outcome) -> bytes:
    """The outcome as one line with all its fields.

    What JSON cannot hold raises a TypeError, ValueError, RecursionError or msgspec.MsgspecError;
    NaN and the infinities are written as null.
    """
    return _encode(outcome)


_REQUESTS = msgspec.json.Decoder(Request)


def _request(line: bytes) -> Request | Refusal:
    try:
        request = _REQUESTS.decode(line)
        if not line.isascii():
            line.decode()  # msgspec does not look into fields that it skips
    except _UNREADABLE as error:
        return _refuse(_shown(line), _why(error, line))
    problem = _request_problem(request)
    return request if problem is None else _refuse(_shown(line), problem)


def _request_problem(request: Request) -> str | None:
    """What the types cannot see: None for a request that makes sense."""
    context = request.context
    if request.protocol_version != PROTOCOL_VERSION:
        return "unsupported version - at `$.protocol_version`"
    if context.job_id != request.job_id:
        return "`$.context.job_id` differs from `$.job_id`"
    field = "enqueue_time"
    try:
        parse_rfc3339(context.enqueue_time)
        field = "deadline"
        if context.deadline is not None:
            parse_rfc3339(context.deadline)
    except ValueError as error:
        return f"Expected an RFC 3339 instant: {error} - at `$.context.{field}`"
    return None


def _refuse(shown: _Shown, reason: str) -> Refusal:
    message, error_type = f"Invalid request: {reason}", INVALID_REQUEST
    version = shown.protocol_version
    if isinstance(version, str) and version != PROTOCOL_VERSION:
        message = f"Unsupported protocol version {version[:20]!r}, expected {PROTOCOL_VERSION!r}"
        error_type = UNSUPPORTED_VERSION
    job_id = UNKNOWN_JOB if shown.job_id is None else shown.job_id
    return Refusal(Outcome(job_id, Status.ERROR, error_message=message, error_type=error_type))


def _refuse_long(line: TooLong) -> Refusal:
    return _refuse(_Shown(_job_id_at_start(line.head)), _too_long(line))


# --- the orchestrator's role --------------------------------------------------------------------


class OrchestratorSession:
    """What an orchestrator reads: replies, and strays for all other lines."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._lines = LineSplitter(limit)

    def feed(self, data: bytes) -> list[Reply | Stray]:
        """The replies that these bytes complete; blank lines are skipped."""
        return _frames(self._lines.feed(data), _reply, _stray_long)

    def end(self) -> list[Reply | Stray]:
        """The last reply, if the input ended without a newline."""
        return _frames(self._lines.end(), _last_reply, _stray_long)

    @property
    def is_skipping(self) -> bool:
        """Whether a line that was too long goes on."""
        return self._lines.is_skipping


# Requests go out in batches: those of one batch have one deadline, and often one enqueue time.
_instant = lru_cache(maxsize=256)(format_rfc3339)


class _Dispatch(msgspec.Struct, frozen=True):
    """A request on its way out; the job id comes early, so that even a cut line shows it."""

    protocol_version: str
    job_id: str
    function_name: str
    args: msgspec.Raw
    kwargs: msgspec.Raw
    context: RequestContext


def encode_request(
    *,
    job_id: str,
    function_name: str,
    args: bytes,
    kwargs: bytes,
    attempt: int,
    enqueued_at: float,
    queue_name: str,
    deadline_at: float | None,
    trace_context: Mapping[str, str] | None,
    worker_id: str | None,
) -> bytes:
    """The request as one line; ``args`` and ``kwargs`` are a JSON array and object, ready made."""
    context = RequestContext(
        job_id,
        attempt,
        _instant(enqueued_at),
        queue_name,
        None if deadline_at is None else _instant(deadline_at),
        None if trace_context is None else dict(trace_context),
        worker_id,
    )
    raw = msgspec.Raw
    return _encode(
        _Dispatch(PROTOCOL_VERSION, job_id, function_name, raw(args), raw(kwargs), context)
    )


class _Control(msgspec.Struct, frozen=True):
    """A line of the control descriptor, which is no part of the specification."""

    cancel: str | None = None  # the id of a job that is to be cancelled


_CONTROLS = msgspec.json.Decoder(_Control)


def encode_cancel(job_id: str) -> bytes:
    """The line that tells an executor to cancel a job which it runs.

    Version 1 has no message for it, and a line that is no request would be answered as one. So it
    does not go to the standard input, but to a descriptor of its own.
    """
    return _encode(_Control(job_id))


def cancelled_job(line: bytes) -> str | None:
    """The id of the job that a line of the control descriptor cancels; None: it says another."""
    try:
        return _CONTROLS.decode(line).cancel
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


MAX_PROGRESS_MESSAGE = 400
"""Characters of a message beside a progress. Escaped, a line stays below 4,096 bytes, which a pipe
takes as a whole or not at all."""


class ProgressReport(msgspec.Struct, frozen=True):
    """How far a job is, as its executor says."""

    job_id: str
    fraction: float | None = None  # from 0 to 1
    message: str = ""


class _Report(msgspec.Struct, frozen=True):
    """A line of the progress descriptor, which is no part of the specification."""

    progress: ProgressReport | None = None


_REPORTS = msgspec.json.Decoder(_Report)


def check_progress(fraction: Any, message: Any) -> None:
    """Refuse what is no part of a whole, or no text, before it is reported."""
    if not isinstance(message, str):
        raise TypeError(f"the message of a progress is text, not {type(message).__name__}")
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if fraction is not None and not (is_number and 0.0 <= fraction <= 1.0):
        raise ValueError(f"a progress is a part from 0 to 1, such as 0.4, not {fraction!r}")


def encode_progress(job_id: str, fraction: float | None, message: str) -> bytes:
    """The line that tells a worker how far a job is.

    Version 1 has no message for it, and whatever is no outcome is a stray line on the standard
    output. So it goes to a descriptor of its own.
    """
    # A name of a file may have characters that no text has; a report must not fail its job.
    text = message[:MAX_PROGRESS_MESSAGE].encode(errors="backslashreplace").decode()
    return _encode(_Report(ProgressReport(job_id, fraction, text[:MAX_PROGRESS_MESSAGE])))


def reported_progress(line: bytes) -> ProgressReport | None:
    """The report of a line of the progress descriptor; None if the line holds something else."""
    try:
        report = _REPORTS.decode(line).progress
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if report is None or (report.fraction is not None and not 0.0 <= report.fraction <= 1.0):
        return None
    return report


class _Answer(msgspec.Struct, frozen=True):
    """An outcome off the wire; its status is looked up by hand, for msgspec would quote it."""

    job_id: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error_message: str | None = None
    error_type: str | None = None
    retry_after_seconds: float | None = None
    error_traceback: Any = None  # not of the specification: whatever it is, the outcome counts


_ANSWERS = msgspec.json.Decoder(_Answer)
_STATUSES = {str(status): status for status in Status}
_BAD_STATUS = f"Expected one of {', '.join(Status)} - at `$.status`"


def _last_reply(line: bytes) -> Reply | Stray:
    """Read a last line without a newline. A line that was cut short answers no request."""
    frame = _reply(line)
    if isinstance(frame, Stray) and "truncated" in frame.reason:
        return Stray(frame.reason, frame.size)
    return frame


def _reply(line: bytes) -> Reply | Stray:
    try:
        answer = _ANSWERS.decode(line)
        if not line.isascii():
            line.decode()  # msgspec looks neither into raw values nor into fields that it skips
    except _UNREADABLE as error:
        return Stray(_why(error, line), len(line), _answered(line))
    status = _STATUSES.get(answer.status)
    if status is None:
        return Stray(_BAD_STATUS, len(line), answer.job_id)
    return Reply(
        answer.job_id,
        status,
        bytes(answer.result),
        answer.error_message,
        answer.error_type,
        answer.retry_after_seconds,
        answer.error_traceback if isinstance(answer.error_traceback, str) else None,
    )


def _answered(line: bytes) -> str | None:
    """The job that a line means which is no outcome, or no JSON (NaN, raw control bytes)."""
    shown = _shown(line).job_id
    return shown if isinstance(shown, str) else _job_id_at_start(line[:HEAD])


def _stray_long(line: TooLong) -> Stray:
    return Stray(_too_long(line), line.seen, _job_id_at_start(line.head))


# --- both roles ---------------------------------------------------------------------------------


def _encode(frame: msgspec.Struct) -> bytes:
    line = _ENCODER.encode_lines((frame,))
    if line.find(b"\n", 0, -1) >= 0:
        # Ready-made JSON may be laid out over several lines; between its tokens a space will do.
        return line[:-1].replace(b"\n", b" ") + b"\n"
    return line


def _frames(
    lines: Iterable[bytes | TooLong],
    read: Callable[[bytes], _Frame],
    give_up: Callable[[TooLong], _Frame],
) -> list[_Frame]:
    frames: list[_Frame] = []
    for line in lines:
        if isinstance(line, TooLong):
            frames.append(give_up(line))
        elif line and not line.isspace():
            frames.append(read(line))
    return frames


class _Shown(msgspec.Struct):
    """What can be read of a line that is no valid frame."""

    job_id: Any = None
    protocol_version: Any = PROTOCOL_VERSION


_SHOWN = msgspec.json.Decoder(_Shown)
_TEXT = msgspec.json.Decoder(str)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF_AT_END = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]\w\w\"[^\\]{0,4}\Z")
# Possessive quantifiers (``*+``): a hostile line must not make the search quadratic.
_JOB_ID_AT_START = re.compile(
    rb"\s*+\{(?:\s*+STRING\s*+:\s*+(?:STRING|[-+.\w]++)\s*+,)*"
    rb'\s*+"job_id"\s*+:\s*+(STRING)\s*+[,}]'.replace(b"STRING", rb'"(?:[^"\\]|\\.)*+"')
)


def _shown(line: bytes) -> _Shown:
    try:
        shown = _SHOWN.decode(line)
    except _UNREADABLE as error:
        # Deep nesting and half a surrogate pair are proper JSON, though not to this reader.
        if isinstance(error, RecursionError) or _SURROGATE.search(line):
            return _Shown(_job_id_at_start(line[:HEAD]))
        return _Shown()
    if not isinstance(shown.job_id, str):
        shown.job_id = None
    return shown


def _job_id_at_start(head: bytes) -> str | None:
    """The job id, if it is among the plain values with which a line begins."""
    match = _JOB_ID_AT_START.match(head)
    if match is None:
        return None
    try:
        return _TEXT.decode(match[1])
    except _UNREADABLE:
        return None


def _too_long(line: TooLong) -> str:
    return f"the line is longer than {line.seen - 1} bytes"


def _why(error: Exception, line: bytes) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if _HALF_AT_END.search(line):  # the reader says truncated: it looked for the other half
        return "text with half a surrogate pair"
    return str(error)
