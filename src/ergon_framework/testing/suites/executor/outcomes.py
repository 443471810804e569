"""Checks of the outcome's other fields, and of what is answered for a handler nobody has."""

from __future__ import annotations

from functools import partial

from ergon_framework.testing.suites.executor.lines import (
    HANDLER_NOT_FOUND,
    NO_SUCH_HANDLER,
    STATUSES,
    Reply,
    is_number,
    request,
    shown,
)
from ergon_framework.testing.suites.executor.subject import Subject
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = partial(register(CHECKS), colours=("stdio",))

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
def status_is_one_of_four(s: Subject) -> None:
    """The status is success, retry, timeout or error, in these letters."""
    for reply in _various(s):
        expect(
            reply.status in STATUSES,
            f"the status is {shown(reply.status)}: use one of {', '.join(STATUSES)}",
        )


@check()
def optional_fields_have_their_types(s: Subject) -> None:
    """error_message and error_type are text or null, retry_after_seconds is a number or null."""
    for reply in _various(s):
        for name in ("error_message", "error_type"):
            value = getattr(reply, name)
            expect(value is None or isinstance(value, str), f"{name} is {shown(value)}")
        after = reply.retry_after_seconds
        expect(after is None or is_number(after), f"retry_after_seconds is {shown(after)}")


@check(required=False)
def every_field_is_there(s: Subject) -> None:
    """All six fields stand in every outcome, null where there is nothing to say."""
    for reply in _various(s):
        lacking = [name for name in FIELDS if name not in (reply.fields or {})]
        expect(not lacking, f"an outcome lacks {', '.join(lacking)}")


@check()
def unknown_handler_is_an_error(s: Subject) -> None:
    """A handler nobody has is answered with the status error."""
    reply = s.ask(request(NO_SUCH_HANDLER))
    expect(reply.status == "error", f"the status is {shown(reply.status)}")


@check()
def unknown_handler_is_named_so(s: Subject) -> None:
    """A handler nobody has is answered with the error_type handler_not_found."""
    _expect_not_found(s, NO_SUCH_HANDLER)


@check()
def odd_names_are_no_handlers(s: Subject) -> None:
    """Names that mean something to a language or a shell are handlers nobody has."""
    for name in NO_HANDLERS:
        _expect_not_found(s, name)


@check("echo")
def handler_names_are_exact(s: Subject) -> None:
    """A handler's name is compared letter by letter."""
    for name in ("Echo", "ECHO", "echo ", " echo", "ech", "echo_echo", "echo\n", "e\u0441ho"):
        _expect_not_found(s, name)


@check(required=False)
def empty_handler_name_is_an_error(s: Subject) -> None:
    """An empty function_name is answered with the status error."""
    reply = s.ask(request(""))
    expect(reply.status == "error", f"the status is {shown(reply.status)}")


@check(required=False)
def error_has_a_message(s: Subject) -> None:
    """An error says in its error_message what was wrong."""
    reply = s.ask(request(NO_SUCH_HANDLER))
    expect((reply.error_message or "").strip(), f"error_message is {shown(reply.error_message)}")


@check(required=False)
def error_message_names_the_handler(s: Subject) -> None:
    """The message about a handler nobody has names it."""
    reply = s.ask(request(NO_SUCH_HANDLER))
    text = str(reply.error_message)
    expect(NO_SUCH_HANDLER in text, f"error_message is {shown(reply.error_message)}")


@check("a handler")
def success_is_a_success(s: Subject) -> None:
    """A handler that returns is answered with the status success."""
    reply = s.ask(s.successful())
    expect(reply.status == "success", f"the outcome is {reply}")


@check("a handler", required=False)
def success_says_nothing_of_errors(s: Subject) -> None:
    """A success has no error_message, no error_type and no retry_after_seconds."""
    reply = s.ask(s.successful())
    for name in ("error_message", "error_type", "retry_after_seconds"):
        value = getattr(reply, name)
        expect(value is None, f"{name} is {shown(value)}")


def _various(s: Subject) -> list[Reply]:
    """Outcomes of as many kinds as this executor has."""
    asked = [request(NO_SUCH_HANDLER), s.simple()]
    asked += [request(name) for name in ("fail", "retry") if s.has(name)]
    if s.has("a handler"):
        asked.append(s.successful())
    return [s.ask(each) for each in asked]


def _expect_not_found(s: Subject, name: str) -> None:
    reply = s.ask(request(name))
    expect(
        (reply.status, reply.error_type) == ("error", HANDLER_NOT_FOUND),
        f"there is no handler {shown(name)}, and it answered with the status "
        f"{shown(reply.status)} and the error_type {shown(reply.error_type)}",
    )
