"""Checks of reading requests: every form the specification and JSON allow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from ergon_framework.testing.suites.executor.lines import ABSENT, line_of, moment, shown
from ergon_framework.testing.suites.executor.subject import Subject
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[Subject]] = []
check = partial(register(CHECKS), colours=("stdio",))

MEBIBYTE = 1024 * 1024


@check()
def unknown_fields_are_ignored(s: Subject) -> None:
    """Fields a later version may add to a request do no harm."""
    _served(s, s.simple(priority=7, tags=["a"], later={"deep": [None]}))


@check()
def unknown_context_fields_are_ignored(s: Subject) -> None:
    """Fields a later version may add to the context do no harm."""
    _served(s, s.simple(context={"correlation_id": "c1", "later": {"deep": [1]}}))


@check()
def optional_fields_may_be_absent(s: Subject) -> None:
    """A context without deadline, trace_context and worker_id is served."""
    without = dict.fromkeys(("deadline", "trace_context", "worker_id"), ABSENT)
    _served(s, s.simple(context=without))


@check()
def optional_fields_may_be_null(s: Subject) -> None:
    """A context whose deadline, trace_context and worker_id are null is served."""
    without = dict.fromkeys(("deadline", "trace_context", "worker_id"))
    _served(s, s.simple(context=without))


@check()
def trace_context_is_accepted(s: Subject) -> None:
    """A trace_context with any headers, or with none, is served."""
    for headers in ({}, {"traceparent": f"00-{1:032x}-{1:016x}-01", "tracestate": "a=b,c=d"}):
        _served(s, s.simple(context={"trace_context": headers}))


@check(required=False)
def broken_trace_context_is_harmless(s: Subject) -> None:
    """A traceparent that means nothing does not keep a job from running."""
    for text in ("", "...", "00-zz-zz-00", "x" * 1000):
        _served(s, s.simple(context={"trace_context": {"traceparent": text}}))


@check()
def times_may_have_an_offset(s: Subject) -> None:
    """Times with an offset from UTC are read."""
    for text in ("2125-01-01T12:00:00+00:00", "2125-01-01T14:00:00+02:00"):
        _served(s, s.simple(context={"enqueue_time": text, "deadline": text}))
    _served(s, s.simple(context={"enqueue_time": "2025-01-01T06:30:00-05:30"}))


@check()
def times_may_have_nine_digits(s: Subject) -> None:
    """Times with none to nine digits of a second are read."""
    for digits in ("", ".1", ".123", ".123456", ".1234567", ".123456789"):
        text = f"2125-01-01T12:00:00{digits}Z"
        _served(s, s.simple(context={"enqueue_time": text, "deadline": text}))


@check()
def enqueue_time_may_be_long_ago(s: Subject) -> None:
    """A job may have waited for decades."""
    _served(s, s.simple(context={"enqueue_time": "1970-01-01T00:00:00Z"}))


@check(required=False)
def times_may_be_in_small_letters(s: Subject) -> None:
    """RFC 3339 allows t and z in small letters."""
    _served(s, s.simple(context={"enqueue_time": "2025-01-01t12:00:00z"}))


@check(required=False)
def leap_second_is_read(s: Subject) -> None:
    """A time in a leap second is a time."""
    _served(s, s.simple(context={"enqueue_time": "2016-12-31T23:59:60Z"}))


@check()
def later_attempts_are_served(s: Subject) -> None:
    """Any attempt number from one up is served."""
    for attempt in (2, 1000, 2**31):
        _served(s, s.simple(context={"attempt": attempt}))


@check()
def queue_and_worker_may_have_any_name(s: Subject) -> None:
    """Names of queues and workers are any text."""
    for name in ("rrq:queue:default", "очередь 1", 'a"b\\c', "q" * 500):
        _served(s, s.simple(context={"queue_name": name, "worker_id": name}))


@check()
def fields_may_come_in_any_order(s: Subject) -> None:
    """The order of fields means nothing."""
    asked = s.simple()
    backwards = {name: asked[name] for name in reversed(asked)}
    backwards["context"] = dict(reversed(asked["context"].items()))
    _served(s, asked, line_of(backwards))


@check()
def blanks_between_tokens_are_allowed(s: Subject) -> None:
    """Blanks and tabs around the tokens of JSON are allowed."""
    asked = s.simple()
    text = json.dumps(asked, separators=(" \t, ", "\t :  "))
    _served(s, asked, b" \t" + text.encode() + b" \t \n")


@check()
def escapes_and_plain_text_are_the_same(s: Subject) -> None:
    """Characters may be escaped, the job_id's and the names of fields too."""
    asked = s.simple(job_id="größe/🎉")
    line = json.dumps(asked).replace("/", "\\/").replace('"job_id"', '"job\\u005fid"')
    _served(s, asked, line.encode() + b"\n")
    reply = s.ask(asked, line=line.encode() + b"\n")
    expect(reply.job_id == "größe/🎉", f"it answered with the job_id {shown(reply.job_id)}")


@check()
def carriage_return_before_newline_is_accepted(s: Subject) -> None:
    """A request that ends with a carriage return and a line feed is served."""
    asked = s.simple()
    _served(s, asked, line_of(asked)[:-1] + b"\r\n")


@check()
def blank_lines_do_no_harm(s: Subject) -> None:
    """Blank lines between requests do not end the process."""
    for blank in (b"\n", b"\n\n\n", b"   \t\n", b"\r\n"):
        s.shared.junk(blank)  # whoever answers a blank line is told so by another check
        _served(s, s.simple())


@check(required=False)
def blank_lines_are_not_answered(s: Subject) -> None:
    """Blank lines are skipped: there is no outcome for them."""
    s.shared.junk(b"\n  \n\t\n\r\n")
    _served(s, s.simple())
    strays = s.shared.strays()
    if strays:
        fail(f"it wrote {len(strays)} lines for four blank ones; the first is {strays[0]}")


@check()
def request_may_come_in_pieces(s: Subject) -> None:
    """A request that arrives in many small pieces is one request."""
    asked = s.simple(job_id="größe-🎉-in-pieces")
    line = line_of(asked)
    s.shared.send(asked, line=line[:1])
    for start in range(1, len(line), 40):
        s.shared.say(line[start : start + 40])
        s.shared.process.wait(s.shared.process.is_read, 0.05)
    _expect_answer(s, asked)


@check()
def two_requests_may_come_in_one_piece(s: Subject) -> None:
    """Two requests, and the first half of a third, may arrive together."""
    asked = [s.simple() for _ in range(3)]
    lines = [line_of(each) for each in asked]
    half = len(lines[2]) // 2
    s.shared.send(asked[0], line=lines[0] + lines[1] + lines[2][:half])
    s.shared.send(asked[1], line=b"")
    for each in asked[:2]:
        _expect_answer(s, each)
    s.shared.send(asked[2], line=lines[2][half:])
    _expect_answer(s, asked[2])


@check()
def large_request_is_served(s: Subject) -> None:
    """A request of 1 MiB is served."""
    _served(s, s.simple(args=["x" * MEBIBYTE]))


@check(required=False)
def very_large_request_is_served(s: Subject) -> None:
    """A request of 8 MiB is served."""
    _served(s, s.simple(args=["x" * (8 * MEBIBYTE)]))


@check()
def many_arguments_are_served(s: Subject) -> None:
    """A request with a thousand arguments is served."""
    many = {f"k{n}": n for n in range(1000)}
    _served(s, s.simple(args=list(range(1000)), kwargs={"many": many}))


@check()
def nested_arguments_are_served(s: Subject) -> None:
    """Arguments fifty levels deep are served."""
    deep: Any = "bottom"
    for level in range(50):
        deep = [deep] if level % 2 else {"down": deep}
    _served(s, s.simple(args=[deep]))


@check(required=False)
def missing_arguments_are_none(s: Subject) -> None:
    """A request without args and kwargs has none."""
    _served(s, s.simple(args=ABSENT, kwargs=ABSENT))


@check(required=False)
def missing_protocol_version_is_one(s: Subject) -> None:
    """A request without protocol_version is one of version 1."""
    _served(s, s.simple(protocol_version=ABSENT))


@check("a handler")
def deadline_ahead_lets_it_run(s: Subject) -> None:
    """A job whose deadline is an hour or a year ahead runs."""
    for seconds in (3600, 365 * 86400):
        reply = s.ask(s.successful(context={"deadline": moment(seconds)}))
        expect(reply.status == "success", f"the outcome is {reply}")


def _served(s: Subject, asked: Mapping[str, Any], line: bytes | None = None) -> None:
    """The request is answered like any other of its kind: not refused."""
    s.shared.send(asked, line=line)
    _expect_answer(s, asked)


def _expect_answer(s: Subject, asked: Mapping[str, Any]) -> None:
    reply = s.shared.answer(asked["job_id"])
    expect((reply.status, reply.error_type) == s.usual, f"it was not served: {reply}")
