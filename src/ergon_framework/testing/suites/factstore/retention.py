"""Checks of retention: what may be dropped, what stays known, and losses that are told."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND, Gap
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    FactStoreSubject,
    offsets,
    same,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


def five(s: FactStoreSubject, through: int) -> None:
    """Five facts, of which a consumer has confirmed some."""
    s.consumer()
    s.put(*"abcde")
    s.done(through)


def drop(s: FactStoreSubject, through: int, loss_reason: str | None = None) -> int:
    """Truncate the outbound log; how many were dropped."""
    return s.store.truncate(OUTBOUND, through, loss_reason=loss_reason)


@check()
def confirmed_facts_may_go(s: FactStoreSubject) -> None:
    """Payloads that the required consumer has confirmed are dropped as asked, and counted."""
    five(s, 4)
    same((drop(s, 3), s.ids()), (3, ["d", "e"]), "dropped, and what is left")
    same(drop(s, 3), 0, "dropped the second time")
    same(offsets(s.page().facts), [4, 5], "offsets")


@check()
def unconfirmed_facts_stay(s: FactStoreSubject) -> None:
    """Nothing above the cursor of a required consumer is dropped."""
    five(s, 2)
    same((drop(s, 5), s.ids()), (2, ["c", "d", "e"]), "dropped, and what is left")
    same(s.served(), [3, 4, 5], "what the consumer still gets")


@check()
def slowest_consumer_counts(s: FactStoreSubject) -> None:
    """Retention waits for the slowest of the required consumers."""
    s.consumer("slow")
    five(s, 4)
    same(drop(s, 4), 0, "dropped while one has confirmed nothing")
    s.done(1, "slow")
    same((drop(s, 4), s.ids()), (1, ["b", "c", "d", "e"]), "dropped, and what is left")


@check()
def optional_consumer_does_not_count(s: FactStoreSubject) -> None:
    """Retention does not wait for a consumer that is not required."""
    s.consumer("guest", is_required=False)
    five(s, 4)
    same(drop(s, 5), 4, "dropped")


@check()
def nobody_is_no_permission(s: FactStoreSubject) -> None:
    """A log without required consumers is not truncated."""
    s.put(*"abc")
    same(drop(s, 3), 0, "dropped without any consumer")
    s.consumer("guest", is_required=False)
    s.done(3, "guest")
    same((drop(s, 3), s.ids()), (0, ["a", "b", "c"]), "dropped with an optional one alone")


@check()
def consumers_of_other_logs_do_not_count(s: FactStoreSubject) -> None:
    """Retention of a log looks at that log's consumers alone."""
    s.consumer("elsewhere", INBOX)
    five(s, 3)
    same(drop(s, 5), 3, "dropped")
    s.put("a", log=INBOX)
    same(s.store.truncate(INBOX, 1), 0, "dropped of the other log")


@check()
def deleted_consumer_does_not_count(s: FactStoreSubject) -> None:
    """Retention no longer waits for a consumer that was deleted."""
    s.consumer("slow")
    five(s, 4)
    s.store.delete_consumer("slow")
    same(drop(s, 5), 4, "dropped")


@check()
def set_aside_facts_stay(s: FactStoreSubject) -> None:
    """A fact in quarantine is kept until somebody decides: it lies nowhere else."""
    s.consumer()
    s.put(*"abcde")
    s.done(1)
    item = s.set_aside(2)
    s.done(5)
    same((drop(s, 5), s.ids()), (1, ["b", "c", "d", "e"]), "dropped, and what is left")
    s.store.settle(item.id, "released")
    same((drop(s, 5), s.served()), (0, [2]), "dropped, and what comes out when released")
    s.store.confirm("c", 2)
    same(drop(s, 5), 4, "dropped in the end")


@check()
def truncation_beyond_the_head(s: FactStoreSubject) -> None:
    """More than there is may be asked for; then everything confirmed goes, and offsets go on."""
    five(s, 5)
    same((drop(s, 1000), s.ids()), (5, []), "dropped, and what is left")
    same((s.put("f"), s.page().head), ([6], 6), "the next offset, and the head")
    same(s.page().facts[0].previous, 5, "previous of the next fact")
    same(s.served(), [6], "what the consumer gets")


@check()
def truncation_of_nothing(s: FactStoreSubject) -> None:
    """An empty log, or one that is not there, has nothing to drop."""
    same((drop(s, 5), s.store.truncate(INBOX, 5)), (0, 0), "dropped")
    five(s, 5)
    same((drop(s, 0), len(s.ids())), (0, 5), "dropped up to 0, and what is left")


@check()
def previous_outlives_the_payload(s: FactStoreSubject) -> None:
    """The first fact that is kept still names the one before it in its view."""
    s.consumer()
    for n, zone in enumerate("bcbbc", 1):
        s.put(f"id-{n}", to_zone=zone)
    s.done(5)
    drop(s, 3)
    same([f.previous for f in s.page(to_zone="b").facts], [3], "previous in the view b")
    same([f.previous for f in s.page(to_zone="c").facts], [2], "previous in the view c")
    same([f.previous for f in s.page().facts], [3, 4], "previous in the log")
    drop(s, 5)
    s.put("id-6", to_zone="b")
    same([f.previous for f in s.page(to_zone="b").facts], [4], "when all before it is gone")


@check()
def page_begins_with_what_is_kept(s: FactStoreSubject) -> None:
    """Reading without a consumer begins with the first fact that is kept."""
    five(s, 4)
    drop(s, 3)
    page = s.page()
    same((offsets(page.facts), page.through, page.head), ([4, 5], 5, 5), "facts, through, head")
    same(page.gaps, [], "gaps")


@check()
def chain_outlives_the_payload(s: FactStoreSubject) -> None:
    """The chain above what was dropped stays; below it is the same or no longer known."""
    five(s, 5)
    before = [s.page(n).chain for n in range(6)]
    drop(s, 3)
    after = [s.page(n).chain for n in range(6)]
    same(after[4:], before[4:], "chains of what is kept")
    expect(all(a in {b, b""} for a, b in zip(after, before, strict=True)), "a chain has changed")
    s.put("f")
    expect(s.page(6).chain not in {b"", *before}, "no new chain")


@check()
def behind_what_is_kept_is_said(s: FactStoreSubject) -> None:
    """A consumer whose facts were dropped, with no gap recorded, is told so and not skipped."""
    s.consumer("guest", is_required=False)
    s.consumer()
    s.put(*"abcde")
    s.done(1, "guest")
    s.done(5)
    drop(s, 4)
    error = s.refused(lambda: s.serve("guest"), "truncated", "out_of_range")
    lost = error.details.get("first_lost"), error.details.get("last_lost")
    same(lost, (2, 4), "first_lost and last_lost")
    same(s.store.consumer("guest").cursor, 1, "the cursor")
    s.store.seek("guest", 4, reason="it can do without")
    same(s.served("guest"), [5], "after a seek")


@check()
def at_what_is_kept_is_fine(s: FactStoreSubject) -> None:
    """A consumer that has confirmed all that was dropped is served as ever."""
    five(s, 3)
    drop(s, 3)
    same(s.served(), [4, 5], "offsets")


@check()
def age_is_told(s: FactStoreSubject) -> None:
    """The store tells up to which offset everything was recorded before an instant."""
    began = s.clock()
    same(s.store.aged(OUTBOUND, began + 1.0), 0, "in an empty log")
    for each in "abc":
        s.put(each)
        s.clock.forward(10.0)
    found = [s.store.aged(OUTBOUND, began + n) for n in (0.0, 5.0, 15.0, 25.0, 99.0)]
    same(found, [0, 1, 2, 3, 3], "offsets after 0, 5, 15, 25 and 99 seconds")
    same(s.store.aged(INBOX, began + 99.0), 0, "in a log that is not there")


@check()
def age_stops_at_the_first_young_fact(s: FactStoreSubject) -> None:
    """When the clock went back, an old fact behind a young one does not count."""
    began = s.clock()
    s.put("a")
    s.clock.forward(100.0)
    s.put("b")
    s.clock.forward(-90.0)
    s.put("c")
    same(s.store.aged(OUTBOUND, began + 50.0), 1, "the offset")


@check()
def age_counts_what_is_kept(s: FactStoreSubject) -> None:
    """After a truncation the age of what is kept is told as before."""
    five(s, 5)
    s.clock.forward(10.0)
    s.put("f")
    drop(s, 3)
    same(s.store.aged(OUTBOUND, s.clock()), 5, "the offset")


@check()
def loss_overrides_the_cursors(s: FactStoreSubject) -> None:
    """With a reason, facts are dropped that nobody has confirmed, and the loss is recorded."""
    five(s, 2)
    same((drop(s, 4, "disk"), s.ids()), (4, ["e"]), "dropped, and what is left")
    found = s.store.gaps()
    told = [(gap.log, gap.first, gap.last, gap.reason) for gap in found]
    same(told, [(OUTBOUND, 3, 4, "disk")], "gaps")
    expect(abs(found[0].at - s.clock()) < 0.002, f"the gap is dated {found[0].at}")


@check()
def confirmed_facts_are_no_loss(s: FactStoreSubject) -> None:
    """What every consumer had confirmed is dropped without a gap, with a reason as without."""
    five(s, 4)
    drop(s, 2)
    same((drop(s, 4, "disk"), s.store.gaps()), (2, []), "dropped, and gaps")


@check()
def optional_consumers_lose_too(s: FactStoreSubject) -> None:
    """What an optional consumer had not confirmed is a loss as well."""
    s.consumer("guest", is_required=False)
    five(s, 5)
    s.done(1, "guest")
    same(drop(s, 3, "disk"), 3, "dropped")
    same([(g.first, g.last) for g in s.store.gaps()], [(2, 3)], "gaps")


@check()
def nothing_dropped_is_no_gap(s: FactStoreSubject) -> None:
    """A truncation that drops nothing records nothing."""
    five(s, 1)
    drop(s, 2, "disk")
    before = s.store.gaps()
    same((drop(s, 2, "again"), s.store.gaps()), (0, before), "dropped, and gaps")


@check()
def consumer_is_told_of_the_gap(s: FactStoreSubject) -> None:
    """A consumer is given the facts after a gap together with the gap, and confirms past both."""
    five(s, 1)
    drop(s, 3, "disk")
    gaps = s.store.gaps()
    page = s.serve().page
    same((offsets(page.facts), page.gaps), ([4, 5], gaps), "facts and gaps")
    same(s.page(1).gaps, gaps, "gaps of a page without a consumer")
    s.store.confirm("c", 5)
    same(s.serve().page.gaps, [], "gaps behind the cursor")


@check()
def gap_without_facts(s: FactStoreSubject) -> None:
    """When nothing is left behind a gap, the page has the gap alone and can be confirmed."""
    five(s, 1)
    drop(s, 5, "disk")
    page = s.serve().page
    same((page.facts, page.through), ([], 5), "facts and through")
    same([(g.first, g.last) for g in page.gaps], [(2, 5)], "gaps")
    same(s.store.confirm("c", 5), 5, "the cursor")


@check()
def gaps_are_listed(s: FactStoreSubject) -> None:
    """Gaps are listed for one log or for all."""
    five(s, 0)
    s.consumer("d", INBOX)
    s.put(*"ab", log=INBOX)
    drop(s, 2, "one")
    s.store.truncate(INBOX, 1, loss_reason="two")
    same(_told(s.store.gaps(OUTBOUND)), [(OUTBOUND, 1, 2)], "gaps of outbound")
    same(_told(s.store.gaps(INBOX)), [(INBOX, 1, 1)], "gaps of the other log")
    same(sorted(_told(s.store.gaps())), [(INBOX, 1, 1), (OUTBOUND, 1, 2)], "all gaps")


@check()
def two_losses_explain_together(s: FactStoreSubject) -> None:
    """Gaps that follow each other explain all that is missing."""
    five(s, 1)
    drop(s, 2, "one")
    drop(s, 4, "two")
    page = s.serve().page
    same((offsets(page.facts), _told(page.gaps)[-1]), ([5], (OUTBOUND, 3, 4)), "facts, last gap")


@check()
def lost_ids_are_known(s: FactStoreSubject) -> None:
    """The ledger remembers also what was lost: it is not stored a second time."""
    five(s, 1)
    drop(s, 4, "disk")
    same((s.again("c").offset, s.ids()), (3, ["e"]), "its offset, and the log")


@check()
def loss_is_in_the_journal(s: FactStoreSubject) -> None:
    """A loss on purpose is written down with its reason."""
    five(s, 1)
    drop(s, 4, "the disk was full")
    texts = [text for _, _, text in s.store.journal()]
    expect(any("the disk was full" in text for text in texts), f"the journal has {texts}")


def _told(gaps: list[Gap]) -> list[tuple[str, int, int]]:
    return [(gap.log, gap.first, gap.last) for gap in gaps]
