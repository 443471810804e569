"""Checks of the outcome's fields: the job id comes back as sent, and every field is sound."""

from __future__ import annotations

from functools import partial

from ergon_framework.core.option_values import is_number
from ergon_framework.testing.suites.executor.harness import (
    HANDLER_NOT_FOUND,
    NO_SUCH_HANDLER,
    STATUSES,
    OutputLine,
    line_of,
    request,
    shown,
)
from ergon_framework.testing.suites.executor.under_test import ExecutorSubject
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[ExecutorSubject]] = []
check = partial(register(CHECKS), colours=("stdio",))


@check()
def job_id_is_echoed(s: ExecutorSubject) -> None:
    """The outcome carries the job_id of its request."""
    _expect_echo(s, "0b5c3f6e-8d0f-4c53-9d0e-6f5ad2b8f3a1")


@check()
def job_id_keeps_unicode(s: ExecutorSubject) -> None:
    """A job_id in any script comes back as it is."""
    _expect_echo(s, "größe-заказ-注文-🎉-e\u0301-\u200f")


@check()
def job_id_keeps_unicode_line_breaks(s: ExecutorSubject) -> None:
    """A job_id with U+2028, U+2029 and U+0085 comes back: only byte 0x0A ends a line."""
    _expect_echo(s, "a\u2028b\u2029c\u0085d")


@check()
def job_id_keeps_odd_characters(s: ExecutorSubject) -> None:
    """Quotes, backslashes, slashes, tabs and line breaks in a job_id come back as they are."""
    _expect_echo(s, "a\"b\\c/d\te\nf\r{}[],:'$HOME`%s%n&<>|*?")


@check()
def job_id_keeps_backslashes(s: ExecutorSubject) -> None:
    """What looks like an escape in a job_id is not one."""
    _expect_echo(s, '\\n\\u0041\\\\"\\')


@check()
def job_id_keeps_blanks(s: ExecutorSubject) -> None:
    """Blanks around and inside a job_id belong to it."""
    _expect_echo(s, "  two  blanks  ")


@check()
def job_id_stays_text(s: ExecutorSubject) -> None:
    """A job_id that looks like a number or a word of JSON stays text."""
    for job_id in ("007", "1e3", "12345678901234567890", "null", "true", "-0"):
        _expect_echo(s, job_id)


@check()
def job_id_may_be_long(s: ExecutorSubject) -> None:
    """A job_id of 10,000 characters comes back whole."""
    _expect_echo(s, "long-" + "x" * 9_995)


@check()
def job_id_is_not_taken_from_the_arguments(s: ExecutorSubject) -> None:
    """A job_id or a function_name among the arguments is not the request's."""
    asked = s.simple(
        args=[{"job_id": "from-args", "function_name": "from-args"}],
        kwargs={"job_id": "from-kwargs", "context": {"job_id": "deeper"}, "function_name": "f"},
    )
    for order in (sorted(asked), sorted(asked, reverse=True)):  # first in sight, or last
        reply = s.ask(asked, line=line_of({name: asked[name] for name in order}))
        expect(reply.job_id == asked["job_id"], f"it answered with job_id {shown(reply.job_id)}")
        expect((reply.status, reply.error_type) == s.usual, f"it was not served: {reply}")


@check()
def same_job_is_answered_again(s: ExecutorSubject) -> None:
    """A second attempt of a job is a request like any other, with the same job_id."""
    for attempt in (1, 2, 3):
        asked = s.simple(job_id="conform-again", context={"attempt": attempt})
        reply = s.ask(asked)
        expect(
            reply.job_id == "conform-again",
            f"attempt {attempt} was answered with job_id {shown(reply.job_id)}",
        )


def _expect_echo(s: ExecutorSubject, job_id: str) -> None:
    reply = s.ask(s.simple(job_id=job_id))
    expect(
        reply.job_id == job_id,
        f"sent the job_id {shown(job_id)}, it answered with {shown(reply.job_id)}",
    )


FIELDS = ("job_id", "status", "result", "error_message", "error_type", "retry_after_seconds")
NO_HANDLERS = (
    "constructor",  # names that objects of some languages have anyway
    "toString",
    "__proto__",
    "__class__",
    "__init__",
    "hasOwnProperty",
    "other#echo",  # the orchestrator strips the prefix; the rest is a name like any other
    "../echo",
    "$(exit 3)",
    "; exit 3",
    "`exit 3`",
    "größe 🎉",
    "x" * 1000,
)


@check()
def status_is_one_of_four(s: ExecutorSubject) -> None:
    """The status is success, retry, timeout or error, in these letters."""
    for reply in _various(s):
        expect(
            reply.status in STATUSES,
            f"the status is {shown(reply.status)}: use one of {', '.join(STATUSES)}",
        )


@check()
def optional_fields_have_their_types(s: ExecutorSubject) -> None:
    """error_message and error_type are text or null, retry_after_seconds is a number or null."""
    for reply in _various(s):
        for name in ("error_message", "error_type"):
            value = getattr(reply, name)
            expect(value is None or isinstance(value, str), f"{name} is {shown(value)}")
        after = reply.retry_after_seconds
        expect(after is None or is_number(after), f"retry_after_seconds is {shown(after)}")


@check(required=False)
def every_field_is_there(s: ExecutorSubject) -> None:
    """All six fields stand in every outcome, null where there is nothing to say."""
    for reply in _various(s):
        lacking = [name for name in FIELDS if name not in (reply.fields or {})]
        expect(not lacking, f"an outcome lacks {', '.join(lacking)}")


@check()
def unknown_handler_is_an_error(s: ExecutorSubject) -> None:
    """A handler nobody has is answered with the status error."""
    reply = s.ask(request(NO_SUCH_HANDLER))
    expect(reply.status == "error", f"the status is {shown(reply.status)}")


@check()
def unknown_handler_is_named_so(s: ExecutorSubject) -> None:
    """A handler nobody has is answered with the error_type handler_not_found."""
    _expect_not_found(s, NO_SUCH_HANDLER)


@check()
def odd_names_are_no_handlers(s: ExecutorSubject) -> None:
    """Names that mean something to a language or a shell are handlers nobody has."""
    for name in NO_HANDLERS:
        _expect_not_found(s, name)


@check("echo")
def handler_names_are_exact(s: ExecutorSubject) -> None:
    """A handler's name is compared letter by letter."""
    for name in ("Echo", "ECHO", "echo ", " echo", "ech", "echo_echo", "echo\n", "e\u0441ho"):
        _expect_not_found(s, name)


@check(required=False)
def empty_handler_name_is_an_error(s: ExecutorSubject) -> None:
    """An empty function_name is answered with the status error."""
    reply = s.ask(request(""))
    expect(reply.status == "error", f"the status is {shown(reply.status)}")


@check(required=False)
def error_has_a_message(s: ExecutorSubject) -> None:
    """An error says in its error_message what was wrong."""
    reply = s.ask(request(NO_SUCH_HANDLER))
    expect((reply.error_message or "").strip(), f"error_message is {shown(reply.error_message)}")


@check(required=False)
def error_message_names_the_handler(s: ExecutorSubject) -> None:
    """The message about a handler nobody has names it."""
    reply = s.ask(request(NO_SUCH_HANDLER))
    text = str(reply.error_message)
    expect(NO_SUCH_HANDLER in text, f"error_message is {shown(reply.error_message)}")


@check("a handler")
def success_is_a_success(s: ExecutorSubject) -> None:
    """A handler that returns is answered with the status success."""
    reply = s.ask(s.successful())
    expect(reply.status == "success", f"the outcome is {reply}")


@check("a handler", required=False)
def success_says_nothing_of_errors(s: ExecutorSubject) -> None:
    """A success has no error_message, no error_type and no retry_after_seconds."""
    reply = s.ask(s.successful())
    for name in ("error_message", "error_type", "retry_after_seconds"):
        value = getattr(reply, name)
        expect(value is None, f"{name} is {shown(value)}")


def _various(s: ExecutorSubject) -> list[OutputLine]:
    """Outcomes of as many kinds as this executor has."""
    asked = [request(NO_SUCH_HANDLER), s.simple()]
    asked += [request(name) for name in ("fail", "retry") if s.has(name)]
    if s.has("a handler"):
        asked.append(s.successful())
    return [s.ask(each) for each in asked]


def _expect_not_found(s: ExecutorSubject, name: str) -> None:
    reply = s.ask(request(name))
    expect(
        (reply.status, reply.error_type) == ("error", HANDLER_NOT_FOUND),
        f"there is no handler {shown(name)}, and it answered with the status "
        f"{shown(reply.status)} and the error_type {shown(reply.error_type)}",
    )
