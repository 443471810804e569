"""Who comes while a group waits for its store is looked at before that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from ergon_framework.boundary.factstore import group_commit as module
from ergon_framework.boundary.factstore.group_commit import IN_VAIN, GroupCommit, Waiter
from ergon_framework.errors import StoreUnavailableError
from tests.boundary.test_group_commit import WAIT, Caller

pytestmark = pytest.mark.req("BOUNDARY:store", "SCALE:boundary-postgres")


class Desk:
    """Looks at requests, and serves groups; the third one is what the others wait behind."""

    def __init__(self) -> None:
        self.looked: list[int] = []
        self.groups: list[list[int]] = []
        self.callers: list[Caller] = []
        self.acts: list[Callable[[], None]] = []
        """What happens during the groups, in order."""
        self.odd: BaseException | None = None
        """What looking at a negative number raises."""
        self.grouping: GroupCommit[int, int] = GroupCommit(self.serve, look=self.look, lets_go=True)

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
            before = self.grouping._line.qsize()
            self.callers.append(Caller(self.grouping, number))
            self.until(lambda size=before: self.grouping._line.qsize() > size)  # type: ignore[misc]

    def begin(self) -> None:
        """Somebody is served, and behind it somebody for whom the thread is needed."""

        def first() -> None:
            self.callers.append(Caller(self.grouping, 1))
            self.until(lambda: self.grouping._thread is not None)

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


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A fresh one."""
    desk = Desk()
    yield desk
    desk.grouping.close()


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
    assert len(asked) == IN_VAIN


def test_no_more_are_looked_at_than_fit_into_a_group(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is prepared is kept in memory until it is written."""
    monkeypatch.setattr(module, "MOST", 2)

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


def test_those_looked_at_are_served_although_the_line_is_closed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stood in line before the end is answered; the end is not lost behind them."""
    monkeypatch.setattr(module, "IDLE", 2 * WAIT)  # after which the thread would end by itself

    def close() -> None:
        desk.come(2)
        desk.grouping.close()
        desk.grouping.meanwhile(lambda: False)

    desk.acts = [close]
    desk.begin()
    assert desk.answers() == [2, 4]
    assert desk.looked == [2]
    thread = desk.grouping._thread
    assert thread is not None
    thread.join(WAIT)
    assert not thread.is_alive()


def test_those_looked_at_are_served_although_the_thread_stumbled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of our own, anywhere between two groups."""
    following = desk.grouping._next

    def stumble(*, is_crowded: bool) -> object:
        monkeypatch.setattr(desk.grouping, "_next", following)
        raise RuntimeError("stumbled")

    def wait() -> None:
        desk.come(2)
        desk.grouping.meanwhile(lambda: bool(desk.looked))
        monkeypatch.setattr(desk.grouping, "_next", stumble)

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2, 4]
    assert "stumbled" in caplog.text


def test_whoever_serves_itself_looks_at_nobody(desk: Desk) -> None:
    """It would have to wait for what is others' work."""

    def wait() -> None:
        desk.callers.append(Caller(desk.grouping, 1))
        desk.until(lambda: len(desk.grouping._turns._waiting) == 1)  # the thread, with its first
        desk.come(2)
        desk.grouping.meanwhile(lambda: False)

    desk.acts = [wait]
    assert desk.grouping.call(0) == 0
    assert desk.answers() == [2, 4]
    assert desk.looked == []


def test_a_caller_that_leaves_after_it_was_looked_at_is_not_served(desk: Desk) -> None:
    """It heard of no outcome."""
    gone: list[Waiter[int, int]] = []

    def wait() -> None:
        desk.come(2, 3)
        desk.grouping.meanwhile(lambda: len(desk.looked) == 2)
        first = desk.grouping._seen[0]
        assert isinstance(first, Waiter)
        first.is_gone = True
        gone.append(first)

    desk.acts = [wait]
    desk.begin()
    desk.until(lambda: len(desk.groups) == 3)
    desk.callers[2].join(WAIT)
    assert desk.groups == [[0], [1], [3]]
    assert desk.callers[2].answer == 6
    gone[0].wake.release()  # as an interrupt would
    desk.callers[1].join(WAIT)


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


def test_a_forked_process_has_looked_at_nobody(desk: Desk) -> None:
    """Those are the parent's, and so is the thread that serves."""

    def wait() -> None:
        desk.come(2)
        desk.grouping.meanwhile(lambda: bool(desk.looked))
        seen, server = desk.grouping._seen, desk.grouping._server
        line, turns, thread = desk.grouping._line, desk.grouping._turns, desk.grouping._thread
        desk.grouping.renew()  # what happens in the child
        assert not desk.grouping._seen
        assert desk.grouping._server is None
        desk.grouping._seen, desk.grouping._server = seen, server
        desk.grouping._line, desk.grouping._turns = line, turns
        desk.grouping._thread = thread

    desk.acts = [wait]
    desk.begin()
    assert desk.answers() == [2, 4]


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
        desk.until(lambda: desk.grouping._thread is not None)
        desk.callers.append(Caller(desk.grouping, 2))
        desk.until(lambda: len(desk.grouping._turns._waiting) == 1)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    desk.acts = [wait]
    assert desk.grouping.call(0) == 0
    assert desk.answers() == [None, 4]
    assert begun == [desk.grouping._thread]


def test_a_second_thread_goes_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would take from one line."""
    monkeypatch.setattr(module, "IDLE", 2 * WAIT)
    desk.begin()
    assert desk.answers() == [2]
    second = threading.Thread(target=desk.grouping._run)
    second.start()
    second.join(WAIT)
    assert not second.is_alive()
    assert desk.grouping._thread is not second
