"""Checks of seeking: the one way in which a cursor goes back, and it is written down."""

from __future__ import annotations

from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore.subject import Subject, same
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


def _ready(s: Subject, through: int = 4) -> None:
    s.consumer()
    s.put(*"abcde")
    s.done(through)


@check()
def seek_goes_back(s: Subject) -> None:
    """A seek sets the cursor back, and the facts above it come again."""
    _ready(s)
    same(s.store.seek("c", 1, reason="again").cursor, 1, "the cursor answered")
    same((s.store.consumer("c").cursor, s.served()), (1, [2, 3, 4, 5]), "cursor, what comes")


@check()
def seek_goes_forward(s: Subject) -> None:
    """A seek sets the cursor forward without the facts having been served."""
    _ready(s, 1)
    s.put("f")
    same(s.store.seek("c", 6, reason="skip").cursor, 6, "the cursor")
    same((s.served(), s.store.confirm("c", 6)), ([], 6), "what comes, and a confirmation")


@check()
def seek_serves_nothing(s: Subject) -> None:
    """Facts that were skipped by a seek, and are to come after all, count as never served."""
    s.consumer()
    s.put(*"abc")
    s.store.seek("c", 3, reason="skip")
    s.store.seek("c", 0, reason="it was a mistake")
    s.refused(lambda: s.store.confirm("c", 3), "not_served")
    s.consumer("late", from_end=True)
    s.store.seek("late", 0, reason="all of it")
    s.refused(lambda: s.store.confirm("late", 3), "not_served")
    same((s.served(), s.served("late")), ([1, 2, 3], [1, 2, 3]), "what comes")


@check()
def seek_to_the_start(s: Subject) -> None:
    """Zero is the start of the log; when that was dropped, nobody is led past it unawares."""
    _ready(s)
    same(s.store.seek("c", 0, reason="again").cursor, 0, "the cursor")
    s.done(4)
    s.store.truncate(OUTBOUND, 2)
    s.refused(lambda: s.store.seek("c", 0, reason="again"), "truncated", "out_of_range")
    s.store.seek("c", 2, reason="again")
    same(s.served(), [3, 4, 5], "what comes when a part was dropped")


@check()
def seek_beyond_the_head(s: Subject) -> None:
    """A seek above the head is refused, and the cursor stays."""
    _ready(s)
    s.refused(lambda: s.store.seek("c", 6, reason="x"), "beyond_head", "out_of_range")
    same(s.store.consumer("c").cursor, 4, "the cursor")
    same(s.store.seek("c", 5, reason="x").cursor, 5, "the head itself")


@check()
def seek_below_what_is_kept(s: Subject) -> None:
    """A seek to facts that were dropped is refused, and the cursor stays."""
    _ready(s)
    s.store.truncate(OUTBOUND, 3)
    s.refused(lambda: s.store.seek("c", 2, reason="x"), "truncated", "out_of_range")
    same(s.store.consumer("c").cursor, 4, "the cursor")
    same((s.store.seek("c", 3, reason="x").cursor, s.served()), (3, [4, 5]), "just above")


@check()
def seek_is_in_the_journal(s: Subject) -> None:
    """A seek is written down with its time, its consumer and its reason; a refused one is not."""
    _ready(s)
    s.clock.forward(60.0)
    s.store.seek("c", 1, reason="a bug in the report")
    s.refusal(lambda: s.store.seek("c", 99, reason="nonsense"))
    journal = s.store.journal()
    expect(journal, "the journal is empty")
    at, action, text = journal[0]
    expect(abs(at - s.clock()) < 0.002, f"it is dated {at}, expected {s.clock()}")
    expect("seek" in action and "a bug in the report" in text, f"it says {action}: {text}")
    expect("c" in text, f"it does not name the consumer: {text}")


@check()
def seek_drops_the_lease(s: Subject) -> None:
    """After a seek the name is free at once."""
    s.consumer()
    s.put(*"abc")
    s.serve(holder="one")
    same(s.store.seek("c", 0, reason="x").holder, None, "the holder")
    same(s.served(holder="two"), [1, 2, 3], "what another one gets")


@check()
def seek_is_not_undone_by_a_late_confirmation(s: Subject) -> None:
    """Who held the name before a seek cannot confirm over it."""
    s.consumer()
    s.put(*"abc")
    s.serve(holder="one")
    s.store.confirm("c", 1, holder="one")
    s.store.seek("c", 0, reason="x")
    s.refused(
        lambda: s.store.confirm("c", 3, holder="one"),
        "consumer_held",
        "aborted",
        ConsumerHeldError,
    )
    same((s.store.consumer("c").cursor, s.served()), (0, [1, 2, 3]), "cursor, what comes")


@check()
def seek_starts_the_count_anew(s: Subject) -> None:
    """After a seek the next fact counts as not yet delivered."""
    s.consumer()
    s.put(*"abc")
    for _ in range(3):
        s.serve(holder="one")
    same(s.store.seek("c", 1, reason="x").deliveries, 0, "deliveries")


@check()
def seek_brings_back_what_was_set_aside(s: Subject) -> None:
    """After a seek back, facts in quarantine come along with the others."""
    s.consumer()
    s.put(*"abc")
    s.set_aside(1)
    s.done(3)
    s.store.seek("c", 0, reason="all again")
    same(s.served(), [1, 2, 3], "what comes")
