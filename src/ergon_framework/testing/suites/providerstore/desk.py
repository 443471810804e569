"""Checks of what becomes of dead letters: published, sent again, discarded, deleted."""

from __future__ import annotations

from functools import partial

from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.letters import (
    DISCARDED,
    PENDING,
    PUBLISHED,
    REDRIVE,
    REDRIVEN,
)
from ergon_framework.testing.suites.providerstore.subject import (
    CLOCK,
    Subject,
    numbers_of,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def letter_moves(s: Subject) -> None:
    """A letter that is where it was thought to be takes the new status, and leaves the old list."""
    s.bury(1, 2)
    same(s.move(1, PUBLISHED, PENDING), True, "whether it moved")
    same(s.stored(1).status, PUBLISHED, "its status")
    same(s.stored(1).letter, s.letter(1), "the letter")
    same(numbers_of(s.store.due_letters(PENDING)), [2], "those that are due")
    same(s.move(1, REDRIVE, PENDING, PUBLISHED), True, "whether it moved from one of two")
    same(numbers_of(s.store.due_letters(REDRIVE)), [1], "those to send again")


@check()
def letter_moves_only_when(s: Subject) -> None:
    """A letter that is elsewhere stays there."""
    s.bury(1)
    s.bury_as(2, DISCARDED)
    before = s.stored(1), s.stored(2)
    same(s.move(1, PUBLISHED, REDRIVE, PUBLISHED), False, "whether one moved")
    same(s.move(2, PUBLISHED, PENDING), False, "whether the other moved")
    same(s.move(1, PUBLISHED), False, "whether it moved from nowhere")
    same((s.stored(1), s.stored(2)), before, "the letters")


@check()
def unknown_letter_does_not_move(s: Subject) -> None:
    """A letter that is not there cannot be moved, and is not made."""
    same(s.move(1, PUBLISHED, PENDING), False, "whether it moved")
    same(s.store.letters(), [], "the letters")


@check(CLOCK)
def instants_of_a_letter(s: Subject) -> None:
    """When a letter was published and when it was sent again is kept, each for itself."""
    s.bury(1)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (None, None), "at first")
    s.clock.forward(10.0)
    s.move(1, PUBLISHED, PENDING)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (s.start + 10.0, None), "published")
    s.clock.forward(10.0)
    s.move(1, REDRIVE, PUBLISHED)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (s.start + 10.0, None), "wanted")
    s.clock.forward(10.0)
    s.move(1, REDRIVEN, REDRIVE)
    found = s.stored(1).published_at, s.stored(1).redriven_at
    same(found, (s.start + 10.0, s.start + 30.0), "sent again")


@check(CLOCK)
def discarding_is_neither(s: Subject) -> None:
    """A letter that is discarded was neither published nor sent again."""
    s.bury(1)
    s.move(1, DISCARDED, PENDING)
    same((s.stored(1).published_at, s.stored(1).redriven_at), (None, None), "the instants")


@check()
def one_relay_moves_a_letter(s: Subject) -> None:
    """Of several relays that move a letter at once, one does."""
    s.bury(*range(5))
    for number in range(5):
        answers = s.together([partial(s.move, number, PUBLISHED, PENDING)] * 8)
        same(sum(answers), 1, f"moves of letter {number}")


@check()
def deleted_letter_is_gone(s: Subject) -> None:
    """Letters that were deleted are not listed, not due and cannot be moved."""
    s.bury(1, 2, 3)
    same(s.store.delete_letters(["letter-1", "letter-3"]), 2, "how many there were")
    same(numbers_of(s.store.letters()), [2], "the letters")
    same(numbers_of(s.store.due_letters(PENDING)), [2], "those that are due")
    same(s.move(1, PUBLISHED, PENDING), False, "whether one of them moved")


@check()
def deleting_counts_what_was_there(s: Subject) -> None:
    """Ids that are not there, or are named twice, are not counted."""
    s.bury(1, 2)
    same(s.store.delete_letters([]), 0, "of no ids")
    same(s.store.delete_letters(["letter-9"]), 0, "of an unknown id")
    same(s.store.delete_letters(["letter-1", "letter-1", "letter-9"]), 1, "of one that is there")
    same(s.store.delete_letters(["letter-1"]), 0, "of one that was deleted")
    s.bury(*range(10, 60))
    many = [f"letter-{n}" for n in range(2000)]
    same(s.store.delete_letters(many), 51, "of many ids")


@check()
def attempts_outlive_their_letter(s: Subject) -> None:
    """Deleting a letter deletes no attempt."""
    row = s.attempt(correlation_id="call")
    s.record(row, letters=[s.letter(1)])
    s.store.delete_letters(["letter-1"])
    same(s.store.attempts_of("call"), [row], "the attempts")
    expect(s.store.health(row.tenant_id), "the lane is gone")
