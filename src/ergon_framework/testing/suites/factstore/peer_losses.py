"""Checks of what a peer lost: it lies in the inbound log, between the facts around it."""

from __future__ import annotations

import threading

from ergon_framework.ports.factstore import OUTBOUND, Flaw, Gap, Page
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    PEER,
    Subject,
    added,
    offsets,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


def loss(first: int, last: int, reason: str = "retention", at: float = 7.5) -> Gap:
    """What a peer says about facts that it gave up."""
    return Gap(OUTBOUND, first, last, reason, at)


def _around(s: Subject) -> None:
    """Two facts, a loss of the next three, and one more fact: 1, 2, a gap at 3, and 4."""
    s.receive(sent("a", 1), sent("b", 2), sent("f", 6), gaps=[loss(3, 5)])


def _told(page: Page) -> list[tuple[int, int, int | None, int | None]]:
    return [(gap.first, gap.last, gap.source_first, gap.source_last) for gap in page.gaps]


@check()
def loss_of_a_peer_lies_in_order(s: Subject) -> None:
    """It takes an offset between the facts around it, and says what the peer gave up and why."""
    _around(s)
    page = s.page(log=INBOX)
    same((offsets(page.facts), page.through, page.head), ([1, 2, 4], 4, 4), "facts, through, head")
    same(page.gaps, [Gap(INBOX, 3, 3, "retention", 7.5, 3, 5)], "gaps")
    same((s.store.gaps(INBOX), page.gaps[0].count), (page.gaps, 3), "gaps listed, facts lost")


@check()
def several_losses_of_a_peer(s: Subject) -> None:
    """Each lies before the facts that come after it at the peer, also one behind them all."""
    lost = [loss(1, 1), loss(3, 3, "corrupted"), loss(4, 6), loss(9, 9)]
    s.receive(sent("b", 2), sent("g", 7), sent("h", 8), gaps=lost)
    page = s.page(log=INBOX)
    same((offsets(page.facts), page.head), ([2, 5, 6], 7), "facts, and the head")
    wanted = [(1, 1, 1, 1), (3, 3, 3, 3), (4, 4, 4, 6), (7, 7, 9, 9)]
    same(_told(page), wanted, "gaps")


@check()
def outcomes_are_those_of_the_facts(s: Subject) -> None:
    """Who hands over facts and losses gets an outcome for each fact."""
    found = s.receive(sent("b", 2), sent("c", 3), gaps=[loss(1, 1), loss(4, 4)])
    same([added(each) for each in found], [2, 3], "offsets")
    same(s.receive(gaps=[loss(5, 6)]), [], "outcomes of a loss alone")


@check()
def link_moves_with_a_loss(s: Subject) -> None:
    """A page that tells of a loss and nothing else moves the link."""
    s.receive(gaps=[loss(1, 9)])
    same((s.store.link(PEER).offset, s.head(INBOX)), (9, 1), "the link, and the head")


@check()
def consumer_is_told_of_a_peer_loss(s: Subject) -> None:
    """A consumer of the inbound log is told where it lies, until it has confirmed it."""
    s.consumer("c", INBOX)
    _around(s)
    for _ in range(2):
        page = s.serve().page
        same((offsets(page.facts), _told(page)), ([1, 2, 4], [(3, 3, 3, 5)]), "facts and gaps")
    s.store.confirm("c", 2)
    page = s.serve().page
    same((offsets(page.facts), _told(page)), ([4], [(3, 3, 3, 5)]), "what comes behind 2")
    s.store.confirm("c", 3)
    page = s.serve().page
    same((offsets(page.facts), _told(page)), ([4], []), "what comes behind the gap")


@check()
def peer_loss_comes_in_its_page(s: Subject) -> None:
    """In small pages it comes with the fact behind it, and no other."""
    s.consumer("c", INBOX)
    _around(s)
    seen = []
    for _ in range(3):
        page = s.serve(limit=1).page
        seen.append((offsets(page.facts), [gap.first for gap in page.gaps], page.through))
        s.store.confirm("c", page.through)
    same(seen, [([1], [], 1), ([2], [], 2), ([4], [3], 4)], "facts, gaps and through of the pages")


@check()
def peer_loss_without_facts(s: Subject) -> None:
    """When nothing came behind it, it is told alone, can be confirmed, and is not told again."""
    s.consumer("c", INBOX)
    s.receive(sent("a", 1), gaps=[loss(2, 5)])
    s.done(1)
    page = s.serve().page
    same((page.facts, page.through, _told(page)), ([], 2, [(2, 2, 2, 5)]), "the page")
    same(s.store.confirm("c", 2), 2, "the cursor")
    same(s.serve().page.gaps, [], "gaps behind the cursor")
    s.receive(sent("f", 6))
    same((s.served(), s.serve().page.gaps), ([3], []), "what comes then")


@check()
def views_are_told_of_a_peer_loss(s: Subject) -> None:
    """Whichever facts a consumer reads, it is told: nobody knows to whom the lost ones went."""
    s.consumer("c", INBOX, to_zone="elsewhere")
    s.consumer("d", INBOX, to_zone="plant-a")
    _around(s)
    page = s.serve().page
    same((page.facts, page.through, _told(page)), ([], 4, [(3, 3, 3, 5)]), "an empty view")
    page = s.serve("d").page
    told = [(fact.offset, fact.previous) for fact in page.facts]
    same((told, _told(page)), ([(1, 0), (2, 1), (4, 2)], [(3, 3, 3, 5)]), "the other view")


@check()
def peer_loss_is_no_fact(s: Subject) -> None:
    """It is not counted as waiting, has no bytes, and is found under no id."""
    s.consumer("c", INBOX)
    s.receive(gaps=[loss(1, 3)])
    one = s.store.consumer("c")
    same((one.lag, one.waiting_since), (0, None), "lag and waiting_since")
    _around(s)
    same((s.store.consumer("c").lag, s.ids(INBOX)), (3, ["a", "b", "f"]), "lag, and the log")
    sizes = [len(fact.envelope) + len(fact.fact) for fact in s.page(log=INBOX).facts]
    (info,) = [log for log in s.store.logs() if log.name == INBOX]
    same((info.head, info.size), (5, sum(sizes)), "head and bytes")


@check()
def fact_behind_a_peer_loss_is_next(s: Subject) -> None:
    """The fact behind it may be set aside, though the loss has an offset before it."""
    s.consumer("c", INBOX)
    s.receive(sent("d", 4), gaps=[loss(1, 2), loss(3, 3)])
    same(s.served(), [3], "what comes")
    s.refused(lambda: s.set_aside(1), "not_next")
    same((s.set_aside(3).offset, s.store.consumer("c").cursor), (3, 3), "item and cursor")


@check()
def known_peer_loss_adds_nothing(s: Subject) -> None:
    """What is pulled once more from the start is known, losses like facts; others are not."""
    _around(s)
    s.store.accept_epoch(PEER, "e2")
    _around(s)
    same((s.head(INBOX), len(s.store.gaps())), (4, 1), "the head, and gaps")
    s.receive(gaps=[loss(3, 5, at=9.0)])
    same((s.head(INBOX), len(s.store.gaps())), (5, 2), "the head, and gaps, after another loss")


@check()
def peers_lose_on_their_own(s: Subject) -> None:
    """The same loss of another peer is another one."""
    s.receive(gaps=[loss(1, 2)])
    s.receive(gaps=[loss(1, 2)], peer="c")
    found = [(gap.log, gap.first) for gap in s.store.gaps()]
    same(found, [("inbound:c", 1), (INBOX, 1)], "gaps")


@check()
def loss_here_is_not_that_of_a_peer(s: Subject) -> None:
    """What is given up here is recorded apart, also right behind, and for the same reason."""
    s.consumer("c", INBOX)
    s.receive(sent("c", 3), sent("d", 4), gaps=[loss(1, 2)])
    s.done(1)
    s.store.truncate(INBOX, 2, loss_reason="retention")
    found = [(gap.first, gap.last, gap.source_first) for gap in s.store.gaps(INBOX)]
    same(found, [(1, 1, 1), (2, 2, None)], "gaps")
    page = s.serve().page
    same((offsets(page.facts), _told(page)), ([3], [(2, 2, None, None)]), "what comes")


@check()
def peer_loss_outlives_the_payload(s: Subject) -> None:
    """Who had not confirmed it is told also when the facts around it were given up here."""
    s.consumer("c", INBOX)
    _around(s)
    s.store.truncate(INBOX, 4, loss_reason="disk")
    page = s.serve().page
    same((page.facts, page.through), ([], 4), "facts and through")
    same(_told(page), [(1, 4, None, None), (3, 3, 3, 5)], "gaps")
    _around(s)
    same(s.head(INBOX), 4, "the head when all is pulled once more")


@check()
def peer_loss_does_not_hold_retention_up(s: Subject) -> None:
    """Confirmed, it goes with the facts around it."""
    s.consumer("c", INBOX)
    _around(s)
    s.done(4)
    same(s.store.truncate(INBOX, 4), 4, "dropped")
    s.receive(sent("g", 7))
    same((s.served(), s.serve().page.gaps), ([5], []), "what comes then")


@check()
def peer_loss_wakes(s: Subject) -> None:
    """Whoever waits for facts is woken by a loss, and finds it."""
    woken = threading.Event()
    s.store.subscribe(woken.set)
    s.receive(gaps=[loss(1, 3)])
    expect(woken.wait(s.patience), "nobody was woken")
    woken.clear()
    s.receive(gaps=[loss(1, 3)])
    expect(not woken.is_set(), "a known loss woke somebody")
    s.store.unsubscribe(woken.set)


@check()
def log_with_a_peer_loss_is_sound(s: Subject) -> None:
    """The hash chain goes through it."""
    _around(s)
    found = list(s.store.verify(INBOX))
    same([each for each in found if isinstance(each, Flaw)], [], "flaws")
    same(found[-1], 4, "the offset reached")
    before, behind = s.page(2, log=INBOX).chain, s.page(3, log=INBOX).chain
    expect(before and behind and before != behind, "the chain does not depend on the loss")


@check("corrupt")
def damage_does_not_hide_a_loss(s: Subject) -> None:
    """A damaged fact right behind a loss is passed only after the loss was confirmed."""
    s.consumer("c", INBOX)
    _around(s)
    s.done(2)
    s.corrupt(INBOX, 4)
    page = s.serve().page
    same((page.facts, page.through, _told(page)), ([], 3, [(3, 3, 3, 5)]), "the page")
    s.store.confirm("c", 3)
    gaps = s.serve().page.gaps
    same([(gap.first, gap.reason) for gap in gaps], [(4, "corrupted")], "gaps then")


@check("reopen")
def peer_losses_survive(s: Subject) -> None:
    """They are the same, still told, and still known."""
    s.consumer("c", INBOX)
    _around(s)
    s.done(2)
    before = s.store.gaps(), s.serve().page.gaps
    s.reopen()
    same((s.store.gaps(), s.serve().page.gaps), before, "gaps, listed and told")
    s.store.accept_epoch(PEER, "e2")
    _around(s)
    same((s.served(), s.head(INBOX)), ([4], 4), "what comes, and the head")
