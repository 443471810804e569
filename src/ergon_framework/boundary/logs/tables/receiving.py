"""What a peer sent, and what it lost, on the way into its inbound log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ergon_framework.boundary.logs import losses
from ergon_framework.boundary.logs.records import Prepared, prepare
from ergon_framework.boundary.logs.refusing import conflicting
from ergon_framework.boundary.logs.tables import quarantine
from ergon_framework.boundary.logs.tables.entering import Entry
from ergon_framework.boundary.logs.tables.ground import Books
from ergon_framework.boundary.logs.tables.links import link_to
from ergon_framework.boundary.logs.tables.rows import log_or_new
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


@dataclass(slots=True)
class Arrival:
    """A page of a peer and all that can be worked out before a transaction begins."""

    link: Link
    log: str
    entries: list[losses.Entry]
    prepared: list[Prepared]
    refused: Sequence[Quarantined]


def arrival(
    peer: str,
    facts: Sequence[NewFact],
    link: Link,
    refused: Sequence[Quarantined],
    gaps: Sequence[Gap],
) -> Arrival:
    """Put facts and losses in order, and prepare them."""
    log = INBOUND + peer
    entries = losses.in_order(facts, gaps)
    new = [losses.marker(each) if isinstance(each, Gap) else each for each in entries]
    return Arrival(link, log, entries, [prepare(log, each) for each in new], refused)


def take_in(books: Books, entry: Entry, peer: str, arrived: Arrival, now: float) -> list[Outcome]:
    """Insert what is absent, set the rest aside, move the link; the outcomes of the facts."""
    outcomes: list[Outcome] = []
    found = entry.receive(arrived.log, arrived.prepared) if arrived.prepared else []
    for each, outcome in zip(arrived.entries, found, strict=True):
        if isinstance(each, Gap):
            _record(books, arrived.log, each, outcome)
            continue
        outcomes.append(outcome)
        if isinstance(outcome, Conflict):
            quarantine.keep(books, conflicting(peer, arrived.log, each, now))
    for item in arrived.refused:
        quarantine.keep(books, item, consumer=f"pull:{peer}")
    link = arrived.link
    if leads_to(link_to(books, peer), link):
        books.run("store.move", peer, link.epoch, link.offset, link.chain, link.at)
    return outcomes


def _record(books: Books, log: str, gap: Gap, outcome: Outcome) -> None:
    """Write a loss down where its marker lies, unless it is there already."""
    if not isinstance(outcome, Appended) or outcome.is_duplicate:
        return
    kept = losses.recorded(gap, log, outcome.offset)
    place = (log_or_new(books, log).id, kept.first, kept.last)
    about = (kept.reason, kept.at, kept.source_first, kept.source_last)
    books.run("logs.add_peer_gap", *place, *about)
