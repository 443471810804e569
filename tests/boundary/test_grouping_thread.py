"""The thread that serves a crowd: when it wakes whom, when it rests, and what if there is none."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from ergon_framework.boundary.logs.grouping import Grouping
from ergon_framework.errors import StoreUnavailableError
from tests.boundary.test_grouping import WAIT, Caller, Kitchen, crowd, in_line

pytestmark = pytest.mark.req("BOUNDARY:store")


class Stage:
    """Serves groups one by one, each when the test says so, and notes which thread did."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.threads: list[int] = []
        self.acts: list[Callable[[], None]] = []
        """What happens during the groups, in order; nothing in those behind."""

    def wait_once(self) -> tuple[threading.Event, threading.Event]:
        """Let the first group wait; what says that it began, and what ends it."""
        began, may_end = threading.Event(), threading.Event()

        def wait() -> None:
            began.set()
            assert may_end.wait(WAIT)

        self.acts = [wait]
        return began, may_end

    def serve(self, asked: Sequence[int]) -> list[int]:
        """Note the group, and do what belongs to it."""
        self.groups.append(list(asked))
        self.threads.append(threading.get_ident())
        number = len(self.groups) - 1
        if number < len(self.acts):
            self.acts[number]()
        return [each * 2 for each in asked]


@pytest.fixture
def kitchen() -> Kitchen:
    """A fresh one."""
    return Kitchen()


@pytest.fixture
def stage() -> Stage:
    """A fresh one."""
    return Stage()


@pytest.fixture
def grouping(stage: Stage) -> Iterator[Grouping[int, int]]:
    """Groups whose members are let go by who serves the next."""
    grouping: Grouping[int, int] = Grouping(stage.serve, lets_go=True)
    yield grouping
    grouping.close()


def at_rest(grouping: Grouping[int, int]) -> None:
    """Wait until callers may serve themselves."""
    pause = threading.Event()
    for _ in range(2000):
        if grouping._turns.leader is None:
            return
        pause.wait(0.01)
    raise AssertionError("the thread did not rest")


@pytest.mark.parametrize("is_called", [True, False], ids=["let go", "not let go"])
def test_who_was_served_is_woken_while_the_next_group_waits(
    stage: Stage, grouping: Grouping[int, int], is_called: bool
) -> None:
    """Not before, where it would only stand in the way; and at the latest when that one ends."""
    callers: dict[int, Caller] = {}
    seen: list[object] = []

    def add(*numbers: int) -> Callable[[], None]:
        def come() -> None:
            callers.update({number: Caller(grouping, number) for number in numbers})
            in_line(grouping, len(numbers))

        return come

    def look() -> None:
        seen.extend(callers[number].answer for number in (1, 2))
        if is_called:
            grouping.let_go()
            for number in (1, 2):
                callers[number].join(WAIT)
                seen.append(callers[number].answer)

    stage.acts = [add(1, 2), add(3), look]
    assert grouping.call(0) == 0
    for number in (1, 2, 3):
        callers[number].join(WAIT)
    assert [callers[number].answer for number in (1, 2, 3)] == [2, 4, 6]
    assert stage.groups == [[0], [1, 2], [3]]
    assert seen == ([None, None, 2, 4] if is_called else [None, None])


def test_who_was_served_is_woken_when_the_next_group_fails(
    stage: Stage, grouping: Grouping[int, int]
) -> None:
    """What happens to others is no reason to sleep on."""
    callers: list[Caller] = []

    def come() -> None:
        callers.append(Caller(grouping, len(callers) + 1))
        in_line(grouping, 1)

    def fail() -> None:
        raise StoreUnavailableError("gone")

    stage.acts = [come, come, fail]
    grouping.call(0)
    for each in callers:
        each.join(WAIT)
        assert not each.is_alive()
    assert callers[0].answer == 2
    assert isinstance(callers[1].error, StoreUnavailableError)


def test_the_thread_serves_a_crowd_and_then_rests(
    stage: Stage, grouping: Grouping[int, int]
) -> None:
    """Who is alone again serves itself again."""
    callers: list[Caller] = []

    def come() -> None:
        callers.extend(Caller(grouping, number) for number in (1, 2, 3))
        in_line(grouping, 3)

    stage.acts = [come]
    grouping.call(0)
    for each in callers:
        each.join(WAIT)
    at_rest(grouping)
    grouping.call(4)
    me, thread, again = stage.threads
    assert me == again == threading.get_ident() != thread


def test_a_caller_that_is_interrupted_in_line_is_not_served(
    stage: Stage, grouping: Grouping[int, int]
) -> None:
    """It heard of no outcome, so there is none unless it was being served."""
    began, may_end = stage.wait_once()
    first = Caller(grouping, 1)
    assert began.wait(WAIT)
    second = Caller(grouping, 2)
    in_line(grouping, 1)
    me = threading.get_ident()

    def interrupt() -> None:
        in_line(grouping, 2)
        signal.pthread_kill(me, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        grouping.call(3)
    may_end.set()
    for each in (first, second):
        each.join(WAIT)
    assert (first.answer, second.answer) == (2, 4)
    assert stage.groups == [[1], [2]]


def test_where_no_thread_can_be_had_callers_take_turns(
    monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    """Too many threads, or an interpreter on its way out, are no reason to refuse a fact."""
    grouping: Grouping[int, int] = Grouping(stage.serve)
    began, may_end = stage.wait_once()
    first = Caller(grouping, 1)
    assert began.wait(WAIT)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "ergon-grouping":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    second = Caller(grouping, 2)
    in_line(grouping, 1)
    with pytest.raises(RuntimeError, match="new thread"):
        grouping.call_soon(3, lambda _: None)
    may_end.set()
    for each in (first, second):
        each.join(WAIT)
    assert (first.answer, second.answer) == (2, 4)
    assert stage.groups == [[1], [2]]


def test_a_call_that_meets_a_closed_line_takes_its_turn(stage: Stage) -> None:
    """Whoever serves it says what is wrong with it."""
    grouping: Grouping[int, int] = Grouping(stage.serve)
    began, may_end = stage.wait_once()
    first = Caller(grouping, 1)
    assert began.wait(WAIT)
    grouping.close()
    second = Caller(grouping, 2)
    in_line(grouping, 1)
    may_end.set()
    for each in (first, second):
        each.join(WAIT)
    assert (first.answer, second.answer) == (2, 4)


def test_closing_ends_a_thread_in_the_middle_of_a_crowd(kitchen: Kitchen) -> None:
    """All who stood in line are answered, and the thread is gone."""
    grouping: Grouping[int, int] = Grouping(kitchen.serve, lets_go=True)
    callers = crowd(kitchen, grouping, 5)
    grouping.close()
    assert [each.answer for each in callers] == [0, 2, 4, 6, 8]
    assert grouping._thread is not None
    assert not grouping._thread.is_alive()


def test_who_has_to_stand_in_line_does_something_else_first(
    stage: Stage, grouping: Grouping[int, int]
) -> None:
    """It is told before it waits, and not where it serves itself."""
    told: list[int] = []
    began, may_end = stage.wait_once()

    def end(number: int) -> None:
        told.append(number)
        may_end.set()

    first = Caller(grouping, 1)
    assert began.wait(WAIT)
    assert grouping.call(2, lambda: end(2)) == 4
    first.join(WAIT)
    at_rest(grouping)
    assert grouping.call(3, lambda: end(3)) == 6
    assert told == [2]


def test_a_forked_process_has_a_line_of_its_own(kitchen: Kitchen) -> None:
    """Neither the thread nor whoever stood in line is there."""
    grouping: Grouping[int, int] = Grouping(kitchen.serve)
    first = Caller(grouping, 1)
    assert kitchen.began.wait(WAIT)
    grouping.call_soon(2, lambda _: None)
    in_line(grouping, 1)
    line, turns, thread = grouping._line, grouping._turns, grouping._thread
    grouping.renew()  # what happens in the child
    kitchen.may_end.set()
    assert grouping.call(3) == 6
    first.join(WAIT)
    line.put(None)
    assert thread is not None
    thread.join(WAIT)
    assert turns is not grouping._turns
