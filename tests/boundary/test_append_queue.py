"""Callers that come together are served together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from ergon_framework.boundary.factstore.append_queue import AppendQueue
from ergon_framework.errors import (
    ErgonError,
    NodeUnavailableError,
    StoreBrokenError,
    StoreError,
    StoreUnavailableError,
)

WAIT = 20.0
pytestmark = pytest.mark.req("BOUNDARY:store")


class PausedCommits:
    """Serves what it is asked for, doubled; the first group waits until it is told to go on."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.error: BaseException | None = None

    def serve(self, asked: Sequence[int]) -> list[int]:
        """Note the group, wait, answer."""
        self.groups.append(list(asked))
        self.began.set()
        assert self.may_end.wait(WAIT)
        if self.error is not None:
            raise self.error
        return [each * 2 for each in asked]


@pytest.fixture
def paused_commits() -> PausedCommits:
    """A fresh one."""
    return PausedCommits()


@pytest.fixture
def appends(paused_commits: PausedCommits) -> Iterator[AppendQueue[int, int]]:
    """Groups for the kitchen."""
    appends: AppendQueue[int, int] = AppendQueue(paused_commits.serve)
    yield appends
    paused_commits.may_end.set()
    appends.close()


class Caller(threading.Thread):
    """A thread that makes one call."""

    def __init__(self, appends: AppendQueue[int, int], number: int) -> None:
        super().__init__()
        self._appends = appends
        self._number = number
        self.answer: int | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Call."""
        try:
            self.answer = self._appends.call(self._number)
        except BaseException as error:
            self.error = error


def in_line(appends: AppendQueue[int, int], count: int) -> None:
    """Wait until so many callers stand in line."""
    deadline = threading.Event()
    for _ in range(2000):
        if appends.pending >= count:
            return
        deadline.wait(0.01)
    raise AssertionError("they did not come")


def crowd(
    paused_commits: PausedCommits, appends: AppendQueue[int, int], count: int
) -> list[Caller]:
    """One caller who is being served, and others who have come meanwhile."""
    callers = [Caller(appends, 0)]
    assert paused_commits.began.wait(WAIT)
    callers += [Caller(appends, number) for number in range(1, count)]
    in_line(appends, count - 1)
    paused_commits.may_end.set()
    for each in callers:
        each.join(WAIT)
        assert not each.is_alive()
    return callers


def test_a_single_caller_serves_itself(
    paused_commits: PausedCommits, appends: AppendQueue[int, int]
) -> None:
    """There is no thread and no waiting."""
    paused_commits.may_end.set()
    assert (appends.call(1), appends.call(2)) == (2, 4)
    assert paused_commits.groups == [[1], [2]]


def test_those_who_come_meanwhile_are_one_group(
    paused_commits: PausedCommits, appends: AppendQueue[int, int]
) -> None:
    """Each gets its own answer."""
    callers = crowd(paused_commits, appends, 9)
    assert [each.answer for each in callers] == [number * 2 for number in range(9)]
    assert paused_commits.groups[0] == [0]
    assert sorted(paused_commits.groups[1]) == list(range(1, 9))


@pytest.mark.parametrize(
    "error",
    [
        StoreBrokenError("no more", remedy="check the disk"),
        NodeUnavailableError("away", reason="read_only", details={"a": 1}, retry_after=2.0),
    ],
    ids=["store", "zone"],
)
def test_everybody_of_a_group_is_told_its_error(
    paused_commits: PausedCommits, appends: AppendQueue[int, int], error: ErgonError
) -> None:
    """Each has an instance of its own to raise, which says all that the first one says."""
    paused_commits.error = error
    errors = [each.error for each in crowd(paused_commits, appends, 4)]
    assert len({id(each) for each in errors[1:]}) == 3
    for each in errors:
        assert type(each) is type(error)
        assert each.to_dict() == error.to_dict()


def test_an_interrupt_is_raised_where_it_came_and_leaves_the_others_in_doubt(
    paused_commits: PausedCommits, appends: AppendQueue[int, int]
) -> None:
    """They are told to do the same again, and the next one is served."""
    paused_commits.error = KeyboardInterrupt()
    callers = crowd(paused_commits, appends, 3)
    kinds = [type(each.error).__name__ for each in callers]
    assert kinds == ["KeyboardInterrupt", "StoreUnavailableError", "StoreUnavailableError"]
    paused_commits.error = None
    assert appends.call(7) == 14


def test_a_call_within_a_call_is_refused(appends: AppendQueue[int, int]) -> None:
    """It would wait for itself."""
    inner: AppendQueue[int, int] = AppendQueue(lambda asked: [inner.call(each) for each in asked])
    with pytest.raises(StoreError, match="tried to write again"):
        inner.call(1)


def test_what_is_left_to_the_thread(
    paused_commits: PausedCommits, appends: AppendQueue[int, int]
) -> None:
    """Answers come one by one, and after each group one word for all."""
    told: list[object] = []
    ended = threading.Semaphore(0)

    def group_done() -> None:
        told.append("group")
        ended.release()

    appends.call_soon(1, told.append, group_done)
    assert paused_commits.began.wait(WAIT)
    for number in (2, 3, 4):
        appends.call_soon(number, told.append, group_done)
    paused_commits.may_end.set()
    for _ in range(2):
        assert ended.acquire(timeout=WAIT)
    assert told == [2, "group", 4, 6, 8, "group"]


def test_a_callback_that_fails_harms_nobody(
    paused_commits: PausedCommits, appends: AppendQueue[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are told, and the thread goes on."""
    paused_commits.may_end.set()
    told = threading.Semaphore(0)
    appends.call_soon(1, lambda _: 1 / 0)  # type: ignore[arg-type]
    appends.call_soon(2, lambda _: told.release())
    assert told.acquire(timeout=WAIT)
    assert "callback" in caplog.text


def test_an_error_reaches_what_was_left_to_the_thread(
    paused_commits: PausedCommits, appends: AppendQueue[int, int]
) -> None:
    """``done`` is given the exception; one that is no error of the store is told as doubt."""
    told: list[object] = []
    paused_commits.may_end.set()
    for error in (StoreBrokenError("broken"), ZeroDivisionError("of our own")):
        paused_commits.error = error
        ended = threading.Event()
        appends.call_soon(1, told.append, ended.set)
        assert ended.wait(WAIT)
    assert [type(each) for each in told] == [StoreBrokenError, StoreUnavailableError]


def test_a_group_is_not_made_too_heavy(paused_commits: PausedCommits) -> None:
    """What was left to the thread is taken until there is enough of it."""
    appends: AppendQueue[int, int] = AppendQueue(paused_commits.serve, weigh=lambda _: 2000)
    appends.call_soon(0, lambda _: None)
    assert paused_commits.began.wait(WAIT)
    for number in range(1, 6):
        appends.call_soon(number, lambda _: None)
    paused_commits.may_end.set()
    appends.close()
    assert paused_commits.groups == [[0], [1, 2, 3], [4, 5]]


def test_closing_answers_what_was_left(
    paused_commits: PausedCommits, appends: AppendQueue[int, int]
) -> None:
    """Nothing is dropped, and nothing more is taken."""
    told: list[object] = []
    appends.call_soon(1, told.append)
    appends.call_soon(2, told.append)
    paused_commits.may_end.set()
    appends.close()
    appends.close()
    assert told == [2, 4]
    with pytest.raises(StoreUnavailableError, match="closed"):
        appends.call_soon(3, told.append)
