"""Outcomes of a request: what is sent to the worker when a handler returns, raises or is never
called.

A failure carries a traceback of files, lines, functions and source lines. Locals and arguments are
left out of it: they may hold the job's data.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from inspect import isawaitable
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ergon_framework.core.executor_protocol import (
    CANCELLED,
    DISCARDED,
    HANDLER_NOT_FOUND,
    HELD,
    MAX_LINE,
    Outcome,
    Status,
    encode_outcome,
)
from ergon_framework.core.failure import Kind
from ergon_framework.core.json_names import colliding_name, repeated_name
from ergon_framework.engine.classify import known_failure
from ergon_framework.errors import Discard, JobCancelled, NonRetryableException, Retry, Snooze
from ergon_framework.ports import unit_of_work

UNSERIALISABLE = "unserialisable_result"
TOO_LARGE = "result_too_large"
MAX_MESSAGE = 8192
"""Characters of an error message; a longer one is cut, for it may hold a payload."""

BLOCKED_RETRY_AFTER = 1.0
"""Seconds that a job is parked for which another one blocked the event loop."""

_UNWRITABLE = (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError)
_PLAIN: tuple[type[Any], ...] = (str, int, float, list, dict)
_KEYLESS = frozenset({str, int, float, bool, type(None), msgspec.Raw})
"""Types of results that have no keys, or are JSON already."""
_SUCCESS = Status.SUCCESS  # a name, as Python 3.11 is slow to look a member up


def succeeded(job_id: str, result: Any) -> Outcome:
    """The handler returned."""
    return Outcome(job_id, _SUCCESS, result)


def failed(
    job_id: str, error: BaseException, final: tuple[type[BaseException], ...] = ()
) -> Outcome:
    """The handler raised: its text, its class, and where it was raised.

    The worker knows exceptions by name: one that derives from a ``final`` class has its name.
    """
    outcome = _failed(job_id, error)
    if final and outcome.status in (Status.ERROR, Status.TIMEOUT) and isinstance(error, final):
        name = next(each.__name__ for each in final if isinstance(error, each))
        outcome = msgspec.structs.replace(outcome, status=Status.ERROR, error_type=name)
    if outcome.error_type in (HELD, DISCARDED, CANCELLED) or isinstance(error, Retry):
        return outcome  # asked for, and no mishap
    trace = traceback_of(error)
    return msgspec.structs.replace(outcome, error_traceback=trace) if trace else outcome


def _failed(job_id: str, error: BaseException) -> Outcome:
    message, kind = text_of(error), name_of(error)
    if isinstance(error, Retry):
        return Outcome(job_id, Status.RETRY, None, message, kind, error.retry_after_seconds)
    if isinstance(error, Snooze):
        return Outcome(job_id, Status.RETRY, None, message, HELD, error.retry_after_seconds)
    if isinstance(error, JobCancelled):
        return Outcome(job_id, Status.ERROR, None, message, CANCELLED)
    if isinstance(error, Discard):
        return Outcome(job_id, Status.SUCCESS, None, message, DISCARDED)
    known = known_failure(error)
    if known is not None and known.kind is Kind.HELD:
        return Outcome(job_id, Status.RETRY, None, _clean(known.message), HELD, known.retry_after)
    if known is not None and known.kind is Kind.THROTTLED and known.retry_after is not None:
        return Outcome(job_id, Status.RETRY, None, message, kind, known.retry_after)
    is_final = known is not None and known.kind is Kind.REJECTED
    if is_final or isinstance(error, NonRetryableException):
        # Under the name that the job's settings know: a subclass of the user's is no less final.
        return Outcome(job_id, Status.ERROR, None, message, _own_name(error))
    status = Status.TIMEOUT if isinstance(error, TimeoutError) else Status.ERROR
    return Outcome(job_id, status, None, message, kind)


def refused(job_id: str, kind: str, message: str) -> Outcome:
    """The handler was not run."""
    return Outcome(job_id, Status.ERROR, None, _clean(message), kind)


def not_found(job_id: str, name: str) -> Outcome:
    """The outcome of a request for an unknown handler."""
    shown = name if len(name) <= 100 else name[:100] + "…"
    return refused(job_id, HANDLER_NOT_FOUND, f"No handler is registered for function {shown!r}")


def not_begun(job_id: str) -> Outcome:
    """The deadline passed before the handler began, because another blocked the event loop."""
    message = "it was not begun: another handler blocked the event loop until its deadline"
    return Outcome(job_id, Status.RETRY, None, message, HELD, BLOCKED_RETRY_AFTER)


def cut_off_by_another(job_id: str) -> Outcome:
    """The outcome of a job whose batch was cancelled at the deadline of another job."""
    message = "another job of its batch ran past its deadline, and their call was cancelled"
    return Outcome(job_id, Status.RETRY, None, message, HELD, BLOCKED_RETRY_AFTER)


def cancelled(job_id: str) -> Outcome:
    """The handler has ended, or was not begun, because its job is to be cancelled."""
    return Outcome(job_id, Status.ERROR, None, "the job was cancelled", CANCELLED)


def timed_out(job_id: str, message: str) -> Outcome:
    """The deadline has passed."""
    return Outcome(job_id, Status.TIMEOUT, None, message)


def written(outcome: Outcome, limit: int = MAX_LINE) -> tuple[Outcome, bytes]:
    """The outcome as a line; another one in its place when its result cannot be written."""
    try:
        line = encode_outcome(outcome)
    except _UNWRITABLE:
        outcome, line = _once_more(outcome)
    else:
        is_keyless = type(outcome.result) in _KEYLESS
        repeated = None if is_keyless else repeated_name(outcome.result, line)
        if repeated is not None:
            outcome, line = _unwritable(outcome, _two_keys(repeated))
    if len(line) - 1 > limit:
        size = len(line) - 1
        outcome = refused(
            outcome.job_id,
            TOO_LARGE,
            f"the outcome takes {size} bytes, at most {limit} are allowed",
        )
        line = encode_outcome(outcome)
    return outcome, line


def text_of(error: BaseException) -> str:
    """The exception's text, or its class where it has none or a broken one."""
    try:
        text = _clean(str(error))
    except BaseException:  # a broken __str__ must not hide the failure it describes
        text = ""
    return text or name_of(error)


def name_of(error: BaseException) -> str:
    """The name of the exception's class."""
    return _clean(type(error).__name__)


def _own_name(error: BaseException) -> str:
    """The name of our class that an error is an instance of."""
    ours = (each for each in type(error).__mro__ if each.__module__.startswith("ergon_framework."))
    return next(ours, type(error)).__name__


def _once_more(outcome: Outcome) -> tuple[Outcome, bytes]:
    """With models and subclasses of plain types made plain; most results never come here."""
    try:
        plain = msgspec.to_builtins(outcome.result, enc_hook=_made_plain, str_keys=True)
        repeated = colliding_name(outcome.result)
        once_more = msgspec.structs.replace(outcome, result=plain)
        line = encode_outcome(once_more)
    except Exception as again:  # the hook runs code of the user's classes
        reason = text_of(again) if type(again) is TypeError else name_of(again)
        return _unwritable(outcome, reason)
    return (once_more, line) if repeated is None else _unwritable(outcome, _two_keys(repeated))


def _two_keys(name: str) -> str:
    """Why a value is refused of which a reader would get less than was written."""
    return f"two of its keys are {name[:40]!r} there"


def _unwritable(outcome: Outcome, reason: str) -> tuple[Outcome, bytes]:
    if isawaitable(outcome.result):
        reason = "it was not awaited (write await before the call that returned it)"
    outcome = refused(
        outcome.job_id,
        UNSERIALISABLE,
        f"the result, a {type(outcome.result).__name__}, cannot be written as JSON: {reason}",
    )
    return outcome, encode_outcome(outcome)


def _made_plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # a pydantic model, or one that acts like it
    if dump is not None:
        return dump(mode="json")
    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _clean(text: str) -> str:
    """Text that any JSON reader takes: not too long, and without halves of surrogate pairs."""
    if len(text) > MAX_MESSAGE:
        text = text[:MAX_MESSAGE] + "…"
    return text.encode("utf-8", "replace").decode()


MAX_FRAMES = 20
"""Frames of one exception that are sent: the innermost."""
MAX_CAUSES = 3
"""Exceptions of a chain that are sent: the last."""
MAX_LINE = 200
MAX_TRACEBACK = 4096
"""Characters of one line, and of all."""
_OURS = (str(Path(__file__).parent), unit_of_work.__file__)
"""Files whose frames say nothing about the handler."""


def traceback_of(error: BaseException) -> str | None:
    """The traceback of an exception and of what it came from; None where nothing is known."""
    try:
        text = "\n".join(_lines(error))
    except BaseException:  # a loader of the user's may raise when it is asked for a source line
        return None
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TRACEBACK else "…" + text[-MAX_TRACEBACK:]


def _lines(error: BaseException) -> Iterator[str]:
    chain = [error]
    while len(chain) < MAX_CAUSES and (earlier := _before(chain[-1])) is not None:
        if earlier in chain:
            break
        chain.append(earlier)
    for number, each in enumerate(reversed(chain)):
        if number:
            yield "which led to:"
        yield from _frames(each)
        yield type(each).__name__[:MAX_LINE]


def _before(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _frames(error: BaseException) -> Iterator[str]:
    found = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), limit=-_MAX_DEPTH, capture_locals=False
    )
    frames = [each for each in found if not each.filename.startswith(_OURS)]
    if len(frames) > MAX_FRAMES:
        yield f"  … {len(frames) - MAX_FRAMES} more frames"
    for frame in frames[-MAX_FRAMES:]:
        yield f"  {frame.filename[:MAX_LINE]}:{frame.lineno} in {frame.name[:MAX_LINE]}"
        if frame.line:
            yield f"    {frame.line[:MAX_LINE]}"


_MAX_DEPTH = min(sys.getrecursionlimit(), 1000)
