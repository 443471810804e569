"""Who comes while a group waits for its store is looked at before that ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ergon_framework.boundary.factstore.group_commit import MAX_EMPTY_POLLS, GroupCommit
from ergon_framework.errors import StoreUnavailableError
from tests.boundary.test_group_commit import WAIT, Caller

pytestmark = pytest.mark.req("BOUNDARY:store", "SCALE:boundary-postgres")


class Desk:
    """Looks at requests, and serves groups; the third one is what the others wait behind."""

    def __init__(self, **limits: Any) -> None:
        self.looked: list[int] = []
        self.groups: list[list[int]] = []
        self.callers: list[Caller] = []
        self.acts: list[Callable[[], None]] = []
        """What happens during the groups, in order."""
        self.odd: BaseException | None = None
        """What looking at a negative number raises."""
        self.grouping: GroupCommit[int, int] = GroupCommit(
            self.serve, look=self.look, lets_go=True, **limits
        )

    def look(self, number: int) -> None:
        """Note it."""
        self.looked.append(number)
        if number < 0 and self.odd is not None:
            raise self.odd

    def serve(self, asked: Sequence[int]) -> list[int]:
        """Note the group, and do what belongs to it."""
        self.groups.append(list(asked))
        if self.acts:
            self.acts.pop(0)()
        return [each * 2 for each in asked]

    def come(self, *numbers: int) -> None:
        """Callers come, one behind the other, and stand in line."""
        for number in numbers:
            before = self.grouping.pending
            self.callers.append(Caller(self.grouping, number))
            self.until(lambda size=before: self.grouping.pending > size)  # type: ignore[misc]

    def begin(self) -> None:
        """Somebody is served, and behind it somebody for whom the thread is needed."""

        def first() -> None:
            self.callers.append(Caller(self.grouping, 1))
            self.until(lambda: self.grouping.has_thread)

        self.acts.insert(0, first)
        self.grouping.call(0)

    def answers(self) -> list[int | None]:
        """Wait for all; what each was answered."""
        for each in self.callers:
            each.join(WAIT)
            assert not each.is_alive()
        return [each.answer for each in self.callers]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for another thread."""
        pause = threading.Event()
        for _ in range(2000):
            if is_so():
                return
            pause.wait(0.01)
        raise AssertionError("it never came to that")


@contextmanager
def opened(**limits: Any) -> Iterator[Desk]:
    """A fresh one, with limits of its own."""
    desk = Desk(**limits)
    try:
        yield desk
    finally:
        desk.grouping.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A fresh one."""
    with opened() as desk:
        yield desk


def test_who_comes_during_a_wait_is_looked_at_before_its_end(desk: Desk) -> None:
    """In the order of coming, each once; and the next group is made of them."""
    seen: list[list[int]] = []

    def wait() -> None:
        desk.come(2, 3)
        desk.grouping.meanwhile(lambda: len(desk.looked) == 2)
        seen.append(list(desk.looked))
        desk.come(4)

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2, 4, 6, 8]
    assert seen == [[2, 3]]
    assert desk.groups == [[0], [1], [2, 3, 4]]
    assert desk.looked == [2, 3]  # whoever serves looks at the others


def test_a_wait_that_is_over_is_not_made_longer(desk: Desk) -> None:
    """Those in line have to be served in any case."""

    def wait() -> None:
        desk.come(2, 3)
        answers = iter((False, True))
        desk.grouping.meanwhile(lambda: next(answers))

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2, 4, 6]
    assert desk.looked == [2]
    assert desk.groups == [[0], [1], [2, 3]]


def test_nobody_is_looked_for_without_end(desk: Desk) -> None:
    """A store that takes its time does not keep a processor busy."""
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        return False

    def wait() -> None:
        desk.grouping.meanwhile(is_over)

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2]
    assert len(asked) == MAX_EMPTY_POLLS


def test_no_more_are_looked_at_than_fit_into_a_group() -> None:
    """What is prepared is kept in memory until it is written."""
    with opened(max_group=2) as desk:

        def wait() -> None:
            desk.come(2, 3, 4)
            desk.grouping.meanwhile(lambda: False)

        desk.acts = [wait]
        desk.begin()
        assert desk.answers() == [2, 4, 6, 8]
    assert desk.looked == [2, 3]
    assert desk.groups == [[0], [1], [2, 3], [4]]


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(1)], ids=["error", "exit"])
def test_a_look_that_fails_harms_nobody_else(desk: Desk, error: BaseException) -> None:
    """Neither the group that waits nor the one that will have it: serving meets it again."""
    desk.odd = error

    def wait() -> None:
        desk.come(-2, 3)
        desk.grouping.meanwhile(lambda: len(desk.looked) == 2)

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2, -4, 6]


def test_those_looked_at_are_served_although_the_group_before_failed(desk: Desk) -> None:
    """Their fate is their own."""

    def fail() -> None:
        desk.come(2)
        desk.grouping.meanwhile(lambda: bool(desk.looked))
        raise StoreUnavailableError("gone")

    desk.acts = [fail]
    desk.begin()
    assert desk.answers() == [None, 4]
    assert isinstance(desk.callers[0].error, StoreUnavailableError)


def test_those_looked_at_are_served_although_the_line_is_closed() -> None:
    """Whoever stood in line before the end is answered; the end is not lost behind them."""
    with opened(idle_timeout=2 * WAIT) as desk:  # after which the thread would end by itself

        def close() -> None:
            desk.come(2)
            desk.grouping.close()
            desk.grouping.meanwhile(lambda: False)

        desk.acts = [close]
        desk.begin()
        assert desk.answers() == [2, 4]
        assert desk.looked == [2]
        desk.until(lambda: not desk.grouping.has_thread)


class Unhashable:
    """A callback that the thread cannot gather with others: it stumbles behind the group."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None:
        """Never comes to that."""


def test_those_looked_at_are_served_although_the_thread_stumbled(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of our own, between two groups."""

    def leave() -> None:
        desk.grouping.call_soon(1, lambda _: None, Unhashable())
        desk.until(lambda: desk.grouping.has_thread)

    def wait() -> None:
        desk.come(2)
        desk.grouping.meanwhile(lambda: bool(desk.looked))

    desk.acts = [leave, wait]
    desk.grouping.call(0)
    desk.until(lambda: bool(desk.callers))
    assert desk.answers() == [4]
    assert desk.groups == [[0], [1], [2]]
    assert "stumbled" in caplog.text


def test_whoever_serves_itself_looks_at_nobody(desk: Desk) -> None:
    """It would have to wait for what is others' work."""

    def wait() -> None:
        desk.callers.append(Caller(desk.grouping, 1))
        desk.until(lambda: desk.grouping.pending == 1)
        desk.come(2)
        desk.grouping.meanwhile(lambda: False)

    desk.acts = [wait]
    assert desk.grouping.call(0) == 0
    assert desk.answers() == [2, 4]
    assert desk.looked == []


def test_a_caller_that_leaves_after_it_was_looked_at_is_not_served(desk: Desk) -> None:
    """It heard of no outcome."""
    may_come, is_gone = threading.Event(), threading.Event()
    me = threading.get_ident()

    def begin() -> None:
        desk.callers.append(Caller(desk.grouping, 1))
        desk.until(lambda: desk.grouping.has_thread)

    def wait() -> None:
        may_come.set()
        desk.until(lambda: desk.grouping.pending == 1)  # the caller that will leave
        desk.come(3)
        desk.grouping.meanwhile(lambda: len(desk.looked) == 2)
        signal.pthread_kill(me, signal.SIGINT)
        assert is_gone.wait(WAIT)

    desk.acts = [begin, wait]
    first = Caller(desk.grouping, 0)
    assert may_come.wait(WAIT)
    with pytest.raises(KeyboardInterrupt):
        desk.grouping.call(2)
    is_gone.set()
    first.join(WAIT)
    assert desk.answers() == [2, 6]
    assert desk.looked == [2, 3]
    assert desk.groups == [[0], [1], [3]]


def test_who_was_served_is_woken_before_anybody_is_looked_at(desk: Desk) -> None:
    """They come back with the next request, which can be looked at then."""
    seen: list[object] = []

    def wait() -> None:
        desk.come(2)

    def wait_again() -> None:
        desk.grouping.meanwhile(lambda: True)
        desk.callers[0].join(WAIT)
        seen.append(desk.callers[0].answer)

    desk.acts = [wait, wait_again]
    desk.begin()
    assert desk.answers() == [2, 4]
    assert seen == [2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_looked_at_nobody(desk: Desk) -> None:
    """Those are the parent's, and so is the thread that serves."""
    ends: list[int] = []

    def work_in_child() -> bool:
        grouping, before = desk.grouping, len(desk.groups)
        is_fresh = grouping.pending == 0 and not grouping.has_thread
        grouping.meanwhile(lambda: False)  # nobody serves here, so nobody is looked for
        done = threading.Event()
        answer = grouping.call(5)
        grouping.call_soon(6, lambda _: None, done.set)
        is_done = done.wait(WAIT)
        return is_fresh and is_done and answer == 10 and desk.groups[before:] == [[5], [6]]

    def wait() -> None:
        desk.come(2)
        desk.grouping.meanwhile(lambda: bool(desk.looked))
        pid = os.fork()
        if not pid:
            os._exit(0 if work_in_child() else 1)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2, 4]
    assert ends == [0]


def test_a_start_that_is_interrupted_makes_no_second_thread(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that runs says so itself, and whoever comes next finds it."""
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ergon-grouping":
            begun.append(thread)
            if len(begun) == 1:
                raise KeyboardInterrupt

    def wait() -> None:
        desk.callers.append(Caller(desk.grouping, 1))
        desk.callers[0].join(WAIT)
        assert isinstance(desk.callers[0].error, KeyboardInterrupt)
        desk.until(lambda: desk.grouping.has_thread)
        desk.callers.append(Caller(desk.grouping, 2))
        desk.until(lambda: desk.grouping.pending == 1)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    desk.acts = [wait]
    assert desk.grouping.call(0) == 0
    assert desk.answers() == [None, 4]
    assert len(begun) == 1
    assert desk.grouping.has_thread


def test_a_second_thread_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would take from one line. One may begin late, when its start was interrupted."""
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "ergon-grouping":
            begun.append(thread)
            if len(begun) == 1:
                raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with opened(idle_timeout=2 * WAIT) as desk:
        with pytest.raises(KeyboardInterrupt):
            desk.grouping.call_soon(0, lambda _: None)
        done = threading.Event()
        desk.grouping.call_soon(1, lambda _: None, done.set)
        assert done.wait(WAIT)
        late, running = begun
        start(late)
        late.join(WAIT)
        assert not late.is_alive()
        assert running.is_alive()
        assert desk.groups == [[1]]
