"""Optimistic writes are tried again after a conflict, so often and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ergon_framework.storage.conflicts import ConflictError, retry_conflicts


def losing(times: int, made: list[int]) -> Callable[[], str]:
    """An attempt that loses the first races."""

    def attempt() -> str:
        made.append(len(made))
        if len(made) <= times:
            raise ConflictError
        return "done"

    return attempt


def test_an_attempt_that_lost_a_race_is_made_again() -> None:
    """Until one has no conflict."""
    made: list[int] = []
    assert retry_conflicts(losing(2, made), max_attempts=3) == "done"
    assert len(made) == 3


def test_after_the_last_attempt_the_conflict_is_raised_or_what_stands_for_it() -> None:
    """Nobody loses races for ever."""
    made: list[int] = []
    with pytest.raises(ConflictError):
        retry_conflicts(losing(9, made), max_attempts=3)
    assert len(made) == 3
    with pytest.raises(TimeoutError) as told:
        retry_conflicts(losing(9, []), max_attempts=2, give_up=TimeoutError)
    assert isinstance(told.value.__cause__, ConflictError)


def test_any_other_error_is_raised_at_once() -> None:
    """What is a conflict, the caller says."""
    made: list[int] = []

    def attempt() -> None:
        made.append(1)
        raise LookupError("taken" if len(made) < 3 else "odd")

    with pytest.raises(LookupError, match="odd"):
        retry_conflicts(attempt, max_attempts=9, is_conflict=lambda error: "taken" in str(error))
    assert len(made) == 3


def test_no_attempt_at_all_is_a_mistake() -> None:
    """It is refused, and nothing is returned for nothing."""
    with pytest.raises(ValueError, match="at least one"):
        retry_conflicts(lambda: 1, max_attempts=0)


def test_a_caller_can_drop_what_it_remembered_before_each_retry() -> None:
    """Not before the first attempt, and not after the last."""
    made: list[int] = []
    dropped: list[int] = []
    with pytest.raises(ConflictError):
        retry_conflicts(
            losing(9, made), max_attempts=3, before_retry=lambda: dropped.append(len(made))
        )
    assert dropped == [1, 2]
