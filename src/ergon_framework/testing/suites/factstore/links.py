"""Checks of links: seals that stay, epochs that are trusted on purpose, and the journal."""

from __future__ import annotations

from ergon_framework.testing.suites.factstore.subject import INBOX, PEER, Subject, same, sent
from ergon_framework.testing.suites.framework import Check, expect, register

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def store_tells_which_it_is(s: Subject) -> None:
    """A store has a zone, an epoch that stays, and the instant of its making."""
    info = s.store.info()
    expect(info.zone and info.epoch, f"zone {info.zone!r}, epoch {info.epoch!r}")
    expect(abs(info.created_at - s.clock()) < 0.002, f"created_at is {info.created_at}")
    s.clock.forward(60.0)
    s.put("a")
    same(s.store.info(), info, "the store, asked later")


@check()
def fresh_link(s: Subject) -> None:
    """A peer never pulled from has a link at the very start, and asking does not make it."""
    link = s.store.link(PEER)
    told = link.peer, link.epoch, link.offset, link.chain, link.is_sealed
    same(told, (PEER, None, 0, b"", False), "the link")
    same(s.store.links(), [], "links")


@check()
def sealed_link(s: Subject) -> None:
    """A sealed link says so and why; the frontier stays where it was."""
    s.receive(sent("a", 5))
    sealed = s.store.seal(PEER, "maintenance")
    told = sealed.is_sealed, sealed.reason, sealed.offset, sealed.epoch
    same(told, (True, "maintenance", 5, "e1"), "is_sealed, reason, offset, epoch")
    same(s.store.link(PEER), sealed, "the link, asked for later")


@check()
def unused_link_may_be_sealed(s: Subject) -> None:
    """A link can be sealed before it was ever used, and is listed from then on."""
    s.store.seal(PEER, "not yet")
    found = [(e.peer, e.is_sealed, e.offset) for e in s.store.links()]
    same(found, [(PEER, True, 0)], "links")


@check()
def seal_is_sticky(s: Subject) -> None:
    """A pull that was under way does not break the seal."""
    s.store.seal(PEER, "maintenance")
    s.receive(sent("a", 5), is_sealed=False, reason="")
    link = s.store.link(PEER)
    told = link.is_sealed, link.reason, link.offset
    same(told, (True, "maintenance", 5), "is_sealed, reason, offset")


@check()
def pull_does_not_seal(s: Subject) -> None:
    """Only an operator seals: what a puller says about it is not listened to."""
    s.receive(sent("a", 1), is_sealed=True, reason="no")
    same((s.store.link(PEER).is_sealed, s.store.link(PEER).reason), (False, ""), "seal, reason")


@check()
def sealing_twice_is_fine(s: Subject) -> None:
    """A link that is sealed twice is opened once."""
    s.store.seal(PEER, "one")
    same(s.store.seal(PEER, "two").is_sealed, True, "is_sealed")
    same(s.store.open(PEER).is_sealed, False, "is_sealed after opening")


@check()
def opened_link(s: Subject) -> None:
    """An opened link goes on where it was; opening what is open is fine."""
    s.receive(sent("a", 5))
    s.store.seal(PEER, "maintenance")
    for _ in range(2):
        link = s.store.open(PEER)
        same((link.is_sealed, link.reason, link.offset), (False, "", 5), "seal, reason, offset")
    same(s.store.open("nobody").is_sealed, False, "a link that was never used")


@check()
def zone_has_a_seal(s: Subject) -> None:
    """The whole zone is sealed under the empty name, and no single link is touched by that."""
    s.receive(sent("a", 1))
    s.store.seal("", "fire drill")
    found = [(e.peer, e.is_sealed) for e in s.store.links()]
    same(found, [("", True), (PEER, False)], "links by peer")
    same(s.store.open("").is_sealed, False, "after opening")


@check()
def appends_do_not_mind_seals(s: Subject) -> None:
    """A seal never stands in the way of an append, nor of a consumer."""
    s.store.seal("", "fire drill")
    s.store.seal(PEER, "maintenance")
    s.consumer()
    same((s.put("a"), s.served()), ([1], [1]), "the offset, and what comes")


@check()
def epoch_is_accepted(s: Subject) -> None:
    """A trusted new epoch starts the frontier anew, and keeps seal and facts."""
    s.receive(sent("a", 5), chain=b"\x01" * 32)
    s.store.seal(PEER, "it was restored")
    link = s.store.accept_epoch(PEER, "e2")
    told = link.epoch, link.offset, link.chain, link.is_sealed
    same(told, ("e2", 0, b"", True), "epoch, offset, chain, is_sealed")
    same((s.store.link(PEER), s.ids(INBOX)), (link, ["a"]), "the link later, and the log")


@check()
def accepted_epoch_doubles_nothing(s: Subject) -> None:
    """What is pulled once more from the start is known by its id, whatever its offset is now."""
    s.receive(sent("a", 5), sent("b", 6))
    s.store.accept_epoch(PEER, "e2")
    s.receive(sent("b", 1), sent("c", 2), epoch="e2")
    same(s.ids(INBOX), ["a", "b", "c"], "the log")
    same((s.store.link(PEER).epoch, s.store.link(PEER).offset), ("e2", 2), "epoch and offset")


@check()
def accepted_epoch_doubles_no_item(s: Subject) -> None:
    """What was set aside is not set aside once more when it is pulled once more."""
    pulled = sent("a", 5), sent("a", 6, fact=b"{}")
    s.receive(*pulled)
    s.store.accept_epoch(PEER, "e2")
    s.receive(*pulled, epoch="e2")
    same(len(s.store.quarantine()), 1, "items")


@check()
def epoch_may_be_forgotten(s: Subject) -> None:
    """Trusting whatever comes next is possible, also for a peer never met."""
    s.receive(sent("a", 5))
    same(s.store.accept_epoch(PEER, None).epoch, None, "epoch")
    same(s.store.accept_epoch("new", "e9").epoch, "e9", "epoch of a new peer")


@check()
def journal_is_newest_first(s: Subject) -> None:
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
def journal_is_bounded(s: Subject) -> None:
    """No more of the journal is listed than asked for."""
    for n in range(5):
        s.store.seal(PEER, f"reason-{n}")
    found = s.store.journal(2)
    same(len(found), 2, "entries")
    expect("reason-4" in found[0][2], f"the newest is {found[0]}")


@check()
def journal_is_for_operators(s: Subject) -> None:
    """Everyday work is not written into the journal."""
    s.consumer()
    s.put(*"abc")
    s.done(3)
    s.store.truncate("outbound", 1)
    s.receive(sent("a", 1))
    same(s.store.journal(), [], "the journal")
