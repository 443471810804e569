"""Checks of a process's life: how it starts, how it is told to end, and what it leaves."""

from __future__ import annotations

import os
import signal
from functools import partial

from ergon_framework.testing.suites.executor.conversation import Conversation, told
from ergon_framework.testing.suites.executor.lines import line_of, request, shown
from ergon_framework.testing.suites.executor.subject import QUIET, Subject
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = partial(register(CHECKS), colours=("stdio",))

NAP = 1.0


@check()
def end_of_input_ends_it(s: Subject) -> None:
    """When standard input ends, the process ends."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        _expect_end(talk)


@check()
def end_of_input_ends_it_without_requests(s: Subject) -> None:
    """A process that never got a request ends with its input too."""
    with s.fresh() as talk:
        _expect_end(talk)


@check()
def what_was_asked_before_the_end_is_answered(s: Subject) -> None:
    """Requests that were sent before standard input ended are all answered."""
    with s.fresh() as talk:
        asked = [talk.send(s.simple()) for _ in range(10)]
        talk.process.end_input()
        talk.answers(asked)
        _expect_end(talk)


@check("sleep")
def running_job_outlives_the_end_of_input(s: Subject) -> None:
    """A job that runs while standard input ends is answered before the process ends."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        running = talk.send(request("sleep", [NAP / 2]))
        talk.process.end_input()
        reply = talk.answer(running, after=NAP)
        expect(reply.status == "success", f"the outcome is {reply}")


@check()
def last_line_needs_no_newline(s: Subject) -> None:
    """A last request without a line feed is served when input ends."""
    with s.fresh() as talk:
        asked = s.simple()
        talk.send(asked, line=line_of(asked)[:-1])
        talk.process.end_input()
        talk.answer(asked["job_id"])


@check()
def half_a_request_at_the_end_is_harmless(s: Subject) -> None:
    """When input ends in the middle of a request, the process ends."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        line = line_of(s.simple())
        talk.junk(line[: len(line) // 2])
        _expect_end(talk)


@check()
def last_outcome_is_whole(s: Subject) -> None:
    """Nothing is cut off at the end: the last outcome has its line feed."""
    with s.fresh() as talk:
        asked = talk.send(s.simple(args=["x" * 200_000]))
        _expect_end(talk)
        rest = talk.unfinished()
        expect(not rest, f"the last line has no line feed: {len(rest)} bytes stand after the last")
        talk.answer(asked)


@check(required=False)
def end_of_input_is_exit_code_zero(s: Subject) -> None:
    """A process that ends because its input did has the exit code 0."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        code = talk.end()
        expect(code == 0, f"it ended with {told(code)}")


@check(required=False)
def bad_line_does_not_change_the_exit_code(s: Subject) -> None:
    """The exit code at the end of input is 0 even after lines that were no requests."""
    with s.fresh() as talk:
        talk.junk(b"no JSON\n")
        talk.ask(s.simple())
        code = talk.end()
        expect(code == 0, f"it ended with {told(code)}")


@check(required=False)
def sigterm_ends_an_idle_process(s: Subject) -> None:
    """SIGTERM ends a process with nothing to do, with the exit code 0."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        talk.process.signal(signal.SIGTERM)
        code = talk.process.exit_code(s.patience.seconds)
        expect(code == 0, f"it ended with {told(code)}")


@check("sleep", required=False)
def sigterm_lets_a_running_job_finish(s: Subject) -> None:
    """SIGTERM lets the running job finish: it is answered, then the process ends with 0."""
    with s.fresh() as talk:
        _expect_finished(talk, s, signal.SIGTERM)
        code = talk.process.exit_code(s.patience.seconds)
        expect(code == 0, f"it ended with {told(code)}")


@check("sleep", required=False)
def sigint_lets_a_running_job_finish(s: Subject) -> None:
    """SIGINT, which Ctrl-C may send to everybody, costs no running job its answer."""
    with s.fresh() as talk:
        _expect_finished(talk, s, signal.SIGINT)


@check(required=False)
def ends_when_nobody_reads(s: Subject) -> None:
    """When nobody reads its outcomes any more, the process still ends with its input."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        talk.process.close_output()
        for _ in range(3):
            talk.send(s.simple())
        _expect_end(talk)


@check(required=False)
def readiness_is_reported(s: Subject) -> None:
    """It writes a line to the descriptor in ERGON_READY_FD once it can serve."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        with s.fresh({"ERGON_READY_FD": str(writer)}, pass_fds=[writer]) as talk:
            seen = bytearray()
            talk.process.wait(lambda: _has_more(reader, seen), s.patience.seconds)
            expect(seen, "nothing was written there")
            expect(seen.endswith(b"\n"), f"what was written there is no line: {shown(seen)}")
            expect(not talk.process.output, "it wrote on its standard output before any request")
            talk.ask(s.simple())
    finally:
        os.close(reader)
        os.close(writer)


@check(required=False)
def broken_ready_descriptor_is_harmless(s: Subject) -> None:
    """An ERGON_READY_FD that cannot be written to does not keep it from serving."""
    for value in ("", "none", "987", "-1"):
        with s.fresh({"ERGON_READY_FD": value}) as talk:
            talk.ask(s.simple())


def _expect_finished(talk: Conversation, s: Subject, number: signal.Signals) -> None:
    """A job that runs when the signal comes succeeds."""
    talk.ask(s.simple())
    running = talk.send(request("sleep", [NAP]))
    talk.process.wait(talk.process.is_read, NAP / 2)
    talk.process.rest(QUIET)  # taken out of the pipe is not yet begun
    talk.process.signal(number)
    reply = talk.answer(running, after=NAP)
    expect(reply.status == "success", f"the outcome is {reply}")


def _has_more(reader: int, seen: bytearray) -> bool:
    try:
        seen += os.read(reader, 4096)
    except BlockingIOError:
        return False
    return seen.endswith(b"\n")


def _expect_end(talk: Conversation) -> None:
    code = talk.end()
    expect(code is not None, f"it still runs {talk.patience.seconds:g} s after its input ended")
