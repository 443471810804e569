"""Checks of reading requests: every form of JSON, arguments and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ergon_framework.testing.suites.executor.harness import (
    ABSENT,
    line_of,
    moment,
    request,
    same,
    shown,
)
from ergon_framework.testing.suites.executor.under_test import ExecutorSubject
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ExecutorSubject]] = []
check = partial(register(CHECKS), colours=("stdio",))

MEBIBYTE = 1024 * 1024


@check()
def unknown_fields_are_ignored(s: ExecutorSubject) -> None:
    """Fields a later version may add to a request do no harm."""
    _served(s, s.simple(priority=7, tags=["a"], later={"deep": [None]}))


@check()
def unknown_context_fields_are_ignored(s: ExecutorSubject) -> None:
    """Fields a later version may add to the context do no harm."""
    _served(s, s.simple(context={"correlation_id": "c1", "later": {"deep": [1]}}))


@check()
def optional_fields_may_be_absent(s: ExecutorSubject) -> None:
    """A context without deadline, trace_context and worker_id is served."""
    without = dict.fromkeys(("deadline", "trace_context", "worker_id"), ABSENT)
    _served(s, s.simple(context=without))


@check()
def optional_fields_may_be_null(s: ExecutorSubject) -> None:
    """A context whose deadline, trace_context and worker_id are null is served."""
    without = dict.fromkeys(("deadline", "trace_context", "worker_id"))
    _served(s, s.simple(context=without))


@check()
def trace_context_is_accepted(s: ExecutorSubject) -> None:
    """A trace_context with any headers, or with none, is served."""
    for headers in ({}, {"traceparent": f"00-{1:032x}-{1:016x}-01", "tracestate": "a=b,c=d"}):
        _served(s, s.simple(context={"trace_context": headers}))


@check(required=False)
def broken_trace_context_is_harmless(s: ExecutorSubject) -> None:
    """A traceparent that means nothing does not keep a job from running."""
    for text in ("", "...", "00-zz-zz-00", "x" * 1000):
        _served(s, s.simple(context={"trace_context": {"traceparent": text}}))


@check()
def times_may_have_an_offset(s: ExecutorSubject) -> None:
    """Times with an offset from UTC are read."""
    for text in ("2125-01-01T12:00:00+00:00", "2125-01-01T14:00:00+02:00"):
        _served(s, s.simple(context={"enqueue_time": text, "deadline": text}))
    _served(s, s.simple(context={"enqueue_time": "2025-01-01T06:30:00-05:30"}))


@check()
def times_may_have_nine_digits(s: ExecutorSubject) -> None:
    """Times with none to nine digits of a second are read."""
    for digits in ("", ".1", ".123", ".123456", ".1234567", ".123456789"):
        text = f"2125-01-01T12:00:00{digits}Z"
        _served(s, s.simple(context={"enqueue_time": text, "deadline": text}))


@check()
def enqueue_time_may_be_long_ago(s: ExecutorSubject) -> None:
    """A job may have waited for decades."""
    _served(s, s.simple(context={"enqueue_time": "1970-01-01T00:00:00Z"}))


@check(required=False)
def times_may_be_in_small_letters(s: ExecutorSubject) -> None:
    """RFC 3339 allows t and z in small letters."""
    _served(s, s.simple(context={"enqueue_time": "2025-01-01t12:00:00z"}))


@check(required=False)
def leap_second_is_read(s: ExecutorSubject) -> None:
    """A time in a leap second is a time."""
    _served(s, s.simple(context={"enqueue_time": "2016-12-31T23:59:60Z"}))


@check()
def later_attempts_are_served(s: ExecutorSubject) -> None:
    """Any attempt number from one up is served."""
    for attempt in (2, 1000, 2**31):
        _served(s, s.simple(context={"attempt": attempt}))


@check()
def queue_and_worker_may_have_any_name(s: ExecutorSubject) -> None:
    """Names of queues and workers are any text."""
    for name in ("rrq:queue:default", "очередь 1", 'a"b\\c', "q" * 500):
        _served(s, s.simple(context={"queue_name": name, "worker_id": name}))


@check()
def fields_may_come_in_any_order(s: ExecutorSubject) -> None:
    """The order of fields means nothing."""
    asked = s.simple()
    backwards = {name: asked[name] for name in reversed(asked)}
    backwards["context"] = dict(reversed(asked["context"].items()))
    _served(s, asked, line_of(backwards))


@check()
def blanks_between_tokens_are_allowed(s: ExecutorSubject) -> None:
    """Blanks and tabs around the tokens of JSON are allowed."""
    asked = s.simple()
    text = json.dumps(asked, separators=(" \t, ", "\t :  "))
    _served(s, asked, b" \t" + text.encode() + b" \t \n")


@check()
def escapes_and_plain_text_are_the_same(s: ExecutorSubject) -> None:
    """Characters may be escaped, the job_id's and the names of fields too."""
    asked = s.simple(job_id="größe/🎉")
    line = json.dumps(asked).replace("/", "\\/").replace('"job_id"', '"job\\u005fid"')
    _served(s, asked, line.encode() + b"\n")
    reply = s.ask(asked, line=line.encode() + b"\n")
    expect(reply.job_id == "größe/🎉", f"it answered with the job_id {shown(reply.job_id)}")


@check()
def carriage_return_before_newline_is_accepted(s: ExecutorSubject) -> None:
    """A request that ends with a carriage return and a line feed is served."""
    asked = s.simple()
    _served(s, asked, line_of(asked)[:-1] + b"\r\n")


@check()
def blank_lines_do_no_harm(s: ExecutorSubject) -> None:
    """Blank lines between requests do not end the process."""
    for blank in (b"\n", b"\n\n\n", b"   \t\n", b"\r\n"):
        s.shared.junk(blank)  # whoever answers a blank line is told so by another check
        _served(s, s.simple())


@check(required=False)
def blank_lines_are_not_answered(s: ExecutorSubject) -> None:
    """Blank lines are skipped: there is no outcome for them."""
    s.shared.junk(b"\n  \n\t\n\r\n")
    _served(s, s.simple())
    strays = s.shared.strays()
    if strays:
        fail(f"it wrote {len(strays)} lines for four blank ones; the first is {strays[0]}")


@check()
def request_may_come_in_pieces(s: ExecutorSubject) -> None:
    """A request that arrives in many small pieces is one request."""
    asked = s.simple(job_id="größe-🎉-in-pieces")
    line = line_of(asked)
    s.shared.send(asked, line=line[:1])
    for start in range(1, len(line), 40):
        s.shared.say(line[start : start + 40])
        s.shared.process.wait(s.shared.process.is_read, 0.05)
    _expect_answer(s, asked)


@check()
def two_requests_may_come_in_one_piece(s: ExecutorSubject) -> None:
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
def large_request_is_served(s: ExecutorSubject) -> None:
    """A request of 1 MiB is served."""
    _served(s, s.simple(args=["x" * MEBIBYTE]))


@check(required=False)
def very_large_request_is_served(s: ExecutorSubject) -> None:
    """A request of 8 MiB is served."""
    _served(s, s.simple(args=["x" * (8 * MEBIBYTE)]))


@check()
def many_arguments_are_served(s: ExecutorSubject) -> None:
    """A request with a thousand arguments is served."""
    many = {f"k{n}": n for n in range(1000)}
    _served(s, s.simple(args=list(range(1000)), kwargs={"many": many}))


@check()
def nested_arguments_are_served(s: ExecutorSubject) -> None:
    """Arguments fifty levels deep are served."""
    deep: Any = "bottom"
    for level in range(50):
        deep = [deep] if level % 2 else {"down": deep}
    _served(s, s.simple(args=[deep]))


@check(required=False)
def missing_arguments_are_none(s: ExecutorSubject) -> None:
    """A request without args and kwargs has none."""
    _served(s, s.simple(args=ABSENT, kwargs=ABSENT))


@check(required=False)
def missing_protocol_version_is_one(s: ExecutorSubject) -> None:
    """A request without protocol_version is one of version 1."""
    _served(s, s.simple(protocol_version=ABSENT))


@check("a handler")
def deadline_ahead_lets_it_run(s: ExecutorSubject) -> None:
    """A job whose deadline is an hour or a year ahead runs."""
    for seconds in (3600, 365 * 86400):
        reply = s.ask(s.successful(context={"deadline": moment(seconds)}))
        expect(reply.status == "success", f"the outcome is {reply}")


def _served(s: ExecutorSubject, asked: Mapping[str, Any], line: bytes | None = None) -> None:
    """The request is answered like any other of its kind: not refused."""
    s.shared.send(asked, line=line)
    _expect_answer(s, asked)


def _expect_answer(s: ExecutorSubject, asked: Mapping[str, Any]) -> None:
    reply = s.shared.answer(asked["job_id"])
    expect((reply.status, reply.error_type) == s.usual, f"it was not served: {reply}")


echo = partial(check, "echo")

LARGEST_EXACT = 2**53  # the largest number up to which every reader of JSON is exact


@echo()
def keeps_positional_arguments(s: ExecutorSubject) -> None:
    """args arrive all, and in order."""
    _expect_echo(s, [3, "two", 1, "two"])


@echo()
def keeps_keyword_arguments(s: ExecutorSubject) -> None:
    """kwargs arrive under their names."""
    _expect_echo(s, (), {"name": "n", "width": 3, "flag": False})


@echo()
def keeps_no_arguments(s: ExecutorSubject) -> None:
    """No arguments are an empty list and an empty object."""
    _expect_echo(s, (), {})


@echo()
def keeps_words_of_json(s: ExecutorSubject) -> None:
    """null, true and false stay what they are, and stay apart from 0 and 1."""
    _expect_echo(s, [None, True, False, 0, 1, "null", "true", "0"])


@echo()
def keeps_empty_values(s: ExecutorSubject) -> None:
    """Empty text, lists and objects stay what they are."""
    _expect_echo(s, ["", [], {}, [[]], [{}], {"": ""}], {"empty": "", "list": []})


@echo()
def keeps_unicode(s: ExecutorSubject) -> None:
    """Text in any script arrives, combining marks and right-to-left text included."""
    _expect_echo(s, ["größe", "заказ", "注文書", "e\u0301", "שלום"], {"größe": "注文"})


@echo()
def keeps_emoji(s: ExecutorSubject) -> None:
    """Characters beyond the first 65,536 arrive, plain or as escaped pairs."""
    _expect_echo(s, ["🎉", "👩\u200d👩\u200d👧", "𐐷"], {"🎉": "𐍈"})
    asked = request("echo", ["🎉 𐍈"])
    reply = s.ask(asked, line=json.dumps(asked).encode() + b"\n")
    _compare(["🎉 𐍈"], {}, reply.result)


@echo()
def keeps_line_separators(s: ExecutorSubject) -> None:
    """U+2028, U+2029, U+0085, vertical tab and form feed end no line."""
    _expect_echo(s, ["a\u2028b\u2029c\u0085d", "e\x0bf\x0cg", "\x1c\x1d\x1e"])


@echo()
def keeps_line_breaks_in_text(s: ExecutorSubject) -> None:
    """Line breaks and tabs inside text arrive."""
    _expect_echo(s, ["a\nb\r\nc\rd\te", "\n", " \n "])


@echo()
def keeps_quotes_and_backslashes(s: ExecutorSubject) -> None:
    """Quotes, backslashes and what looks like an escape arrive as they are."""
    _expect_echo(s, ['"', "\\", '\\"', "\\n", "\\u0041", "'", "</x>", "a/b"])


@echo()
def keeps_text_that_looks_like_code(s: ExecutorSubject) -> None:
    """Text that a shell or a format string would take for code is text."""
    _expect_echo(s, ["%s %d %n %%", "$HOME ${HOME} $(id) `id`", "*", "-n", "-e", "{0} {x}", "&&;|"])


@echo()
def keeps_text_that_looks_like_json(s: ExecutorSubject) -> None:
    """Text that holds JSON stays text."""
    _expect_echo(s, ['{"a": 1}', "[1, 2]", '"job_id":"x"', "}{", "]["])


@echo()
def keeps_blanks_in_text(s: ExecutorSubject) -> None:
    """Blanks at the ends and in the middle of text stay."""
    _expect_echo(s, ["  a  b  ", " ", "\t"])


@echo()
def keeps_control_characters(s: ExecutorSubject) -> None:
    """Control characters, which JSON escapes, arrive."""
    _expect_echo(s, ["\x01\x02\x07\x08\x1b\x1f\x7f"])


@echo(required=False)
def keeps_the_null_character(s: ExecutorSubject) -> None:
    """U+0000 does not end a text."""
    _expect_echo(s, ["a\0b", "\0"])


@echo()
def keeps_whole_numbers(s: ExecutorSubject) -> None:
    """Whole numbers up to 2 to the power of 53 arrive exactly."""
    _expect_echo(s, [0, -1, 2**31, -(2**31), 2**32, LARGEST_EXACT - 1, 1 - LARGEST_EXACT])


@echo(required=False)
def keeps_large_whole_numbers(s: ExecutorSubject) -> None:
    """Whole numbers beyond 2 to the power of 53 arrive exactly."""
    _expect_echo(s, [LARGEST_EXACT + 1, 2**63, -(2**64), 10**30 + 1])


@echo()
def keeps_decimal_numbers(s: ExecutorSubject) -> None:
    """Decimal numbers arrive with all the digits of a double."""
    _expect_echo(s, [0.1, -2.5, 1e-7, 3.141592653589793, 1e21, 5e-324, 1.7976931348623157e308])


@echo()
def keeps_nested_values(s: ExecutorSubject) -> None:
    """Lists and objects inside each other arrive with their structure."""
    value = {"a": [1, {"b": [[], [None, {"c": {"d": [1.5, "x"]}}]]}], "e": {"f": {"g": {}}}}
    _expect_echo(s, [value, [value]], {"value": value})


@echo()
def keeps_long_text(s: ExecutorSubject) -> None:
    """A text of 1 MiB goes in and comes out whole."""
    _expect_echo(s, ["0123456789abcdef" * 65536])


@echo()
def keeps_many_arguments(s: ExecutorSubject) -> None:
    """A thousand arguments arrive in order."""
    _expect_echo(s, list(range(1000)), {f"k{n}": n for n in range(200)})


@echo(required=False)
def keeps_odd_names(s: ExecutorSubject) -> None:
    """Keyword arguments may have any name, those with a meaning in some language included."""
    names = ("self", "args", "kwargs", "context", "job_id", "__proto__", "constructor", "class", "")
    _expect_echo(s, (), {name: f"value of {name}" for name in names})


@echo()
def arguments_do_not_linger(s: ExecutorSubject) -> None:
    """A request without arguments does not see those of the one before."""
    _expect_echo(s, ["first", {"only": "there"}], {"only": "there"})
    _expect_echo(s, (), {})


def _expect_echo(
    s: ExecutorSubject, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> None:
    reply = s.ask(request("echo", args, kwargs))
    expect(reply.status == "success", f"the outcome is {reply}")
    _compare(list(args), dict(kwargs or {}), reply.result)


def _compare(args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
    given = result if isinstance(result, dict) else {}
    for name, sent in (("args", args), ("kwargs", kwargs)):
        came = given.get(name)
        expect(same(sent, came), f"{name} {_difference(sent, came)}")


def _difference(sent: Any, came: Any) -> str:
    """The first place where two values differ, as short as possible."""
    if isinstance(sent, list) and isinstance(came, list) and len(sent) == len(came):
        for left, right in zip(sent, came, strict=True):
            if not same(left, right):
                return f"held {shown(left)}, and it returned {shown(right)}"
    if isinstance(sent, dict) and isinstance(came, dict) and sent.keys() == came.keys():
        for name, value in sent.items():
            if not same(value, came[name]):
                where = f"under {shown(name)} held {shown(value)}"
                return f"{where}, and it returned {shown(came[name])}"
    return f"were {shown(sent)}, and it returned {shown(came)}"
