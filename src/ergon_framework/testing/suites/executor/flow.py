"""Checks of many requests: each is answered once, and one after the other unless told otherwise."""

from __future__ import annotations

from functools import partial

from ergon_framework.testing.suites.executor.conversation import Conversation, Request
from ergon_framework.testing.suites.executor.lines import NO_SUCH_HANDLER, request, shown
from ergon_framework.testing.suites.executor.subject import QUIET, Subject
from ergon_framework.testing.suites.framework import Check, expect, fail, register

CHECKS: list[Check[Subject]] = []
check = partial(register(CHECKS), colours=("stdio",))

SEVERAL = {"ERGON_MAX_IN_FLIGHT": "2"}
NAP = 0.5


@check()
def many_requests_one_after_the_other(s: Subject) -> None:
    """A hundred requests, each sent after the last answer, are all answered."""
    for _ in range(100):
        s.ask(s.simple())


@check()
def many_requests_at_once(s: Subject) -> None:
    """Sixty requests sent without waiting are all answered."""
    with s.fresh() as talk:
        _answered_once(talk, [s.simple() for _ in range(60)])


@check()
def different_requests_at_once(s: Subject) -> None:
    """Requests that succeed, fail and find no handler do not get in each other's way."""
    kinds = [NO_SUCH_HANDLER, *(name for name in ("echo", "fail", "retry") if s.has(name))]
    with s.fresh() as talk:
        _answered_once(talk, [request(kinds[n % len(kinds)]) for n in range(40)])


@check()
def large_requests_at_once(s: Subject) -> None:
    """Ten requests of 64 KiB sent without waiting are all answered."""
    with s.fresh() as talk:
        _answered_once(talk, [s.simple(args=["x" * 65536]) for _ in range(10)])


@check()
def nothing_is_answered_twice(s: Subject) -> None:
    """No request has a second outcome, not even when input ends."""
    with s.fresh() as talk:
        asked = [s.simple() for _ in range(5)]
        for each in asked:
            talk.ask(each)
        talk.end()
        _expect_single(talk, asked)


@check()
def all_of_stdout_is_outcomes(s: Subject) -> None:
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
def idle_executor_is_silent(s: Subject) -> None:
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
def answers_come_in_order(s: Subject) -> None:
    """Without ERGON_MAX_IN_FLIGHT, answers come in the order of the requests."""
    with s.fresh() as talk:
        asked = [talk.send(s.simple()) for _ in range(20)]
        talk.answers(asked)
        order = [one.job_id for one in talk.known() if one.job_id in set(asked)]
        expect(order == asked, "they came in another order")


@check("sleep", required=False)
def one_at_a_time_unless_told_otherwise(s: Subject) -> None:
    """Without ERGON_MAX_IN_FLIGHT, a slow job is finished before the next begins."""
    with s.fresh() as talk:
        _expect_order(talk, s, "the quick job overtook the slow one", is_slow_first=True)


@check(required=False)
def in_flight_of_one_is_served(s: Subject) -> None:
    """With ERGON_MAX_IN_FLIGHT=1 every request is served."""
    with s.fresh({"ERGON_MAX_IN_FLIGHT": "1"}) as talk:
        _answered_once(talk, [s.simple() for _ in range(5)])


@check(required=False)
def in_flight_of_several_is_served(s: Subject) -> None:
    """With ERGON_MAX_IN_FLIGHT=2 every request is served once, in whatever order."""
    with s.fresh(SEVERAL) as talk:
        _answered_once(talk, [s.simple() for _ in range(20)])


@check("sleep", required=False)
def several_in_flight_when_asked(s: Subject) -> None:
    """With ERGON_MAX_IN_FLIGHT=2 a quick job does not wait for a slow one."""
    with s.fresh(SEVERAL) as talk:
        _expect_order(talk, s, "the quick job waited for the slow one", is_slow_first=False)


@check("sleep", required=False)
def in_flight_limit_is_kept(s: Subject) -> None:
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


def _expect_order(talk: Conversation, s: Subject, complaint: str, *, is_slow_first: bool) -> None:
    """A slow job, then a quick one: which is answered first?"""
    talk.ask(s.simple())
    slow: Request = request("sleep", [NAP])
    both = [talk.send(slow), talk.send(s.simple())]
    talk.answers(both, after=NAP)
    order = [one.job_id for one in talk.known()]
    expect((order.index(both[0]) < order.index(both[1])) is is_slow_first, complaint)
