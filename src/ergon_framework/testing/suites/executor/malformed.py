"""Checks of lines that are no requests: they cost an answer at most, never the process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from ergon_framework.testing.suites.executor.harness import (
    ABSENT,
    OutputLine,
    line_of,
    present,
    shown,
)
from ergon_framework.testing.suites.executor.under_test import ExecutorSubject
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ExecutorSubject]] = []
check = partial(register(CHECKS), colours=("stdio",))

WRONG_TYPES: tuple[dict[str, Any], ...] = (
    {"args": {"a": 1}},
    {"args": "text"},
    {"kwargs": [1]},
    {"kwargs": "text"},
    {"context": "text"},
    {"context": []},
    {"function_name": 7},
    {"function_name": None},
    {"protocol_version": {}},
)
NO_TEXTS: tuple[Any, ...] = (7, None, [], {}, True)
NESTED = 100_000
"""Deeper than any recursive JSON reader can go."""


@check()
def survives_what_is_no_json(s: ExecutorSubject) -> None:
    """A line that is no JSON does not end the process."""
    _survives(s, b"this is no JSON\n", b"{\n", b"}\n", b"{'job_id': 1}\n", b"undefined\n")


@check()
def survives_json_that_is_no_object(s: ExecutorSubject) -> None:
    """JSON that is no object does not end the process."""
    _survives(s, b"[]\n", b"42\n", b'"text"\n', b"null\n", b"true\n", b"[{}]\n")


@check()
def survives_an_empty_object(s: ExecutorSubject) -> None:
    """An object without fields does not end the process."""
    _survives(s, b"{}\n")


@check()
def survives_half_a_request(s: ExecutorSubject) -> None:
    """A request that was cut off does not end the process."""
    line = line_of(s.simple())
    _survives(s, *(line[: len(line) * part // 4] + b"\n" for part in (1, 2, 3)))


@check()
def survives_missing_fields(s: ExecutorSubject) -> None:
    """A request without a required field does not end the process."""
    for name in ("job_id", "function_name", "context"):
        _survives(s, line_of(_spoilt(s, {name: ABSENT})))


@check()
def survives_missing_context_fields(s: ExecutorSubject) -> None:
    """A context without a required field does not end the process."""
    for name in ("job_id", "attempt", "enqueue_time", "queue_name"):
        _survives(s, line_of(s.simple(context={name: ABSENT})))


@check()
def survives_wrong_types(s: ExecutorSubject) -> None:
    """A field of the wrong type does not end the process."""
    wrong = [*WRONG_TYPES, *({"job_id": value} for value in NO_TEXTS)]
    _survives(s, *(line_of(_spoilt(s, each)) for each in wrong))


@check()
def survives_broken_times(s: ExecutorSubject) -> None:
    """A time that is none does not end the process."""
    for text in ("yesterday", "", "2025-13-45T99:99:99Z", "2025-01-01", *NO_TEXTS):
        _survives(s, line_of(s.simple(context={"enqueue_time": text, "deadline": text})))


@check()
def survives_broken_utf8(s: ExecutorSubject) -> None:
    """Bytes that are no UTF-8 do not end the process."""
    line = line_of(s.simple(job_id="broken-XX")).replace(b"XX", b"\xff\xfe")
    _survives(s, line, b"\xc3\n", b"\x80\x81\xfe\xff\n")


@check()
def survives_null_bytes(s: ExecutorSubject) -> None:
    """Null bytes do not end the process."""
    _survives(s, b"\0\n", b"\0\0{}\0\n")


@check()
def survives_lone_surrogates(s: ExecutorSubject) -> None:
    """Half a surrogate pair, which is no character, does not end the process."""
    asked = s.simple(args=["XX"])
    _survives(s, json.dumps(asked).replace("XX", "\\ud800").encode() + b"\n")


@check()
def survives_a_long_line_of_nothing(s: ExecutorSubject) -> None:
    """A line of 1 MiB that is no JSON does not end the process."""
    _survives(s, b"x" * (1024 * 1024) + b"\n")


@check()
def survives_endless_nesting(s: ExecutorSubject) -> None:
    """A hundred thousand opening brackets do not end the process."""
    _survives(s, b"[" * NESTED + b"\n", b'{"a":' * NESTED + b"\n")


@check()
def survives_many_bad_lines(s: ExecutorSubject) -> None:
    """A hundred bad lines in a row do not end the process."""
    _survives(s, b"no JSON\n" * 100)


@check(required=False)
def unreadable_line_is_answered_as_unknown(s: ExecutorSubject) -> None:
    """A line without a readable job_id is answered once, as an error, with the job_id "unknown"."""
    for junk in (b"this is no JSON\n", b"[]\n", b"{}\n", b"\xff\n"):
        _expect_refusal(_one_stray(s, junk), "unknown")


@check(required=False)
def bad_request_is_answered_with_its_job_id(s: ExecutorSubject) -> None:
    """A bad request whose job_id can be read is answered once, as an error, with that job_id."""
    for wrong in (*WRONG_TYPES, {"function_name": ABSENT}, {"context": ABSENT}):
        asked = _spoilt(s, wrong)
        _expect_refusal(_one_stray(s, line_of(asked)), asked["job_id"])


@check(required=False)
def other_protocol_version_is_refused(s: ExecutorSubject) -> None:
    """A request of another protocol version is answered as an error with its own job_id."""
    for version in ("2", "0", "1.1", ""):
        asked = s.simple(protocol_version=version)
        reply = _one_stray(s, line_of(asked))
        _expect_refusal(reply, asked["job_id"])
        expect(
            reply.error_type != "handler_not_found",
            "it looked for the handler; the version was the reason to refuse",
        )


@check("echo", required=False)
def broken_time_is_refused(s: ExecutorSubject) -> None:
    """A deadline that is no time is refused: nobody can tell whether it has passed."""
    asked = s.simple(context={"deadline": "yesterday"})
    _expect_refusal(_one_stray(s, line_of(asked)), asked["job_id"])


def _spoilt(s: ExecutorSubject, wrong: Mapping[str, Any]) -> dict[str, Any]:
    """A request with some of its fields replaced or taken away."""
    return present({**s.simple(), **wrong})


def _survives(s: ExecutorSubject, *lines: bytes) -> None:
    """Each line, and after it a good request that must be served by the same process."""
    for line in lines:
        s.shared.junk(line)
        asked = s.simple()
        try:
            reply = s.ask(asked)
        except Exception as error:
            fail(f"after the line {shown(line)}: {error}")
        expect(
            (reply.status, reply.error_type) == s.usual,
            f"after the line {shown(line)} a good request was answered with {reply}",
        )


def _one_stray(s: ExecutorSubject, line: bytes) -> OutputLine:
    """The one line that answers a bad one; a good request after it shows that no other comes."""
    before = len(s.shared.known())
    s.shared.junk(line)
    asked = s.simple()
    s.ask(asked)
    found = [one for one in s.shared.known()[before:] if one.job_id != asked["job_id"]]
    expect(len(found) == 1, f"the line {shown(line)} was answered {len(found)} times")
    return found[0]


def _expect_refusal(reply: OutputLine, job_id: str) -> None:
    expect(
        reply.job_id == job_id,
        f"the answer has the job_id {shown(reply.job_id)} instead of {shown(job_id)}",
    )
    expect(reply.status == "error", f"it was not refused: {reply}")
    expect(reply.error_message, "the refusal has no error_message")
