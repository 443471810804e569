"""Checks of receiving: what a peer sent is inserted where it is absent, in one commit."""

from __future__ import annotations

from dataclasses import replace

from ergon_framework.ports.factstore import OUTBOUND, Appended, Conflict, Link, Quarantined
from ergon_framework.testing.suites.factstore.references import MISSING, is_marked
from ergon_framework.testing.suites.factstore.subject import (
    INBOX,
    PEER,
    Subject,
    added,
    same,
    sent,
)
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
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
def received_facts_lie_in_their_log(s: Subject) -> None:
    """What a peer sent lies in its inbound log with dense offsets, and knows where it came from."""
    found = s.receive(sent("a", 3), sent("b", 7))
    same([added(each) for each in found], [1, 2], "offsets")
    told = [(fact.offset, fact.source_offset) for fact in s.page(log=INBOX).facts]
    same(told, [(1, 3), (2, 7)], "offset and source_offset")
    same((s.ids(INBOX), s.head()), (["a", "b"], 0), "the log, and the head of outbound")


@check()
def link_moves_with_the_facts(s: Subject) -> None:
    """The link stands where the puller said, and is read back whole."""
    link = Link(PEER, "e1", 9, b"\x01" * 32)
    s.store.receive(PEER, [sent("a", 7)], link)
    found = s.store.link(PEER)
    told = found.peer, found.epoch, found.offset, found.chain
    same(told, (PEER, "e1", 9, b"\x01" * 32), "peer, epoch, offset, chain")
    same(s.store.links(), [found], "links")


@check()
def link_moves_without_facts(s: Subject) -> None:
    """A page that held nothing of this zone's view moves the link all the same."""
    same(s.receive(offset=40), [], "outcomes")
    same(s.store.link(PEER).offset, 40, "offset")


@check()
def received_twice_is_stored_once(s: Subject) -> None:
    """A page that comes again, as after a lost confirmation, adds nothing."""
    s.receive(sent("a", 1), sent("b", 2))
    found = s.receive(sent("a", 1), sent("b", 2), sent("c", 3))
    told = [(e.offset, e.is_duplicate) for e in found if isinstance(e, Appended)]
    same(told, [(1, True), (2, True), (3, False)], "offset and is_duplicate")
    same(s.ids(INBOX), ["a", "b", "c"], "the log")


@check()
def received_again_after_truncation(s: Subject) -> None:
    """What was received and dropped since is not inserted a second time."""
    s.receive(sent("a", 1), sent("b", 2))
    s.consumer("c", INBOX)
    s.done(2)
    same(s.store.truncate(INBOX, 2), 2, "dropped")
    s.receive(sent("a", 1))
    same((s.ids(INBOX), s.head(INBOX)), ([], 2), "the log, and its head")


@check()
def conflict_from_a_peer_is_set_aside(s: Subject) -> None:
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
def conflict_within_a_page(s: Subject) -> None:
    """Of two contents under one id in one page, the first counts and the second is set aside."""
    s.receive(sent("a", 1), sent("a", 2, fact=b"{}"))
    same((s.ids(INBOX), len(s.store.quarantine())), (["a"], 1), "the log, items")


@check()
def refused_facts_are_set_aside(s: Subject) -> None:
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
def refused_items_can_be_settled(s: Subject) -> None:
    """An operator decides about what the puller set aside as about everything else."""
    s.store.receive(PEER, [], Link(PEER), [_refused(2), _refused(3)])
    first, second = s.store.quarantine()
    same(s.store.settle(first.id, "released").fact, b'{"f":1}', "the payload of the released")
    s.store.settle(second.id, "discarded")
    found = [e.state for e in s.store.quarantine(state=None)]
    same(found, ["released", "discarded"], "states")


@check()
def references_of_a_peer_are_not_checked(s: Subject) -> None:
    """A received fact enters whether its objects are here or not, and marks those that are."""
    there = s.bind("k")
    found = s.receive(sent("a", 1, references=(there,)), sent("b", 2, references=(MISSING,)))
    same([added(each) for each in found], [1, 2], "offsets")
    same(is_marked(s, "k"), True, "the object is marked")
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")


@check()
def late_object_of_a_peer_is_no_orphan(s: Subject) -> None:
    """An object that comes after the fact that refers to it is referred to from the start."""
    there = s.bind("k")
    s.store.unbind("files", "k")
    s.receive(sent("a", 1, references=(there,)))
    s.bind("k")
    same(s.store.orphans(s.clock() + 1.0), [], "orphans")
    s.refused(lambda: s.store.unbind("files", "k"), "referenced")


@check()
def peers_have_logs_of_their_own(s: Subject) -> None:
    """Facts of two peers, and their links, do not meet."""
    s.receive(sent("a", 1))
    s.receive(sent("a", 5, from_zone="c"), peer="c")
    same((s.ids(INBOX), s.ids("inbound:c")), (["a"], ["a"]), "the logs")
    same([(e.peer, e.offset) for e in s.store.links()], [("c", 5), (PEER, 1)], "links")


@check()
def relayed_facts_keep_their_zone(s: Subject) -> None:
    """Facts that a peer passes on for others are known by the zone that asserted them."""
    s.receive(sent("a", 1), sent("a", 2, from_zone="c"))
    same([f.from_zone for f in s.page(log=INBOX).facts], [PEER, "c"], "from_zone")


@check()
def received_facts_are_served(s: Subject) -> None:
    """Consumers read an inbound log like any other."""
    s.consumer("c", INBOX)
    s.receive(sent("a", 4), sent("b", 6))
    facts = s.serve().page.facts
    same([(f.offset, f.previous, f.source_offset) for f in facts], [(1, 0, 4), (2, 1, 6)], "facts")
    same(s.store.find(PEER, "b", INBOX) is not None, True, "it is found by its id")


@check()
def pull_does_not_hold_retention_up(s: Subject) -> None:
    """What the puller set aside lies in quarantine itself: the log need not be kept for it."""
    s.consumer("c", INBOX)
    link = Link(PEER, "e1", 3)
    s.store.receive(PEER, [sent("a", 1), sent("b", 2)], link, [_refused(1)])
    s.done(2)
    same(s.store.truncate(INBOX, 2), 2, "dropped")
    same(s.store.truncate(OUTBOUND, 2), 0, "dropped of outbound")


@check()
def late_page_moves_no_link_back(s: Subject) -> None:
    """A page that another node of the zone has overtaken changes neither frontier nor epoch."""
    s.receive(sent("a", 5), sent("b", 9))
    same([each.is_duplicate for each in s.receive(sent("a", 5))], [True], "is_duplicate")  # type: ignore[union-attr]
    link = s.store.link(PEER)
    same((link.epoch, link.offset), ("e1", 9), "epoch and offset after a late page")
    s.store.accept_epoch(PEER, "e2")
    s.receive(sent("a", 5))
    link = s.store.link(PEER)
    same((link.epoch, link.offset), ("e2", 0), "epoch and offset of an epoch that was accepted")
