"""Checks of replication: a peer's facts and losses arriving here, and the state of a link."""

from __future__ import annotations

import threading
from dataclasses import replace

from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    Conflict,
    Corruption,
    Gap,
    Link,
    LogPage,
    Quarantined,
)
from ergon_framework.testing.suites.factstore.append import MISSING, is_marked
from ergon_framework.testing.suites.factstore.under_test import (
    INBOX,
    PEER,
    FactStoreSubject,
    added,
    offsets,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[FactStoreSubject]] = []
check = register(CHECKS)


def _refused(source_offset: int, **changes: object) -> Quarantined:
    item = Quarantined(
        id=0,
        consumer="whoever",
        log=INBOX,
        offset=source_offset,
        reason="artifact_missing",
        message="it is not there",
        attempts=20,
        at=1.0,
        envelope=b'{"e":1}',
        fact=b'{"f":1}',
    )
    return replace(item, **changes)  # type: ignore[arg-type]


@check()
def received_facts_lie_in_their_log(s: FactStoreSubject) -> None:
    """What a peer sent lies in its inbound log with dense offsets, and knows where it came from."""
    found = s.receive(sent("a", 3), sent("b", 7))
    same([added(each) for each in found], [1, 2], "offsets")
    told = [(fact.offset, fact.source_offset) for fact in s.page(log=INBOX).facts]
    same(told, [(1, 3), (2, 7)], "offset and source_offset")
    same((s.ids(INBOX), s.head()), (["a", "b"], 0), "the log, and the head of outbound")


@check()
def link_moves_with_the_facts(s: FactStoreSubject) -> None:
    """The link stands where the puller said, and is read back whole."""
    link = Link(PEER, "e1", 9, b"\x01" * 32)
    s.store.receive(PEER, [sent("a", 7)], link)
    found = s.store.link(PEER)
    told = found.peer, found.epoch, found.offset, found.chain
    same(told, (PEER, "e1", 9, b"\x01" * 32), "peer, epoch, offset, chain")
    same(s.store.links(), [found], "links")


@check()
def link_moves_without_facts(s: FactStoreSubject) -> None:
    """A page that held nothing of this zone's view moves the link all the same."""
    same(s.receive(offset=40), [], "outcomes")
    same(s.store.link(PEER).offset, 40, "offset")


@check()
def received_twice_is_stored_once(s: FactStoreSubject) -> None:
    """A page that comes again, as after a lost confirmation, adds nothing."""
    s.receive(sent("a", 1), sent("b", 2))
    found = s.receive(sent("a", 1), sent("b", 2), sent("c", 3))
    told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
    same(told, [(1, True), (2, True), (3, False)], "offset and is_duplicate")
    same(s.ids(INBOX), ["a", "b", "c"], "the log")


@check()
def received_again_after_truncation(s: FactStoreSubject) -> None:
    """What was received and dropped since is not inserted a second time."""
    s.receive(sent("a", 1), sent("b", 2))
    s.consumer("c", INBOX)
    s.done(2)
    same(s.store.truncate(INBOX, 2), 2, "dropped")
    s.receive(sent("a", 1))
    same((s.ids(INBOX), s.head(INBOX)), ([], 2), "the log, and its head")


@check()
def conflict_from_a_peer_is_set_aside(s: FactStoreSubject) -> None:
    """A fact of a peer whose id stands for other content goes into quarantine, and is passed."""
    s.receive(sent("a", 1))
    found = s.receive(sent("a", 2, fact=b'{"other":1}'), sent("b", 3))
    same([type(each) for each in found], [Conflict, Appended], "kinds of outcomes")
    same((s.ids(INBOX), s.store.link(PEER).offset), (["a", "b"], 3), "the log, and the link")
    items = s.store.quarantine()
    told = [(e.consumer, e.reason, e.state, e.offset) for e in items]
    wanted = [(f"pull:{PEER}", "conflicting_duplicate", "quarantined", 2)]
    same(told, wanted, "consumer, reason, state, source offset")
    same((items[0].fact, items[0].envelope), (b'{"other":1}', sent("a", 2).envelope), "payload")


@check()
def conflict_within_a_page(s: FactStoreSubject) -> None:
    """Of two contents under one id in one page, the first counts and the second is set aside."""
    s.receive(sent("a", 1), sent("a", 2, fact=b"{}"))
    same((s.ids(INBOX), len(s.store.quarantine())), (["a"], 1), "the log, items")


@check()
def refused_facts_are_set_aside(s: FactStoreSubject) -> None:
    """What the puller could not take goes into quarantine in the same commit, payload and all."""
    link = Link(PEER, "e1", 3)
    s.store.receive(PEER, [sent("a", 1)], link, [_refused(2), _refused(3, reason="corrupted")])
    items = s.store.quarantine(f"pull:{PEER}")
    told = [(e.offset, e.reason, e.message, e.attempts, e.state) for e in items]
    wanted = [
        (2, "artifact_missing", "it is not there", 20, "quarantined"),
        (3, "corrupted", "it is not there", 20, "quarantined"),
    ]
    same(told, wanted, "offset, reason, message, attempts, state")
    same([(e.envelope, e.fact) for e in items], [(b'{"e":1}', b'{"f":1}')] * 2, "payload")
    expect(items[0].id != items[1].id, "the items share a number")
    same((s.ids(INBOX), s.store.link(PEER).offset), (["a"], 3), "the log, and the link")


@check()
def refused_items_can_be_settled(s: FactStoreSubject) -> None:
    """An operator decides about what the puller set aside as about everything else."""
    s.store.receive(PEER, [], Link(PEER), [_refused(2), _refused(3)])
    first, second = s.store.quarantine()
    same(s.store.settle(first.id, "released").fact, b'{"f":1}', "the payload of the released")
    s.store.settle(second.id, "discarded")
    found = [e.state for e in s.store.quarantine(state=None)]
    same(found, ["released", "discarded"], "states")


@check()
def references_of_a_peer_are_not_checked(s: FactStoreSubject) -> None:
    """A received fact enters whether its objects are here or not, and marks those that are."""
    there = s.bind("k")
    found = s.receive(sent("a", 1, references=(there,)), sent("b", 2, references=(MISSING,)))
    same([added(each) for each in found], [1, 2], "offsets")
    same(is_marked(s, "k"), True, "the object is marked")
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")


@check()
def late_object_of_a_peer_is_no_orphan(s: FactStoreSubject) -> None:
    """An object that comes after the fact that refers to it is referred to from the start."""
    there = s.bind("k")
    s.store.unbind("files", "k")
    s.receive(sent("a", 1, references=(there,)))
    s.bind("k")
    same(s.store.orphans(s.clock() + 1.0), [], "orphans")
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")


@check()
def peers_have_logs_of_their_own(s: FactStoreSubject) -> None:
    """Facts of two peers, and their links, do not meet."""
    s.receive(sent("a", 1))
    s.receive(sent("a", 5, from_zone="c"), peer="c")
    same((s.ids(INBOX), s.ids("inbound:c")), (["a"], ["a"]), "the logs")
    same([(e.peer, e.offset) for e in s.store.links()], [("c", 5), (PEER, 1)], "links")


@check()
def relayed_facts_keep_their_zone(s: FactStoreSubject) -> None:
    """Facts that a peer passes on for others are known by the zone that asserted them."""
    s.receive(sent("a", 1), sent("a", 2, from_zone="c"))
    same([f.from_zone for f in s.page(log=INBOX).facts], [PEER, "c"], "from_zone")


@check()
def received_facts_are_served(s: FactStoreSubject) -> None:
    """Consumers read an inbound log like any other."""
    s.consumer("c", INBOX)
    s.receive(sent("a", 4), sent("b", 6))
    facts = s.serve().page.facts
    same([(f.offset, f.previous, f.source_offset) for f in facts], [(1, 0, 4), (2, 1, 6)], "facts")
    same(s.store.find(PEER, "b", INBOX) is not None, True, "it is found by its id")


@check()
def pull_does_not_hold_retention_up(s: FactStoreSubject) -> None:
    """What the puller set aside lies in quarantine itself: the log need not be kept for it."""
    s.consumer("c", INBOX)
    link = Link(PEER, "e1", 3)
    s.store.receive(PEER, [sent("a", 1), sent("b", 2)], link, [_refused(1)])
    s.done(2)
    same(s.store.truncate(INBOX, 2), 2, "dropped")
    same(s.store.truncate(OUTBOUND, 2), 0, "dropped of outbound")


@check()
def late_page_moves_no_link_back(s: FactStoreSubject) -> None:
    """A page that another node of the zone has overtaken changes neither frontier nor epoch."""
    s.receive(sent("a", 5), sent("b", 9))
    same([each.is_duplicate for each in s.receive(sent("a", 5))], [True], "is_duplicate")  # type: ignore[union-attr]
    link = s.store.link(PEER)
    same((link.epoch, link.offset), ("e1", 9), "epoch and offset after a late page")
    s.store.accept_epoch(PEER, "e2")
    s.receive(sent("a", 5))
    link = s.store.link(PEER)
    same((link.epoch, link.offset), ("e2", 0), "epoch and offset of an epoch that was accepted")


def loss(first: int, last: int, reason: str = "retention", at: float = 7.5) -> Gap:
    """What a peer says about facts that it gave up."""
    return Gap(OUTBOUND, first, last, reason, at)


def _around(s: FactStoreSubject) -> None:
    """Two facts, a loss of the next three, and one more fact: 1, 2, a gap at 3, and 4."""
    s.receive(sent("a", 1), sent("b", 2), sent("f", 6), gaps=[loss(3, 5)])


def _told(page: LogPage) -> list[tuple[int, int, int | None, int | None]]:
    return [(gap.first, gap.last, gap.source_first, gap.source_last) for gap in page.gaps]


@check()
def loss_of_a_peer_lies_in_order(s: FactStoreSubject) -> None:
    """It takes an offset between the facts around it, and says what the peer gave up and why."""
    _around(s)
    page = s.page(log=INBOX)
    same((offsets(page.facts), page.through, page.head), ([1, 2, 4], 4, 4), "facts, through, head")
    same(page.gaps, [Gap(INBOX, 3, 3, "retention", 7.5, 3, 5)], "gaps")
    same((s.store.gaps(INBOX), page.gaps[0].count), (page.gaps, 3), "gaps listed, facts lost")


@check()
def several_losses_of_a_peer(s: FactStoreSubject) -> None:
    """Each lies before the facts that come after it at the peer, also one behind them all."""
    lost = [loss(1, 1), loss(3, 3, "corrupted"), loss(4, 6), loss(9, 9)]
    s.receive(sent("b", 2), sent("g", 7), sent("h", 8), gaps=lost)
    page = s.page(log=INBOX)
    same((offsets(page.facts), page.head), ([2, 5, 6], 7), "facts, and the head")
    wanted = [(1, 1, 1, 1), (3, 3, 3, 3), (4, 4, 4, 6), (7, 7, 9, 9)]
    same(_told(page), wanted, "gaps")


@check()
def outcomes_are_those_of_the_facts(s: FactStoreSubject) -> None:
    """Who hands over facts and losses gets an outcome for each fact."""
    found = s.receive(sent("b", 2), sent("c", 3), gaps=[loss(1, 1), loss(4, 4)])
    same([added(each) for each in found], [2, 3], "offsets")
    same(s.receive(gaps=[loss(5, 6)]), [], "outcomes of a loss alone")


@check()
def link_moves_with_a_loss(s: FactStoreSubject) -> None:
    """A page that tells of a loss and nothing else moves the link."""
    s.receive(gaps=[loss(1, 9)])
    same((s.store.link(PEER).offset, s.head(INBOX)), (9, 1), "the link, and the head")


@check()
def consumer_is_told_of_a_peer_loss(s: FactStoreSubject) -> None:
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
def peer_loss_comes_in_its_page(s: FactStoreSubject) -> None:
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
def peer_loss_without_facts(s: FactStoreSubject) -> None:
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
def views_are_told_of_a_peer_loss(s: FactStoreSubject) -> None:
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
def peer_loss_is_no_fact(s: FactStoreSubject) -> None:
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
def fact_behind_a_peer_loss_is_next(s: FactStoreSubject) -> None:
    """The fact behind it may be set aside, though the loss has an offset before it."""
    s.consumer("c", INBOX)
    s.receive(sent("d", 4), gaps=[loss(1, 2), loss(3, 3)])
    same(s.served(), [3], "what comes")
    s.refused(lambda: s.set_aside(1), "not_next")
    same((s.set_aside(3).offset, s.store.consumer("c").cursor), (3, 3), "item and cursor")


@check()
def known_peer_loss_adds_nothing(s: FactStoreSubject) -> None:
    """What is pulled once more from the start is known, losses like facts; others are not."""
    _around(s)
    s.store.accept_epoch(PEER, "e2")
    _around(s)
    same((s.head(INBOX), len(s.store.gaps())), (4, 1), "the head, and gaps")
    s.receive(gaps=[loss(3, 5, at=9.0)])
    same((s.head(INBOX), len(s.store.gaps())), (5, 2), "the head, and gaps, after another loss")


@check()
def peers_lose_on_their_own(s: FactStoreSubject) -> None:
    """The same loss of another peer is another one."""
    s.receive(gaps=[loss(1, 2)])
    s.receive(gaps=[loss(1, 2)], peer="c")
    found = [(gap.log, gap.first) for gap in s.store.gaps()]
    same(found, [("inbound:c", 1), (INBOX, 1)], "gaps")


@check()
def loss_here_is_not_that_of_a_peer(s: FactStoreSubject) -> None:
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
def peer_loss_outlives_the_payload(s: FactStoreSubject) -> None:
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
def peer_loss_does_not_hold_retention_up(s: FactStoreSubject) -> None:
    """Confirmed, it goes with the facts around it."""
    s.consumer("c", INBOX)
    _around(s)
    s.done(4)
    same(s.store.truncate(INBOX, 4), 4, "dropped")
    s.receive(sent("g", 7))
    same((s.served(), s.serve().page.gaps), ([5], []), "what comes then")


@check()
def peer_loss_wakes(s: FactStoreSubject) -> None:
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
def log_with_a_peer_loss_is_sound(s: FactStoreSubject) -> None:
    """The hash chain goes through it."""
    _around(s)
    found = list(s.store.verify(INBOX))
    same([each for each in found if isinstance(each, Corruption)], [], "flaws")
    same(found[-1], 4, "the offset reached")
    before, behind = s.page(2, log=INBOX).chain, s.page(3, log=INBOX).chain
    expect(before and behind and before != behind, "the chain does not depend on the loss")


@check("corrupt")
def damage_does_not_hide_a_loss(s: FactStoreSubject) -> None:
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
def peer_losses_survive(s: FactStoreSubject) -> None:
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


@check()
def store_tells_which_it_is(s: FactStoreSubject) -> None:
    """A store has a zone, an epoch that stays, and the instant of its making."""
    info = s.store.info()
    expect(info.zone and info.epoch, f"zone {info.zone!r}, epoch {info.epoch!r}")
    expect(abs(info.created_at - s.clock()) < 0.002, f"created_at is {info.created_at}")
    s.clock.forward(60.0)
    s.put("a")
    same(s.store.info(), info, "the store, asked later")


@check()
def fresh_link(s: FactStoreSubject) -> None:
    """A peer never pulled from has a link at the very start, and asking does not make it."""
    link = s.store.link(PEER)
    told = link.peer, link.epoch, link.offset, link.chain, link.is_sealed
    same(told, (PEER, None, 0, b"", False), "the link")
    same(s.store.links(), [], "links")


@check()
def sealed_link(s: FactStoreSubject) -> None:
    """A sealed link says so and why; the frontier stays where it was."""
    s.receive(sent("a", 5))
    sealed = s.store.seal(PEER, "maintenance")
    told = sealed.is_sealed, sealed.reason, sealed.offset, sealed.epoch
    same(told, (True, "maintenance", 5, "e1"), "is_sealed, reason, offset, epoch")
    same(s.store.link(PEER), sealed, "the link, asked for later")


@check()
def unused_link_may_be_sealed(s: FactStoreSubject) -> None:
    """A link can be sealed before it was ever used, and is listed from then on."""
    s.store.seal(PEER, "not yet")
    found = [(e.peer, e.is_sealed, e.offset) for e in s.store.links()]
    same(found, [(PEER, True, 0)], "links")


@check()
def seal_is_sticky(s: FactStoreSubject) -> None:
    """A pull that was under way does not break the seal."""
    s.store.seal(PEER, "maintenance")
    s.receive(sent("a", 5), is_sealed=False, reason="")
    link = s.store.link(PEER)
    told = link.is_sealed, link.reason, link.offset
    same(told, (True, "maintenance", 5), "is_sealed, reason, offset")


@check()
def pull_does_not_seal(s: FactStoreSubject) -> None:
    """Only an operator seals: what a puller says about it is not listened to."""
    s.receive(sent("a", 1), is_sealed=True, reason="no")
    same((s.store.link(PEER).is_sealed, s.store.link(PEER).reason), (False, ""), "seal, reason")


@check()
def sealing_twice_is_fine(s: FactStoreSubject) -> None:
    """A link that is sealed twice is opened once."""
    s.store.seal(PEER, "one")
    same(s.store.seal(PEER, "two").is_sealed, True, "is_sealed")
    same(s.store.open(PEER).is_sealed, False, "is_sealed after opening")


@check()
def opened_link(s: FactStoreSubject) -> None:
    """An opened link goes on where it was; opening what is open is fine."""
    s.receive(sent("a", 5))
    s.store.seal(PEER, "maintenance")
    for _ in range(2):
        link = s.store.open(PEER)
        same((link.is_sealed, link.reason, link.offset), (False, "", 5), "seal, reason, offset")
    same(s.store.open("nobody").is_sealed, False, "a link that was never used")


@check()
def zone_has_a_seal(s: FactStoreSubject) -> None:
    """The whole zone is sealed under the empty name, and no single link is touched by that."""
    s.receive(sent("a", 1))
    s.store.seal("", "fire drill")
    found = [(e.peer, e.is_sealed) for e in s.store.links()]
    same(found, [("", True), (PEER, False)], "links by peer")
    same(s.store.open("").is_sealed, False, "after opening")


@check()
def appends_do_not_mind_seals(s: FactStoreSubject) -> None:
    """A seal never stands in the way of an append, nor of a consumer."""
    s.store.seal("", "fire drill")
    s.store.seal(PEER, "maintenance")
    s.consumer()
    same((s.put("a"), s.served()), ([1], [1]), "the offset, and what comes")


@check()
def epoch_is_accepted(s: FactStoreSubject) -> None:
    """A trusted new epoch starts the frontier anew, and keeps seal and facts."""
    s.receive(sent("a", 5), chain=b"\x01" * 32)
    s.store.seal(PEER, "it was restored")
    link = s.store.accept_epoch(PEER, "e2")
    told = link.epoch, link.offset, link.chain, link.is_sealed
    same(told, ("e2", 0, b"", True), "epoch, offset, chain, is_sealed")
    same((s.store.link(PEER), s.ids(INBOX)), (link, ["a"]), "the link later, and the log")


@check()
def accepted_epoch_doubles_nothing(s: FactStoreSubject) -> None:
    """What is pulled once more from the start is known by its id, whatever its offset is now."""
    s.receive(sent("a", 5), sent("b", 6))
    s.store.accept_epoch(PEER, "e2")
    s.receive(sent("b", 1), sent("c", 2), epoch="e2")
    same(s.ids(INBOX), ["a", "b", "c"], "the log")
    same((s.store.link(PEER).epoch, s.store.link(PEER).offset), ("e2", 2), "epoch and offset")


@check()
def accepted_epoch_doubles_no_item(s: FactStoreSubject) -> None:
    """What was set aside is not set aside once more when it is pulled once more."""
    pulled = sent("a", 5), sent("a", 6, fact=b"{}")
    s.receive(*pulled)
    s.store.accept_epoch(PEER, "e2")
    s.receive(*pulled, epoch="e2")
    same(len(s.store.quarantine()), 1, "items")


@check()
def epoch_may_be_forgotten(s: FactStoreSubject) -> None:
    """Trusting whatever comes next is possible, also for a peer never met."""
    s.receive(sent("a", 5))
    same(s.store.accept_epoch(PEER, None).epoch, None, "epoch")
    same(s.store.accept_epoch("new", "e9").epoch, "e9", "epoch of a new peer")


@check()
def journal_is_newest_first(s: FactStoreSubject) -> None:
    """What operators did is listed newest first, with the instant, the peer and the reason."""
    began = s.clock()
    s.store.seal(PEER, "maintenance")
    s.clock.forward(5.0)
    s.store.open(PEER)
    s.clock.forward(5.0)
    s.store.accept_epoch(PEER, "e2")
    journal = s.store.journal()
    same([round(at - began) for at, _, _ in journal], [10, 5, 0], "seconds since the first")
    expect(all(PEER in text for _, _, text in journal), f"the peer is not named: {journal}")
    expect("maintenance" in journal[2][2], f"the reason is not named: {journal[2]}")
    expect("e2" in journal[0][2], f"the epoch is not named: {journal[0]}")
    words = [action for _, action, _ in journal]
    for word, action in zip(("epoch", "open", "seal"), words, strict=True):
        expect(word in action, f"the action {action!r} does not say {word!r}")


@check()
def journal_is_bounded(s: FactStoreSubject) -> None:
    """No more of the journal is listed than asked for."""
    for n in range(5):
        s.store.seal(PEER, f"reason-{n}")
    found = s.store.journal(2)
    same(len(found), 2, "entries")
    expect("reason-4" in found[0][2], f"the newest is {found[0]}")


@check()
def journal_is_for_operators(s: FactStoreSubject) -> None:
    """Everyday work is not written into the journal."""
    s.consumer()
    s.put(*"abc")
    s.done(3)
    s.store.truncate("outbound", 1)
    s.receive(sent("a", 1))
    same(s.store.journal(), [], "the journal")
