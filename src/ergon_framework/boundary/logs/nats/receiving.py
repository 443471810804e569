"""What a peer sent, and what it lost, on the way into its inbound log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ergon_framework.boundary.logs import losses
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Item
from ergon_framework.boundary.logs.nats.entering import Entering
from ergon_framework.boundary.logs.nats.ground import MANY, Ground
from ergon_framework.boundary.logs.nats.quarantine import keep_whole
from ergon_framework.boundary.logs.records import Prepared, prepare
from ergon_framework.boundary.logs.refusing import conflicting
from ergon_framework.boundary.logs.watching import tell_head
from ergon_framework.core.frontier import leads_to
from ergon_framework.ports.factstore import (
    INBOUND,
    Appended,
    Conflict,
    Gap,
    Link,
    NewFact,
    Outcome,
    Quarantined,
)

MOST_MESSAGES = 600
"""Of the entries of one commit: each may bring a gap, an item and names of objects along."""
MOST_ITEMS = 150
"""Of one commit."""


@dataclass(slots=True)
class _Arrival:
    """An entry of a peer's page."""

    entry: losses.Entry
    fact: Prepared


class NatsReceiving(Ground):
    """The part of the store that takes in what peers have."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[Outcome]:
        """Insert what a peer sent and lost where it is absent, and move the link.

        A page that is too large for one commit is taken in by several, in order; the link moves
        with the last one, so that all of the page comes again if that is never made.
        """
        log, arrived = INBOUND + peer, list[_Arrival]()
        for each in losses.in_order(facts, gaps):
            new = losses.marker(each) if isinstance(each, Gap) else each
            arrived.append(_Arrival(each, prepare(log, new)))
        self._refer_ahead((each.fact for each in arrived), "receive", is_awaited=True)
        outcomes: list[Outcome] = []
        *parts, last = _parts(arrived)
        for part in parts:
            outcomes += self._take_in(peer, part, None, ())
        while len(refused) > MOST_ITEMS:
            self._take_in(peer, (), None, refused[:MOST_ITEMS])
            refused = refused[MOST_ITEMS:]
        outcomes += self._take_in(peer, last, link, refused)
        if self._heads_seen is not None:
            tell_head(self._heads_seen, log, outcomes)
        return outcomes

    def _take_in(
        self,
        peer: str,
        arrived: Sequence[_Arrival],
        link: Link | None,
        refused: Sequence[Quarantined],
    ) -> list[Outcome]:
        def work(books: Books) -> list[Outcome]:
            now, log = self._clock(), INBOUND + peer
            known = books.known([each.fact.key for each in arrived], [log])
            entering = Entering(books, now, known)
            outcomes: list[Outcome] = []
            for each in arrived:
                outcome = entering.receive(log, each.fact)
                if isinstance(each.entry, Gap):
                    _record(books, log, each.entry, outcome)
                    continue
                outcomes.append(outcome)
                if isinstance(outcome, Conflict):
                    _keep(books, peer, conflicting(peer, log, each.entry, now))
            for item in refused:
                _keep(books, peer, item)
            if link is not None:
                _move(books, peer, link)
            return outcomes

        return self._step(work, "receive")


def _parts(arrived: Sequence[_Arrival]) -> list[list[_Arrival]]:
    """Entries in order, in parts that fit into one commit."""
    parts, size = [list[_Arrival]()], 0
    for each in arrived:
        weight = 5 + min(len(each.fact.new.references), MANY)
        if parts[-1] and size + weight > MOST_MESSAGES:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += weight
    return parts


def _record(books: Books, log: str, gap: Gap, outcome: Outcome) -> None:
    """A loss of the peer that is new becomes a gap of the inbound log."""
    if not isinstance(outcome, Appended) or outcome.is_duplicate:
        return
    books.shelf_or_new(log).gaps += 1
    subject = books.subjects.gap(log, outcome.offset, is_ours=False)
    books.put(subject, losses.recorded(gap, log, outcome.offset))


def _keep(books: Books, peer: str, item: Quarantined) -> None:
    values = {each.name: getattr(item, each.name) for each in fields(Quarantined)}
    keep_whole(books, Item(**{**values, "id": 0, "consumer": f"pull:{peer}"}))


def _move(books: Books, peer: str, link: Link) -> None:
    subject = books.subjects.link(peer)
    kept = books.get(Link, subject) or Link(peer)
    moved = replace(link, peer=peer, is_sealed=kept.is_sealed, reason=kept.reason)
    if leads_to(kept, link) and moved != books.get(Link, subject):
        books.put(subject, moved)
