"""The thread that serves a crowd: when it wakes whom, when it rests, and what if there is none."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest

from ergon_framework.boundary.factstore.append_queue import (
    AnsweredCallers,
    AppendQueue,
    QueuedRequest,
)
from ergon_framework.errors import StoreError, StoreUnavailableError
from tests.boundary.test_append_queue import WAIT, Caller, PausedCommits, crowd, in_line
from tests.waiting import until

pytestmark = pytest.mark.req("BOUNDARY:store")


class ManualCommits:
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
def paused_commits() -> PausedCommits:
    """A fresh one."""
    return PausedCommits()


@pytest.fixture
def commits() -> ManualCommits:
    """A fresh one."""
    return ManualCommits()


@pytest.fixture
def appends(commits: ManualCommits) -> Iterator[AppendQueue[int, int]]:
    """Groups whose members are let go by who serves the next."""
    appends: AppendQueue[int, int] = AppendQueue(commits.serve, lets_go=True)
    yield appends
    appends.close()


def at_rest(appends: AppendQueue[int, int]) -> None:
    """Wait until callers may serve themselves."""
    until(lambda: not appends.is_serving)


@pytest.mark.parametrize("is_called", [True, False], ids=["let go", "not let go"])
def test_who_was_served_is_woken_while_the_next_group_waits(
    commits: ManualCommits, appends: AppendQueue[int, int], is_called: bool
) -> None:
    """Not before, where it would only stand in the way; and at the latest when that one ends."""
    callers: dict[int, Caller] = {}
    seen: list[object] = []

    def add(*numbers: int) -> Callable[[], None]:
        def come() -> None:
            callers.update({number: Caller(appends, number) for number in numbers})
            in_line(appends, len(numbers))

        return come

    def look() -> None:
        seen.extend(callers[number].answer for number in (1, 2))
        if is_called:
            appends.let_go()
            for number in (1, 2):
                callers[number].join(WAIT)
                seen.append(callers[number].answer)

    commits.acts = [add(1, 2), add(3), look]
    assert appends.call(0) == 0
    for number in (1, 2, 3):
        callers[number].join(WAIT)
    assert [callers[number].answer for number in (1, 2, 3)] == [2, 4, 6]
    assert commits.groups == [[0], [1, 2], [3]]
    assert seen == ([None, None, 2, 4] if is_called else [None, None])


def test_who_was_served_is_woken_when_the_next_group_fails(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """What happens to others is no reason to sleep on."""
    callers: list[Caller] = []

    def come() -> None:
        callers.append(Caller(appends, len(callers) + 1))
        in_line(appends, 1)

    def fail() -> None:
        raise StoreUnavailableError("gone")

    commits.acts = [come, come, fail]
    appends.call(0)
    for each in callers:
        each.join(WAIT)
        assert not each.is_alive()
    assert callers[0].answer == 2
    assert isinstance(callers[1].error, StoreUnavailableError)


def test_the_thread_serves_a_crowd_and_then_rests(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """Who is alone again serves itself again."""
    callers: list[Caller] = []

    def come() -> None:
        callers.extend(Caller(appends, number) for number in (1, 2, 3))
        in_line(appends, 3)

    commits.acts = [come]
    appends.call(0)
    for each in callers:
        each.join(WAIT)
    at_rest(appends)
    appends.call(4)
    me, thread, again = commits.threads
    assert me == again == threading.get_ident() != thread


def test_a_caller_that_is_interrupted_in_line_is_not_served(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """It heard of no outcome, so there is none unless it was being served."""
    began, may_end = commits.wait_once()
    first = Caller(appends, 1)
    assert began.wait(WAIT)
    second = Caller(appends, 2)
    in_line(appends, 1)
    me = threading.get_ident()

    def interrupt() -> None:
        in_line(appends, 2)
        signal.pthread_kill(me, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        appends.call(3)
    may_end.set()
    for each in (first, second):
        each.join(WAIT)
    assert (first.answer, second.answer) == (2, 4)
    assert commits.groups == [[1], [2]]


def test_where_no_thread_can_be_had_callers_take_turns(
    monkeypatch: pytest.MonkeyPatch, commits: ManualCommits
) -> None:
    """Too many threads, or an interpreter on its way out, are no reason to refuse a fact."""
    appends: AppendQueue[int, int] = AppendQueue(commits.serve)
    began, may_end = commits.wait_once()
    first = Caller(appends, 1)
    assert began.wait(WAIT)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "ergon-appends":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    second = Caller(appends, 2)
    in_line(appends, 1)
    with pytest.raises(StoreUnavailableError, match="no thread"):
        appends.call_soon(3, lambda _: None)
    may_end.set()
    for each in (first, second):
        each.join(WAIT)
    assert (first.answer, second.answer) == (2, 4)
    assert commits.groups == [[1], [2]]


def test_a_call_that_meets_a_closed_line_takes_its_turn(commits: ManualCommits) -> None:
    """Whoever serves it says what is wrong with it."""
    appends: AppendQueue[int, int] = AppendQueue(commits.serve)
    began, may_end = commits.wait_once()
    first = Caller(appends, 1)
    assert began.wait(WAIT)
    appends.close()
    second = Caller(appends, 2)
    in_line(appends, 1)
    may_end.set()
    for each in (first, second):
        each.join(WAIT)
    assert (first.answer, second.answer) == (2, 4)


def test_closing_ends_a_thread_in_the_middle_of_a_crowd(paused_commits: PausedCommits) -> None:
    """All who stood in line are answered, and the thread is gone."""
    appends: AppendQueue[int, int] = AppendQueue(paused_commits.serve, lets_go=True)
    callers = crowd(paused_commits, appends, 5)
    appends.close()
    assert [each.answer for each in callers] == [0, 2, 4, 6, 8]
    until(lambda: not appends.has_thread)


def test_who_has_to_stand_in_line_does_something_else_first(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """It is told before it waits, and not where it serves itself."""
    told: list[int] = []
    began, may_end = commits.wait_once()

    def end(number: int) -> None:
        told.append(number)
        may_end.set()

    first = Caller(appends, 1)
    assert began.wait(WAIT)
    assert appends.call(2, lambda: end(2)) == 4
    first.join(WAIT)
    at_rest(appends)
    assert appends.call(3, lambda: end(3)) == 6
    assert told == [2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_line_of_its_own(paused_commits: PausedCommits) -> None:
    """Neither the thread nor whoever stood in line is there."""
    appends: AppendQueue[int, int] = AppendQueue(paused_commits.serve)
    first = Caller(appends, 1)
    assert paused_commits.began.wait(WAIT)
    told: list[object] = []
    appends.call_soon(2, told.append)
    in_line(appends, 1)
    pid = os.fork()
    if not pid:
        is_fresh = appends.pending == 0 and not appends.is_serving and not appends.has_thread
        paused_commits.may_end.set()
        is_alone = appends.call(3) == 6 and paused_commits.groups == [[1], [3]]
        appends.close()
        os._exit(0 if is_fresh and is_alone and not told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    paused_commits.may_end.set()
    first.join(WAIT)
    appends.close()
    assert told == [4]


# ---- closing, and what may go wrong ----


def come(appends: AppendQueue[int, int], callers: list[Caller], *numbers: int) -> None:
    """Callers come, and stand in line."""
    callers.extend(Caller(appends, number) for number in numbers)
    in_line(appends, len(numbers))


def answered(callers: Sequence[Caller]) -> list[int | None]:
    """Wait for all of them; what each was answered."""
    for each in callers:
        each.join(WAIT)
        assert not each.is_alive()
    return [each.answer for each in callers]


def test_closing_in_the_middle_of_a_crowd_wakes_who_was_served(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """The end of the line is no reason to sleep on."""
    callers: list[Caller] = []
    commits.acts = [lambda: come(appends, callers, 1, 2), appends.close]
    appends.call(0)
    assert answered(callers) == [2, 4]


def test_closing_within_a_call_does_not_wait_for_itself(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """As a signal's handler may do; whoever stands in line is served all the same."""
    callers: list[Caller] = []

    def close() -> None:
        come(appends, callers, 1)
        appends.close()

    commits.acts = [close]
    assert appends.call(0) == 0
    assert answered(callers) == [2]


def test_closing_does_not_wait_for_callers(commits: ManualCommits) -> None:
    """A store that hangs keeps them, and nobody else."""
    appends: AppendQueue[int, int] = AppendQueue(commits.serve, lets_go=True, close_timeout=0.0)
    began, may_end = commits.wait_once()
    callers = [Caller(appends, 1)]
    assert began.wait(WAIT)
    come(appends, callers, 2)
    appends.close()
    may_end.set()
    assert answered(callers) == [2, 4]


def test_a_signal_that_closes_while_a_caller_comes(
    monkeypatch: pytest.MonkeyPatch, commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """Its handler does not wait for the thread that it runs in, and the caller is served."""
    began, may_end = commits.wait_once()
    first = Caller(appends, 1)
    assert began.wait(WAIT)
    start = threading.Thread.start

    def closing(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ergon-appends":
            may_end.set()
            appends.close()  # while this very thread puts itself in line

    monkeypatch.setattr(threading.Thread, "start", closing)
    assert appends.call(2) == 4
    assert answered([first]) == [2]


def test_an_interrupt_while_the_thread_begins(
    monkeypatch: pytest.MonkeyPatch, commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """Then it says itself that it is there, and a second one would go at once."""
    began, may_end = commits.wait_once()
    first = Caller(appends, 1)
    assert began.wait(WAIT)
    start, started = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ergon-appends":
            started.append(thread)
            if len(started) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        appends.call(2)
    callers = [first]
    come(appends, callers, 3, 4)
    may_end.set()
    assert answered(callers) == [2, 6, 8]
    appends.close()
    for thread in started:
        thread.join(WAIT)
        assert not thread.is_alive()


class OddError(StoreError):
    """An error that cannot be copied."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_an_error_that_cannot_be_copied_is_told_as_doubt(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """And the thread lives to serve the next."""
    callers: list[Caller] = []

    def fail() -> None:
        raise OddError("very", "odd")

    commits.acts = [lambda: come(appends, callers, 1, 2), fail]
    appends.call(0)
    assert answered(callers) == [None, None]
    assert {type(each.error) for each in callers} == {StoreUnavailableError}
    commits.acts += [lambda: come(appends, callers, 4)]
    at_rest(appends)
    appends.call(3)
    assert answered(callers) == [None, None, 8]


def test_callbacks_may_call_again_and_may_end_as_they_like(
    commits: ManualCommits, appends: AppendQueue[int, int]
) -> None:
    """They are called out of turn, and what they raise is logged."""
    told: list[object] = []
    ended = threading.Event()

    def leave(_: object) -> None:
        raise SystemExit

    appends.call_soon(1, leave)
    appends.call_soon(2, lambda _: told.append(appends.call(5)))
    appends.call_soon(3, told.append, ended.set)
    assert ended.wait(WAIT)
    assert told == [10, 6]


def test_a_thread_that_stumbles_goes_on(
    commits: ManualCommits, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever went wrong there, the next ones are served, and closing comes to an end."""
    appends: AppendQueue[int, int] = AppendQueue(commits.serve)
    ended = threading.Event()

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None:
            """Never comes to that."""

    appends.call_soon(1, lambda _: None, Unhashable())
    appends.call_soon(2, lambda _: ended.set())
    assert ended.wait(WAIT)
    appends.close()
    assert "stumbled" in caplog.text


class InterruptedOnce:
    """A lock of a sleeping caller whose first release is interrupted."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self._count = 0

    def release(self) -> None:
        """Release it, the second time."""
        self._count += 1
        if self._count == 1:
            raise KeyboardInterrupt
        self.lock.release()


def test_a_wake_up_that_is_interrupted_is_done_again() -> None:
    """Nobody is forgotten before it is woken."""
    first, second = QueuedRequest[int, int](1), QueuedRequest[int, int](2)
    interrupted = InterruptedOnce(first.wake)
    first.wake = interrupted  # type: ignore[assignment]
    answered = AnsweredCallers()
    answered.add([first, second])
    with pytest.raises(KeyboardInterrupt):
        answered.wake()
    answered.wake()
    assert not second.wake.locked()
    assert not interrupted.lock.locked()
    answered.wake()
    assert len(answered) == 0


class Request:
    """Something that can be waited for to go."""


def test_a_thread_that_nobody_needs_ends_and_keeps_nothing() -> None:
    """A zone that was forgotten without being closed is collected."""
    appends: AppendQueue[Request, Request] = AppendQueue(list, idle_timeout=0.05)
    ended = threading.Event()
    request = Request()
    gone = weakref.ref(request)
    appends.call_soon(request, lambda _: None, ended.set)
    del request
    assert ended.wait(WAIT)
    until(lambda: not appends.has_thread)
    gc.collect()
    assert gone() is None
    ended.clear()
    appends.call_soon(Request(), lambda _: None, ended.set)
    assert ended.wait(WAIT)
    appends.close()
