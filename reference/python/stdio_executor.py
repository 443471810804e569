#!/usr/bin/env python3
"""A whole executor in one file: Executor Protocol v1 on the standard library alone.

Meant to be read and ported. It does everything the protocol asks of an executor and nothing more:
one request at a time, one line in, one line out. Add your handlers below ``HANDLERS`` and run it
as the command of an executor.

    {"protocol_version": "1", "job_id": "1", "function_name": "echo", "args": [], "kwargs": {}, ...}
    {"job_id": "1", "status": "success", "result": ..., "error_message": null, ...}
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any

MAX_LINE = 16 * 1024 * 1024
A_YEAR = 31_536_000.0
Json = dict[str, Any]


# --- handlers: replace these with yours ----------------------------------------------------------


class RetryLater(Exception):
    """A handler raises it to be called again, after ``delay`` seconds if it says so."""

    def __init__(self, message: str, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


def echo(*args: Any, **kwargs: Any) -> Json:
    """Give back what was sent."""
    return {"args": args, "kwargs": kwargs}


def fail(message: str = "this handler always fails") -> None:
    """Fail, as any exception does."""
    raise RuntimeError(message)


def retry(delay: float = 5) -> None:
    """Ask for another attempt, later."""
    raise RetryLater("try again in a while", delay)


def sleep(seconds: float = 0) -> float:
    """Take a while."""
    time.sleep(seconds)
    return seconds


def print_text(text: str = "hello") -> None:
    """Print: it appears on the standard error."""
    print(text, flush=True)


def unserialisable() -> object:
    """Return what JSON cannot hold."""
    return object()


HANDLERS: dict[str, Callable[..., Any]] = {
    "echo": echo,
    "fail": fail,
    "retry": retry,
    "sleep": sleep,
    "print": print_text,
    "unserialisable": unserialisable,
}


# --- one request, one outcome --------------------------------------------------------------------


class InvalidRequest(Exception):
    """The line is no request that we can serve."""


def outcome(job_id: str, status: str, **more: Any) -> Json:
    """An outcome with all its fields; those not given are null."""
    empty = {"result": None, "error_message": None, "error_type": None, "retry_after_seconds": None}
    return {"job_id": job_id, "status": status, **empty, **more}


def error(job_id: str, kind: str, message: str) -> Json:
    """An outcome that says what went wrong."""
    return outcome(job_id, "error", error_message=message, error_type=kind)


def answer(line: bytes) -> Json:
    """The outcome for one line, whatever it holds."""
    job_id = "unknown"
    try:
        request = read(line)
        if isinstance(request.get("job_id"), str):
            job_id = request["job_id"]  # known from here on, whatever else is wrong
        version = request.get("protocol_version", "1")
        if isinstance(version, str) and version != "1":
            message = f"Unsupported protocol version {version[:20]!r}"
            return error(job_id, "unsupported_protocol_version", message)
        deadline = check(request)
    except InvalidRequest as flaw:
        return error(job_id, "invalid_request", f"Invalid request: {flaw}")
    handler = HANDLERS.get(request["function_name"])
    if handler is None:
        name = request["function_name"][:100]
        return error(job_id, "handler_not_found", f"No handler for {name!r}")
    if deadline is not None and deadline <= time.time():
        return outcome(job_id, "timeout", error_message="The deadline had passed already")
    call = partial(handler, *request.get("args", []), **request.get("kwargs", {}))
    return run(job_id, call, deadline)


def run(job_id: str, call: Callable[[], Any], deadline: float | None) -> Json:
    """Call the handler; whatever it does becomes an outcome."""
    try:
        with time_limit(deadline):
            return outcome(job_id, "success", result=call())
    except RetryLater as wish:
        more = {"error_message": str(wish), "retry_after_seconds": wish.delay}
        return outcome(job_id, "retry", **more)
    except TimeoutError as late:
        return outcome(job_id, "timeout", error_message=text(late))
    except BaseException as failure:  # SystemExit too: a handler may not end the process
        return error(job_id, type(failure).__name__, text(failure))


@contextmanager
def time_limit(deadline: float | None) -> Iterator[None]:
    """Interrupt the handler with a TimeoutError at its deadline.

    Python does this between two of its own steps; the orchestrator ends what it cannot reach.
    """

    def interrupt(*_: object) -> None:
        raise TimeoutError("The handler ran past its deadline")

    signal.signal(signal.SIGALRM, interrupt)
    if deadline is not None:
        signal.setitimer(signal.ITIMER_REAL, min(max(deadline - time.time(), 0.001), A_YEAR))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def text(failure: BaseException) -> str:
    """The text of an exception, or its class where it has none."""
    try:
        return str(failure) or type(failure).__name__
    except Exception:
        return type(failure).__name__


def read(line: bytes) -> Json:
    """The JSON object on the line."""
    if len(line) > MAX_LINE:
        raise InvalidRequest(f"the line is longer than {MAX_LINE} bytes")
    try:
        request = json.loads(line.decode("utf-8"), parse_constant=refuse_constant)
    except UnicodeDecodeError:
        raise InvalidRequest("not UTF-8") from None
    except (ValueError, RecursionError):  # the reason would quote the line
        raise InvalidRequest("not JSON") from None
    if not isinstance(request, dict):
        raise InvalidRequest("not an object")
    return request


def refuse_constant(name: str) -> None:
    """NaN and Infinity are words of JavaScript, not of JSON."""
    raise ValueError(name)


def check(request: Json) -> float | None:
    """Refuse what is missing or of the wrong type; the deadline as a Unix time."""
    expect(request, "protocol_version", str, default="1")
    expect(request, "job_id", str)
    expect(request, "function_name", str)
    expect(request, "args", list, default=[])
    expect(request, "kwargs", dict, default={})
    context = expect(request, "context", dict)
    if expect(context, "job_id", str) != request["job_id"]:
        raise InvalidRequest("context.job_id differs from job_id")
    attempt = expect(context, "attempt", int)
    if isinstance(attempt, bool) or attempt < 1:
        raise InvalidRequest("attempt is no number from 1 on")
    expect(context, "queue_name", str)
    instant(expect(context, "enqueue_time", str))
    carrier = context.get("trace_context") or {}
    if not isinstance(carrier, dict) or not all(isinstance(each, str) for each in carrier.values()):
        raise InvalidRequest("trace_context is no object of texts")
    if context.get("worker_id") is not None:
        expect(context, "worker_id", str)
    if context.get("deadline") is None:
        return None
    return instant(expect(context, "deadline", str))


def expect(found: Json, name: str, kind: type, default: Any = None) -> Any:
    """A field of that type."""
    value = found.get(name, default)
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name} is missing or of the wrong type")
    return value


def instant(stamp: str) -> float:
    """An RFC 3339 time as a Unix time."""
    stamp = stamp.upper()
    is_leap_second = stamp[17:19] == "60"  # which datetime does not know
    try:
        moment = datetime.fromisoformat(stamp[:17] + "59" + stamp[19:] if is_leap_second else stamp)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest("a time is not in RFC 3339 form")
    return moment.timestamp() + is_leap_second


# --- the process ---------------------------------------------------------------------------------


def lines(source: int, wake: int) -> Iterator[bytes]:
    """Whole lines until the end of input, or until SIGTERM comes through ``wake``.

    A line ends at byte 0x0A and nowhere else: U+2028 and the like are ordinary characters.
    """
    begun = bytearray()
    while True:
        ready, _, _ = select.select([source, wake], [], [])
        if wake in ready and signal.SIGTERM in os.read(wake, 1024):
            return
        if source not in ready:
            continue
        data = os.read(source, 65536)
        if not data:
            yield bytes(begun)
            return
        *ends, rest = data.split(b"\n")
        for end in ends:
            yield bytes(begun) + end
            begun.clear()
        begun += rest
        del begun[MAX_LINE + 1 :]  # enough to see that it is too long


def write(target: int, told: Json) -> None:
    """One line, in one piece. What JSON cannot hold becomes an error."""
    try:
        line = json.dumps(told, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        kind = type(told["result"]).__name__
        message = f"The result, a {kind}, cannot be written as JSON"
        line = json.dumps(error(told["job_id"], "unserialisable_result", message))
    if len(line) > MAX_LINE:
        message = f"The outcome is longer than {MAX_LINE} bytes"
        line = json.dumps(error(told["job_id"], "result_too_large", message))
    rest = line.encode() + b"\n"
    while rest:
        rest = rest[os.write(target, rest) :]


def hear_signals() -> int:
    """SIGTERM lets a request that was taken finish; SIGINT is meant for the orchestrator.

    Each signal arrives as a byte in a pipe, so that none is missed between two requests.
    """
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return wake


def report_ready() -> None:
    """Tell an orchestrator that wants to know; the protocol itself has no such message."""
    with suppress(ValueError, OSError):
        descriptor = int(os.environ.pop("ERGON_READY_FD", ""))
        line = json.dumps({"ready": True, "handlers": sorted(HANDLERS), "protocol_version": "1"})
        os.write(descriptor, line.encode() + b"\n")
        os.close(descriptor)


def main() -> int:
    """Take the pipes for the protocol, so that no print can disturb it, and serve."""
    source, target = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a handler that reads its input finds the end
    os.dup2(2, 1)  # what a handler prints goes to the standard error
    wake = hear_signals()
    report_ready()
    with suppress(BrokenPipeError):  # nobody is left to tell
        for line in lines(source, wake):
            if line and not line.isspace():
                write(target, answer(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
