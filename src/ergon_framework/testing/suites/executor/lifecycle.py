"""Checks of many requests in a row, and of a process's start, end and remains."""

from __future__ import annotations

import os
import signal
from functools import partial

from ergon_framework.testing.suites.executor.harness import (
    NO_SUCH_HANDLER,
    Conversation,
    Request,
    line_of,
    request,
    shown,
    told,
)
from ergon_framework.testing.suites.executor.under_test import QUIET, ExecutorSubject
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[ExecutorSubject]] = []
check = partial(register(CHECKS), colours=("stdio",))

SEVERAL = {"ERGON_MAX_IN_FLIGHT": "2"}
NAP = 0.5


@check()
def many_requests_one_after_the_other(s: ExecutorSubject) -> None:
    """A hundred requests, each sent after the last answer, are all answered."""
    for _ in range(100):
        s.ask(s.simple())


@check()
def many_requests_at_once(s: ExecutorSubject) -> None:
    """Sixty requests sent without waiting are all answered."""
    with s.fresh() as talk:
        _answered_once(talk, [s.simple() for _ in range(60)])


@check()
def different_requests_at_once(s: ExecutorSubject) -> None:
    """Requests that succeed, fail and find no handler do not get in each other's way."""
    kinds = [NO_SUCH_HANDLER, *(name for name in ("echo", "fail", "retry") if s.has(name))]
    with s.fresh() as talk:
        _answered_once(talk, [request(kinds[n % len(kinds)]) for n in range(40)])


@check()
def large_requests_at_once(s: ExecutorSubject) -> None:
    """Ten requests of 64 KiB sent without waiting are all answered."""
    with s.fresh() as talk:
        _answered_once(talk, [s.simple(args=["x" * 65536]) for _ in range(10)])


@check()
def nothing_is_answered_twice(s: ExecutorSubject) -> None:
    """No request has a second outcome, not even when input ends."""
    with s.fresh() as talk:
        asked = [s.simple() for _ in range(5)]
        for each in asked:
            talk.ask(each)
        talk.end()
        _expect_single(talk, asked)


@check()
def all_of_stdout_is_outcomes(s: ExecutorSubject) -> None:
    """In a whole conversation, standard output holds outcomes of what was asked, nothing else."""
    with s.fresh() as talk:
        for name in (NO_SUCH_HANDLER, "echo", "fail", "retry"):
            talk.ask(request(name))
        talk.end()
        strays = talk.strays()
        if strays:
            what = strays[0].problem or f"has the job_id {shown(strays[0].job_id)}, never sent"
            fail(f"{len(strays)} lines are none; the first {what}: {strays[0]}")
        expect(not talk.unfinished(), f"the last line has no end: {shown(talk.unfinished())}")


@check(required=False)
def idle_executor_is_silent(s: ExecutorSubject) -> None:
    """An executor with nothing to do writes nothing."""
    with s.fresh() as talk:
        for _ in range(2):
            talk.process.rest(QUIET)
            talk.ask(s.simple())
        talk.process.rest(QUIET)
        for stray in talk.strays():
            fail(f"unasked it wrote {stray}")
        expect(len(talk.known()) == 2, f"it was asked twice, and wrote {len(talk.known())} lines")
        expect(not talk.unfinished(), f"unasked it wrote {shown(talk.unfinished())}")


@check(required=False)
def answers_come_in_order(s: ExecutorSubject) -> None:
    """Without ERGON_MAX_IN_FLIGHT, answers come in the order of the requests."""
    with s.fresh() as talk:
        asked = [talk.send(s.simple()) for _ in range(20)]
        talk.answers(asked)
        order = [one.job_id for one in talk.known() if one.job_id in set(asked)]
        expect(order == asked, "they came in another order")


@check("sleep", required=False)
def one_at_a_time_unless_told_otherwise(s: ExecutorSubject) -> None:
    """Without ERGON_MAX_IN_FLIGHT, a slow job is finished before the next begins."""
    with s.fresh() as talk:
        _expect_order(talk, s, "the quick job overtook the slow one", is_slow_first=True)


@check(required=False)
def in_flight_of_one_is_served(s: ExecutorSubject) -> None:
    """With ERGON_MAX_IN_FLIGHT=1 every request is served."""
    with s.fresh({"ERGON_MAX_IN_FLIGHT": "1"}) as talk:
        _answered_once(talk, [s.simple() for _ in range(5)])


@check(required=False)
def in_flight_of_several_is_served(s: ExecutorSubject) -> None:
    """With ERGON_MAX_IN_FLIGHT=2 every request is served once, in whatever order."""
    with s.fresh(SEVERAL) as talk:
        _answered_once(talk, [s.simple() for _ in range(20)])


@check("sleep", required=False)
def several_in_flight_when_asked(s: ExecutorSubject) -> None:
    """With ERGON_MAX_IN_FLIGHT=2 a quick job does not wait for a slow one."""
    with s.fresh(SEVERAL) as talk:
        _expect_order(talk, s, "the quick job waited for the slow one", is_slow_first=False)


@check("sleep", required=False)
def in_flight_limit_is_kept(s: ExecutorSubject) -> None:
    """With ERGON_MAX_IN_FLIGHT=2 a third job waits until one of two slow ones is finished."""
    with s.fresh(SEVERAL) as talk:
        talk.ask(s.simple())
        slow = [talk.send(request("sleep", [NAP])) for _ in range(2)]
        quick = talk.send(s.simple())
        talk.answers([*slow, quick], after=NAP)
        order = [one.job_id for one in talk.known()]
        expect(order.index(quick) > min(map(order.index, slow)), "the third did not wait")


def _answered_once(talk: Conversation, asked: list[dict[str, object]]) -> None:
    talk.answers([talk.send(each) for each in asked])
    _expect_single(talk, asked)


def _expect_single(talk: Conversation, asked: list[dict[str, object]]) -> None:
    for each in asked:
        count = talk.count(str(each["job_id"]))
        expect(count <= 1, f"one request was answered {count} times")


def _expect_order(
    talk: Conversation, s: ExecutorSubject, complaint: str, *, is_slow_first: bool
) -> None:
    """Which is answered first: a slow job, or a quick one sent after it."""
    talk.ask(s.simple())
    slow: Request = request("sleep", [NAP])
    both = [talk.send(slow), talk.send(s.simple())]
    talk.answers(both, after=NAP)
    order = [one.job_id for one in talk.known()]
    expect((order.index(both[0]) < order.index(both[1])) is is_slow_first, complaint)


LONG_NAP = 1.0


@check()
def end_of_input_ends_it(s: ExecutorSubject) -> None:
    """When standard input ends, the process ends."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        _expect_end(talk)


@check()
def end_of_input_ends_it_without_requests(s: ExecutorSubject) -> None:
    """A process that never got a request ends with its input too."""
    with s.fresh() as talk:
        _expect_end(talk)


@check()
def what_was_asked_before_the_end_is_answered(s: ExecutorSubject) -> None:
    """Requests that were sent before standard input ended are all answered."""
    with s.fresh() as talk:
        asked = [talk.send(s.simple()) for _ in range(10)]
        talk.process.end_input()
        talk.answers(asked)
        _expect_end(talk)


@check("sleep")
def running_job_outlives_the_end_of_input(s: ExecutorSubject) -> None:
    """A job that runs while standard input ends is answered before the process ends."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        running = talk.send(request("sleep", [LONG_NAP / 2]))
        talk.process.end_input()
        reply = talk.answer(running, after=LONG_NAP)
        expect(reply.status == "success", f"the outcome is {reply}")


@check()
def last_line_needs_no_newline(s: ExecutorSubject) -> None:
    """A last request without a line feed is served when input ends."""
    with s.fresh() as talk:
        asked = s.simple()
        talk.send(asked, line=line_of(asked)[:-1])
        talk.process.end_input()
        talk.answer(asked["job_id"])


@check()
def half_a_request_at_the_end_is_harmless(s: ExecutorSubject) -> None:
    """When input ends in the middle of a request, the process ends."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        line = line_of(s.simple())
        talk.junk(line[: len(line) // 2])
        _expect_end(talk)


@check()
def last_outcome_is_whole(s: ExecutorSubject) -> None:
    """Nothing is cut off at the end: the last outcome has its line feed."""
    with s.fresh() as talk:
        asked = talk.send(s.simple(args=["x" * 200_000]))
        _expect_end(talk)
        rest = talk.unfinished()
        expect(not rest, f"the last line has no line feed: {len(rest)} bytes stand after the last")
        talk.answer(asked)


@check(required=False)
def end_of_input_is_exit_code_zero(s: ExecutorSubject) -> None:
    """A process that ends because its input did has the exit code 0."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        code = talk.end()
        expect(code == 0, f"it ended with {told(code)}")


@check(required=False)
def bad_line_does_not_change_the_exit_code(s: ExecutorSubject) -> None:
    """The exit code at the end of input is 0 even after lines that were no requests."""
    with s.fresh() as talk:
        talk.junk(b"no JSON\n")
        talk.ask(s.simple())
        code = talk.end()
        expect(code == 0, f"it ended with {told(code)}")


@check(required=False)
def sigterm_ends_an_idle_process(s: ExecutorSubject) -> None:
    """SIGTERM ends a process with nothing to do, with the exit code 0."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        talk.process.signal(signal.SIGTERM)
        code = talk.process.exit_code(s.patience.seconds)
        expect(code == 0, f"it ended with {told(code)}")


@check("sleep", required=False)
def sigterm_lets_a_running_job_finish(s: ExecutorSubject) -> None:
    """SIGTERM lets the running job finish: it is answered, then the process ends with 0."""
    with s.fresh() as talk:
        _expect_finished(talk, s, signal.SIGTERM)
        code = talk.process.exit_code(s.patience.seconds)
        expect(code == 0, f"it ended with {told(code)}")


@check("sleep", required=False)
def sigint_lets_a_running_job_finish(s: ExecutorSubject) -> None:
    """SIGINT, which Ctrl-C may send to everybody, costs no running job its answer."""
    with s.fresh() as talk:
        _expect_finished(talk, s, signal.SIGINT)


@check(required=False)
def ends_when_nobody_reads(s: ExecutorSubject) -> None:
    """When nobody reads its outcomes any more, the process still ends with its input."""
    with s.fresh() as talk:
        talk.ask(s.simple())
        talk.process.close_output()
        for _ in range(3):
            talk.send(s.simple())
        _expect_end(talk)


@check(required=False)
def readiness_is_reported(s: ExecutorSubject) -> None:
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
def broken_ready_descriptor_is_harmless(s: ExecutorSubject) -> None:
    """An ERGON_READY_FD that cannot be written to does not keep it from serving."""
    for value in ("", "none", "987", "-1"):
        with s.fresh({"ERGON_READY_FD": value}) as talk:
            talk.ask(s.simple())


def _expect_finished(talk: Conversation, s: ExecutorSubject, number: signal.Signals) -> None:
    """A job that runs when the signal comes succeeds."""
    talk.ask(s.simple())
    running = talk.send(request("sleep", [LONG_NAP]))
    talk.process.wait(talk.process.is_read, LONG_NAP / 2)
    talk.process.rest(QUIET)  # taken out of the pipe is not yet begun
    talk.process.signal(number)
    reply = talk.answer(running, after=LONG_NAP)
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
