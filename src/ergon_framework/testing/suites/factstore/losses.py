"""Checks of loss on purpose: it is recorded, told, and never silent."""

from __future__ import annotations

from ergon_framework.ports.factstore import OUTBOUND, Gap
from ergon_framework.testing.suites.factstore.retention import drop, five
from ergon_framework.testing.suites.factstore.subject import INBOX, Subject, offsets, same
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def loss_overrides_the_cursors(s: Subject) -> None:
    """With a reason, facts are dropped that nobody has confirmed, and the loss is recorded."""
    five(s, 2)
    same((drop(s, 4, "disk"), s.ids()), (4, ["e"]), "dropped, and what is left")
    found = s.store.gaps()
    told = [(gap.log, gap.first, gap.last, gap.reason) for gap in found]
    same(told, [(OUTBOUND, 3, 4, "disk")], "gaps")
    expect(abs(found[0].at - s.clock()) < 0.002, f"the gap is dated {found[0].at}")


@check()
def confirmed_facts_are_no_loss(s: Subject) -> None:
    """What every consumer had confirmed is dropped without a gap, with a reason as without."""
    five(s, 4)
    drop(s, 2)
    same((drop(s, 4, "disk"), s.store.gaps()), (2, []), "dropped, and gaps")


@check()
def optional_consumers_lose_too(s: Subject) -> None:
    """What an optional consumer had not confirmed is a loss as well."""
    s.consumer("guest", is_required=False)
    five(s, 5)
    s.done(1, "guest")
    same(drop(s, 3, "disk"), 3, "dropped")
    same([(g.first, g.last) for g in s.store.gaps()], [(2, 3)], "gaps")


@check()
def nothing_dropped_is_no_gap(s: Subject) -> None:
    """A truncation that drops nothing records nothing."""
    five(s, 1)
    drop(s, 2, "disk")
    before = s.store.gaps()
    same((drop(s, 2, "again"), s.store.gaps()), (0, before), "dropped, and gaps")


@check()
def consumer_is_told_of_the_gap(s: Subject) -> None:
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
def gap_without_facts(s: Subject) -> None:
    """When nothing is left behind a gap, the page has the gap alone and can be confirmed."""
    five(s, 1)
    drop(s, 5, "disk")
    page = s.serve().page
    same((page.facts, page.through), ([], 5), "facts and through")
    same([(g.first, g.last) for g in page.gaps], [(2, 5)], "gaps")
    same(s.store.confirm("c", 5), 5, "the cursor")


@check()
def gaps_are_listed(s: Subject) -> None:
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
def two_losses_explain_together(s: Subject) -> None:
    """Gaps that follow each other explain all that is missing."""
    five(s, 1)
    drop(s, 2, "one")
    drop(s, 4, "two")
    page = s.serve().page
    same((offsets(page.facts), _told(page.gaps)[-1]), ([5], (OUTBOUND, 3, 4)), "facts, last gap")


@check()
def lost_ids_are_known(s: Subject) -> None:
    """The ledger remembers also what was lost: it is not stored a second time."""
    five(s, 1)
    drop(s, 4, "disk")
    same((s.again("c").offset, s.ids()), (3, ["e"]), "its offset, and the log")


@check()
def loss_is_in_the_journal(s: Subject) -> None:
    """A loss on purpose is written down with its reason."""
    five(s, 1)
    drop(s, 4, "the disk was full")
    texts = [text for _, _, text in s.store.journal()]
    expect(any("the disk was full" in text for text in texts), f"the journal has {texts}")


def _told(gaps: list[Gap]) -> list[tuple[str, int, int]]:
    return [(gap.log, gap.first, gap.last) for gap in gaps]
