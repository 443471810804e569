"""The commit queue: who leads, who waits, and who times out."""

from __future__ import annotations

from threading import get_ident

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.sqlite.group_commit import CommitQueue, PendingWrite

SOMEBODY = -1


def work(_: object) -> None:
    """Nothing."""


def join(queue: CommitQueue, *pending: PendingWrite) -> None:
    """Enter the queue one after the other."""
    for each in pending:
        queue.join(each)


def test_the_first_leads_and_the_second_does_not() -> None:
    """Nobody else leads until the first has left."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    assert not queue.try_lead(get_ident())
    queue.leave()
    assert queue.leader is None
    assert queue.try_lead(get_ident())


def test_waiting_for_nobody() -> None:
    """A leader that left between the look and the wait does not leave the caller waiting."""
    queue = CommitQueue()
    caller = PendingWrite(work, 0.0)
    assert queue.wait(caller, 10) is True
    assert queue.leader == get_ident()
    assert queue.group == [caller]


def test_patience_that_ends() -> None:
    """The caller leaves the line, and the next leader does not find it there."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    with pytest.raises(TimeoutError):
        queue.wait(PendingWrite(work, 0.0), 10, timeout=0.0)
    queue.leave()
    assert queue.leader is None


def test_one_that_leaves_as_its_turn_comes_passes_it_on() -> None:
    """Else nobody would ever lead again."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    first, second = PendingWrite(work, 0.0), PendingWrite(work, 0.0)
    join(queue, first, second)
    queue.leave()
    assert first.is_leading
    queue.withdraw(first)
    assert second.is_leading
    queue.withdraw(first)
    queue.gather(10)
    assert queue.group == [second]
    queue.withdraw(second)
    queue.leave()
    assert queue.leader is None


def test_the_last_one_to_leave_the_line_leaves_nobody_leading() -> None:
    """The next caller finds the place free."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    only = PendingWrite(work, 0.0)
    queue.join(only)
    queue.leave()
    queue.withdraw(only)
    assert queue.try_lead(get_ident())


def test_those_at_the_front_are_served_together_up_to_one_who_wants_a_turn() -> None:
    """A turn of one's own comes when it is the first in line."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    line = [PendingWrite(each, 0.0) for each in (work, work, work, None, work, work)]
    join(queue, *line)
    groups = []
    for _ in range(4):
        queue.leave()
        queue.gather(2)
        groups.append(list(queue.group))
    assert groups == [line[:2], line[2:3], line[3:4], line[4:]]


def test_leaving_early_tells_those_who_were_not_served() -> None:
    """They must not wait for a leader that was interrupted."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    leader, served, waiting = (PendingWrite(work, 0.0) for _ in range(3))
    join(queue, leader, served, waiting)
    queue.leave()
    queue.gather(10)
    served.is_served = True
    queue.leave()
    assert (served.wake.acquire(timeout=0), waiting.wake.acquire(timeout=0)) == (True, True)
    assert served.outcome() is None
    with pytest.raises(StoreUnavailableError, match="given up"):
        waiting.outcome()


def test_those_who_were_served_are_woken_again_after_an_interrupt() -> None:
    """Whoever was woken before it is not woken twice, and nobody is forgotten."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    leader, woken, waiting = (PendingWrite(work, 0.0) for _ in range(3))
    join(queue, leader, woken, waiting)
    queue.leave()
    queue.gather(10)
    woken.is_served = waiting.is_served = True
    woken.wake.release()  # as far as the first attempt to leave had come
    queue.leave()
    assert (woken.wake.acquire(timeout=0), waiting.wake.acquire(timeout=0)) == (True, True)
    assert (queue.group, queue.leader) == ([], None)


class Interrupted:
    """A lock after which an interrupt comes, once."""

    def __init__(self, *, comes_first: bool = False) -> None:
        self.comes_first = comes_first
        self.is_due = False

    def __enter__(self) -> None:
        if self.comes_first:
            self._strike()

    def __exit__(self, *_: object) -> None:
        self._strike()

    def _strike(self) -> None:
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt


def test_one_who_is_interrupted_as_it_joins_the_line_is_not_in_it() -> None:
    """Nobody waits for it to lead."""
    lock = Interrupted()
    queue = CommitQueue(lock)
    assert queue.try_lead(SOMEBODY)
    lock.is_due = True
    with pytest.raises(KeyboardInterrupt):
        queue.wait(PendingWrite(work, 0.0), 10)
    queue.leave()
    assert queue.leader is None


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_leader_that_is_interrupted_as_it_leaves_has_left(comes_first: bool) -> None:
    """Otherwise all others would wait for it for ever."""
    lock = Interrupted(comes_first=comes_first)
    queue = CommitQueue(lock)
    assert queue.try_lead(get_ident())
    later = PendingWrite(work, 0.0)
    later.thread = SOMEBODY
    queue.join(later)
    lock.is_due = True
    with pytest.raises(KeyboardInterrupt):
        queue.leave()
    assert later.is_leading
    assert later.wake.acquire(timeout=0)


# -- one who may leave -----------------------------------------------------------------------------


def test_one_in_a_group_may_leave_until_its_work_begins() -> None:
    """Who serves it asks first; then it is heard out."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    leader, hasty, late = (PendingWrite(work, 0.0, may_leave=True) for _ in range(3))
    join(queue, leader, hasty, late)
    queue.leave()
    queue.gather(10)
    assert queue.withdraw(hasty)
    assert not queue.begin(hasty)
    assert queue.begin(late)
    assert not queue.withdraw(late)


def test_one_whose_work_has_begun_is_heard_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its patience is over, but nobody could say whether it was written."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)

    caller = PendingWrite(work, 0.0, may_leave=True)
    withdraw = queue.withdraw

    def served(caller: PendingWrite) -> bool:
        queue.gather(10)  # by the thread that leads
        assert queue.begin(caller)
        caller.result, caller.is_served = "written", True
        caller.wake.release()
        return withdraw(caller)

    monkeypatch.setattr(queue, "withdraw", served)
    assert queue.wait(caller, 10, timeout=0.0) is False
    assert caller.outcome() == "written"


def test_those_who_are_put_back_are_the_first_in_line() -> None:
    """One who left meanwhile is not among them: it would be told to lead, and nobody would."""
    queue = CommitQueue()
    assert queue.try_lead(SOMEBODY)
    leader, patient, hasty, interrupted = line = [
        PendingWrite(work, 0.0, may_leave=each) for each in (True, False, True, False)
    ]
    join(queue, *line)
    queue.leave()
    queue.gather(10)
    queue.withdraw(interrupted)
    later = PendingWrite(work, 0.0)
    queue.join(later)
    queue.requeue_followers()
    assert (queue.group, queue.pending) == ([leader], (patient, hasty, later))
    assert queue.withdraw(hasty)
    queue.leave()
    assert patient.is_leading
    queue.gather(10)
    assert queue.group == [patient, later]
