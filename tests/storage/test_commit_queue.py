"""Taking turns: who leads, who waits, and who leaves the line."""

from __future__ import annotations

from threading import get_ident

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.sqlite.group_commit import Caller, Turns

SOMEBODY = -1


def work(_: object) -> None:
    """Nothing."""


def test_the_first_leads_and_the_second_does_not() -> None:
    """Nobody else leads until the first has left."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    assert not turns.try_enter(get_ident())
    turns.leave()
    assert turns.leader is None
    assert turns.try_enter(get_ident())


def test_waiting_for_nobody() -> None:
    """A leader that left between the look and the wait does not leave the caller waiting."""
    turns = Turns()
    caller = Caller(work, 0.0)
    assert turns.wait(caller, 10) is True
    assert turns.leader == get_ident()
    assert turns.group == [caller]


def test_patience_that_ends() -> None:
    """The caller leaves the line, and the next leader does not find it there."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    with pytest.raises(TimeoutError):
        turns.wait(Caller(work, 0.0), 10, timeout=0.0)
    turns.leave()
    assert turns.leader is None


def test_one_that_leaves_as_its_turn_comes_passes_it_on() -> None:
    """Else nobody would ever lead again."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    first, second = Caller(work, 0.0), Caller(work, 0.0)
    turns._waiting.extend([first, second])
    turns.leave()
    assert first.is_leading
    turns._withdraw(first)
    assert second.is_leading
    turns._withdraw(first)
    turns._gather(10)
    assert turns.group == [second]
    turns._withdraw(second)
    turns.leave()
    assert turns.leader is None


def test_the_last_one_to_leave_the_line_leaves_nobody_leading() -> None:
    """The next caller finds the place free."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    only = Caller(work, 0.0)
    turns._waiting.append(only)
    turns.leave()
    turns._withdraw(only)
    assert turns.try_enter(get_ident())


def test_those_at_the_front_are_served_together_up_to_one_who_wants_a_turn() -> None:
    """A turn of one's own comes when it is the first in line."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    line = [Caller(each, 0.0) for each in (work, work, work, None, work, work)]
    turns._waiting.extend(line)
    groups = []
    for _ in range(4):
        turns.leave()
        turns._gather(2)
        groups.append(list(turns.group))
    assert groups == [line[:2], line[2:3], line[3:4], line[4:]]


def test_leaving_early_tells_those_who_were_not_served() -> None:
    """They must not wait for a leader that was interrupted."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    leader, served, waiting = (Caller(work, 0.0) for _ in range(3))
    turns._waiting.extend([leader, served, waiting])
    turns.leave()
    turns._gather(10)
    served.is_served = True
    turns.leave()
    assert (served.wake.acquire(timeout=0), waiting.wake.acquire(timeout=0)) == (True, True)
    assert served.outcome() is None
    with pytest.raises(StoreUnavailableError, match="given up"):
        waiting.outcome()


def test_those_who_were_served_are_woken_again_after_an_interrupt() -> None:
    """Whoever was woken before it is not woken twice, and nobody is forgotten."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    leader, woken, waiting = (Caller(work, 0.0) for _ in range(3))
    turns._waiting.extend([leader, woken, waiting])
    turns.leave()
    turns._gather(10)
    woken.is_served = waiting.is_served = True
    woken.wake.release()  # as far as the first attempt to leave had come
    turns.leave()
    assert (woken.wake.acquire(timeout=0), waiting.wake.acquire(timeout=0)) == (True, True)
    assert (turns.group, turns.leader) == ([], None)


class Interrupted:
    """A lock after which an interrupt comes, once."""

    def __init__(self, *, comes_first: bool = False) -> None:
        self.comes_first = comes_first
        self.is_due = True

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
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    turns._lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        turns.wait(Caller(work, 0.0), 10)
    turns.leave()
    assert turns.leader is None


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_leader_that_is_interrupted_as_it_leaves_has_left(comes_first: bool) -> None:
    """Otherwise all others would wait for it for ever."""
    turns = Turns()
    assert turns.try_enter(get_ident())
    later = Caller(work, 0.0)
    later.thread = SOMEBODY
    turns._waiting.append(later)
    turns._lock = Interrupted(comes_first=comes_first)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        turns.leave()
    assert later.is_leading
    assert later.wake.acquire(timeout=0)


# -- one who may leave -----------------------------------------------------------------------------


def test_one_in_a_group_may_leave_until_its_work_begins() -> None:
    """Who serves it asks first; then it is heard out."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    leader, hasty, late = (Caller(work, 0.0, may_leave=True) for _ in range(3))
    turns._waiting.extend([leader, hasty, late])
    turns.leave()
    turns._gather(10)
    assert turns._withdraw(hasty)
    assert not turns.begin(hasty)
    assert turns.begin(late)
    assert not turns._withdraw(late)


def test_one_whose_work_has_begun_is_heard_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its patience is over, but nobody could say whether it was written."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)

    caller = Caller(work, 0.0, may_leave=True)
    withdraw = turns._withdraw

    def served(caller: Caller) -> bool:
        turns._waiting.remove(caller)
        assert turns.begin(caller)
        caller.result, caller.is_served = "written", True
        caller.wake.release()
        return withdraw(caller)

    monkeypatch.setattr(turns, "_withdraw", served)
    assert turns.wait(caller, 10, timeout=0.0) is False
    assert caller.outcome() == "written"


def test_those_who_are_put_back_are_the_first_in_line() -> None:
    """One who left meanwhile is not among them: it would be told to lead, and nobody would."""
    turns = Turns()
    assert turns.try_enter(SOMEBODY)
    leader, patient, hasty, interrupted = line = [
        Caller(work, 0.0, may_leave=each) for each in (True, False, True, False)
    ]
    turns._waiting.extend(line)
    turns.leave()
    turns._gather(10)
    turns._withdraw(interrupted)
    later = Caller(work, 0.0)
    turns._waiting.append(later)
    turns.put_back()
    assert (turns.group, list(turns._waiting)) == ([leader], [patient, hasty, later])
    assert turns._withdraw(hasty)
    turns.leave()
    assert patient.is_leading
    turns._gather(10)
    assert turns.group == [patient, later]
