"""Checks of consumers: creating them, the pages they are given, and setting their cursors."""

from __future__ import annotations

from functools import partial

from ergon_framework.errors import BoundaryNotFoundError, ConsumerHeldError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    PLENTY,
    FactStoreSubject,
    new,
    offsets,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


@check()
def consumer_begins_at_the_start(s: FactStoreSubject) -> None:
    """A new consumer gets everything the log holds."""
    s.put(*"ab")
    same(s.consumer().cursor, 0, "its cursor")
    same(s.served(), [1, 2], "offsets")


@check()
def consumer_begins_at_the_end(s: FactStoreSubject) -> None:
    """A new consumer may ask for what is yet to come alone."""
    s.put(*"ab")
    same(s.consumer(from_end=True).cursor, 2, "its cursor")
    same(s.served(), [], "offsets")
    s.put("c")
    same(s.served(), [3], "offsets later")


@check()
def start_is_the_first_kept_fact(s: FactStoreSubject) -> None:
    """A consumer that is created after a truncation begins with the first fact that is kept."""
    s.consumer()
    s.put(*"abc")
    s.done(3)
    s.store.truncate(OUTBOUND, 2)
    same(s.consumer("late").cursor, 2, "its cursor")
    same(s.served("late"), [3], "offsets")


@check()
def consumer_tells_what_it_is(s: FactStoreSubject) -> None:
    """A consumer is known by its name, log, view and whether retention waits for it."""
    made = s.consumer("c", INBOX, to_zone="z", is_required=False)
    told = made.name, made.log, made.to_zone, made.is_required, made.holder
    same(told, ("c", INBOX, "z", False, None), "name, log, to_zone, is_required, holder")
    expect(abs(made.created_at - s.clock()) < 0.002, f"created_at is {made.created_at}")
    same(s.store.consumer("c"), made, "the consumer, asked for later")
    made = s.consumer("d")
    same((made.to_zone, made.is_required), (None, True), "what is assumed")


@check()
def same_consumer_again(s: FactStoreSubject) -> None:
    """Creating the same consumer again answers the one there is, where it stands."""
    s.put(*"abc")
    s.consumer(to_zone="plant-b")
    s.done(2)
    again = s.consumer(to_zone="plant-b")
    same((again.cursor, len(s.store.consumers())), (2, 1), "its cursor, and how many there are")
    same(s.consumer(to_zone="plant-b", from_end=True).cursor, 2, "its cursor, asked from the end")


@check()
def other_log_is_refused(s: FactStoreSubject) -> None:
    """A name that reads one log cannot be made to read another."""
    s.consumer()
    s.refused(lambda: s.consumer("c", INBOX), "consumer_exists", "already_exists")
    same(s.store.consumer("c").log, OUTBOUND, "its log")
    same([log.name for log in s.store.logs()], [OUTBOUND], "logs")


@check()
def other_view_is_refused(s: FactStoreSubject) -> None:
    """A name that reads one view cannot be made to read another."""
    s.consumer(to_zone="b")
    for zone in ("c", None):
        call = partial(s.consumer, to_zone=zone)
        s.refused(call, "consumer_exists", "already_exists")
    same(s.store.consumer("c").to_zone, "b", "its view")


@check()
def consumers_are_listed(s: FactStoreSubject) -> None:
    """Consumers are listed by name."""
    for name in ("b", "a", "c"):
        s.consumer(name)
    same([one.name for one in s.store.consumers()], ["a", "b", "c"], "names")


@check()
def unknown_consumer(s: FactStoreSubject) -> None:
    """A call under a consumer name that does not exist is refused."""
    s.put("a")
    calls = (
        lambda: s.store.consumer("x"),
        lambda: s.serve("x"),
        lambda: s.store.confirm("x", 1),
        lambda: s.store.seek("x", 0, reason="why not"),
        lambda: s.set_aside(1, "x"),
    )
    for call in calls:
        s.refused(call, "consumer_not_found", "not_found", BoundaryNotFoundError)


@check()
def deleted_consumer_is_gone(s: FactStoreSubject) -> None:
    """A deleted consumer is forgotten with its quarantine; its name begins anew."""
    s.consumer()
    s.consumer("other")
    s.put(*"ab")
    s.set_aside(1)
    s.set_aside(1, "other")
    s.store.delete_consumer("c")
    s.refused(
        lambda: s.store.consumer("c"), "consumer_not_found", "not_found", BoundaryNotFoundError
    )
    same([one.name for one in s.store.consumers()], ["other"], "consumers")
    same([each.consumer for each in s.store.quarantine()], ["other"], "quarantine")
    same((s.consumer().cursor, s.served()), (0, [1, 2]), "a new one of that name")


@check(required=False)
def deletion_is_in_the_journal(s: FactStoreSubject) -> None:
    """That retention no longer waits for a consumer is written down."""
    s.consumer("billing")
    s.store.delete_consumer("billing")
    texts = [text for _, _, text in s.store.journal()]
    expect(any("billing" in text for text in texts), f"the journal has {texts}")


# ---- figures ------------------------------------------------------------------------------------


@check()
def lag_is_counted(s: FactStoreSubject) -> None:
    """A consumer's lag is the number of facts of its view above its cursor."""
    s.consumer()
    s.consumer("view", to_zone="b")
    for n, zone in enumerate("cbbcb", 1):
        s.put(f"id-{n}", to_zone=zone)
    s.done(2)
    same((s.store.consumer("c").lag, s.store.consumer("view").lag), (3, 3), "lags")
    same([one.lag for one in s.store.consumers()], [3, 3], "lags in the list")
    s.done(5)
    same(s.store.consumer("c").lag, 0, "lag of one who is done")


@check()
def waiting_since_the_oldest(s: FactStoreSubject) -> None:
    """A consumer tells when the oldest fact that waits for it was recorded."""
    s.consumer()
    same(s.store.consumer("c").waiting_since, None, "when nothing waits")
    began = s.clock()
    for each in "abc":
        s.put(each)
        s.clock.forward(10.0)
    since = s.store.consumer("c").waiting_since
    expect(since is not None and abs(since - began) < 0.002, f"{since}, expected {began}")
    s.done(2)
    since = s.store.consumer("c").waiting_since
    expect(since is not None and abs(since - began - 20.0) < 0.002, f"{since} after two")
    s.done(3)
    same(s.store.consumer("c").waiting_since, None, "when all is done")


@check()
def pages_without_a_holder(s: FactStoreSubject) -> None:
    """A fetch without a holder takes no lease, and others may read, too."""
    s.consumer()
    s.put("a")
    serving = s.store.serve("c", 9, PLENTY)
    same((serving.consumer.holder, serving.consumer.deliveries), (None, 0), "holder, deliveries")
    same(s.served(holder="h"), [1], "what a holder gets")


SIZE = len(new("a").envelope) + len(new("a").fact)


@check()
def page_repeats_until_confirmed(s: FactStoreSubject) -> None:
    """Without a confirmation the same page comes again."""
    s.consumer()
    s.put(*"abcde")
    first = s.serve(limit=2).page
    same(offsets(first.facts), [1, 2], "offsets")
    same(s.serve(limit=2).page, first, "the page again")
    s.store.confirm("c", 2)
    same(s.served(limit=2), [3, 4], "offsets after the confirmation")


@check()
def prefix_may_be_confirmed(s: FactStoreSubject) -> None:
    """A consumer may confirm the good part of a page, and gets the rest again."""
    s.consumer()
    s.put(*"abcd")
    s.serve(limit=3)
    same((s.store.confirm("c", 1), s.served()), (1, [2, 3, 4]), "cursor, and what comes")


@check()
def served_page_is_bounded(s: FactStoreSubject) -> None:
    """A page for a consumer obeys its limits as any other."""
    s.consumer()
    s.put(*"abcde")
    same(offsets(s.serve("c", 3).page.facts), [1, 2, 3], "with a limit")
    same(offsets(s.serve("c", 9, 2 * SIZE).page.facts), [1, 2], "with few bytes")
    same(offsets(s.serve("c", 9, 1).page.facts), [1], "with too few bytes for one")


@check()
def consumer_sees_its_view(s: FactStoreSubject) -> None:
    """A consumer of a view is given the facts to its zone, and passes the others."""
    s.consumer(to_zone="b")
    for n, zone in enumerate("cbcbcc", 1):
        s.put(f"id-{n}", to_zone=zone)
    serving = s.serve()
    same([(f.previous, f.offset) for f in serving.page.facts], [(0, 2), (2, 4)], "facts")
    same((serving.page.through, serving.consumer.lag), (6, 2), "through and lag")
    same(s.store.confirm("c", serving.page.through), 6, "the cursor")


@check()
def empty_view_can_be_passed(s: FactStoreSubject) -> None:
    """A page without facts may be confirmed up to its ``through``: retention waits for it."""
    s.consumer(to_zone="nobody")
    s.put(*"abc")
    page = s.serve().page
    same((page.facts, page.through), ([], 3), "facts and through")
    same(s.store.confirm("c", 3), 3, "the cursor")
    same(s.store.truncate(OUTBOUND, 3), 3, "dropped")


@check()
def consumers_are_independent(s: FactStoreSubject) -> None:
    """Each consumer has a cursor of its own."""
    s.consumer("a")
    s.consumer("b")
    s.put(*"xyz")
    s.done(2, "a")
    same((s.served("a"), s.served("b")), ([3], [1, 2, 3]), "what they get")


@check()
def serving_tells_where_it_stands(s: FactStoreSubject) -> None:
    """A page comes with its consumer, the head and the chain at the cursor."""
    s.consumer()
    s.put(*"abc")
    s.done(1)
    serving = s.serve(limit=1)
    same((serving.consumer.cursor, serving.consumer.name), (1, "c"), "cursor and name")
    same((serving.page.head, serving.page.chain), (3, s.page(1).chain), "head and chain")
    same(serving.is_released, False, "is_released")


# ---- confirming ---------------------------------------------------------------------------------


@check()
def confirming_again_is_fine(s: FactStoreSubject) -> None:
    """A confirmation that is repeated answers the cursor."""
    s.consumer()
    s.put(*"abc")
    s.serve()
    same([s.store.confirm("c", 2) for _ in range(3)], [2, 2, 2], "cursors")


@check()
def cursor_never_goes_down(s: FactStoreSubject) -> None:
    """A late confirmation of less changes nothing and answers the cursor."""
    s.consumer()
    s.put(*"abc")
    s.done(3)
    same([s.store.confirm("c", n) for n in (2, 1, 0)], [3, 3, 3], "cursors")
    same((s.store.consumer("c").cursor, s.served()), (3, []), "the cursor, and what comes")


@check()
def unserved_is_not_confirmed(s: FactStoreSubject) -> None:
    """What was never served cannot be confirmed, though it may be there."""
    s.consumer()
    s.put(*"abcd")
    s.refused(lambda: s.store.confirm("c", 1), "not_served")
    s.serve(limit=2)
    s.refused(lambda: s.store.confirm("c", 3), "not_served")
    same(s.store.consumer("c").cursor, 0, "the cursor")
    s.refused(lambda: s.store.confirm("c", 99), "not_served")
    same(s.store.confirm("c", 2), 2, "the cursor, when it was served")


@check()
def served_is_remembered(s: FactStoreSubject) -> None:
    """A smaller page later does not take back what was served before."""
    s.consumer()
    s.put(*"abcd")
    s.serve(limit=3)
    s.serve(limit=1)
    same(s.store.consumer("c").served, 3, "served")
    same(s.store.confirm("c", 3), 3, "the cursor")


@check()
def served_is_per_consumer(s: FactStoreSubject) -> None:
    """What one consumer was served, another cannot confirm."""
    s.consumer("a")
    s.consumer("b")
    s.put("x")
    s.serve("a")
    s.refused(lambda: s.store.confirm("b", 1), "not_served")


@check()
def end_counts_as_confirmed(s: FactStoreSubject) -> None:
    """A consumer created at the end may confirm its cursor, though it was served nothing."""
    s.put(*"abc")
    s.consumer(from_end=True)
    same(s.store.confirm("c", 3), 3, "the cursor")


def _ready(s: FactStoreSubject, through: int = 4) -> None:
    s.consumer()
    s.put(*"abcde")
    s.done(through)


@check()
def seek_goes_back(s: FactStoreSubject) -> None:
    """A seek sets the cursor back, and the facts above it come again."""
    _ready(s)
    same(s.store.seek("c", 1, reason="again").cursor, 1, "the cursor answered")
    same((s.store.consumer("c").cursor, s.served()), (1, [2, 3, 4, 5]), "cursor, what comes")


@check()
def seek_goes_forward(s: FactStoreSubject) -> None:
    """A seek sets the cursor forward without the facts having been served."""
    _ready(s, 1)
    s.put("f")
    same(s.store.seek("c", 6, reason="skip").cursor, 6, "the cursor")
    same((s.served(), s.store.confirm("c", 6)), ([], 6), "what comes, and a confirmation")


@check()
def seek_serves_nothing(s: FactStoreSubject) -> None:
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
def seek_to_the_start(s: FactStoreSubject) -> None:
    """Zero is the start of the log. When that was dropped, a seek to it is refused or reports the
    loss.
    """
    _ready(s)
    same(s.store.seek("c", 0, reason="again").cursor, 0, "the cursor")
    s.done(4)
    s.store.truncate(OUTBOUND, 2)
    s.refused(lambda: s.store.seek("c", 0, reason="again"), "truncated", "out_of_range")
    s.store.seek("c", 2, reason="again")
    same(s.served(), [3, 4, 5], "what comes when a part was dropped")


@check()
def seek_beyond_the_head(s: FactStoreSubject) -> None:
    """A seek above the head is refused, and the cursor stays."""
    _ready(s)
    s.refused(lambda: s.store.seek("c", 6, reason="x"), "beyond_head", "out_of_range")
    same(s.store.consumer("c").cursor, 4, "the cursor")
    same(s.store.seek("c", 5, reason="x").cursor, 5, "the head itself")


@check()
def seek_below_what_is_kept(s: FactStoreSubject) -> None:
    """A seek to facts that were dropped is refused, and the cursor stays."""
    _ready(s)
    s.store.truncate(OUTBOUND, 3)
    s.refused(lambda: s.store.seek("c", 2, reason="x"), "truncated", "out_of_range")
    same(s.store.consumer("c").cursor, 4, "the cursor")
    same((s.store.seek("c", 3, reason="x").cursor, s.served()), (3, [4, 5]), "just above")


@check()
def seek_is_in_the_journal(s: FactStoreSubject) -> None:
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
def seek_drops_the_lease(s: FactStoreSubject) -> None:
    """After a seek the name is free at once."""
    s.consumer()
    s.put(*"abc")
    s.serve(holder="one")
    same(s.store.seek("c", 0, reason="x").holder, None, "the holder")
    same(s.served(holder="two"), [1, 2, 3], "what another one gets")


@check()
def seek_is_not_undone_by_a_late_confirmation(s: FactStoreSubject) -> None:
    """A holder from before a seek cannot confirm over it."""
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
def seek_starts_the_count_anew(s: FactStoreSubject) -> None:
    """After a seek the next fact counts as not yet delivered."""
    s.consumer()
    s.put(*"abc")
    for _ in range(3):
        s.serve(holder="one")
    same(s.store.seek("c", 1, reason="x").deliveries, 0, "deliveries")


@check()
def seek_brings_back_what_was_set_aside(s: FactStoreSubject) -> None:
    """After a seek back, facts in quarantine come along with the others."""
    s.consumer()
    s.put(*"abc")
    s.set_aside(1)
    s.done(3)
    s.store.seek("c", 0, reason="all again")
    same(s.served(), [1, 2, 3], "what comes")
