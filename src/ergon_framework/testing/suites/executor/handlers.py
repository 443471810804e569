"""Checks of what becomes of handlers that fail, ask for a retry, print or return too much."""

from __future__ import annotations

from functools import partial
from typing import Any

from ergon_framework.core.option_values import is_number
from ergon_framework.testing.suites.executor.harness import (
    HANDLER_NOT_FOUND,
    moment,
    request,
    shown,
)
from ergon_framework.testing.suites.executor.under_test import QUIET, ExecutorSubject
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ExecutorSubject]] = []
check = partial(register(CHECKS), colours=("stdio",))

BAD_ARGUMENTS: tuple[tuple[list[Any], dict[str, Any]], ...] = (
    ([{"no": "number"}], {}),
    (["x", "y", "z"], {}),
    ([], {"no_such_argument": 1}),
)
LONG_SLEEP = 30  # seconds: nobody waits for it


@check("fail")
def failure_is_an_error(s: ExecutorSubject) -> None:
    """A handler that fails is answered with the status error."""
    reply = s.ask(request("fail"))
    expect(reply.status == "error", f"the outcome is {reply}")


@check("fail")
def failure_does_not_end_the_process(s: ExecutorSubject) -> None:
    """After a handler has failed, the next request is served."""
    for _ in range(3):
        s.ask(request("fail"))
        reply = s.ask(s.simple())
        expect((reply.status, reply.error_type) == s.usual, f"then it answered with {reply}")


@check("fail", required=False)
def failure_has_a_message(s: ExecutorSubject) -> None:
    """A failure says in its error_message what went wrong."""
    reply = s.ask(request("fail"))
    expect(str(reply.error_message or "").strip(), "there is no error_message")


@check("fail", required=False)
def failure_has_no_result(s: ExecutorSubject) -> None:
    """A failure has no result."""
    reply = s.ask(request("fail"))
    expect(reply.result is None, f"the result is {shown(reply.result)}")


@check("retry")
def retry_is_a_retry(s: ExecutorSubject) -> None:
    """A handler that asks to be tried again is answered with the status retry."""
    reply = s.ask(request("retry"))
    expect(reply.status == "retry", f"the outcome is {reply}")


@check("retry", required=False)
def retry_says_when(s: ExecutorSubject) -> None:
    """A retry says in retry_after_seconds when: a number, not below zero."""
    after = s.ask(request("retry")).retry_after_seconds
    expect(is_number(after) and after >= 0, f"retry_after_seconds is {shown(after)}")


@check("sleep")
def bad_arguments_do_not_end_the_process(s: ExecutorSubject) -> None:
    """A handler that gets arguments it cannot use costs one outcome, not the process."""
    for args, kwargs in BAD_ARGUMENTS:
        s.ask(request("sleep", args, kwargs))
    reply = s.ask(s.simple())
    expect((reply.status, reply.error_type) == s.usual, f"then it answered with {reply}")


@check("sleep")
def bad_arguments_are_not_handler_not_found(s: ExecutorSubject) -> None:
    """A handler that fails is not called handler_not_found: such a job is never tried again."""
    for args, kwargs in BAD_ARGUMENTS:
        reply = s.ask(request("sleep", args, kwargs))
        expect(
            reply.error_type != HANDLER_NOT_FOUND,
            f"with the arguments {shown(args)} its 'sleep' is called handler_not_found",
        )


@check("print", required=False)
def prints_do_not_reach_the_protocol(s: ExecutorSubject) -> None:
    """What a handler prints does not appear among the outcomes."""
    for text in ("a line of text", '{"job_id": "forged", "status": "success"}', "\n\n"):
        s.ask(request("print", [text]))
    s.ask(s.simple())
    strays = s.shared.strays()
    if strays:
        fail(f"standard output holds what was printed: {strays[0]}")


@check("unserialisable", required=False)
def result_that_is_no_json_is_an_error(s: ExecutorSubject) -> None:
    """A result that JSON cannot hold is answered with the status error, and the process goes on."""
    reply = s.ask(request("unserialisable"))
    expect(reply.status == "error", f"the outcome is {reply}")
    s.ask(s.simple())


@check("a handler", required=False)
def deadline_in_the_past_is_a_timeout(s: ExecutorSubject) -> None:
    """A job whose deadline has passed is answered with the status timeout."""
    for deadline in (moment(-60), "2001-01-01T00:00:00Z", "2001-01-01T02:00:00+02:00"):
        reply = s.ask(s.successful(context={"deadline": deadline}))
        expect(reply.status == "timeout", f"the deadline was {deadline}, the outcome is {reply}")


@check("sleep", required=False)
def job_past_its_deadline_does_not_run(s: ExecutorSubject) -> None:
    """A job whose deadline has passed is not run at all."""
    s.ask(request("sleep", [LONG_SLEEP], context={"deadline": moment(-60)}))


@check("sleep", required=False)
def deadline_ends_a_running_handler(s: ExecutorSubject) -> None:
    """A handler that runs into its deadline is answered with the status timeout."""
    reply = s.ask(request("sleep", [LONG_SLEEP], context={"deadline": moment(QUIET * 2)}))
    expect(reply.status == "timeout", f"the outcome is {reply}")
