"""Checks of the first exchange: one request, and the bytes that came back.

They are judged even when no outcome could be read; everything else is tried only after that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from ergon_framework.testing.suites.executor.harness import (
    NO_JSON,
    NO_OBJECT,
    OutputLine,
    reply_of,
    shown,
)
from ergon_framework.testing.suites.executor.under_test import (
    ExecutorSubject,
    FirstExchange,
    NotTried,
)
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ExecutorSubject]] = []
check = partial(register(CHECKS), colours=("stdio",))


@check()
def answers_a_request(s: ExecutorSubject) -> None:
    """A request on standard input is answered with an outcome on standard output."""
    expect(s.first.is_answered, s.first.why_not)


@check()
def answers_while_input_is_open(s: ExecutorSubject) -> None:
    """The answer comes at once, not when input ends: output is flushed after every outcome."""
    expect(
        s.first.output or not s.first.rest,
        "nothing came until its input ended, and then the answer did: flush standard output",
    )
    _written(s.first)


@check()
def outcome_is_on_one_line(s: ExecutorSubject) -> None:
    """An outcome is one line, however long."""
    output = _written(s.first)
    count = len(output.strip().split(b"\n"))
    expect(not _is_spread(output), f"it wrote one JSON value over {count} lines")


@check()
def outcome_ends_with_a_newline(s: ExecutorSubject) -> None:
    """Every outcome ends with a line feed, byte 0x0A."""
    output = _written(s.first)
    expect(output.endswith(b"\n"), f"its output ends with {shown(output[-20:])}")


@check(required=False)
def outcome_ends_with_nothing_but_a_newline(s: ExecutorSubject) -> None:
    """Lines end with a line feed alone, without a carriage return."""
    output = _written(s.first)
    expect(b"\r\n" not in output, "its lines end with a carriage return and a line feed")


@check()
def outcome_is_utf8(s: ExecutorSubject) -> None:
    """Standard output is UTF-8, without a byte order mark."""
    output = _written(s.first)
    try:
        output.decode("utf-8")
    except UnicodeDecodeError as error:
        fail(f"it is not UTF-8 at byte {error.start}: {shown(output)}")
    expect(not output.startswith(b"\xef\xbb\xbf"), "it begins with a byte order mark")


@check()
def outcome_is_json(s: ExecutorSubject) -> None:
    """An outcome is a JSON value that any strict reader accepts."""
    output = _written(s.first)
    if _is_spread(output):
        raise NotTried("the outcome is spread over several lines")
    for reply in _lines(output):
        expect(not reply.problem.startswith(NO_JSON), f"a line {reply.problem}: {reply}")


@check()
def outcome_is_an_object(s: ExecutorSubject) -> None:
    """An outcome is a JSON object."""
    for reply in _lines(_written(s.first)):
        expect(reply.problem != NO_OBJECT, f"a line {reply.problem}: {reply}")


@check()
def stdout_holds_only_outcomes(s: ExecutorSubject) -> None:
    """Standard output holds outcomes and nothing else: no greeting, no prompt, no log, no blank."""
    output = _written(s.first)
    others = [one for one in _lines(output) if one.fields is None]
    if not others or _is_spread(output):
        return
    fail(f"lines that are no outcomes: {len(others)}; the first {others[0].problem}: {others[0]}")


@check()
def one_request_has_one_outcome(s: ExecutorSubject) -> None:
    """One request is answered once."""
    found = [one for one in _lines(_written(s.first) + s.first.rest) if one.fields is not None]
    expect(len(found) <= 1, f"one request was sent, {len(found)} outcomes came")


@check(required=False)
def first_answer_comes_soon(s: ExecutorSubject) -> None:
    """A new process answers its first request within the time for any other."""
    if not s.first.is_answered:
        raise NotTried("there was no answer")
    longest = s.patience.longest
    expect(s.first.seconds <= longest, f"it took {s.first.seconds:.1f} s, more than {longest:g} s")


def _written(first: FirstExchange) -> bytes:
    """The output to judge: what came in time, or else what came at all."""
    output = first.output or first.rest
    if not output:
        raise NotTried("nothing was written")
    return output


def _lines(output: bytes) -> Iterator[OutputLine]:
    for line in output.removesuffix(b"\n").split(b"\n"):
        yield reply_of(line)


def _is_spread(output: bytes) -> bool:
    """Whether several lines together are one JSON value."""
    if b"\n" not in output.strip():
        return False
    try:
        json.loads(output)
    except (ValueError, RecursionError):
        return False
    return True
