"""Checks of the job_id: it comes back exactly as it was sent."""

from __future__ import annotations

from functools import partial

from ergon_framework.testing.suites.executor.lines import line_of, shown
from ergon_framework.testing.suites.executor.subject import Subject
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = partial(register(CHECKS), colours=("stdio",))


@check()
def job_id_is_echoed(s: Subject) -> None:
    """The outcome carries the job_id of its request."""
    _expect_echo(s, "0b5c3f6e-8d0f-4c53-9d0e-6f5ad2b8f3a1")


@check()
def job_id_keeps_unicode(s: Subject) -> None:
    """A job_id in any script comes back as it is."""
    _expect_echo(s, "größe-заказ-注文-🎉-e\u0301-\u200f")


@check()
def job_id_keeps_unicode_line_breaks(s: Subject) -> None:
    """A job_id with U+2028, U+2029 and U+0085 comes back: only byte 0x0A ends a line."""
    _expect_echo(s, "a\u2028b\u2029c\u0085d")


@check()
def job_id_keeps_odd_characters(s: Subject) -> None:
    """Quotes, backslashes, slashes, tabs and line breaks in a job_id come back as they are."""
    _expect_echo(s, "a\"b\\c/d\te\nf\r{}[],:'$HOME`%s%n&<>|*?")


@check()
def job_id_keeps_backslashes(s: Subject) -> None:
    """What looks like an escape in a job_id is not one."""
    _expect_echo(s, '\\n\\u0041\\\\"\\')


@check()
def job_id_keeps_blanks(s: Subject) -> None:
    """Blanks around and inside a job_id belong to it."""
    _expect_echo(s, "  two  blanks  ")


@check()
def job_id_stays_text(s: Subject) -> None:
    """A job_id that looks like a number or a word of JSON stays text."""
    for job_id in ("007", "1e3", "12345678901234567890", "null", "true", "-0"):
        _expect_echo(s, job_id)


@check()
def job_id_may_be_long(s: Subject) -> None:
    """A job_id of 10,000 characters comes back whole."""
    _expect_echo(s, "long-" + "x" * 9_995)


@check()
def job_id_is_not_taken_from_the_arguments(s: Subject) -> None:
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
def same_job_is_answered_again(s: Subject) -> None:
    """A second attempt of a job is a request like any other, with the same job_id."""
    for attempt in (1, 2, 3):
        asked = s.simple(job_id="conform-again", context={"attempt": attempt})
        reply = s.ask(asked)
        expect(
            reply.job_id == "conform-again",
            f"attempt {attempt} was answered with job_id {shown(reply.job_id)}",
        )


def _expect_echo(s: Subject, job_id: str) -> None:
    reply = s.ask(s.simple(job_id=job_id))
    expect(
        reply.job_id == job_id,
        f"sent the job_id {shown(job_id)}, it answered with {shown(reply.job_id)}",
    )
