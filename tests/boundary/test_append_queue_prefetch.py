"""Who comes while a group waits for its store is looked at before that ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ergon_framework.boundary.factstore.append_queue import MAX_EMPTY_POLLS, AppendQueue
from ergon_framework.errors import StoreUnavailableError
from tests.boundary.test_append_queue import WAIT, Caller

pytestmark = pytest.mark.req("BOUNDARY:store", "SCALE:boundary-postgres")


class RecordedGroups:
    """Looks at requests, and serves groups; the third one is what the others wait behind."""

    def __init__(self, **limits: Any) -> None:
        self.looked: list[int] = []
        self.groups: list[list[int]] = []
        self.callers: list[Caller] = []
        self.acts: list[Callable[[], None]] = []
        """What happens during the groups, in order."""
        self.odd: BaseException | None = None
        """What looking at a negative number raises."""
        self.appends: AppendQueue[int, int] = AppendQueue(
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
            before = self.appends.pending
            self.callers.append(Caller(self.appends, number))
            self.until(lambda size=before: self.appends.pending > size)  # type: ignore[misc]

    def begin(self) -> None:
        """Somebody is served, and behind it somebody for whom the thread is needed."""

        def first() -> None:
            self.callers.append(Caller(self.appends, 1))
            self.until(lambda: self.appends.has_thread)

        self.acts.insert(0, first)
        self.appends.call(0)

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
def opened(**limits: Any) -> Iterator[RecordedGroups]:
    """A fresh one, with limits of its own."""
    recorded = RecordedGroups(**limits)
    try:
        yield recorded
    finally:
        recorded.appends.close()


@pytest.fixture
def recorded() -> Iterator[RecordedGroups]:
    """A fresh one."""
    with opened() as recorded:
        yield recorded


def test_who_comes_during_a_wait_is_looked_at_before_its_end(recorded: RecordedGroups) -> None:
    """In the order of coming, each once; and the next group is made of them."""
    seen: list[list[int]] = []

    def wait() -> None:
        recorded.come(2, 3)
        recorded.appends.meanwhile(lambda: len(recorded.looked) == 2)
        seen.append(list(recorded.looked))
        recorded.come(4)

    recorded.acts = [wait]
    recorded.begin()
    assert recorded.answers() == [2, 4, 6, 8]
    assert seen == [[2, 3]]
    assert recorded.groups == [[0], [1], [2, 3, 4]]
    assert recorded.looked == [2, 3]  # whoever serves looks at the others


def test_a_wait_that_is_over_is_not_made_longer(recorded: RecordedGroups) -> None:
    """Those in line have to be served in any case."""

    def wait() -> None:
        recorded.come(2, 3)
        answers = iter((False, True))
        recorded.appends.meanwhile(lambda: next(answers))

    recorded.acts = [wait]
    recorded.begin()
    assert recorded.answers() == [2, 4, 6]
    assert recorded.looked == [2]
    assert recorded.groups == [[0], [1], [2, 3]]


def test_nobody_is_looked_for_without_end(recorded: RecordedGroups) -> None:
    """A store that takes its time does not keep a processor busy."""
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        return False

    def wait() -> None:
        recorded.appends.meanwhile(is_over)

    recorded.acts = [wait]
    recorded.begin()
    assert recorded.answers() == [2]
    assert len(asked) == MAX_EMPTY_POLLS


def test_no_more_are_looked_at_than_fit_into_a_group() -> None:
    """What is prepared is kept in memory until it is written."""
    with opened(max_group=2) as recorded:

        def wait() -> None:
            recorded.come(2, 3, 4)
            recorded.appends.meanwhile(lambda: False)

        recorded.acts = [wait]
        recorded.begin()
        assert recorded.answers() == [2, 4, 6, 8]
    assert recorded.looked == [2, 3]
    assert recorded.groups == [[0], [1], [2, 3], [4]]


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(1)], ids=["error", "exit"])
def test_a_look_that_fails_harms_nobody_else(
    recorded: RecordedGroups, error: BaseException
) -> None:
    """Neither the group that waits nor the one that will have it: serving meets it again."""
    recorded.odd = error

    def wait() -> None:
        recorded.come(-2, 3)
        recorded.appends.meanwhile(lambda: len(recorded.looked) == 2)

    recorded.acts = [wait]
    recorded.begin()
    assert recorded.answers() == [2, -4, 6]


def test_those_looked_at_are_served_although_the_group_before_failed(
    recorded: RecordedGroups,
) -> None:
    """Their fate is their own."""

    def fail() -> None:
        recorded.come(2)
        recorded.appends.meanwhile(lambda: bool(recorded.looked))
        raise StoreUnavailableError("gone")

    recorded.acts = [fail]
    recorded.begin()
    assert recorded.answers() == [None, 4]
    assert isinstance(recorded.callers[0].error, StoreUnavailableError)


def test_those_looked_at_are_served_although_the_line_is_closed() -> None:
    """Whoever stood in line before the end is answered; the end is not lost behind them."""
    with opened(idle_timeout=2 * WAIT) as recorded:  # after which the thread would end by itself

        def close() -> None:
            recorded.come(2)
            recorded.appends.close()
            recorded.appends.meanwhile(lambda: False)

        recorded.acts = [close]
        recorded.begin()
        assert recorded.answers() == [2, 4]
        assert recorded.looked == [2]
        recorded.until(lambda: not recorded.appends.has_thread)


class Unhashable:
    """A callback that the thread cannot gather with others: it stumbles behind the group."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None:
        """Never comes to that."""


def test_those_looked_at_are_served_although_the_thread_stumbled(
    recorded: RecordedGroups, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of our own, between two groups."""

    def leave() -> None:
        recorded.appends.call_soon(1, lambda _: None, Unhashable())
        recorded.until(lambda: recorded.appends.has_thread)

    def wait() -> None:
        recorded.come(2)
        recorded.appends.meanwhile(lambda: bool(recorded.looked))

    recorded.acts = [leave, wait]
    recorded.appends.call(0)
    recorded.until(lambda: bool(recorded.callers))
    assert recorded.answers() == [4]
    assert recorded.groups == [[0], [1], [2]]
    assert "stumbled" in caplog.text


def test_whoever_serves_itself_looks_at_nobody(recorded: RecordedGroups) -> None:
    """It would have to wait for what is others' work."""

    def wait() -> None:
        recorded.callers.append(Caller(recorded.appends, 1))
        recorded.until(lambda: recorded.appends.pending == 1)
        recorded.come(2)
        recorded.appends.meanwhile(lambda: False)

    recorded.acts = [wait]
    assert recorded.appends.call(0) == 0
    assert recorded.answers() == [2, 4]
    assert recorded.looked == []


def test_a_caller_that_leaves_after_it_was_looked_at_is_not_served(
    recorded: RecordedGroups,
) -> None:
    """It heard of no outcome."""
    may_come, is_gone = threading.Event(), threading.Event()
    me = threading.get_ident()

    def begin() -> None:
        recorded.callers.append(Caller(recorded.appends, 1))
        recorded.until(lambda: recorded.appends.has_thread)

    def wait() -> None:
        may_come.set()
        recorded.until(lambda: recorded.appends.pending == 1)  # the caller that will leave
        recorded.come(3)
        recorded.appends.meanwhile(lambda: len(recorded.looked) == 2)
        signal.pthread_kill(me, signal.SIGINT)
        assert is_gone.wait(WAIT)

    recorded.acts = [begin, wait]
    first = Caller(recorded.appends, 0)
    assert may_come.wait(WAIT)
    with pytest.raises(KeyboardInterrupt):
        recorded.appends.call(2)
    is_gone.set()
    first.join(WAIT)
    assert recorded.answers() == [2, 6]
    assert recorded.looked == [2, 3]
    assert recorded.groups == [[0], [1], [3]]


def test_who_was_served_is_woken_before_anybody_is_looked_at(recorded: RecordedGroups) -> None:
    """They come back with the next request, which can be looked at then."""
    seen: list[object] = []

    def wait() -> None:
        recorded.come(2)

    def wait_again() -> None:
        recorded.appends.meanwhile(lambda: True)
        recorded.callers[0].join(WAIT)
        seen.append(recorded.callers[0].answer)

    recorded.acts = [wait, wait_again]
    recorded.begin()
    assert recorded.answers() == [2, 4]
    assert seen == [2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_looked_at_nobody(recorded: RecordedGroups) -> None:
    """Those are the parent's, and so is the thread that serves."""
    ends: list[int] = []

    def work_in_child() -> bool:
        appends, before = recorded.appends, len(recorded.groups)
        is_fresh = appends.pending == 0 and not appends.has_thread
        appends.meanwhile(lambda: False)  # nobody serves here, so nobody is looked for
        done = threading.Event()
        answer = appends.call(5)
        appends.call_soon(6, lambda _: None, done.set)
        is_done = done.wait(WAIT)
        return is_fresh and is_done and answer == 10 and recorded.groups[before:] == [[5], [6]]

    def wait() -> None:
        recorded.come(2)
        recorded.appends.meanwhile(lambda: bool(recorded.looked))
        pid = os.fork()
        if not pid:
            os._exit(0 if work_in_child() else 1)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    recorded.acts = [wait]
    recorded.begin()
    assert recorded.answers() == [2, 4]
    assert ends == [0]


def test_a_start_that_is_interrupted_makes_no_second_thread(
    recorded: RecordedGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that runs says so itself, and whoever comes next finds it."""
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ergon-appends":
            begun.append(thread)
            if len(begun) == 1:
                raise KeyboardInterrupt

    def wait() -> None:
        recorded.callers.append(Caller(recorded.appends, 1))
        recorded.callers[0].join(WAIT)
        assert isinstance(recorded.callers[0].error, KeyboardInterrupt)
        recorded.until(lambda: recorded.appends.has_thread)
        recorded.callers.append(Caller(recorded.appends, 2))
        recorded.until(lambda: recorded.appends.pending == 1)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    recorded.acts = [wait]
    assert recorded.appends.call(0) == 0
    assert recorded.answers() == [None, 4]
    assert len(begun) == 1
    assert recorded.appends.has_thread


def test_a_second_thread_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would take from one line. One may begin late, when its start was interrupted."""
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "ergon-appends":
            begun.append(thread)
            if len(begun) == 1:
                raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with opened(idle_timeout=2 * WAIT) as recorded:
        with pytest.raises(KeyboardInterrupt):
            recorded.appends.call_soon(0, lambda _: None)
        done = threading.Event()
        recorded.appends.call_soon(1, lambda _: None, done.set)
        assert done.wait(WAIT)
        late, running = begun
        start(late)
        late.join(WAIT)
        assert not late.is_alive()
        assert running.is_alive()
        assert recorded.groups == [[1]]
